-- name: find_all
-- Joined in this order, each name is one look into the index.
select workflow.workflow_id, workflow.key
from json_each(?) as name
cross join workflow
where workflow.namespace = ?
  and workflow.workflow_id = name.value

-- name: load_workflow
select key, namespace, workflow_id, workflow_type, last, run, command_sequence, cursor, next_wake, expects, length, checksum,
  reserved_at, outside, awaited, attempts, held
from workflow
where key = ?

-- name: by_state
select body
from task
where state = ?

-- name: sizes
select run, count(*), sum(length(type) + length(body))
from event
where run in (select value from json_each('[' || ? || ']'))
group by run

-- name: commands
select sequence, request_id, command_type, body
from command
where workflow = ?
order by rowid
limit ? offset ?

-- name: last_command
select sequence, request_id, command_type, body
from command
where workflow = ?
  and command_type = ?
order by rowid desc
limit 1

-- name: command_sizes
select length(body)
from command
where rowid < ?
order by rowid desc
limit ?

-- name: command_sizes_of
select length(body)
from command
where workflow = ?
  and rowid < ?
order by rowid desc
limit ?

-- name: command_log
-- Joined in this order, the table of commands is read backwards, and never sorted.
select command.rowid, workflow.namespace, workflow.workflow_id, command.sequence, command.request_id, command.command_type,
  command.body
from command
cross join workflow
where workflow.key = command.workflow
  and command.rowid < ?
order by command.rowid desc
limit ?

-- name: command_log_of
select command.rowid, workflow.namespace, workflow.workflow_id, command.sequence, command.request_id, command.command_type,
  command.body
from command
cross join workflow
where workflow.key = command.workflow
  and command.workflow = ?
  and command.rowid < ?
order by command.rowid desc
limit ?

-- name: keep
insert or replace into registry (kind, namespace, name, body)
values (?, ?, ?, ?)

-- name: notices
select key, workflow
from notice
where key > ?
order by key

-- name: forget_notices
delete from notice
where key <= ?

-- name: insert_notice
insert into notice (workflow)
values (?)

-- name: insert_probe
-- Inserted and deleted in one transaction: the commit writes a page and changes nothing.
insert into notice (key, workflow)
values (-1, 0)

-- name: forget_probe
delete from notice
where key = -1

-- name: guard_new
-- An id that exists by now makes its decision stale; the rest of the batch goes on. Here and below, columns that are mostly
-- null are given as 0 or '' instead, which they never are: sqlite3 takes ten times as long to bind None (see rows.py).
insert or ignore into workflow
  (key, namespace, workflow_id, workflow_type, last, run, command_sequence, cursor, next_wake, expects, length, checksum,
  reserved_at, outside, awaited, attempts, held)
values
  (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), ?, ?, ?, nullif(?, 0), ?, ?, ?, nullif(?, x''))

-- name: guard
update workflow
set last = ?, run = ?, command_sequence = ?, cursor = ?, expects = ?, length = ?, checksum = ?, outside = ?,
  awaited = ?, attempts = ?, held = nullif(?, x'')
where key = ?
  and last = ?

-- name: guard_and_wake
-- Apart from `guard` because setting an indexed column rewrites the index even when the value stays.
update workflow
set last = ?, run = ?, command_sequence = ?, cursor = ?, expects = ?, length = ?, checksum = ?, outside = ?,
  awaited = ?, attempts = ?, held = nullif(?, x''), next_wake = nullif(?, 0), workflow_type = ?
where key = ?
  and last = ?

-- name: insert_run
insert into run
  (key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at)
values
  (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''), ?,
  nullif(?, 0), ?, nullif(?, 0))

-- name: update_run
update run
set status = ?, closed_reason = nullif(?, ''), search_attributes = nullif(?, ''), closed_at = nullif(?, 0), length = ?,
  archived_at = nullif(?, 0)
where key = ?

-- name: close_run
-- Without attributes, and so without the trigger for them.
update run
set status = ?, closed_reason = nullif(?, ''), closed_at = ?, length = ?, archived_at = nullif(?, 0)
where key = ?
  and search_attributes is null

