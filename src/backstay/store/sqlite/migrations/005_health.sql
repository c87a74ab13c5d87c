-- What health looks for, by index: tasks that have failed, and how long the histories of open runs are.
create index task_failed on task (workflow, id) where state = 'failed';

create index summary_size on workflow_run_summaries (namespace, events, bytes, duration) where duration is null;
