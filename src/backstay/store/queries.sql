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
  and get_byte(?of, (key & 255)::int) <> 0 -- of shards
order by next_wake, key
limit ?

-- name: written_in_future
-- Asked once, when an engine comes up. The first condition only tells the planner which index to take.
select next_wake, key
from workflow
where next_wake >= ?
  and (next_wake, key) > (?, ?)
  and (select at from event where event.run = workflow.run and event.sequence = workflow.length) > ?
  and get_byte(?of, (key & 255)::int) <> 0 -- of shards
order by next_wake, key
limit ?

-- name: ready
-- The row value compares like the index is ordered, so a page starts where the last one ended. The columns name a task whose
-- body cannot be read.
select body, available_at, workflow, id
from task
where state = 'ready'
  and (available_at, workflow, id) > (?, ?, ?)
  and get_byte(?of, (workflow & 255)::int) <> 0 -- of shards
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
  and get_byte(?of, (key & 255)::int) <> 0 -- of shards
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
-- From two indexes: all of them by status, and the archived ones.
select status, 0, count(*)
from run
where namespace = ?
group by status
union all
select status, 1, count(*)
from run
where namespace = ?
  and archived_at is not null
group by status

-- name: count_states
-- Open runs by the state in their summary, without those that have closed since it was written; and how many there are,
-- whether or not they have one.
select state, count(*)
from workflow_run_summaries
where namespace = ?
  and state in ('blocked', 'paused', 'ready', 'retrying', 'sleeping', 'waiting', 'working')
group by state
union all
select s.state, -count(*)
from run
join workflow_run_summaries s on s.run = run.key
where run.namespace = ?
  and run.closed_at > ?
  and s.state in ('blocked', 'paused', 'ready', 'retrying', 'sleeping', 'waiting', 'working')
group by s.state
union all
select '', count(*)
from run
where namespace = ?
  and status in ('pending', 'running', 'waiting')

-- name: runs_without_view
-- Open runs without a summary, as far as it looks: how many, and since when the oldest of them has been there.
select count(*), min(r.started_at)
from (
  select key, started_at
  from (select key, started_at from run where namespace = ? and status = 'pending' order by key desc limit ?) p
  union all
  select key, started_at
  from (select key, started_at from run where namespace = ? and status = 'running' order by key desc limit ?) p
  union all
  select key, started_at
  from (select key, started_at from run where namespace = ? and status = 'waiting' order by key desc limit ?) p
) r
where not exists (select 1 from workflow_run_summaries s where s.run = r.key)

-- name: damaged_runs
-- Open runs whose history cannot be folded, by the mark in place of their summary, and the tasks that they still have.
select s.workflow, r.workflow_id, r.run_id, s.since,
  (select count(*) from task where task.workflow = s.workflow and task.state in ('ready', 'leased', 'failed'))
from workflow_run_summaries s
join run r on r.key = s.run
where s.namespace = ?
  and s.attention = 'blocked'
  and s.schema = 0
  and r.closed_at is null
order by s.since, s.run
limit ?

-- name: ready_runs
select queue, task_kind, task_type, build, count(*)
from workflow_run_summaries
where state = 'ready'
  and namespace = ?
group by queue, task_kind, task_type, build

-- name: open_builds
select queue, compatibility, count(*)
from run
where closed_at is null
  and compatibility is not null
  and namespace = ?
group by queue, compatibility

-- name: attention_groups
-- The largest groups, and of each cause how many runs it has in all groups, and since when. The last column is one run of the group.
select attention, workflow_type, reason, error, worker, damaged, runs, since, run, cast(sum(runs) over (partition by attention, damaged) as bigint),
  min(since) over (partition by attention, damaged)
from (
  select attention, workflow_type, reason, error, worker, case when schema = 0 then 1 else 0 end as damaged, count(*) as runs,
    min(since) as since, min(run) as run
  from workflow_run_summaries
  where namespace = ?
    and attention is not null
  group by attention, workflow_type, reason, error, worker, case when schema = 0 then 1 else 0 end
) g
order by runs desc, since, run
limit ?

