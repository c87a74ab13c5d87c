-- name: find
select key
from workflow
where namespace = ?
  and workflow_id = ?

-- name: find_all
-- Joined in this order, each name is one look into the index.
select workflow.workflow_id, workflow.key
from json_each(?) as name
cross join workflow
where workflow.namespace = ?
  and workflow.workflow_id = name.value

-- name: load_workflow
select key, namespace, workflow_id, workflow_type, last, run, command_sequence, cursor, next_wake, expects, length, checksum,
  reserved_at, outside, awaited, held
from workflow
where key = ?

-- name: load_tasks
select body
from task
where workflow = ?

-- name: locate
select workflow, key
from run
where run_id = ?
  and namespace = ?

-- name: history
select sequence, type, at, body, context, checksum
from event
where run = ?
  and sequence > ?
order by sequence
limit ?

-- name: last_event
select sequence, type, at, body, context, checksum
from event
where run = ?
order by sequence desc
limit 2

-- name: due
select next_wake, key
from workflow
where next_wake <= ?
order by next_wake, key
limit ?

-- name: ahead
-- Asked once, when an engine comes up. The first condition only tells the planner which index to take.
select next_wake, key
from workflow
where next_wake >= ?
  and (next_wake, key) > (?, ?)
  and (select at from event where event.run = workflow.run and event.sequence = workflow.length) > ?
order by next_wake, key
limit ?

-- name: ready
-- The row value compares like the index is ordered, so a page starts where the last one ended.
select body
from task
where state = 'ready'
  and (available_at, workflow, id) > (?, ?, ?)
order by available_at, workflow, id
limit ?

-- name: by_state
select body
from task
where state = ?

-- name: suspects
-- One page of the sweep: `expects` is how many task rows the last decision left. A run that is open needs something to
-- move it: a task, a wake, or somebody outside.
select key,
  expects <> (
    select count(*)
    from task
    where task.workflow = workflow.key
      and state in ('ready', 'leased', 'failed')
  )
  or (
    expects = 0
    and next_wake is null
    and not outside
    and (select closed_at is null from run where run.key = workflow.run)
  )
from workflow
where key > ?
order by key
limit ?

-- name: run_by_id
select key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at,
  coalesce((select length from workflow where workflow.key = run.workflow and workflow.run = run.key), length), archived_at
from run
where run_id = ?
  and namespace = ?

-- name: run_by_key
select key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at
from run
where key = ?

-- name: newest_run
-- Asked only for an instance whose row does not name it.
select key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at
from run
where workflow = ?
order by number desc
limit 1

-- name: runs
-- A run's own row is not written with every step; how long the history of a current run is, its instance knows.
select key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at,
  coalesce((select length from workflow where workflow.key = run.workflow and workflow.run = run.key), length), archived_at
from run

-- name: census
select status, archived_at is not null, count(*)
from run
where namespace = ?
group by 1, 2

-- name: event_types
select type, count(*)
from event
where run in (select key from run where namespace = ? and closed_at is null)
group by type

-- name: budget
select count(*) filter (where events >= ? or size >= ?), max(events), max(size)
from (
  select count(*) as events, sum(length(type) + length(body)) as size
  from event
  where run in (select key from run where namespace = ? and closed_at is null)
  group by run
) as history

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

-- name: command_by_request
select sequence, request_id, command_type, body
from command
where workflow = ?
  and command_type = ?
  and request_id = ?

-- name: sends
select key, sender, namespace, workflow_id, kind, body
from send
where key > ?
order by key
limit ?

-- name: awaiting
select key
from workflow
where awaited > 0
  and key > ?
order by key
limit ?

-- name: kept
select namespace, name, body
from registry
where kind = ?
order by namespace, name

-- name: keep
insert or replace into registry (kind, namespace, name, body)
values (?, ?, ?, ?)

-- name: forget
delete from registry
where kind = ?
  and namespace = ?
  and name = ?

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
-- Written and taken back in one transaction: the commit writes a page and leaves nothing behind.
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
  reserved_at, outside, awaited, held)
values
  (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), ?, ?, ?, nullif(?, 0), ?, ?, nullif(?, x''))

-- name: guard
update workflow
set last = ?, run = ?, command_sequence = ?, cursor = ?, expects = ?, length = ?, checksum = ?, outside = ?,
  awaited = ?, held = nullif(?, x'')
where key = ?
  and last = ?

-- name: guard_and_wake
-- Apart from `guard` because setting an indexed column rewrites the index even when the value stays.
update workflow
set last = ?, run = ?, command_sequence = ?, cursor = ?, expects = ?, length = ?, checksum = ?, outside = ?,
  awaited = ?, held = nullif(?, x''), next_wake = nullif(?, 0), workflow_type = ?
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

-- name: insert_event
insert into event (run, sequence, type, at, body, context, checksum)
values
  (?, ?, ?, ?, ?, ?, ?)

-- name: put_task
insert or replace into task (workflow, id, state, available_at, body)
values
  (?, ?, ?, ?, ?)

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

-- name: expired
-- Closed runs, the oldest first, by the index on status.
select key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at
from run
where status in ('completed', 'failed', 'cancelled', 'terminated')
  and closed_at < ?
  and namespace = ?
order by closed_at
limit ?

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
