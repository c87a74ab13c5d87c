-- The same tables as in SQLite, where the comments say what each is for.
drop index run_status;
create index run_status on run (namespace, status, key);
create index run_type on run (namespace, workflow_type, key);
create index run_closed on run (namespace, closed_at, key) where closed_at is not null;
drop index run_business_key;
create index run_business_key on run (namespace, business_key, key) where business_key is not null;
drop index run_workflow;
create index run_workflow on run (workflow, key);

create table workflow_run_summaries (
  run bigint primary key,
  workflow bigint not null,
  namespace text collate "C" not null,
  run_id text collate "C" not null,
  workflow_type text collate "C" not null,
  state text collate "C" not null,
  attention text collate "C",
  liveness text collate "C" not null,
  wait_kind text collate "C",
  queue text collate "C" not null,
  build text collate "C",
  task_kind text collate "C",
  task_type text collate "C",
  since bigint not null,
  until bigint,
  sort_timestamp bigint not null,
  events bigint not null,
  bytes bigint not null,
  duration bigint,
  waits bigint not null,
  timeline bigint not null,
  timers bigint not null,
  lineage bigint not null,
  projected bigint not null,
  schema bigint not null,
  stamp bigint not null,
  digest text not null,
  body bytea not null
);

create index summary_state on workflow_run_summaries (namespace, state, run);
create index summary_cause on workflow_run_summaries (namespace, attention, run) where attention is not null;
create index summary_attention on workflow_run_summaries (namespace, attention, since) where attention is not null;
create index summary_ready on workflow_run_summaries (namespace, queue, task_kind, task_type, build, run)
  where state = 'ready';
create index summary_sort on workflow_run_summaries (namespace, sort_timestamp, run_id);

create table workflow_run_waits (
  run bigint not null,
  position bigint not null,
  entries bigint not null,
  stamp bigint not null,
  digest text not null,
  body bytea not null,
  constraint run_wait_key primary key (run, position)
);

create table workflow_run_timeline_entries (like workflow_run_waits, constraint run_timeline_key primary key (run, position));
create table workflow_run_timer_entries (like workflow_run_waits, constraint run_timer_key primary key (run, position));
create table workflow_run_lineage_entries (like workflow_run_waits, constraint run_lineage_key primary key (run, position));

-- A text is its JSON. The escape of a zero byte, which this database refuses to read, stands for another one, as in lists.
create table facet (
  namespace text collate "C" not null,
  name text collate "C" not null,
  value text collate "C" not null,
  run bigint not null,
  constraint facet_key primary key (namespace, name, value, run)
);

create index facet_run on facet (run);

create function readable(given text) returns json language sql immutable as $$
  select replace(given, '\u0000', '\u0001')::json
$$;

create function facet_value(given json) returns text language sql immutable as $$
  select case json_typeof(given)
    when 'string' then 's:' || given::text
    when 'boolean' then case given::text when 'true' then 'b:1' else 'b:0' end
    when 'number' then 'n:' || (given::text)::double precision
  end
$$;

create function index_facets() returns trigger language plpgsql as $$
begin
  if tg_op = 'UPDATE' then
    delete from facet where run = new.key and name >= 'attribute:' and name < 'attribute;';
  elsif new.labels is not null then
    insert into facet
    select new.namespace, 'label:' || one.key, facet_value(one.value), new.key from json_each(readable(new.labels)) as one
    on conflict do nothing;
  end if;
  if new.search_attributes is not null then
    insert into facet
    select new.namespace, 'attribute:' || one.key, facet_value(one.value), new.key
    from json_each(readable(new.search_attributes)) as one
    where facet_value(one.value) is not null
    on conflict do nothing;
  end if;
  return null;
end
$$;

create function forget_views() returns trigger language plpgsql as $$
begin
  delete from facet where run = old.key;
  delete from workflow_run_summaries where run = old.key;
  delete from workflow_run_waits where run = old.key;
  delete from workflow_run_timeline_entries where run = old.key;
  delete from workflow_run_timer_entries where run = old.key;
  delete from workflow_run_lineage_entries where run = old.key;
  return null;
end
$$;

create trigger run_facets after insert on run for each row
when (new.labels is not null or new.search_attributes is not null) execute function index_facets();

create trigger run_facets_changed after update of search_attributes on run for each row
when (old.search_attributes is distinct from new.search_attributes) execute function index_facets();

create trigger run_forgotten after delete on run for each row execute function forget_views();

insert into facet
select run.namespace, 'label:' || one.key, facet_value(one.value), run.key from run, json_each(readable(run.labels)) as one
where run.labels is not null
on conflict do nothing;

insert into facet
select run.namespace, 'attribute:' || one.key, facet_value(one.value), run.key
from run, json_each(readable(run.search_attributes)) as one
where run.search_attributes is not null and facet_value(one.value) is not null
on conflict do nothing;

create table tally (
  namespace text collate "C" not null,
  grain bigint not null,
  at bigint not null,
  workflow_type text collate "C" not null,
  outcome text collate "C" not null,
  bucket bigint not null,
  n bigint not null,
  constraint tally_key primary key (namespace, grain, at, workflow_type, outcome, bucket)
);
