"""Retry now: an operator's command that ends the backoff of an activity, so that its next attempt is due at once.

The backoff ends by an event, so a fold knows it, and the number of attempts stays as it is. Without an activity the command
is for all activities of the run that back off.
"""

from __future__ import annotations

from typing import Any

from backstay.kernel.event import Event, Recorded, clock
from backstay.kernel.feature import Deciding, Feature, History
from backstay.kernel.features.activity.records import Activities, Execution, after
from backstay.kernel.features.activity.schedule import task_of
from backstay.kernel.features.instance_commands import (
    ReasonedCommand,
    Rejection,
    accept,
    cause,
    may_accept,
    reject,
)
from backstay.kernel.operator_command import REASON, CommandField, CommandOutcome, CommandRefusal, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, execution_id
from backstay.kernel.words import About, Phrase, Story, Words


class RetryNow(ReasonedCommand, frozen=True, kw_only=True):
    """`activity_execution_id` None: every activity of the run that backs off."""

    command_type = "retry_now"

    activity_execution_id: str | None = None

    def intent(self) -> bytes:
        return (self.activity_execution_id or "").encode() + b"\0" + (self.reason or "").encode()


class ActivityRetryRequested(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The next attempt is due now. `step` is the activity's; `retry_available_at` is when it would have been due."""

    workflow_command_id: str
    activity_execution_id: str
    activity_type: str
    step: int
    retry_task_id: str
    retry_available_at: Micros
    reason: str | None = None


def retry_now(turn: Turn, message: RetryNow) -> None:
    if not may_accept(turn, message):
        return
    waiting, why = _find(turn, message)
    if why is not None:
        reject(turn, message, why)
        return
    command = accept(turn, message, "retry_dispatched" if waiting else "retry_not_needed")
    for execution in waiting:
        turn.record_with_context(
            ActivityRetryRequested(
                workflow_command_id=command.id,
                activity_execution_id=execution.scheduled.activity_execution_id,
                activity_type=execution.scheduled.activity_type,
                step=execution.step,
                retry_task_id=execution.task_id,
                retry_available_at=execution.retry_at,
                reason=message.reason,
            ),
            cause(command),
        )
        turn.put_task(task_of(turn.instance, turn.run, execution))


def backs_off(execution: Execution, now: Micros) -> bool:
    """Whether an activity waits for the time of its next attempt."""
    return execution.attempt > 0 and not execution.running and execution.retry_at > now


def _find(turn: Turn, message: RetryNow) -> tuple[list[Execution], Rejection | None]:
    """The activities whose backoff ends, or why the command is rejected. An activity that is due already needs nothing."""
    run = turn.run
    open_ones = run.part(Activities).open
    id = message.activity_execution_id
    if id is None:
        found = [execution for execution in open_ones.values() if backs_off(execution, turn.now)]
        return found, None if found else NOTHING_BACKS_OFF
    execution = next((one for one in open_ones.values() if one.scheduled.activity_execution_id == id), None)
    if execution is None:
        return [], NOT_OPEN if _is_step(run, id) else NOT_FOUND
    if execution.running:
        return [], RUNNING
    return [execution] if backs_off(execution, turn.now) else [], None


def _is_step(run: Run, id: str) -> bool:
    """Whether the run has had a step of this id. The state no longer has the kind of the step."""
    number = id.removeprefix(execution_id(run.run_id, 0)[:-1])
    if not number.isdecimal() or len(number) > 9:
        return False
    step = int(number)
    return 1 <= step <= run.step and id == execution_id(run.run_id, step)


NOTHING_BACKS_OFF = Rejection("no_activity_backs_off", "rejected_not_backing_off", temporary=True)
RUNNING = Rejection("activity_running", "rejected_not_backing_off", temporary=True)
NOT_OPEN = Rejection("activity_not_open", "rejected_not_backing_off")
NOT_FOUND = Rejection("activity_not_found", "rejected_not_found")


def _requested(run: Run, event: ActivityRetryRequested, entry: Recorded) -> None:
    execution = run.part(Activities).open[event.step]
    execution.since = execution.retry_at = at = clock(entry)
    execution.start_deadline = after(at, execution.policy.schedule_to_start_timeout)
    if execution.start_deadline is not None:
        run.add_deadline(execution.start_deadline, "schedule_to_start", event.step)


def _say(story: Story, event: ActivityRetryRequested) -> Phrase:
    step = story.open.get(event.step)
    if step is not None:
        step.retry_at = story.at
    spared = story.form.span(max(0, event.retry_available_at - story.at))
    return Phrase(
        "↻", f"{event.activity_type} is tried again now, {spared} early{story.because(event.reason)}", "retry"
    )


def _blocked(instance: Instance, state: str, now: Micros) -> str | None:
    activities = instance.current.part(Activities).open.values()
    return None if any(backs_off(execution, now) for execution in activities) else NOTHING_BACKS_OFF.reason


def _activity_blocked(view: Any) -> str | None:
    """By the view of an activity; whether its pause is over is for the clock of the reader to say."""
    if view.status == "running":
        return RUNNING.reason
    if view.status != "pending":
        return NOT_OPEN.reason
    return None if view.attempt_count and view.available_at is not None else NOTHING_BACKS_OFF.reason


RETRY_NOW = OperatorCommand(
    message=RetryNow,
    request="RetryActivityNow",
    label="Retry now",
    help="End the backoff of the activities of {run}: retry them now.",
    more="The number of remaining attempts does not change.",
    examples=("order-1", 'order-1 --reason "the carrier is back"'),
    fields=(
        CommandField(
            "activity_execution_id",
            "Retry only this activity. Default: all that wait in backoff.",
            ("--activity",),
            "EXECUTION_ID",
            "activities",
        ),
        REASON,
    ),
    outcomes={
        "retry_dispatched": CommandOutcome("its next attempt is due now", goes_on=True),
        "retry_not_needed": CommandOutcome("its next attempt is due already"),
    },
    refusals={
        NOTHING_BACKS_OFF.reason: CommandRefusal(
            "none of its activities waits for its next attempt; `dw why ID` says what it waits for"
        ),
        RUNNING.reason: CommandRefusal("an attempt is running, so there is no backoff to end"),
        NOT_OPEN.reason: CommandRefusal("that step is not an open activity; it may have ended"),
        NOT_FOUND.reason: CommandRefusal(
            "its current run has no such activity; the activity_execution_id is in the detail of the run", 404
        ),
    },
    blocked=_blocked,
    blocked_words={NOTHING_BACKS_OFF.reason: "None of its activities waits for its next attempt."},
    hidden=frozenset({NOTHING_BACKS_OFF.reason, "run_closed", "selected_run_not_current"}),
    parts={"activities": _activity_blocked},
)


FEATURE = Feature(
    name="retry_now",
    deciding=Deciding(messages={RetryNow: retry_now}),
    history=History(evolve={ActivityRetryRequested: _requested}),
    words={
        ActivityRetryRequested: Words(
            About("activity", "activity_execution", "activity_execution_id", ("activity_type",)), _say
        )
    },
    operator=(RETRY_NOW,),
)
