-- What an overview counts, from indexes alone. A task says which workers it waits for, so that what waits in a queue is
-- counted and listed without a look into bodies.
alter table task add column namespace text not null default '';
alter table task add column queue text not null default '';
alter table task add column kind text not null default '';
alter table task add column type text not null default '';
alter table task add column build text not null default '';

update task
set namespace = coalesce(json_extract(cast(body as text), '$.routing.namespace'), 'default'),
  queue = coalesce(json_extract(cast(body as text), '$.routing.queue'), 'default'),
  kind = coalesce(json_extract(cast(body as text), '$.kind'), ''),
  type = coalesce(json_extract(cast(body as text), '$.type'), ''),
  build = coalesce(json_extract(cast(body as text), '$.routing.compatibility'), '')
where json_valid(cast(body as text));

-- The state is in these two, or SQLite would read each row for it.
create index task_waiting on task (namespace, queue, kind, type, build, available_at, state) where state = 'ready';

drop index summary_ready;
create index summary_ready on workflow_run_summaries (namespace, queue, task_kind, task_type, build, state) where state = 'ready';

-- With the namespace in it, wakes are counted without a look at their instances.
drop index workflow_wake;
create index workflow_wake on workflow (next_wake, key, namespace) where next_wake is not null;

-- The builds that open runs are pinned to.
create index run_build on run (namespace, queue, compatibility, closed_at) where compatibility is not null and closed_at is null;
