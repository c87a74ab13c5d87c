"""The four activity timeouts. A timeout is retried while attempts are left; otherwise, and after `schedule_to_close`,
the activity has timed out."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from backstay.kernel.failure import Failure
from backstay.kernel.feature import Deadline
from backstay.kernel.features.activity.attempts import in_budget, retry
from backstay.kernel.features.activity.records import Activities, ActivityTimedOut, Execution, after
from backstay.kernel.state import Instance
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, failure_id, seconds


def _armed(read: Callable[[Execution], Micros | None]) -> Callable[[Instance, int], Micros | None]:
    def armed(instance: Instance, step: int) -> Micros | None:
        execution = instance.current.part(Activities).open.get(step)
        return None if execution is None else read(execution)

    return armed


def _start_deadline(execution: Execution) -> Micros | None:
    return None if execution.running else execution.start_deadline


def _heartbeat_deadline(execution: Execution) -> Micros | None:
    if not execution.running or execution.heard_at is None:
        return None
    return after(execution.heard_at, execution.policy.heartbeat_timeout)


def _retry_at(execution: Execution) -> Micros | None:
    return None if execution.running else execution.retry_at


def _expire(kind: str) -> Callable[[Turn, int], None]:
    def due(turn: Turn, step: int) -> None:
        execution = turn.run.part(Activities).open[step]
        time_out(turn, execution, _most_final(execution, turn.now) or kind)

    return due


def _most_final(execution: Execution, now: Micros) -> str | None:
    """The timeout that counts, of all that have passed by now."""
    for kind, deadline in _PRECEDENCE.items():
        at = deadline(execution)
        if at is not None and at <= now:
            return kind
    return None


def time_out(turn: Turn, execution: Execution, kind: str) -> None:
    run = turn.run
    spelled = kind.replace("_", "-")
    message = f"activity {execution.scheduled.activity_type!r} passed its {spelled} timeout"
    may_retry = kind != "schedule_to_close" and in_budget(execution)
    turn.withdraw_task(execution.task_id)
    if may_retry:
        failure = Failure(message=message, exception_type="ActivityTimedOut")
        retry(turn, execution, failure, reason="activity_timed_out", timeout_kind=kind)
        return
    turn.record(
        ActivityTimedOut(
            sequence=execution.step,
            activity_execution_id=execution.scheduled.activity_execution_id,
            activity_type=execution.scheduled.activity_type,
            activity_attempt_id=execution.attempt_id or None,
            attempt_number=execution.attempt,
            failure_id=failure_id(run.run_id, run.length + 1),
            timeout_kind=kind,
            message=message,
            schedule_deadline_at=execution.start_deadline,
            close_deadline_at=execution.close_deadline,
            schedule_to_close_deadline_at=execution.total_deadline,
            heartbeat_deadline_at=_heartbeat_deadline(execution),
        )
    )


def _offer_retry(turn: Turn, step: int) -> None:
    """Offer the task of a retry whose backoff is over."""
    execution = turn.run.part(Activities).open[step]
    task = turn.instance.tasks.get(execution.task_id)
    if task is not None:
        turn.put_task(replace(task, available_at=min(task.available_at, turn.now)))


_PRECEDENCE: dict[str, Callable[[Execution], Micros | None]] = {
    "schedule_to_close": lambda e: e.total_deadline,
    "schedule_to_start": _start_deadline,
    "heartbeat": _heartbeat_deadline,
    "start_to_close": lambda e: e.close_deadline,
}
_LENGTHS: dict[str, Callable[[Execution], Micros]] = {
    "schedule_to_close": lambda e: seconds(e.policy.schedule_to_close_timeout or 0),
    "schedule_to_start": lambda e: e.retry_at - e.since + seconds(e.policy.schedule_to_start_timeout or 0),
    "heartbeat": lambda e: seconds(e.policy.heartbeat_timeout or 0),
    "start_to_close": lambda e: seconds(e.policy.start_to_close_timeout or 0),
    "retry": lambda e: e.retry_at - e.since,
}


def _length(kind: str) -> Callable[[Instance, int], Micros]:
    return lambda instance, step: _LENGTHS[kind](instance.current.part(Activities).open[step])


_SILENCE = ("heartbeat", "start_to_close")
DEADLINES = {
    **{
        kind: Deadline(_armed(deadline), _expire(kind), _length(kind), silence=kind in _SILENCE)
        for kind, deadline in _PRECEDENCE.items()
    },
    "retry": Deadline(_armed(_retry_at), _offer_retry, _length("retry")),
}
