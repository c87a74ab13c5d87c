"""The messages of workers about their workflow tasks, and the replies."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from backstay.kernel.command import Command
from backstay.kernel.failure import Handled
from backstay.kernel.limits import Breach
from backstay.kernel.message import Message
from backstay.kernel.task import Block, Lease
from backstay.kernel.values import Micros

WAITING_FOR_HISTORY = "WorkflowTaskWaitingForHistory"
DEADLINE_EXCEEDED = "workflow_deadline_exceeded"  # the reason of a block: the code did not end in time
CRASHED = "workflow_task_crashed"  # another reason: its workers never reported, several times in a row


class CompleteWorkflowTask(Message, frozen=True, kw_only=True):
    """The outcome of running workflow code. `lease` set: claim the ready task and complete it in one decision.

    `numbered`: the worker numbers its steps and waits; otherwise they are inferred. `report`: the reply names the tasks
    that the decision creates.
    """

    task_id: str
    owner: str
    attempt: int
    commands: list[Command]
    handled_failures: Sequence[Handled] = ()
    lease: Lease | None = None
    numbered: bool = True
    breach: Breach | None = None  # the worker sends no commands, because one of them passes this limit
    seen_until: int | None = None  # the code has ended here: it has not seen later events of its task
    # With `lease`, for an eager resume: the last sequence that the code had seen, and the attempt whose result that was.
    # Refused if history has another event there, or more events.
    seen: int | None = None
    result_of: str | None = None
    report: bool = False


class FailWorkflowTask(Message, frozen=True, kw_only=True):
    """The code could not be run, or does not fit its history. The run does not fail.

    `keep`: the worker keeps its lease; the task fails with this block if the lease ends without another report.
    """

    keep: bool = False
    task_id: str
    owner: str
    attempt: int
    block: Block
    lease: Lease | None = None
    report: bool = False


class HeartbeatWorkflowTask(Message, frozen=True, kw_only=True):
    """Renew the lease, or with `renew` False only check that it holds."""

    task_id: str
    owner: str
    attempt: int
    renew: bool = True


class TaskReply(Struct, frozen=True, kw_only=True):
    """The reply to complete, fail and heartbeat."""

    task_id: str
    workflow_task_attempt: int
    outcome: str
    run_id: str
    run_status: str
    recorded: bool = True
    reason: str | None = None
    lease_expires_at: Micros | None = None
    seen: int | None = None
    # The task is for one update. Later commands of the code that are based on the same events belong to the task as
    # well.
    for_update: bool = False
    created_task_ids: list[str] = []  # complete when the message that it answers is decided
    next_task_id: str | None = None  # the failed task itself, if it will be tried again
