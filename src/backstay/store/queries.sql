-- name: find
select key
from workflow
where namespace = ?
  and workflow_id = ?

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

-- name: written_in_future
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

-- name: mismatched
-- One page of the sweep: `expects` is how many task rows the last decision left. A run that is open needs something to
-- move it: a task, a wake, or something from outside.
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
    and outside = 0
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

-- name: count_by_status
select status, archived_at is not null, count(*)
from run
where namespace = ?
group by 1, 2

-- name: event_types
select type, count(*)
from event
where run in (select key from run where namespace = ? and closed_at is null)
group by type

-- name: history_sizes
select count(*) filter (where events >= ? or size >= ?), max(events), max(size)
from (
  select count(*) as events, sum(length(type) + length(body)) as size
  from event
  where run in (select key from run where namespace = ? and closed_at is null)
  group by run
) as history

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

-- name: forget
delete from registry
where kind = ?
  and namespace = ?
  and name = ?

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
