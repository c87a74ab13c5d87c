-- Why a run needs attention: what failed or blocked it, how, and at which worker. Runs are grouped by it.
alter table workflow_run_summaries add column reason text;
alter table workflow_run_summaries add column error text;
alter table workflow_run_summaries add column worker text;

create index summary_group on workflow_run_summaries (namespace, attention, workflow_type, reason, error, worker, schema, since, run)
where attention is not null;
drop index if exists summary_attention;
