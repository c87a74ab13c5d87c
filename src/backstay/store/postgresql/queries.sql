-- name: find_all
select workflow_id, key
from workflow
where namespace = $2
  and workflow_id = any($1::text[])

-- name: load
-- One statement sees one moment: the row, its run, its tasks and its history belong together.
select w.key, w.namespace, w.workflow_id, w.workflow_type, w.last, w.run, w.command_sequence, w.cursor, w.next_wake, w.expects,
  w.length, w.checksum, w.reserved_at, w.outside, w.awaited, w.attempts, w.held,
  r.key, r.workflow, r.run_id, r.number, r.namespace, r.workflow_id, r.workflow_type, r.status, r.closed_reason, r.queue,
  r.connection, r.compatibility, r.business_key, r.labels, r.search_attributes, r.started_at, r.closed_at, r.length,
  r.archived_at,
  array(select body from task where task.workflow = w.key),
  array(
    select row(sequence, type, at, body, context, checksum)
    from event
    where event.run = w.run
    order by sequence
  )
from workflow w
left join run r on r.key = w.run
where w.key = $1

-- name: opening
select w.key, w.namespace, w.workflow_id, w.workflow_type, w.last, w.run, w.command_sequence, w.cursor, w.next_wake, w.expects,
  w.length, w.checksum, w.reserved_at, w.outside, w.awaited, w.attempts, w.held,
  r.key, r.workflow, r.run_id, r.number, r.namespace, r.workflow_id, r.workflow_type, r.status, r.closed_reason, r.queue,
  r.connection, r.compatibility, r.business_key, r.labels, r.search_attributes, r.started_at, r.closed_at, r.length,
  r.archived_at,
  array(select body from task where task.workflow = w.key)
from workflow w
left join run r on r.key = w.run
where w.key = $1

-- name: by_state
select body
from task
where state = $1
  and state <> 'ready'
  and get_byte(?of, (workflow & 255)::int) <> 0 -- of shards

-- name: by_call
select body
from task
where call = $1
  and call is not null

-- name: endless
-- In the order of the index, where they stand together.
select body
from task
where state = 'leased'
  and state <> 'ready'
  and until is null
  and (workflow, id) > ($1, $2)
  and get_byte(?of, (workflow & 255)::int) <> 0 -- of shards
order by until, workflow, id
limit $3

-- name: last
select last
from workflow
where key = $1

-- name: sends_of
select key, sender, namespace, workflow_id, kind, body
from send
where sender = any(string_to_array($1, ',')::bigint[])
order by key

-- name: moved
select asked.key, w.last
from (
  select (pair ->> 0)::bigint as key, (pair ->> 1)::bigint as last
  from json_array_elements($1::json) as pair
) as asked
left join workflow w on w.key = asked.key
where coalesce(w.last, 0) <> asked.last

-- name: sizes
select run, count(*), sum(length(type) + length(body))
from event
where run = any(string_to_array($1, ',')::bigint[])
group by run

-- name: commands
select sequence, request_id, command_type, body
from command
where workflow = $1
order by position
limit $2 offset $3

-- name: last_command
select sequence, request_id, command_type, body
from command
where workflow = $1
  and command_type = $2
order by position desc
limit 1

-- name: command_sizes
select octet_length(body)
from command
where position < $1
order by position desc
limit $2

-- name: command_sizes_of
select octet_length(body)
from command
where workflow = $1
  and position < $2
order by position desc
limit $3

-- name: command_log
select command.position, workflow.namespace, workflow.workflow_id, command.sequence, command.request_id, command.command_type,
  command.body
from command
join workflow on workflow.key = command.workflow
where command.position < $1
order by command.position desc
limit $2

-- name: command_log_of
select command.position, workflow.namespace, workflow.workflow_id, command.sequence, command.request_id, command.command_type,
  command.body
from command
join workflow on workflow.key = command.workflow
where command.workflow = $1
  and command.position < $2
order by command.position desc
limit $3

-- name: keep
insert into registry (kind, namespace, name, body)
values ($1, $2, $3, $4)
on conflict (kind, namespace, name) do update
set body = excluded.body

-- name: others
-- What the other handles have committed so far.
select id, committed
from writer
where committed > 0
  and id <> $1
order by id

-- name: registry_version
select registry
from engine

