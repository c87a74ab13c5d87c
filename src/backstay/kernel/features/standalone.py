"""Standalone activities: an activity as a durable job. Started → the events of the activity → Completed | Failed.

The job is an ordinary run with one step, and the kernel is its code: it schedules the activity in the decision that
starts the run, and ends the run in the decision that ends the activity. So no worker that runs workflows is needed, and
retries, timeouts, cancellation, lists and waits are those of every activity and every run.
"""

from __future__ import annotations

from backstay.kernel.feature import Deciding, Feature
from backstay.kernel.features import close
from backstay.kernel.features.activity import (
    ActivityCompleted,
    ActivityFailed,
    ActivityTimedOut,
    ScheduleActivity,
    schedule,
)
from backstay.kernel.features.start import STANDALONE, Identity, RecordedDefinition, Start, start
from backstay.kernel.limits import over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import failure_id

ACTIVITY_DEFINITION = RecordedDefinition(entry_method="activity")
"""The definition of a run that declares no signals, queries or updates."""


class StartActivity(Start, frozen=True, kw_only=True):
    workflow_type: str = STANDALONE
    activity: ScheduleActivity
    definition: RecordedDefinition | None = ACTIVITY_DEFINITION
    standalone: bool = True

    def intent(self) -> tuple[bytes, ...]:
        activity = self.activity
        return (*super().intent(), activity.activity_type.encode(), activity.arguments or b"")


def start_activity(turn: Turn, message: StartActivity) -> None:
    activity = message.activity
    schedule.check(turn, activity)
    if activity.sequence not in (None, 1) or activity.parallel_group_path:
        raise Refused("invalid_commands", "a standalone activity is the only step of its run", field="activity")
    breach = over_count("payload_size", len(activity.arguments or b""), turn.features.limits.payload_size)
    if breach is not None:  # a workflow would fail by this; a standalone activity is not even started
        raise Refused(
            "structural_limit_exceeded",
            breach.message,
            field="input",
            limit_kind=breach.kind,
            current_value=breach.value,
            configured_limit=breach.configured,
        )
    before = turn.instance.run
    start(turn, message)
    if turn.instance.run is not before:
        schedule.apply(turn, activity)


def applies(run: Run) -> bool:
    """Whether the kernel is the code of this run."""
    started = run.part(Identity).started
    return started is not None and started.standalone


def go_on(turn: Turn) -> None:
    """Act as the code of the run: see all events at once, and close the run when its activity has ended."""
    run = turn.run
    turn.instance.cursor = run.length
    run.wake_events.clear()
    for event in [entry.event for entry in turn.events]:
        if isinstance(event, ActivityCompleted):
            close.complete(turn, close.CompleteWorkflow(result=event.result))
        elif isinstance(event, ActivityFailed | ActivityTimedOut):
            _fail(turn, event)


def _fail(turn: Turn, event: ActivityFailed | ActivityTimedOut) -> None:
    run = turn.run
    timed_out = isinstance(event, ActivityTimedOut)
    turn.record(
        close.WorkflowFailed(
            failure_id=failure_id(run.run_id, run.length + 1),
            source_kind="activity_execution",
            source_id=event.activity_execution_id,
            failure_category="timeout" if timed_out else event.failure_category,
            message=event.message,
            non_retryable=False if timed_out else event.non_retryable,
            exception_type="ActivityTimedOut" if timed_out else event.exception_type,
            exception_class=None if timed_out else event.exception_class,
            exception=None if timed_out else event.exception,
            structural_limit_kind=None if timed_out else event.structural_limit_kind,
            structural_limit_value=None if timed_out else event.structural_limit_value,
            structural_limit_configured=None if timed_out else event.structural_limit_configured,
        )
    )
    close.closed(turn)


FEATURE = Feature(
    name="standalone",
    deciding=Deciding(messages={StartActivity: start_activity}),
)
