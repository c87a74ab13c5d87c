"""What workers say of their workflow tasks, and what they are answered."""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.command import Command
from backstay.kernel.limits import Breach
from backstay.kernel.message import Message
from backstay.kernel.task import Block, Lease
from backstay.kernel.values import Micros

WAITING_FOR_HISTORY = "WorkflowTaskWaitingForHistory"
DEADLINE_EXCEEDED = "workflow_deadline_exceeded"  # the reason of a block: its code ran on and on
CRASHED = "workflow_task_crashed"  # another one: who had its lease was never heard of again, time after time


class CompleteWorkflowTask(Message, frozen=True, kw_only=True):
    """The outcome of running workflow code. `lease` set: claim the ready task and complete it in one decision.

    `numbered`: the worker says in full which step and wait it means; otherwise that is inferred. `report`: the reply is to
    name the tasks that this has made.
    """

    task_id: str
    owner: str
    attempt: int
    commands: list[Command]
    handled_failures: list[str] = []
    lease: Lease | None = None
    numbered: bool = True
    breach: Breach | None = None  # its worker may not send the commands: one of them passes this limit
    seen_until: int | None = None  # code that has ended got no further in what its task had seen
    # With `lease`, of code that ran ahead: what it had seen, and the attempt whose result was the last of it. Refused if
    # that is not all, or if history has anything else in that place.
    seen: int | None = None
    result_of: str | None = None
    report: bool = False


class FailWorkflowTask(Message, frozen=True, kw_only=True):
    """The code could not be run, or diverged from history. Never the end of the run.

    `keep`: this is only noted; the worker keeps its lease, and the task fails if that ends without a better report.
    """

    keep: bool = False
    task_id: str
    owner: str
    attempt: int
    block: Block
    lease: Lease | None = None
    report: bool = False


class HeartbeatWorkflowTask(Message, frozen=True, kw_only=True):
    """Renew the lease, or only ask whether it still holds."""

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
    for_update: bool = (
        False  # it is for one update: what code decided later, having seen no more, belongs to it as well
    )
    created_task_ids: list[str] = []  # complete when the message that it answers is decided
    next_task_id: str | None = None  # the failed task itself, while it is to be tried again
