-- What operators measure, by index: failures that histories record, by when they happened, and archived runs.
create index event_failed on event (at, type, run)
where type = 'ActivityRetryScheduled' or type = 'ActivityFailed' or type = 'ActivityTimedOut' or type = 'WorkflowFailed';

create index run_archived on run (namespace, status) where archived_at is not null;
