"""Attempts: claimed, heartbeating, ended. An execution has one terminal event, however often its task was delivered.

A report names its attempt, and if it can the owner of the lease (`owner` None: it is not checked).
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.event import NO_CONTEXT, Context
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity.records import (
    Activities,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityRetryScheduled,
    ActivityStarted,
    Execution,
    Progress,
)
from backstay.kernel.features.activity.schedule import CancelActivity, task_of
from backstay.kernel.features.cancel import requested as cancel_requested
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import LEASE, SECOND, Micros, activity_task_id, attempt_id, failure_id

THINNED = 1000  # heartbeats in a history, after which new ones are recorded half as often


class CompleteActivity(Message, frozen=True, kw_only=True):
    """An attempt has succeeded. `report`: the reply names the tasks that the decision creates."""

    step: int
    attempt: int
    owner: str | None
    run_id: str
    result: bytes | None = None
    breach: Breach | None = None  # its worker may not send the result: it passes this limit
    report: bool = False


class FailActivity(Message, frozen=True, kw_only=True):
    """An attempt has failed. `gave_up`: it stopped because its heartbeat said that it is not the current attempt. That
    is no outcome of the activity."""

    step: int
    attempt: int
    owner: str | None
    run_id: str
    failure: Failure
    gave_up: bool = False
    report: bool = False


class HeartbeatActivity(Message, frozen=True, kw_only=True):
    step: int
    attempt: int
    owner: str | None
    run_id: str
    progress: Progress | None = None


class AttemptReply(Struct, frozen=True, kw_only=True):
    """The reply to complete and fail."""

    task_id: str
    activity_attempt_id: str
    outcome: str
    recorded: bool = True
    reason: str | None = None
    created_task_ids: list[str] = []  # complete when the message that it answers is decided


class HeartbeatReply(Struct, frozen=True, kw_only=True):
    """Whether the attempt may go on, and until when its lease lasts."""

    activity_attempt_id: str
    can_continue: bool
    cancel_requested: bool
    reason: str | None
    heartbeat_recorded: bool
    run_status: str
    attempt_status: str
    task_status: str | None = None
    lease_expires_at: Micros | None = None
    last_heartbeat_at: Micros | None = None
    run_closed_reason: str | None = None
    run_closed_at: Micros | None = None
    task_id: str | None = None  # of the attempt, while it is current
    lease_owner: str | None = None


def claimed(turn: Turn, task: Task) -> None:
    run = turn.run
    assert task.step is not None, "an activity task names its step"
    scheduled = run.part(Activities).open[task.step].scheduled
    turn.record(
        ActivityStarted(
            sequence=task.step,
            activity_execution_id=scheduled.activity_execution_id,
            activity_type=scheduled.activity_type,
            activity_attempt_id=attempt_id(run.run_id, task.step, task.attempt),
            attempt_number=task.attempt,
            lease_expires_at=task.until,
        )
    )


def complete(turn: Turn, message: CompleteActivity) -> None:
    execution = require_current(turn, message)
    size, bound = len(message.result or b""), turn.features.limits.payload_size
    breach = over_count("payload_size", size, bound) if size > bound else message.breach
    if message.report:
        turn.created_tasks = []
    task_id = end_lease(turn, execution)
    scheduled = execution.scheduled
    id = execution.attempt_id
    if breach is not None:
        turn.record(
            ActivityFailed(
                sequence=message.step,
                activity_execution_id=scheduled.activity_execution_id,
                activity_type=scheduled.activity_type,
                activity_attempt_id=id,
                attempt_number=message.attempt,
                failure_id=failure_id(turn.run.run_id, turn.run.length + 1),
                message=breach.message,
                failure_category="structural_limit",
                non_retryable=True,
                exception_type="StructuralLimitExceeded",
                structural_limit_kind=breach.kind,
                structural_limit_value=breach.value,
                structural_limit_configured=breach.configured,
            )
        )
    else:
        turn.record(
            ActivityCompleted(
                sequence=message.step,
                activity_execution_id=scheduled.activity_execution_id,
                activity_type=scheduled.activity_type,
                activity_attempt_id=id,
                attempt_number=message.attempt,
                result=message.result,
            )
        )
    turn.reply = AttemptReply(
        task_id=task_id,
        activity_attempt_id=id,
        outcome="completed" if breach is None else "failed",
        created_task_ids=[] if turn.created_tasks is None else turn.created_tasks,
    )


def fail(turn: Turn, message: FailActivity) -> None:
    execution = require_current(turn, message)
    if message.gave_up:
        # The attempt is the current one. By an earlier clock it was not, so it has stopped: it counts as a lost lease.
        turn.features.lease_lost(turn, task_of(turn.instance, turn.run, execution))
        turn.reply = AttemptReply(
            task_id=execution.task_id,
            activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
            outcome="released",
            recorded=False,
        )
        return
    if message.report:
        turn.created_tasks = []
    task_id = end_lease(turn, execution)
    failure = message.failure
    id = execution.attempt_id
    if retryable(execution, failure):
        retry(turn, execution, failure, reason="activity_failed")
        outcome = "retry_scheduled"
    else:
        turn.record(
            ActivityFailed(
                sequence=message.step,
                activity_execution_id=execution.scheduled.activity_execution_id,
                activity_type=execution.scheduled.activity_type,
                activity_attempt_id=id,
                attempt_number=message.attempt,
                failure_id=failure_id(turn.run.run_id, turn.run.length + 1),
                message=failure.message,
                non_retryable=failure.non_retryable,
                exception_type=failure.exception_type,
                exception_class=failure.exception_class,
                code=failure.code,
                exception=failure,
            )
        )
        outcome = "failed"
    turn.reply = AttemptReply(
        task_id=task_id,
        activity_attempt_id=id,
        outcome=outcome,
        created_task_ids=[] if turn.created_tasks is None else turn.created_tasks,
    )


def retryable(execution: Execution, failure: Failure) -> bool:
    if failure.non_retryable or execution.policy.fatal(failure.exception_type, failure.exception_class):
        return False
    return in_budget(execution)


def in_budget(execution: Execution) -> bool:
    """Whether another attempt is allowed. Only failures and timeouts count; crashes have a bound of their own."""
    return execution.policy.in_budget(execution.retry)


def retry(turn: Turn, execution: Execution, failure: Failure, *, reason: str, timeout_kind: str | None = None) -> None:
    """Close this attempt and schedule the next one. The workflow goes on waiting for the same execution."""
    run = turn.run
    step = execution.step
    attempt = execution.attempt
    pause = execution.policy.backoff(execution.retry)
    id = execution.attempt_id or None  # None: it was never claimed
    scheduled = execution.scheduled
    turn.drop_task(execution.task_id)
    turn.record(
        ActivityRetryScheduled(
            sequence=step,
            activity_execution_id=scheduled.activity_execution_id,
            activity_type=scheduled.activity_type,
            activity_attempt_id=id,
            retry_task_id=activity_task_id(run.run_id, step, execution.retry + 1),
            retry_of_task_id=execution.task_id,
            retry_available_at=turn.now + pause,
            retry_backoff_seconds=pause / SECOND,
            retry_after_attempt_id=id,
            retry_after_attempt=attempt,
            retry_reason=reason,
            message=failure.message,
            max_attempts=execution.policy.max_attempts,
            timeout_kind=timeout_kind,
            exception_type=failure.exception_type,
            exception_class=failure.exception_class,
            code=failure.code,
            exception=failure,
        )
    )
    turn.put_task(task_of(turn.instance, run, execution))


def heartbeat(turn: Turn, message: HeartbeatActivity) -> None:
    run = turn.instance.run
    id = attempt_id(message.run_id, message.step, message.attempt)
    if run is None or run.run_id != message.run_id or not run.is_open:
        turn.reply = _stopped(run, message.run_id, id)
        return
    execution = run.part(Activities).open.get(message.step)
    if execution is None or not _is_current(turn.instance, execution, message.attempt, message.owner, turn.now):
        turn.reply = _stale(run, id, execution)
        return
    recorded = _worth_recording(turn, execution, message.progress)
    task = turn.instance.tasks.get(execution.task_id)
    until = None if execution.lease_until is None else turn.now + LEASE
    if recorded:
        turn.context = Context(
            task_id=None if task is None else task.id, attempt=message.attempt, owner=execution.owner
        )
        turn.record(
            ActivityHeartbeatRecorded(
                sequence=message.step,
                activity_execution_id=execution.scheduled.activity_execution_id,
                activity_type=execution.scheduled.activity_type,
                activity_attempt_id=id,
                attempt_number=message.attempt,
                heartbeat_at=turn.now,
                lease_expires_at=until,
                progress=message.progress,
            )
        )
        turn.context = NO_CONTEXT
    else:
        execution.heard_at = turn.now
        if execution.policy.heartbeat_timeout is not None:
            turn.run.add_deadline(
                turn.now + round(execution.policy.heartbeat_timeout * SECOND), "heartbeat", message.step
            )
    if task is not None and not leased_to(task, execution):
        # The row is wrong or was released. History says that this attempt is running.
        task = replace(task_of(turn.instance, run, execution), leased_at=turn.now)
        turn.put_task(replace(task, until=until))
    elif task is not None and task.until is not None:
        turn.put_task(replace(task, until=turn.now + LEASE))
    turn.reply = HeartbeatReply(
        activity_attempt_id=id,
        can_continue=True,
        cancel_requested=cancel_requested(run),
        reason=None,
        heartbeat_recorded=recorded,
        run_status=run.status,
        attempt_status="running",
        task_status="leased",
        lease_expires_at=until,
        last_heartbeat_at=turn.now,
        task_id=execution.task_id,
        lease_owner=execution.owner,
    )


def status(instance: Instance, run_id: str, step: int, attempt: int, owner: str | None, now: Micros) -> HeartbeatReply:
    """Liveness and cancellation of an attempt, without touching its lease."""
    run = instance.run
    id = attempt_id(run_id, step, attempt)
    if run is None or run.run_id != run_id or not run.is_open:
        return _stopped(run, run_id, id)
    execution = run.part(Activities).open.get(step)
    if execution is None or not _is_current(instance, execution, attempt, owner, now):
        return _stale(run, id, execution)
    task = instance.tasks.get(execution.task_id)
    return HeartbeatReply(
        activity_attempt_id=id,
        can_continue=True,
        cancel_requested=cancel_requested(run),
        reason=None,
        heartbeat_recorded=False,
        run_status=run.status,
        attempt_status="running",
        task_status="leased",
        lease_expires_at=execution.lease_until if task is None else task.until,
        last_heartbeat_at=execution.heard_at,
        task_id=execution.task_id,
        lease_owner=execution.owner,
    )


def _stale(run: Run, id: str, execution: Execution | None) -> HeartbeatReply:
    return HeartbeatReply(
        activity_attempt_id=id,
        can_continue=False,
        cancel_requested=execution is None,
        reason="stale_attempt" if execution is not None else "activity_closed",
        heartbeat_recorded=False,
        run_status=run.status,
        attempt_status="expired" if execution is not None else "closed",
    )


def _stopped(run: Run | None, run_id: str, id: str) -> HeartbeatReply:
    if run is not None and run.run_id != run_id:
        run = None  # the current run is a later one, and says nothing about how this one ended
    status = "closed" if run is None else run.status
    return HeartbeatReply(
        activity_attempt_id=id,
        can_continue=False,
        cancel_requested=True,
        reason=f"run_{status}",
        heartbeat_recorded=False,
        run_status=status,
        attempt_status="cancelled",
        run_closed_reason=None if run is None else run.closed_reason,
        run_closed_at=None if run is None else run.closed_at,
    )


def _worth_recording(turn: Turn, execution: Execution, progress: Progress | None) -> bool:
    """Whether a heartbeat becomes an event: if progress changed, or half the heartbeat timeout has passed (at most 30
    s); never more than once a second.

    Each thousand heartbeats in a history double the time between two changes of progress that are recorded, so that
    history does not fill with them. Half the timeout stays as it is: a restart knows only recorded heartbeats.
    """
    last = execution.heartbeat_at or 0
    if last > turn.now:
        return True  # the clock went back: count from now
    if turn.now - last < SECOND:
        # The first progress of an attempt is recorded at once.
        return progress is not None and execution.progress is None
    changed = progress is not None and progress != execution.progress
    timeout = execution.policy.heartbeat_timeout
    pause = SECOND << turn.run.heartbeats // THINNED
    interval = max(30 * SECOND, pause) if timeout is None else min(30 * SECOND, round(timeout * SECOND / 2))
    return turn.now - last >= (min(pause, interval) if changed else interval)


def require_current(turn: Turn, message: CompleteActivity | FailActivity) -> Execution:
    """The execution that this attempt may end. Refused unless it is the current attempt of an open run."""
    run = turn.instance.run
    if run is None or run.run_id != message.run_id or run.closed_reason is not None:
        status = "closed" if run is None or run.run_id != message.run_id else run.status
        raise Refused(
            f"run_{status}",
            f"the run of this attempt is {status}; its outcome is ignored",
            outcome="ignored",
            can_continue=False,
            cancel_requested=status in ("cancelled", "terminated"),
            run_status=status,
            run_closed_reason=None if run is None else run.closed_reason,
            run_closed_at=None if run is None else run.closed_at,
        )
    execution = run.part(Activities).open.get(message.step)
    if execution is None:
        raise Refused("stale_attempt", f"activity {message.step} has already ended", outcome="ignored")
    if not _is_current(turn.instance, execution, message.attempt, message.owner, turn.now):
        raise Refused(
            "stale_attempt",
            f"attempt {message.attempt} of activity {message.step} is no longer the current one",
            outcome="ignored",
            current_attempt=execution.attempt,
        )
    return execution


def _is_current(instance: Instance, execution: Execution, attempt: int, owner: str | None, now: Micros) -> bool:
    """Whether this is the current attempt. History decides, whatever the task row says.

    A row that is leased to the attempt can only extend its lease, because not every renewal is recorded.
    """
    if not execution.running or execution.attempt != attempt:
        return False
    if owner is not None and execution.owner != owner:
        return False
    task = instance.tasks.get(execution.task_id)
    until = execution.lease_until
    if task is None or until is None:
        return True
    if task.until is not None and leased_to(task, execution):
        until = max(until, task.until)
    return until > now


def leased_to(task: Task, execution: Execution) -> bool:
    return task.state == "leased" and task.owner == execution.owner and task.attempt == execution.attempt


def end_lease(turn: Turn, execution: Execution) -> str:
    """End the lease of the current attempt with its report, if its row still exists. Returns the id of the task."""
    task_id = execution.task_id
    if task_id in turn.instance.tasks:
        turn.drop_task(task_id)
        turn.context = Context(task_id=task_id, attempt=execution.attempt, owner=execution.owner)
    return task_id


def cancel(turn: Turn, command: CancelActivity) -> None:
    execution = turn.run.part(Activities).open.get(command.step)
    if execution is not None:
        _cancel(turn, execution, awaited=command.awaited)


def cancel_all(turn: Turn) -> None:
    for execution in list(turn.run.part(Activities).open.values()):
        _cancel(turn, execution)


def _cancel(turn: Turn, execution: Execution, *, awaited: bool = False) -> None:
    turn.withdraw_task(execution.task_id)
    turn.record(
        ActivityCancelled(
            sequence=execution.step,
            activity_execution_id=execution.scheduled.activity_execution_id,
            activity_type=execution.scheduled.activity_type,
            cancelled_at=turn.now,
            activity_attempt_id=execution.attempt_id if execution.running else None,
            attempt_number=execution.attempt or None,
            awaited=awaited,
        )
    )