-- name: insert_facets
insert or ignore into facet
select run.namespace, 'label:' || one.key, 's:' || one.value, run.key
from run, json_each(run.labels) as one
where run.key = ?
  and run.labels is not null
union all
select run.namespace, 'attribute:' || one.key,
  case one.type
    when 'text' then 's:' || one.value
    when 'true' then 'b:1'
    when 'false' then 'b:0'
    else 'n:' || cast(one.value as real)
  end, run.key
from run, json_each(run.search_attributes) as one
where run.key = ?
  and run.search_attributes is not null
  and one.type in ('text', 'true', 'false', 'integer', 'real')

-- name: insert_event
insert into event (run, sequence, type, at, body, context, checksum)
values
  (?, ?, ?, ?, ?, ?, ?)

-- name: endless
-- The words of a body are its JSON: no text in it has an unescaped quote. Only for the sweep: it reads the tasks in between.
select body
from task
where state = 'leased'
  and instr(body, cast('"until":' as blob)) = 0
  and (workflow, id) > (?, ?)
order by workflow, id
limit ?

-- name: sends_of
select key, sender, namespace, workflow_id, kind, body
from send
where sender in (select value from json_each('[' || ? || ']'))
order by key

-- name: last
select last
from workflow
where key = ?

-- name: moved
select json_extract(value, '$[0]'), workflow.last
from json_each(?)
left join workflow on workflow.key = json_extract(value, '$[0]')
where coalesce(workflow.last, 0) <> json_extract(value, '$[1]')

-- name: put_task
-- A leased one: no query asks which workers it waits for.
insert or replace into task (workflow, id, state, available_at, body, namespace)
values
  (?, ?, ?, ?, ?, ?)

-- name: put_ready_task
insert or replace into task (workflow, id, state, available_at, body, namespace, queue, kind, type, build)
values
  (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_task
delete from task
where workflow = ?
  and id = ?

-- name: insert_command
insert into command (workflow, sequence, request_id, command_type, body)
values
  (?, ?, ?, ?, ?)

-- name: insert_send
insert into send (key, sender, namespace, workflow_id, kind, body)
values
  (?, ?, ?, ?, ?, ?)

-- name: take_send
delete from send
where key = ?

-- name: owed
-- What this instance has to tell others, or others to it: while there is any, it stays.
select 1
from workflow
where key = ?
  and (
    awaited > 0
    or exists (select 1 from send where sender = workflow.key)
    or exists (
      select 1
      from send
      where send.namespace = workflow.namespace
        and send.workflow_id = workflow.workflow_id
    )
  )

-- name: forget_instance
-- Only while the run that has expired is still its last one.
delete from workflow
where key = ?
  and run = ?

-- name: forget_commands
delete from command
where workflow = ?

-- name: forget_tasks
delete from task
where workflow = ?

-- name: forget_events
delete from event
where run = ?

-- name: forget_run
delete from run
where key = ?

-- name: is_current
select 1
from workflow
where key = ?
  and run = ?

-- name: summaries
select run, workflow, namespace, run_id, workflow_type, state, attention, liveness, wait_kind, queue, build, task_kind, task_type,
  since, until, sort_timestamp, events, bytes, duration, waits, timeline, timers, lineage, projected, schema, stamp, digest, body,
  reason, error, worker
from workflow_run_summaries
where run in (select value from json_each('[' || ? || ']'))

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
where key in (select value from json_each('[' || ? || ']'))

-- name: worn_tasks
select body
from task
where namespace = ?
  and (
    state <> 'ready'
    or instr(body, cast('"attempt":' as blob)) > 0
    or instr(body, cast('"repair_count":' as blob)) > 0
  )
limit ?

-- name: lost_wakes
select w.key, r.connection, r.queue, r.compatibility, r.started_at
from (
  select workflow, run, stamp, case when json_valid(cast(body as text)) then json_extract(cast(body as text), '$.wake') end as wake
  from workflow_run_summaries
  where namespace = ?
    and state in ('blocked', 'paused', 'ready', 'retrying', 'sleeping', 'waiting', 'working')
) as s
join workflow w on w.key = s.workflow and w.run = s.run and w.last = s.stamp
join run r on r.key = s.run
where s.wake is not null
  and coalesce(w.next_wake, s.wake + 1) > s.wake
limit ?
