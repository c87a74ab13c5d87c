"""Refused completions: a workflow task whose completion the engine refuses for its content fails with that refusal.

Otherwise the same code would send the same completion again, at once and for ever. As the error of its task the refusal is
where operators look, and the task is retried after a growing pause. A worker of the published protocol may correct itself: it
keeps its lease, and the task fails when the lease ends without an accepted report.
"""

from __future__ import annotations

from typing import Protocol

from backstay.engine.core.cache import Reply
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Block

# About the lease, the run or the moment, not about the content: another worker may get another answer.
_NOT_ITS_FAULT = frozenset(
    {
        *("task_not_found", "task_not_leased", "task_not_claimable", "task_not_workflow", "lease_owner_mismatch"),
        *("workflow_task_attempt_mismatch", "lease_expired", "run_closed", "eager_refused"),
    }
)


class Submits(Protocol):
    """The part of an engine that decides messages."""

    def submit(self, key: int, message: Message, reply: Reply | None = None, *, again: bool = True) -> None: ...


def note_refusal(
    engine: Submits, key: int, message: CompleteWorkflowTask, error: BaseException | None, *, keep: bool = False
) -> None:
    """Fail the task of a refused completion. `keep`: the worker may correct itself under its lease."""
    if not isinstance(error, Refused) or error.reason in _NOT_ITS_FAULT:
        return
    block = Block(message=f"its completion was refused: {error}", type="CompletionRefused", reason=error.reason)
    failure = FailWorkflowTask(
        task_id=message.task_id,
        owner=message.owner,
        attempt=message.attempt,
        block=block,
        lease=message.lease,
        keep=keep,
    )
    engine.submit(key, failure, again=False)
