"""Activities: work that may fail and be tried again. Scheduled → Started* → Completed | Failed | TimedOut | Cancelled.

Five chapters: `records` (events and state), `schedule` (commands, and which tasks must exist), `attempts` (claim,
heartbeat, outcome, retry, cancel), `crashes` (attempts that never report), `timeouts`. The end of an execution wakes
the workflow, the end of an attempt does not.
"""

from __future__ import annotations

from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.failure import Failure
from backstay.kernel.feature import (
    CommandRule,
    Deciding,
    Feature,
    History,
    Lifecycle,
    Outcome,
    Shape,
    TaskRule,
    Thrown,
    Value,
    nothing_to_check,
)
from backstay.kernel.features.activity import attempts, crashes, records, schedule, timeouts, words
from backstay.kernel.features.activity.attempts import (
    AttemptReply,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    HeartbeatReply,
    status,
)
from backstay.kernel.features.activity.records import (
    Activities,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivitySnapshot,
    ActivityStarted,
    ActivityTimedOut,
    Progress,
    Terminal,
)
from backstay.kernel.features.activity.schedule import ActivityAssignment, CancelActivity, ScheduleActivity
from backstay.kernel.groups import wakes
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.state import Run
from backstay.kernel.task import Resume

__all__ = [
    "FEATURE",
    "Activities",
    "ActivityAssignment",
    "ActivityCancelled",
    "ActivityCompleted",
    "ActivityFailed",
    "ActivityHeartbeatRecorded",
    "ActivityRetryScheduled",
    "ActivityScheduled",
    "ActivitySnapshot",
    "ActivityStarted",
    "ActivityTimedOut",
    "AttemptReply",
    "CancelActivity",
    "CompleteActivity",
    "FailActivity",
    "HeartbeatActivity",
    "HeartbeatReply",
    "Progress",
    "RetryPolicy",
    "ScheduleActivity",
    "status",
]


def _wake(run: Run, event: Terminal, entry: Recorded) -> Resume:
    return Resume(
        resume_source_kind="activity_execution",
        resume_source_id=event.activity_execution_id,
        open_wait_id=f"activity:{event.activity_execution_id}",
        activity_execution_id=event.activity_execution_id,
        activity_attempt_id=event.activity_attempt_id,
        activity_type=event.activity_type,
        workflow_sequence=entry.sequence,
        workflow_event_type=type(event).__name__,
    )


def _wake_unless_local(run: Run, event: Terminal, entry: Recorded) -> Resume | None:
    if event.local_activity or (event.parallel_group_path and not wakes(run, event.sequence)):
        return None
    return _wake(run, event, entry)


def _wake_if_awaited(run: Run, event: ActivityCancelled, entry: Recorded) -> Resume | None:
    return _wake(run, event, entry) if event.awaited else None


def _shape(event: StepEvent) -> Shape:
    local = getattr(event, "local_activity", False)
    return Shape("local activity" if local else "activity", _type)


def _type(event: ActivityScheduled) -> str:
    return event.activity_type


def _value(event: ActivityCompleted) -> Outcome:
    return Value(event.result)


def _failed(event: ActivityFailed) -> Outcome:
    failure = event.exception or Failure(message=event.message, exception_type=event.exception_type)
    return Thrown(failure, event.failure_id, event.failure_category)


def _timed_out(event: ActivityTimedOut) -> Outcome:
    failure = Failure(message=event.message, exception_type="ActivityTimedOut")
    return Thrown(failure, event.failure_id, "timeout", event.timeout_kind)


def _cancelled(event: ActivityCancelled) -> Outcome:
    failure = Failure(message=f"activity {event.activity_type!r} was cancelled", exception_type="ActivityCancelled")
    return Thrown(failure, None, "cancelled")


FEATURE = Feature(
    name="activity",
    deciding=Deciding(
        messages={
            CompleteActivity: attempts.complete,
            FailActivity: attempts.fail,
            HeartbeatActivity: attempts.heartbeat,
        },
        commands={
            ScheduleActivity: CommandRule(schedule.check, schedule.apply),
            CancelActivity: CommandRule(nothing_to_check, attempts.cancel),
        },
        limits=schedule.limits,
        deadlines=timeouts.DEADLINES,
        tasks={"activity": TaskRule(schedule.serves, schedule.assign, crashes.lost, attempts.claimed, crashes.stray)},
        expect=schedule.expect,
        dispatch=schedule.dispatch,
    ),
    history=History(
        evolve={
            ActivityScheduled: records.scheduled,
            ActivityStarted: records.started,
            ActivityHeartbeatRecorded: records.heartbeat_recorded,
            ActivityRetryScheduled: records.retry_scheduled,
            ActivityCompleted: records.closed,
            ActivityFailed: records.closed,
            ActivityTimedOut: records.closed,
            ActivityCancelled: records.closed,
        },
        resume={
            ActivityCompleted: _wake_unless_local,
            ActivityFailed: _wake_unless_local,
            ActivityTimedOut: _wake_unless_local,
            ActivityCancelled: _wake_if_awaited,
        },
        shapes=dict.fromkeys(
            (
                ActivityScheduled,
                ActivityStarted,
                ActivityHeartbeatRecorded,
                ActivityRetryScheduled,
                ActivityCompleted,
                ActivityFailed,
                ActivityTimedOut,
                ActivityCancelled,
            ),
            _shape,
        ),
        outcomes={
            ActivityCompleted: _value,
            ActivityFailed: _failed,
            ActivityTimedOut: _timed_out,
            ActivityCancelled: _cancelled,
        },
    ),
    lifecycle=Lifecycle(cancel=attempts.cancel_all),
    words=words.WORDS,
)
