-- The same tables as in SQLite, where the comments say what each is for. Text that is compared or ordered by is so by its
-- bytes, whatever the locale of the database.
create table workflow (
  key bigint primary key,
  namespace text collate "C" not null,
  workflow_id text collate "C" not null,
  workflow_type text collate "C" not null,
  last bigint not null,
  run bigint,
  command_sequence bigint not null,
  cursor bigint not null,
  next_wake bigint,
  expects bigint not null,
  length bigint not null,
  checksum bigint not null,
  reserved_at bigint,
  outside bigint not null,
  awaited bigint not null,
  held bytea
) with (fillfactor = 70);

create unique index workflow_id on workflow (namespace, workflow_id);
create index workflow_awaited on workflow (key) where awaited > 0;
create index workflow_wake on workflow (next_wake, key) where next_wake is not null;

create table run (
  key bigint primary key,
  workflow bigint not null,
  run_id text collate "C" not null,
  number bigint not null,
  namespace text collate "C" not null,
  workflow_id text collate "C" not null,
  workflow_type text collate "C" not null,
  status text collate "C" not null,
  closed_reason text,
  queue text collate "C" not null,
  connection text,
  compatibility text,
  business_key text collate "C",
  labels text,
  search_attributes text,
  started_at bigint not null,
  closed_at bigint,
  length bigint not null,
  archived_at bigint
);

create unique index run_id on run (run_id);
create index run_workflow on run (workflow);
create index run_status on run (status, key);
create index run_business_key on run (business_key) where business_key is not null;

create table event (
  run bigint not null,
  sequence bigint not null,
  type text not null,
  at bigint not null,
  body bytea not null,
  context bytea not null,
  checksum bigint not null,
  constraint event_run primary key (run, sequence)
);

create table task (
  workflow bigint not null,
  id text collate "C" not null,
  state text collate "C" not null,
  available_at bigint not null,
  body bytea not null,
  constraint task_key primary key (workflow, id)
);

create index task_ready on task (available_at, workflow, id) where state = 'ready';
create index task_other on task (state) where state <> 'ready';

-- `position` is the order in which the commands of one instance were recorded.
create table command (
  workflow bigint not null,
  position bigint generated always as identity,
  sequence bigint,
  request_id text collate "C",
  command_type text collate "C" not null,
  body bytea not null,
  constraint command_key primary key (workflow, position)
);

create unique index command_request on command (workflow, command_type, request_id) where request_id is not null;

create table send (
  key bigint primary key,
  sender bigint not null,
  namespace text collate "C" not null,
  workflow_id text collate "C" not null,
  kind text not null,
  body bytea not null
);

create table notice (
  key bigint generated always as identity primary key,
  workflow bigint not null
);

create table registry (
  kind text collate "C" not null,
  namespace text collate "C" not null,
  name text collate "C" not null,
  body bytea not null,
  constraint registry_key primary key (kind, namespace, name)
);

-- Every handle that writes has a row here. A batch is written only if it finds the number it expects, and moves it on. So a
-- batch whose answer was lost can be looked up (`committed`), one that is still on its way can be shut out (by moving
-- `batch`), and others see that something was committed.
create table writer (
  id bigint primary key,
  batch bigint not null,
  committed bigint not null default 0,
  seen timestamptz not null default now()
) with (fillfactor = 50);

-- How often the engine's lock was taken. Who gets it back under the same number knows that nobody had it in between.
create table engine (
  one boolean primary key check (one),
  term bigint not null
);

insert into engine values (true, 0);

-- Which instances a handle's batch had to leave out, if any: its answer, for when that is lost.
create table outcome (
  writer bigint primary key,
  batch bigint not null,
  stale bigint[] not null
);
