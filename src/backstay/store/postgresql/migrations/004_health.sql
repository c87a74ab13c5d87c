-- What health looks for, by index: how long the histories of open runs are. Tasks that have failed are in `task_other`.
create index summary_size on workflow_run_summaries (namespace, events, bytes) where duration is null;
