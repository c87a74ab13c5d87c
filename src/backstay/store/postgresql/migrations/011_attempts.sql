-- How often the next step of the code was handed to a worker. It outlives the row of the workflow task.
alter table workflow add column attempts bigint not null default 0;
