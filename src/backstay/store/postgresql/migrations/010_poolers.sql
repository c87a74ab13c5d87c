-- Functions of triggers find our tables in a session whose search path does not name our schema, as one of a pooler that shares it
-- between clients: for the rest of the transaction it does.
create or replace function index_facets() returns trigger language plpgsql as $$
begin
  if current_schema() is distinct from tg_table_schema then
    perform set_config('search_path', tg_table_schema, true);
  end if;
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

create or replace function forget_views() returns trigger language plpgsql as $$
begin
  if current_schema() is distinct from tg_table_schema then
    perform set_config('search_path', tg_table_schema, true);
  end if;
  delete from facet where run = old.key;
  delete from workflow_run_summaries where run = old.key;
  delete from workflow_run_waits where run = old.key;
  delete from workflow_run_timeline_entries where run = old.key;
  delete from workflow_run_timer_entries where run = old.key;
  delete from workflow_run_lineage_entries where run = old.key;
  return null;
end
$$;
