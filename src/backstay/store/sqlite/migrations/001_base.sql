-- Instances. `last` is the guard: the id of the last decision applied.
create table workflow (
  key integer primary key,
  namespace text not null,
  workflow_id text not null,
  workflow_type text not null,
  last integer not null,
  run integer,
  command_sequence integer not null,
  cursor integer not null,
  next_wake integer,
  expects integer not null,
  length integer not null,
  checksum integer not null,
  reserved_at integer,
  outside integer not null,
  awaited integer not null,
  held blob
) strict;

create unique index workflow_id on workflow (namespace, workflow_id);
create index workflow_awaited on workflow (key) where awaited > 0;
create index workflow_wake on workflow (next_wake) where next_wake is not null;

-- The index row of each run: what lists filter and order by. Keys are time-ordered, so they order lists too.
create table run (
  key integer primary key,
  workflow integer not null,
  run_id text not null,
  number integer not null,
  namespace text not null,
  workflow_id text not null,
  workflow_type text not null,
  status text not null,
  closed_reason text,
  queue text not null,
  connection text,
  compatibility text,
  business_key text,
  labels text,
  search_attributes text,
  started_at integer not null,
  closed_at integer,
  length integer not null,
  archived_at integer
) strict;

create unique index run_id on run (run_id);
create index run_workflow on run (workflow);
create index run_status on run (status, key);
create index run_business_key on run (business_key) where business_key is not null;

-- History: append only, one row an event, in the order of its commit.
create table event (
  run integer not null,
  sequence integer not null,
  type text not null,
  at integer not null,
  body blob not null,
  context blob not null,
  checksum integer not null
) strict;

create unique index event_run on event (run, sequence);

-- Tasks live here only while they are open. Tasks born leased never enter the ready index.
create table task (
  workflow integer not null,
  id text not null,
  state text not null,
  available_at integer not null,
  body blob not null,
  primary key (workflow, id)
) strict, without rowid;

create index task_ready on task (available_at, workflow, id) where state = 'ready';

-- The audit trail of accepted and rejected commands.
create table command (
  workflow integer not null,
  sequence integer,
  request_id text,
  command_type text not null,
  body blob not null
) strict;

create index command_workflow on command (workflow);

-- A request id means one thing per instance and kind of command.
create unique index command_request on command (workflow, command_type, request_id) where request_id is not null;

-- What instances have to tell each other: written with the sender's commit, gone with the receiver's.
create table send (
  key integer primary key,
  sender integer not null,
  namespace text not null,
  workflow_id text not null,
  kind text not null,
  body blob not null
) strict;

-- Instances that a process other than the engine has changed, for the engine to look at.
create table notice (
  key integer primary key,
  workflow integer not null
) strict;
