-- What a server knows beside workflows: workers, namespaces, search attributes, rollouts. Small, plain, by name.
create table registry (
  kind text not null,
  namespace text not null,
  name text not null,
  body blob not null,
  primary key (kind, namespace, name)
) strict, without rowid;