-- name: move_registry
update engine
set registry = registry + 1

-- name: notices
select key, workflow
from notice
where key >= 0
  and get_byte(?of, (workflow & 255)::int) <> 0 -- of shards
order by key

-- name: forget_notices
-- By key, not up to one: keys are given before their commit, so a smaller one may appear later.
delete from notice
where key = any($1::bigint[])

-- name: lock
-- Held by this session: it goes with the connection, and so does everything that the connection could still have committed.
select pg_try_advisory_lock(($1::bigint << 32) | 'workflow'::regclass::oid::bigint)

-- name: lock_shared
-- By every process that owns shards. Earlier versions have one engine, which takes this lock for itself alone.
select pg_try_advisory_lock_shared(($1::bigint << 32) | 'workflow'::regclass::oid::bigint)

-- name: lock_for_a_moment
-- The same without a session to hold it: whether no process has it for itself alone.
select pg_try_advisory_xact_lock_shared(($1::bigint << 32) | 'workflow'::regclass::oid::bigint)

-- name: owned_without_session
-- Whether a process that is alive owns a shard, and no session shows it.
select exists (
  select 1
  from shard
  join writer on writer.id = shard.owner
  where not fenced
    and not session
    and abs(extract(epoch from clock_timestamp() - seen)) * 1000000 < $1::bigint
)

-- name: has_engine
-- Whether a session has the lock for itself alone, or a process that is alive owns a shard. A lock by one big number is shown as
-- its two halves.
with held as materialized (
  select classid::bigint << 32 | objid::bigint as id, mode
  from pg_locks
  where locktype = 'advisory'
    and database = (select oid from pg_database where datname = current_database())
    and objsubid = 1
    and granted
)
select exists (
  select 1
  from held
  where id = ($1::bigint << 32 | 'workflow'::regclass::oid::bigint)
    and mode = 'ExclusiveLock'
) or exists (
  select 1
  from shard
  join writer on writer.id = shard.owner
  where not fenced
    and abs(extract(epoch from clock_timestamp() - seen)) * 1000000 < $2::bigint
    and not (session and $3::boolean and not exists (select 1 from held where held.id = writer.id))
)

-- name: lock_id
-- By the session that writes: as long as it is there, others see it. Several may have it for a moment, after a lost connection.
select pg_try_advisory_lock_shared($1::bigint)

-- name: lock_probe
select pg_try_advisory_lock($1::bigint)

-- name: unlock_probe
select pg_advisory_unlock($1::bigint)

-- name: id_locked
select exists (
  select 1
  from pg_locks
  where locktype = 'advisory'
    and database = (select oid from pg_database where datname = current_database())
    and (classid::bigint << 32 | objid::bigint) = $1::bigint
    and objsubid = 1
    and granted
)

-- name: look
-- Every process that is a node or owns something; for how long it was silent; whether its session is there; a number that is
-- another one when any owner is, also if that is the owner of before in a database that was restored; what the others that
-- live have committed (so the last commit of one that was fenced since shows, too); the version of the registries; and the
-- time. One that was heard in the future was heard before the server's clock was set back, and not since.
with held as materialized (
  select classid::bigint << 32 | objid::bigint as id
  from pg_locks
  where locktype = 'advisory'
    and database = (select oid from pg_database where datname = current_database())
    and objsubid = 1
    and granted
)
select id, facts, (abs(extract(epoch from clock_timestamp() - seen)) * 1000000)::bigint,
  case when session and $1::boolean then id in (select id from held) end,
  (select sum(term * 1000003 + coalesce(owner, 0) % 2147483647 * (id + 1))::bigint from shard),
  (select array_agg(committed order by id) from writer where committed > 0 and id <> $2 and not fenced),
  (select registry from engine),
  (extract(epoch from clock_timestamp()) * 1000000)::bigint
from writer
where not fenced
  and (facts is not null or id in (select owner from shard))

-- name: shards
select owner, term, clock
from shard
order by id

-- name: alive
update writer
set seen = clock_timestamp(), facts = $2, clock = greatest(clock, $3)
where id = $1
  and not fenced
returning id

