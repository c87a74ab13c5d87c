-- What several processes need that write at the same time. Processes of an earlier version may still run beside: what they do
-- not say has a default.

-- Until when a task is leased; null is without an end. Leases without an end are few, and found by the index that leases are in
-- anyway.
alter table task add column until bigint;

-- A body that cannot be read stays as it is: its instance says so when it is loaded.
create function pg_temp.lease_end(given bytea) returns bigint language plpgsql as $$
begin
  return (convert_from(given, 'UTF8')::json ->> 'until')::bigint;
exception when others then
  return null;
end
$$;

update task set until = pg_temp.lease_end(body) where state = 'leased';

drop function pg_temp.lease_end(bytea);

drop index task_other;
create index task_other on task (state, until, workflow, id) where state <> 'ready';

-- No sequences: whoever writes says the positions of commands and the keys of notices. Positions are microseconds since 2020,
-- with 12 bits of the writer behind them: more than any that was given before, and in the order of time over all instances.
alter table command alter column position drop identity;
alter table command alter column position set default
  ((extract(epoch from clock_timestamp()) * 1000000)::bigint - 1577836800000000) << 12 | floor(random() * 4096)::bigint;

alter table notice alter column key drop identity;
alter table notice alter column key set default floor(random() * 4611686018427387904)::bigint;

-- Every step updates the row of its instance. With half a page free, most of its versions stay on their page, and no index
-- has to know of them.
alter table workflow set (fillfactor = 50);