-- name: failed_tasks
select body
from task
where state = 'failed'
  and get_byte(?of, (workflow & 255)::int) <> 0 -- of shards

-- name: open_sizes
select count(*) filter (where events >= ? or bytes >= ?), max(events), max(bytes)
from workflow_run_summaries
where namespace = ?
  and duration is null

-- name: waiting_tasks
select queue, kind, type, build, count(*), min(available_at)
from task
where state = 'ready'
  and namespace = ?
  and available_at <= ?
group by queue, kind, type, build

-- name: waiting_page
-- The keys of a page first: bodies are read of no more tasks than are shown.
select task.body, run.workflow_id, run.run_id, run.workflow_type
from (
  select workflow, id
  from task
  where state = 'ready'
    and namespace = ?
    and queue = ?
    and available_at <= ?
    and (available_at, workflow, id) > (?, ?, ?)
  order by available_at, workflow, id
  limit ?
) as page
join task on task.workflow = page.workflow and task.id = page.id
left join workflow on workflow.key = task.workflow
left join run on run.key = workflow.run
order by task.available_at, task.workflow, task.id

-- name: started_and_ended
-- By interval alone, which is the order of the rows.
select at,
  sum(case outcome when 'started' then n else 0 end), sum(case outcome when 'completed' then n else 0 end),
  sum(case outcome when 'failed' then n else 0 end), sum(case outcome when 'cancelled' then n else 0 end),
  sum(case outcome when 'terminated' then n else 0 end), sum(case outcome when 'continued' then n else 0 end)
from tally
where namespace = ?
  and grain = ?
  and at >= ?
  and at < ?
group by at
order by at

-- name: durations
select workflow_type, outcome, bucket, sum(n)
from tally
where namespace = ?
  and grain = ?
  and at >= ?
  and at < ?
group by workflow_type, outcome, bucket

-- name: wakes
-- One range of the index an interval: neither is anything sorted, nor is an instance read.
with recursive starts (at) as (
  select cast(? as bigint)
  union all
  select at + ?
  from starts
  where at + ? < ?
)
select at, (
  select sum(case when namespace = ? then 1 else 0 end)
  from workflow
  where next_wake > starts.at
    and next_wake <= starts.at + ?
)
from starts

-- name: wake_at
-- The wake that so many others precede.
select next_wake
from workflow
where next_wake > ?
order by next_wake, key
limit 1
offset ?

-- name: overdue
select count(*), min(next_wake)
from (
  select next_wake, namespace
  from workflow
  where next_wake <= ?
  order by next_wake, key
  limit ?
) as late
where namespace = ?

-- name: schedule_counts
-- Of the schedules of a namespace: active, paused, due until a time, overdue since another, and the oldest of those.
select sum(case when run.status = 'active' then 1 else 0 end), sum(case when run.status = 'paused' then 1 else 0 end),
  sum(case when run.status = 'active' and workflow.next_wake <= ? then 1 else 0 end),
  sum(case when run.status = 'active' and workflow.next_wake <= ? then 1 else 0 end),
  min(case when run.status = 'active' then workflow.next_wake end)
from run
join workflow on workflow.key = run.workflow and workflow.run = run.key
where run.namespace = ?
  and run.status in ('active', 'paused')

-- name: event_types
select type, count(*)
from event
where run in (select key from run where namespace = ? and closed_at is null)
group by type