-- name: claim
-- The row of the process first, then rows of shards, in their order: as `hand_over`. A shard whose owner changes meanwhile is
-- left out.
with me as (
  update writer
  set seen = clock_timestamp()
  where id = $1
    and not fenced
  returning id
), free as materialized (
  select shard.id, shard.term
  from shard
  where shard.id = any($2::integer[])
    and not exists (select 1 from writer where writer.id = shard.owner and not writer.fenced)
)
update shard
set owner = me.id, term = shard.term + 1
from me, free
where shard.id = free.id
  and shard.term = free.term
returning shard.id, shard.owner, shard.term, shard.clock

-- name: depose
-- Waits for a batch of that process that is under way. Then its row is another one, and is judged again: all of the condition
-- depends on the row.
with dead as (
  update writer
  set fenced = true, batch = batch + 1099511627776
  where id = $1
    and not fenced
    and (
      abs(extract(epoch from clock_timestamp() - seen)) * 1000000 >= $2::bigint
      or (
        $3::boolean
        and session
        and not exists (
          select 1
          from pg_locks
          where locktype = 'advisory'
            and database = (select oid from pg_database where datname = current_database())
            and (classid::bigint << 32 | objid::bigint) = writer.id
            and objsubid = 1
            and granted
        )
      )
    )
  returning id, clock
), freed as (
  update shard
  set owner = null, term = term + 1, clock = greatest(shard.clock, dead.clock)
  from dead
  where shard.owner = dead.id
)
select id
from dead

-- name: hand_over
with me as (
  update writer
  set seen = clock_timestamp(), clock = greatest(clock, $4::bigint)
  where id = $1
    and not fenced
  returning id, clock
)
update shard
set owner = (select id from writer where writer.id = $3::bigint and not writer.fenced), term = term + 1,
  clock = greatest(shard.clock, me.clock)
from me
where shard.id = any($2::integer[])
  and shard.owner = me.id
returning shard.id

-- name: unlock
select pg_advisory_unlock(($1::bigint << 32) | 'workflow'::regclass::oid::bigint)

-- name: begin_term
update engine
set term = term + 1
returning term

-- name: term
select term
from engine

-- name: clock
select (extract(epoch from clock_timestamp()) * 1000000)::bigint

-- name: enrol
insert into writer (id, batch)
values ($1, 0)
on conflict (id) do nothing

-- name: fence
-- Waits until a batch of ours that is still on its way has ended, and shuts out one that is later still.
-- What another process has fenced stays so.
update writer
set batch = $2, seen = clock_timestamp(), session = $3
where id = $1
  and not fenced
returning committed

-- name: standing
-- Whether a handle was fenced, and its last batch; whether it owns shards.
select writer.fenced, writer.committed, exists (select 1 from shard where owner = $1)
from (select) as one
left join writer on writer.id = $1

-- name: left_out
select stale
from outcome
where writer = $1
  and batch = $2

-- name: resign
with gone as (
  delete from writer
  where id = $1
  returning id, clock
), freed as (
  update shard
  set owner = null, term = term + 1, clock = greatest(shard.clock, gone.clock)
  from gone
  where shard.owner = gone.id
)
delete from outcome
where writer = $1

-- name: tidy
-- Handles that ended without resigning. One that is merely quiet enrols again with its next batch. One that owns shards is
-- deposed first: its clock is still needed.
with gone as (
  delete from writer
  where seen < now() - interval '1 day'
    and id <> $1
    and not exists (select 1 from shard where shard.owner = writer.id)
  returning id
)
delete from outcome
where writer in (select id from gone)

