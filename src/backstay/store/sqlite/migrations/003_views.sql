-- Lists within one namespace, by status, type, business key and time of the end.
drop index run_status;
create index run_status on run (namespace, status, key);
create index run_type on run (namespace, workflow_type, key);
create index run_closed on run (namespace, closed_at) where closed_at is not null;
drop index run_business_key;
create index run_business_key on run (namespace, business_key) where business_key is not null;

-- Stored views: derived from history and rows, written after commits, and rebuilt whenever their stamp says that they are
-- behind. The columns of a summary are those that lists filter, count and order by; the body has all of its fields.
create table workflow_run_summaries (
  run integer primary key,
  workflow integer not null,
  namespace text not null,
  run_id text not null,
  workflow_type text not null,
  state text not null,
  attention text,
  liveness text not null,
  wait_kind text,
  queue text not null,
  build text,
  task_kind text,
  task_type text,
  since integer not null,
  until integer,
  sort_timestamp integer not null,
  events integer not null,
  bytes integer not null,
  duration integer,
  waits integer not null,
  timeline integer not null,
  timers integer not null,
  lineage integer not null,
  projected integer not null,
  schema integer not null,
  stamp integer not null,
  digest text not null,
  body blob not null
) strict;

-- In the order of keys within a state, or a cause of attention, as lists are; and what is ready by who could take it.
create index summary_state on workflow_run_summaries (namespace, state);
create index summary_cause on workflow_run_summaries (namespace, attention) where attention is not null;
create index summary_attention on workflow_run_summaries (namespace, attention, since) where attention is not null;
create index summary_ready on workflow_run_summaries (namespace, queue, task_kind, task_type, build) where state = 'ready';
create index summary_sort on workflow_run_summaries (namespace, sort_timestamp, run_id);

-- The entries of a run's views, many of them in one row: `position` counts the rows of a run, `entries` those inside.
create table workflow_run_waits (
  run integer not null,
  position integer not null,
  entries integer not null,
  stamp integer not null,
  digest text not null,
  body blob not null,
  primary key (run, position)
) strict, without rowid;

create table workflow_run_timeline_entries (
  run integer not null,
  position integer not null,
  entries integer not null,
  stamp integer not null,
  digest text not null,
  body blob not null,
  primary key (run, position)
) strict, without rowid;

create table workflow_run_timer_entries (
  run integer not null,
  position integer not null,
  entries integer not null,
  stamp integer not null,
  digest text not null,
  body blob not null,
  primary key (run, position)
) strict, without rowid;

create table workflow_run_lineage_entries (
  run integer not null,
  position integer not null,
  entries integer not null,
  stamp integer not null,
  digest text not null,
  body blob not null,
  primary key (run, position)
) strict, without rowid;

-- Labels (`label:team`) and search attributes (`attribute:city`) by value, written within the commit: a list must not miss a
-- run. A trigger would cost each insert of a run two percent of its workflow, with labels or without. A value starts with its
-- type, so that true is not 1 and '1' is not 1, but 1.0 is.
create table facet (
  namespace text not null,
  name text not null,
  value text not null,
  run integer not null,
  primary key (namespace, name, value, run)
) strict, without rowid;

create index facet_run on facet (run);

create trigger run_facets_changed after update of search_attributes on run when old.search_attributes is not new.search_attributes begin delete from facet where run = new.key and name >= 'attribute:' and name < 'attribute;'; insert or ignore into facet select new.namespace, 'attribute:' || key, case type when 'text' then 's:' || value when 'true' then 'b:1' when 'false' then 'b:0' else 'n:' || cast(value as real) end, new.key from json_each(coalesce(new.search_attributes, '{}')) where type in ('text', 'true', 'false', 'integer', 'real'); end;

create trigger run_forgotten after delete on run begin delete from facet where run = old.key; delete from workflow_run_summaries where run = old.key; delete from workflow_run_waits where run = old.key; delete from workflow_run_timeline_entries where run = old.key; delete from workflow_run_timer_entries where run = old.key; delete from workflow_run_lineage_entries where run = old.key; end;

insert or ignore into facet
select run.namespace, 'label:' || one.key, 's:' || one.value, run.key from run, json_each(run.labels) as one
where run.labels is not null;

insert or ignore into facet
select run.namespace, 'attribute:' || one.key, case one.type when 'text' then 's:' || one.value when 'true' then 'b:1' when 'false' then 'b:0' else 'n:' || cast(one.value as real) end, run.key
from run, json_each(run.search_attributes) as one
where run.search_attributes is not null and one.type in ('text', 'true', 'false', 'integer', 'real');

-- How many runs of a type started or ended in a minute (grain 60) or an hour (3600), in microseconds since 1970; of those that
-- ended, by how long they took: bucket n holds durations below 2^n milliseconds.
create table tally (
  namespace text not null,
  grain integer not null,
  at integer not null,
  workflow_type text not null,
  outcome text not null,
  bucket integer not null,
  n integer not null,
  primary key (namespace, grain, at, workflow_type, outcome, bucket)
) strict, without rowid;
