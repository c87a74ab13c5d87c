-- Several processes that own shards of the instances. What an earlier version does not say of itself has a default.

-- Another process has taken this one for dead: it writes no batch any more. `clock`: no key that it has committed is later, by its
-- own clock. `facts`: what it says about itself, as JSON. `session`: its lock on its own id shows whether its session is there.
alter table writer add column fenced boolean not null default false;
alter table writer add column clock bigint not null default 0;
alter table writer add column facts bytea;
alter table writer add column session boolean not null default false;

-- Who owns a shard, which is the last 8 bits of the key of an instance. `term` grows with every change of the owner; no key of
-- an earlier owner is later than `clock`.
create table shard (
  id integer primary key,
  owner bigint,
  term bigint not null default 0,
  clock bigint not null default 0
) with (fillfactor = 50);

insert into shard (id) select generate_series(0, 255);

-- Moves with every change of the registry.
alter table engine add column registry bigint not null default 0;

create index send_sender on send (sender);
