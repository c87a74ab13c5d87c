"""Local activities: run inside the workflow worker during its task, recorded with the task's completion.

They write the same events as other activities, marked `local`, and need no task of their own. A worker that dies in the
middle has recorded nothing: the next replay runs the activity again.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from backstay.kernel.call_options import CallOptions, check_options, options_of
from backstay.kernel.command import Command, StepCommand
from backstay.kernel.failure import Failure
from backstay.kernel.feature import CommandRule, Deciding, Feature
from backstay.kernel.features import failures
from backstay.kernel.features.activity.records import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivitySnapshot,
    ActivityStarted,
    ActivityTimedOut,
)
from backstay.kernel.features.activity.schedule import check_policy
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.turn import Turn
from backstay.kernel.values import activity_task_id, attempt_id, execution_id, failure_id


class LocalAttempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try. Every attempt but the last one failed and was retried after `backoff_seconds`."""

    failure: Failure | None = None
    timeout_kind: str | None = None
    backoff_seconds: float = 0


class RecordLocalActivity(
    StepCommand, CallOptions, frozen=True, kw_only=True, omit_defaults=True, tag="record_local_activity"
):
    activity_type: str
    outcome: Literal["completed", "failed", "timed_out", "cancelled"]
    attempts: list[LocalAttempt]
    arguments: bytes | None = None
    result: bytes | None = None
    retry_policy: RetryPolicy | None = None
    handled: bool = False  # the code has caught the failure


def check(turn: Turn, command: RecordLocalActivity) -> None:
    if not command.activity_type:
        raise Refused("invalid_commands", "a local activity needs an activity_type", field="activity_type")
    if not command.attempts:
        raise Refused("invalid_commands", "a local activity has at least one attempt", field="attempts")
    if command.outcome in ("failed", "timed_out") and command.attempts[-1].failure is None:
        raise Refused("invalid_commands", "a failed local activity names its failure", field="attempts")
    check_options(command)
    if command.retry_policy is not None:
        check_policy(command.retry_policy)


def apply(turn: Turn, command: RecordLocalActivity) -> None:
    run = turn.run
    step = run.step + 1
    identity: dict[str, Any] = {
        "sequence": step,
        "activity_execution_id": execution_id(run.run_id, step),
        "activity_type": command.activity_type,
        "execution_mode": "local",
        "local_activity": True,
    }
    policy = command.retry_policy or RetryPolicy(max_attempts=1)
    snapshot = ActivitySnapshot(
        retry_policy=policy, routing=run.routing, arguments=command.arguments, **options_of(CallOptions, command)
    )
    turn.record(ActivityScheduled(activity=snapshot, **identity))
    last = len(command.attempts)
    for number, attempt in enumerate(command.attempts, 1):
        id = attempt_id(run.run_id, step, number)
        turn.record(ActivityStarted(activity_attempt_id=id, attempt_number=number, **identity))
        if number < last:
            failure = attempt.failure or Failure(message="interrupted")
            turn.record(
                ActivityRetryScheduled(
                    activity_attempt_id=id,
                    retry_task_id=activity_task_id(run.run_id, step, number + 1),
                    retry_of_task_id=activity_task_id(run.run_id, step, number),
                    retry_available_at=turn.now,
                    retry_backoff_seconds=attempt.backoff_seconds,
                    retry_after_attempt_id=id,
                    retry_after_attempt=number,
                    retry_reason="activity_timed_out" if attempt.timeout_kind else "activity_failed",
                    message=failure.message,
                    max_attempts=policy.max_attempts,
                    timeout_kind=attempt.timeout_kind,
                    exception_type=failure.exception_type,
                    exception_class=failure.exception_class,
                    code=failure.code,
                    exception=failure,
                    **identity,
                )
            )
    _end(turn, command, identity, last)
    if command.handled:
        failures.record_handled(turn, failure_id(run.run_id, run.length))


def _end(turn: Turn, command: RecordLocalActivity, identity: dict[str, Any], number: int) -> None:
    run = turn.run
    step = run.step
    id = attempt_id(run.run_id, step, number)
    failure = command.attempts[-1].failure or Failure(message=command.outcome)
    match command.outcome:
        case "completed":
            turn.record(
                ActivityCompleted(activity_attempt_id=id, attempt_number=number, result=command.result, **identity)
            )
        case "failed":
            turn.record(
                ActivityFailed(
                    activity_attempt_id=id,
                    attempt_number=number,
                    failure_id=failure_id(run.run_id, run.length + 1),
                    message=failure.message,
                    non_retryable=failure.non_retryable,
                    exception_type=failure.exception_type,
                    exception_class=failure.exception_class,
                    code=failure.code,
                    exception=failure,
                    **identity,
                )
            )
        case "timed_out":
            turn.record(
                ActivityTimedOut(
                    activity_attempt_id=id,
                    attempt_number=number,
                    failure_id=failure_id(run.run_id, run.length + 1),
                    timeout_kind=command.attempts[-1].timeout_kind or "start_to_close",
                    message=failure.message,
                    **identity,
                )
            )
        case "cancelled":
            turn.record(
                ActivityCancelled(cancelled_at=turn.now, activity_attempt_id=id, attempt_number=number, **identity)
            )


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    recorded = [command for command in commands if isinstance(command, RecordLocalActivity)]
    if not recorded:
        return None
    largest = max(max(len(command.arguments or b""), len(command.result or b"")) for command in recorded)
    return over_count("payload_size", largest, turn.features.limits.payload_size)


FEATURE = Feature(
    name="local_activity",
    deciding=Deciding(
        commands={RecordLocalActivity: CommandRule(check, apply)},
        limits=_limits,
    ),
)
