-- Which poll got a task: a hash of its namespace, its worker and its id. A worker that repeats a poll finds its task by it, at any
-- process. Tasks that an earlier version leases have none.
alter table task add column call bigint;

create index task_call on task (call) where call is not null;