-- name: write
-- A whole batch, and its commit, in one round trip. Rows count only if their instance passed its guard: what is left out is
-- told, not failed. If the number of the batch is not the one expected, nothing at all is written. Parts that a batch has no
-- rows for are left out, and with them the lines that say so at their end (`shapes.py`).
with mark as (
  update writer
  set batch = $2, committed = $2, seen = now(), clock = greatest(clock, $103::bigint)
  where id = $1
    and batch = $3
  returning id
), fresh as (
  insert into workflow
    (key, namespace, workflow_id, workflow_type, last, run, command_sequence, cursor, next_wake, expects, length, checksum,
    reserved_at, outside, awaited, attempts, held)
  select n.key, n.namespace, n.workflow_id, n.workflow_type, n.last, n.run, n.command_sequence, n.cursor, n.next_wake,
    n.expects, n.length, n.checksum, n.reserved_at, n.outside, n.awaited, n.attempts, n.held
  from mark, unnest(
    $5::bigint[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[],
    $21::bytea[]
  ) as n (
    key, namespace, workflow_id, workflow_type, last, run, command_sequence, cursor, next_wake, expects, length, checksum,
    reserved_at, outside, awaited, attempts, held
  )
  on conflict do nothing
  returning key
), moved as (
  update workflow w
  set last = g.last, run = g.run, command_sequence = g.command_sequence, cursor = g.cursor, next_wake = g.next_wake,
    expects = g.expects, length = g.length, checksum = g.checksum, outside = g.outside, awaited = g.awaited,
    attempts = g.attempts, held = g.held, workflow_type = g.workflow_type
  from mark, unnest(
    $22::bigint[], $23::bigint[], $24::bigint[], $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[], $29::bigint[],
    $30::bigint[], $31::bigint[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bytea[], $36::text[]
  ) as g (
    key, after, last, run, command_sequence, cursor, next_wake, expects, length, checksum, outside, awaited, attempts, held,
    workflow_type
  )
  where w.key = g.key
    and w.last = g.after
  returning w.key
), passed as (
  select key from fresh -- with fresh
  union all -- with fresh, moved
  select key from moved -- with moved
), opened as (
  insert into run
    (workflow, key, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
    compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at)
  select r.*
  from unnest(
    $37::bigint[], $38::bigint[], $39::text[], $40::bigint[], $41::text[], $42::text[], $43::text[], $44::text[],
    $45::text[], $46::text[], $47::text[], $48::text[], $49::text[], $50::text[], $51::text[], $52::bigint[],
    $53::bigint[], $54::bigint[], $55::bigint[]
  ) as r (
    workflow, key, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
    compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at
  )
  where r.workflow in (select key from passed)
), changed as (
  update run
  set status = c.status, closed_reason = c.closed_reason, search_attributes = c.search_attributes, closed_at = c.closed_at,
    length = c.length, archived_at = c.archived_at
  from unnest(
    $56::bigint[], $57::bigint[], $58::text[], $59::text[], $60::text[], $61::bigint[], $62::bigint[], $63::bigint[]
  ) as c (workflow, key, status, closed_reason, search_attributes, closed_at, length, archived_at)
  where run.key = c.key
    and c.workflow in (select key from passed)
), appended as (
  insert into event (run, sequence, type, at, body, context, checksum)
  select e.run, e.sequence, e.type, e.at, e.body, e.context, e.checksum
  from unnest(
    $64::bigint[], $65::bigint[], $66::bigint[], $67::text[], $68::bigint[], $69::bytea[], $70::bytea[], $71::bigint[]
  ) as e (workflow, run, sequence, type, at, body, context, checksum)
  where e.workflow in (select key from passed)
), put as (
  insert into task (workflow, id, state, available_at, body, until, call, namespace, queue, kind, type, build)
  select t.workflow, t.id, t.state, t.available_at, t.body, t.until, t.call, t.namespace, t.queue, t.kind, t.type, t.build
  from unnest(
    $72::bigint[], $73::text[], $74::text[], $75::bigint[], $76::bytea[], $77::bigint[], $78::bigint[], $79::text[],
    $80::text[], $81::text[], $82::text[], $83::text[]
  ) as t (workflow, id, state, available_at, body, until, call, namespace, queue, kind, type, build)
  where t.workflow in (select key from passed)
  on conflict (workflow, id) do update
  set state = excluded.state, available_at = excluded.available_at, body = excluded.body, until = excluded.until,
    call = excluded.call, namespace = excluded.namespace, queue = excluded.queue, kind = excluded.kind, type = excluded.type,
    build = excluded.build
), dropped as (
  delete from task
  using unnest($84::bigint[], $85::text[]) as d (workflow, id)
  where task.workflow = d.workflow
    and task.id = d.id
    and d.workflow in (select key from passed)
), recorded as (
  -- A clock may be behind the one that the earlier commands of an instance were written by (`positions.py`).
  insert into command (workflow, position, sequence, request_id, command_type, body)
  select c.workflow, greatest(c.position, c.nth + (
    select position
    from command
    where command.workflow = c.workflow
    order by position desc
    limit 1
  )), c.sequence, c.request_id, c.command_type, c.body
  from unnest($86::bigint[], $87::bigint[], $88::bigint[], $89::text[], $90::text[], $91::bytea[])
    with ordinality as c (workflow, position, sequence, request_id, command_type, body, nth)
  where c.workflow in (select key from passed)
), taken as (
  select t.send
  from unnest($92::bigint[], $93::bigint[]) as t (workflow, send)
  where t.workflow in (select key from passed)
), sent as (
  -- What is made and taken in one batch never becomes a row: no part of a statement sees the rows of another.
  insert into send (key, sender, namespace, workflow_id, kind, body)
  select s.key, s.sender, s.namespace, s.workflow_id, s.kind, s.body
  from unnest($94::bigint[], $95::bigint[], $96::bigint[], $97::text[], $98::text[], $99::text[], $100::bytea[])
    as s (workflow, key, sender, namespace, workflow_id, kind, body)
  where s.workflow in (select key from passed)
    and s.key not in (select send from taken) -- with taken
), received as (
  delete from send
  using taken
  where send.key = taken.send
), noticed as (
  insert into notice (key, workflow)
  select $101::bigint + row_number() over (), key
  from passed
  where key = any($102::bigint[])
), left_out as (
  insert into outcome (writer, batch, stale)
  select mark.id, $2, array(
    select key from unnest($4::bigint[]) as asked (key)
    except
    select key from passed
  )
  from mark
  where (select count(*) from passed) < cardinality($4::bigint[])
  on conflict (writer) do update
  set batch = excluded.batch, stale = excluded.stale
)
select (select count(*) from mark), (select array_agg(key) from passed)

-- name: prune
-- Runs that have expired, in one commit. An instance goes with its last run, unless it has something to tell others, or others
-- to it. Its row is locked first: no decision on it commits before this statement ends.
with asked as (
  select asked.workflow, asked.run
  from unnest($1::bigint[], $2::bigint[]) as asked (workflow, run)
), current as (
  select w.key, w.run, awaited > 0
    or exists (select 1 from send where sender = w.key)
    or exists (
      select 1
      from send
      where send.namespace = w.namespace
        and send.workflow_id = w.workflow_id
    ) as owes
  from workflow w
  join asked on asked.workflow = w.key and asked.run = w.run
  for update of w
), over as (
  select key from current where not owes
), gone as (
  select run from asked
  except
  select run from current where owes
), instances as (
  delete from workflow
  using over
  where workflow.key = over.key
), commands as (
  delete from command
  using over
  where command.workflow = over.key
), tasks as (
  delete from task
  using over
  where task.workflow = over.key
), events as (
  delete from event
  using gone
  where event.run = gone.run
), runs as (
  delete from run
  using gone
  where run.key = gone.run
)
select run from current where owes

-- name: summaries
select run, workflow, namespace, run_id, workflow_type, state, attention, liveness, wait_kind, queue, build, task_kind, task_type,
  since, until, sort_timestamp, events, bytes, duration, waits, timeline, timers, lineage, projected, schema, stamp, digest, body,
  reason, error, worker
from workflow_run_summaries
where run = any(string_to_array($1, ',')::bigint[])

-- name: facts
-- The newest run, if it is open, is the current one, whichever the row names.
select key, last,
  coalesce(
    (
      select case when newest.closed_at is null then newest.key end
      from (select key, closed_at from run where run.workflow = workflow.key order by key desc limit 1) newest
    ),
    run
  ),
  next_wake, expects, (select count(*) from task where task.workflow = workflow.key)
from workflow
where key = any(string_to_array($1, ',')::bigint[])

-- name: worn_tasks
select body
from task
where namespace = $1
  and (
    state <> 'ready'
    or position('"attempt":'::bytea in body) > 0
    or position('"repair_count":'::bytea in body) > 0
  )
limit $2

-- name: lost_wakes
select w.key, r.connection, r.queue, r.compatibility, r.started_at
from (
  select workflow, run, stamp, substring(encode(body, 'escape') from '"wake":([0-9]{1,18})')::bigint as wake
  from workflow_run_summaries
  where namespace = $1
    and state in ('blocked', 'paused', 'ready', 'retrying', 'sleeping', 'waiting', 'working')
) as s
join workflow w on w.key = s.workflow and w.run = s.run and w.last = s.stamp
join run r on r.key = s.run
where s.wake is not null
  and coalesce(w.next_wake, s.wake + 1) > s.wake
limit $2