-- name: history_sizes
-- Of open runs. Their summaries know how large they are; events are read of those alone whose summary is missing or out of date.
select count(*) filter (where events >= ? or size >= ?), max(events), max(size)
from (
  select w.length as events,
    case
      when s.stamp = w.last then s.bytes
      else (select sum(length(event.type) + length(event.body)) from event where event.run = r.key)
    end as size
  from run r
  join workflow w on w.key = r.workflow and w.run = r.key
  left join workflow_run_summaries s on s.run = r.key
  where r.namespace = ?
    and r.status in ('pending', 'running', 'waiting')
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
  and get_byte(?of, (sender & 255)::int) <> 0 -- of shards
order by key
limit ?

-- name: awaiting
select key
from workflow
where awaited > 0
  and key > ?
  and get_byte(?of, (key & 255)::int) <> 0 -- of shards
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

-- name: keep_new
insert into registry (kind, namespace, name, body)
values (?, ?, ?, ?)
on conflict (kind, namespace, name) do nothing
returning name

-- name: keep_after
update registry
set body = ?
where kind = ?
  and namespace = ?
  and name = ?
  and body = ?
returning name

-- name: forget_after
delete from registry
where kind = ?
  and namespace = ?
  and name = ?
  and body = ?
returning name

-- name: expired
-- Closed runs, the oldest first, by the index on status.
select key, workflow, run_id, number, namespace, workflow_id, workflow_type, status, closed_reason, queue, connection,
  compatibility, business_key, labels, search_attributes, started_at, closed_at, length, archived_at
from run
where status in ('completed', 'failed', 'cancelled', 'terminated')
  and closed_at < ?
  and namespace = ?
  and get_byte(?of, (workflow & 255)::int) <> 0 -- of shards
order by closed_at
limit ?

-- name: put_summary
insert into workflow_run_summaries (
  run, workflow, namespace, run_id, workflow_type, state, attention, liveness, wait_kind, queue, build,
  task_kind, task_type, since, until, sort_timestamp, events, bytes, duration, waits, timeline, timers,
  lineage, projected, schema, stamp, digest, body, reason, error, worker
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (run) do update set
  workflow = excluded.workflow, namespace = excluded.namespace, run_id = excluded.run_id,
  workflow_type = excluded.workflow_type, state = excluded.state, attention = excluded.attention,
  liveness = excluded.liveness, wait_kind = excluded.wait_kind, queue = excluded.queue,
  build = excluded.build, task_kind = excluded.task_kind, task_type = excluded.task_type,
  since = excluded.since, until = excluded.until, sort_timestamp = excluded.sort_timestamp,
  events = excluded.events, bytes = excluded.bytes, duration = excluded.duration, waits = excluded.waits,
  timeline = excluded.timeline, timers = excluded.timers, lineage = excluded.lineage,
  projected = excluded.projected, schema = excluded.schema, stamp = excluded.stamp, digest = excluded.digest,
  body = excluded.body, reason = excluded.reason, error = excluded.error, worker = excluded.worker

-- name: forget_summary
delete from workflow_run_summaries
where run = ?

-- name: count_up
insert into tally (namespace, grain, at, workflow_type, outcome, bucket, n)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (namespace, grain, at, workflow_type, outcome, bucket) do update
set n = tally.n + excluded.n

-- name: forget_tally
delete from tally
where grain = ?
  and at < ?

-- name: unprojected
-- One page of runs of workflows: whether the stored views of each are missing, old, or right.
select r.key, r.workflow,
  case
    when s.run is null then 2
    when s.schema <> ? or s.projected = 0
      or s.stamp <> case when w.run = r.key then w.last else r.length end then 1
    else 0
  end
from (
  select key, workflow, length
  from run
  where key > ?
    and namespace not like '%/%'
  order by key
  limit ?
) r
join workflow w on w.key = r.workflow
left join workflow_run_summaries s on s.run = r.key
order by r.key

-- name: closed_but_open
-- Summaries of open runs whose run has closed since.
select s.run
from workflow_run_summaries s
join run r on r.key = s.run
where s.state in ('waiting', 'sleeping', 'working', 'retrying', 'ready', 'blocked', 'paused')
  and r.closed_at is not null

-- name: summary_orphans
select run
from workflow_run_summaries
where not exists (select 1 from run where run.key = workflow_run_summaries.run)
limit ?

-- name: resume_page
-- One page of the liveness certificate: open runs by what resumes them. A task row that is missing resumes nothing, and
-- neither does anything of a history that is not whole: its last event is not the one that the row of the workflow names,
-- an event is missing or added (a long history is not counted), or it is marked as one that cannot be folded.
-- A run that is open is the newest of its workflow, whichever the row of the workflow names.
-- Materialized, or SQLite would look for the rows of each history five times.
with h as materialized (
  select p.key, p.namespace, p.workflow_id, p.tasks, p.next_wake, p.awaited, p.outside, p.expects, p.is_open,
    case when p.is_open then
      exists(
        select 1 from event where event.run = p.run and event.sequence = p.length and event.checksum = p.checksum
      )
      and (p.length > 1000 or p.length = (select count(*) from event where event.run = p.run))
      and not exists(select 1 from workflow_run_summaries s where s.run = p.run and s.schema = 0)
    end as whole
  from (
    select w.key, w.namespace, w.workflow_id, w.next_wake, w.awaited, w.outside, w.expects, w.run, w.length, w.checksum,
      (select count(*) from task where task.workflow = w.key and state in ('ready', 'leased', 'failed')) as tasks,
      coalesce(
        (select run.closed_at is null from run where run.key = w.run),
        exists(select 1 from run where run.workflow = w.key and run.closed_at is null)
      )
      or (select closed_at is null from run where run.workflow = w.key order by key desc limit 1) as is_open
    from (
      select *
      from workflow
      where key > ?
        and namespace not like '%/%'
      order by key
      limit ?
    ) w
  ) p
)
select namespace, count(*), max(key),
  count(*) filter (where is_open),
  count(*) filter (where whole and tasks = expects and tasks > 0),
  count(*) filter (where whole and tasks = expects and tasks = 0 and next_wake is not null),
  count(*) filter (where whole and tasks = expects and tasks = 0 and next_wake is null and awaited > 0),
  count(*) filter (
    where whole and tasks = expects and tasks = 0 and next_wake is null and awaited = 0 and outside > 0
  )
from h
group by namespace

-- name: stranded_page
-- The open runs of such a page that nothing resumes, and whether their rows would.
select key, namespace, workflow_id, resumable
from (
  select h.key, h.namespace, h.workflow_id, h.whole, h.is_open,
    tasks = expects and (tasks > 0 or next_wake is not null or awaited > 0 or outside > 0) as resumable
  from (
    select p.key, p.namespace, p.workflow_id, p.tasks, p.next_wake, p.awaited, p.outside, p.expects, p.is_open,
      case when p.is_open then
        exists(
          select 1 from event where event.run = p.run and event.sequence = p.length and event.checksum = p.checksum
        )
        and (p.length > 1000 or p.length = (select count(*) from event where event.run = p.run))
        and not exists(select 1 from workflow_run_summaries s where s.run = p.run and s.schema = 0)
      end as whole
    from (
      select w.key, w.namespace, w.workflow_id, w.next_wake, w.awaited, w.outside, w.expects, w.run, w.length, w.checksum,
        (select count(*) from task where task.workflow = w.key and state in ('ready', 'leased', 'failed')) as tasks,
        coalesce(
          (select run.closed_at is null from run where run.key = w.run),
          exists(select 1 from run where run.workflow = w.key and run.closed_at is null)
        )
        or (select closed_at is null from run where run.workflow = w.key order by key desc limit 1) as is_open
      from (
        select *
        from workflow
        where key > ?
          and namespace not like '%/%'
        order by key
        limit ?
      ) w
    ) p
  ) h
) r
where is_open
  and not (whole and resumable)

-- name: open_page
-- Which instances of a page have an open run.
select w.key,
  coalesce(
    (select run.closed_at is null from run where run.key = w.run),
    exists(select 1 from run where run.workflow = w.key and run.closed_at is null)
  )
  or (select closed_at is null from run where run.workflow = w.key order by key desc limit 1)
from (
  select key, run
  from workflow
  where key > ?
    and namespace not like '%/%'
  order by key
  limit ?
) w
order by w.key

-- name: summary_counts
-- Over the runs of workflows of one namespace, the newest first, as far as it looks.
select count(*), count(s.run),
  count(*) filter (where s.run is null and r.started_at < ?),
  count(*) filter (
    where s.schema <> ? or s.stamp <> case when w.run = r.key then w.last else r.length end
  ),
  count(*) filter (
    where s.projected = 0 and s.stamp = case when w.run = r.key then w.last else r.length end
  ),
  count(*) filter (where s.wait_kind is not null and r.closed_at is null),
  coalesce(sum(case when w.run = r.key then w.length else r.length end), 0),
  min(r.key)
from (
  select key, workflow, length, started_at, closed_at
  from run
  where namespace = ?
  order by key desc
  limit ?
) r
join workflow w on w.key = r.workflow
left join workflow_run_summaries s on s.run = r.key

-- name: put_waits
insert into workflow_run_waits (run, position, entries, stamp, digest, body)
values (?, ?, ?, ?, ?, ?)
on conflict (run, position) do update
set entries = excluded.entries, stamp = excluded.stamp, digest = excluded.digest, body = excluded.body

-- name: forget_waits
delete from workflow_run_waits
where run = ?
  and position >= ?

-- name: rows_of_waits
select run, position, entries, stamp, digest, body
from workflow_run_waits
where run = ?
order by position

-- name: orphans_of_waits
delete from workflow_run_waits
where not exists (select 1 from run where run.key = workflow_run_waits.run)

-- name: put_timeline
insert into workflow_run_timeline_entries (run, position, entries, stamp, digest, body)
values (?, ?, ?, ?, ?, ?)
on conflict (run, position) do update
set entries = excluded.entries, stamp = excluded.stamp, digest = excluded.digest, body = excluded.body

-- name: forget_timeline
delete from workflow_run_timeline_entries
where run = ?
  and position >= ?

-- name: rows_of_timeline
select run, position, entries, stamp, digest, body
from workflow_run_timeline_entries
where run = ?
order by position

-- name: orphans_of_timeline
delete from workflow_run_timeline_entries
where not exists (select 1 from run where run.key = workflow_run_timeline_entries.run)

-- name: put_timers
insert into workflow_run_timer_entries (run, position, entries, stamp, digest, body)
values (?, ?, ?, ?, ?, ?)
on conflict (run, position) do update
set entries = excluded.entries, stamp = excluded.stamp, digest = excluded.digest, body = excluded.body

-- name: forget_timers
delete from workflow_run_timer_entries
where run = ?
  and position >= ?

-- name: rows_of_timers
select run, position, entries, stamp, digest, body
from workflow_run_timer_entries
where run = ?
order by position

-- name: orphans_of_timers
delete from workflow_run_timer_entries
where not exists (select 1 from run where run.key = workflow_run_timer_entries.run)

-- name: put_lineage
insert into workflow_run_lineage_entries (run, position, entries, stamp, digest, body)
values (?, ?, ?, ?, ?, ?)
on conflict (run, position) do update
set entries = excluded.entries, stamp = excluded.stamp, digest = excluded.digest, body = excluded.body

-- name: forget_lineage
delete from workflow_run_lineage_entries
where run = ?
  and position >= ?

-- name: rows_of_lineage
select run, position, entries, stamp, digest, body
from workflow_run_lineage_entries
where run = ?
order by position

-- name: orphans_of_lineage
delete from workflow_run_lineage_entries
where not exists (select 1 from run where run.key = workflow_run_lineage_entries.run)

-- name: count_waits
-- As `count_timeline`; a run without a summary should have the entries that it has.
select coalesce(sum(v.entries), 0), count(*) filter (where v.entries > 0),
  count(*) filter (where coalesce(s.waits, v.entries) > 0),
  count(*) filter (where s.projected = 1 and s.waits > 0 and s.waits <> coalesce(v.entries, 0)),
  count(*) filter (where v.damaged > 0 or (s.projected = 1 and s.waits = 0 and v.entries > 0)),
  count(*) filter (where s.run is null and v.entries is null and r.started_at < ?),
  count(*) filter (
    where s.projected = 1 and s.waits > 0 and s.waits <> coalesce(v.entries, 0)
      and s.wait_kind is not null and r.closed_at is null
  )
from run r
left join workflow_run_summaries s on s.run = r.key
left join (
  select run, sum(entries) as entries, count(*) filter (where md5(body) <> digest) as damaged
  from workflow_run_waits
  where run >= ?
  group by run
) v on v.run = r.key
where r.namespace = ?
  and r.key >= ?

-- name: count_orphans_of_waits
select count(*)
from workflow_run_waits
where not exists (select 1 from run where run.key = workflow_run_waits.run)

-- name: count_timeline
-- Over the same runs as `summary_counts`: entries, runs with any, runs that should have any, runs with another number than they
-- should have, runs with a row that was changed or should not be there, runs of which neither entries nor a summary say
-- anything, and of the runs with another number those that are open and wait for something. The number that a run should
-- have is in its summary; without one it is the length of its history.
select coalesce(sum(v.entries), 0), count(*) filter (where v.entries > 0),
  count(*) filter (where coalesce(s.timeline, case when w.run = r.key then w.length else r.length end) > 0),
  count(*) filter (
    where case
      when s.run is null then v.entries is null and r.started_at < ?
      else s.projected = 1 and s.timeline > 0 and s.timeline <> coalesce(v.entries, 0)
    end
  ),
  count(*) filter (where v.damaged > 0 or (s.projected = 1 and s.timeline = 0 and v.entries > 0)),
  0,
  count(*) filter (
    where s.projected = 1 and s.timeline > 0 and s.timeline <> coalesce(v.entries, 0)
      and s.wait_kind is not null and r.closed_at is null
  )
from run r
join workflow w on w.key = r.workflow
left join workflow_run_summaries s on s.run = r.key
left join (
  select run, sum(entries) as entries, count(*) filter (where md5(body) <> digest) as damaged
  from workflow_run_timeline_entries
  where run >= ?
  group by run
) v on v.run = r.key
where r.namespace = ?
  and r.key >= ?

-- name: count_orphans_of_timeline
select count(*)
from workflow_run_timeline_entries
where not exists (select 1 from run where run.key = workflow_run_timeline_entries.run)

-- name: count_timers
-- As `count_timeline`; a run without a summary should have the entries that it has.
select coalesce(sum(v.entries), 0), count(*) filter (where v.entries > 0),
  count(*) filter (where coalesce(s.timers, v.entries) > 0),
  count(*) filter (where s.projected = 1 and s.timers > 0 and s.timers <> coalesce(v.entries, 0)),
  count(*) filter (where v.damaged > 0 or (s.projected = 1 and s.timers = 0 and v.entries > 0)),
  count(*) filter (where s.run is null and v.entries is null and r.started_at < ?),
  count(*) filter (
    where s.projected = 1 and s.timers > 0 and s.timers <> coalesce(v.entries, 0)
      and s.wait_kind is not null and r.closed_at is null
  )
from run r
left join workflow_run_summaries s on s.run = r.key
left join (
  select run, sum(entries) as entries, count(*) filter (where md5(body) <> digest) as damaged
  from workflow_run_timer_entries
  where run >= ?
  group by run
) v on v.run = r.key
where r.namespace = ?
  and r.key >= ?

-- name: count_orphans_of_timers
select count(*)
from workflow_run_timer_entries
where not exists (select 1 from run where run.key = workflow_run_timer_entries.run)

-- name: count_lineage
-- As `count_timeline`; a run without a summary should have the entries that it has.
select coalesce(sum(v.entries), 0), count(*) filter (where v.entries > 0),
  count(*) filter (where coalesce(s.lineage, v.entries) > 0),
  count(*) filter (where s.projected = 1 and s.lineage > 0 and s.lineage <> coalesce(v.entries, 0)),
  count(*) filter (where v.damaged > 0 or (s.projected = 1 and s.lineage = 0 and v.entries > 0)),
  count(*) filter (where s.run is null and v.entries is null and r.started_at < ?),
  count(*) filter (
    where s.projected = 1 and s.lineage > 0 and s.lineage <> coalesce(v.entries, 0)
      and s.wait_kind is not null and r.closed_at is null
  )
from run r
left join workflow_run_summaries s on s.run = r.key
left join (
  select run, sum(entries) as entries, count(*) filter (where md5(body) <> digest) as damaged
  from workflow_run_lineage_entries
  where run >= ?
  group by run
) v on v.run = r.key
where r.namespace = ?
  and r.key >= ?

-- name: count_orphans_of_lineage
select count(*)
from workflow_run_lineage_entries
where not exists (select 1 from run where run.key = workflow_run_lineage_entries.run)

-- name: count_summary_orphans
select count(*)
from workflow_run_summaries
where not exists (select 1 from run where run.key = workflow_run_summaries.run)

-- name: blocked
-- Open runs of a type whose summary says that they are blocked, newest first.
select summary.run, summary.workflow, run.workflow_id, run.run_id
from workflow_run_summaries as summary
join run on run.key = summary.run
where summary.namespace = ?
  and summary.state = 'blocked'
  and summary.workflow_type = ?
order by summary.run desc
limit ?

-- name: ready_counts
select kind, count(*), count(*) filter (where available_at <= ?),
  count(*) filter (where kind = 'activity' and id not like '%.1'),
  min(case when available_at <= ? then available_at end)
from task
where state = 'ready'
  and namespace = ?
group by kind

-- name: overdue_tasks
select id, workflow, available_at
from task
where state = 'ready'
  and namespace = ?
  and available_at <= ?
order by available_at, workflow, id
limit ?

-- name: waiting_runs
select count(distinct workflow)
from task
where state = 'ready'
  and namespace = ?
  and queue = ?
  and kind = ?
  and type = ?
  and build = ?
  and available_at <= ?

-- name: lost_work
-- Of instances that are open or have tasks: `expects` is how many task rows the last decision left.
select w.key, r.connection, r.queue, r.compatibility, r.started_at
from (
  select workflow as key
  from run
  where namespace = ?
    and status in ('pending', 'running', 'waiting')
  union
  select workflow
  from task
  where namespace = ?
) as one
join workflow w on w.key = one.key
join run r on r.key = w.run
where w.expects <> (
    select count(*)
    from task
    where task.workflow = w.key
      and task.state in ('ready', 'leased', 'failed')
  )
  or (r.closed_at is null and w.expects = 0 and w.next_wake is null and w.outside = 0)
limit ?

-- name: open_states
select state, count(*), min(since)
from workflow_run_summaries
where namespace = ?
  and state in ('blocked', 'paused', 'ready', 'retrying', 'sleeping', 'waiting', 'working')
group by state

-- name: failures
-- In this order, since there are fewer failures than runs.
select event.type, count(*)
from event
cross join run
where run.key = event.run
  and (event.type = 'ActivityRetryScheduled' or event.type = 'ActivityFailed' or event.type = 'ActivityTimedOut' or event.type = 'WorkflowFailed')
  and event.at >= ?
  and run.namespace = ?
group by event.type

-- name: most_failures
select run.workflow_id, run.run_id, run.workflow_type, many.n
from (
  select run, count(*) as n
  from event
  where (type = 'ActivityRetryScheduled' or type = 'ActivityFailed' or type = 'ActivityTimedOut' or type = 'WorkflowFailed')
    and at >= ?
  group by run
) as many
join run on run.key = many.run
where run.namespace = ?
order by many.n desc, many.run
limit 1

-- name: oldest_open
-- Keys are in the order of starts: the first of each status, and the first of those.
select run.workflow_id, run.run_id, run.workflow_type, run.started_at
from run
where key = (
  select min(first)
  from (
    select min(key) as first from run where namespace = ? and status = 'pending'
    union all
    select min(key) from run where namespace = ? and status = 'running'
    union all
    select min(key) from run where namespace = ? and status = 'waiting'
  ) as each_status
)

-- name: oldest_wait
select run.workflow_id, run.run_id, run.workflow_type, longest.since
from (
  select run, since
  from workflow_run_summaries
  where namespace = ?
    and state in ('blocked', 'ready', 'retrying', 'sleeping', 'waiting')
  order by since, run
  limit 1
) as longest
join run on run.key = longest.run

-- name: longest_closed
select workflow_id, run_id, workflow_type, closed_at - started_at
from (
  select workflow_id, run_id, workflow_type, closed_at, started_at
  from run
  where namespace = ?
    and closed_at is not null
  order by closed_at desc
  limit ?
) as last
order by closed_at - started_at desc, run_id
limit 1
