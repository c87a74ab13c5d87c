-- The same columns and indexes as in SQLite, where the comments say what each is for.
alter table task
  add column namespace text collate "C" not null default '',
  add column queue text collate "C" not null default '',
  add column kind text collate "C" not null default '',
  add column type text collate "C" not null default '',
  add column build text collate "C" not null default '';

-- A body that cannot be read stays as it is: its instance says so when it is loaded.
create function pg_temp.task_field(given bytea, path text[]) returns text language plpgsql as $$
begin
  return convert_from(given, 'UTF8')::json #>> path;
exception when others then
  return null;
end
$$;

update task
set namespace = coalesce(pg_temp.task_field(body, '{routing,namespace}'), 'default'),
  queue = coalesce(pg_temp.task_field(body, '{routing,queue}'), 'default'),
  kind = coalesce(pg_temp.task_field(body, '{kind}'), ''),
  type = coalesce(pg_temp.task_field(body, '{type}'), ''),
  build = coalesce(pg_temp.task_field(body, '{routing,compatibility}'), '');

drop function pg_temp.task_field(bytea, text[]);

create index task_waiting on task (namespace, queue, kind, type, build, available_at, workflow, id) where state = 'ready';

drop index workflow_wake;
create index workflow_wake on workflow (next_wake, key) include (namespace) where next_wake is not null;

-- The builds that open runs are pinned to.
create index run_build on run (namespace, queue, compatibility) where compatibility is not null and closed_at is null;
