"""What became of a lease that is spent: its events remember who held it. So repeating a terminal call is harmless."""

from __future__ import annotations

from collections.abc import Iterable

from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import (
    ActivityCompleted,
    ActivityFailed,
    ActivityRetryScheduled,
    AttemptOutcome,
)
from backstay.kernel.features.workflow_task import TaskOutcome


def completed_task(
    history: Iterable[Recorded], task_id: str, owner: str, attempt: int, run_id: str, status: str
) -> TaskOutcome | None:
    """The outcome of this attempt's completion, if history has one."""
    for entry in history:
        context = entry.context
        if context.task_id == task_id and context.owner == owner and context.attempt == attempt:
            return TaskOutcome(
                task_id=task_id,
                workflow_task_attempt=attempt,
                outcome="completed",
                run_id=run_id,
                run_status=status,
                reason="already_recorded",
            )
    return None


def ended_attempt(history: Iterable[Recorded], attempt_id: str, owner: str | None) -> AttemptOutcome | None:
    """The outcome that this attempt of an activity has reported before. `owner` None: whoever held it."""
    for entry in history:
        match entry.event:
            case ActivityRetryScheduled(retry_after_attempt_id=id) if id == attempt_id:
                outcome = "retry_scheduled"
            case ActivityCompleted(activity_attempt_id=id) if id == attempt_id:
                outcome = "completed"
            case ActivityFailed(activity_attempt_id=id) if id == attempt_id:
                outcome = "failed"
            case _:
                continue
        if owner in (None, entry.context.owner) and entry.context.task_id is not None:
            return AttemptOutcome(
                task_id=entry.context.task_id,
                activity_attempt_id=attempt_id,
                outcome=outcome,
                reason="already_recorded",
            )
    return None
