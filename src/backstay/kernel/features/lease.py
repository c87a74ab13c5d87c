"""Leases: who may work on a task. ready → leased → (spent | released | expired) → ready again, next attempt.

A claim is a decision, so it is durable before anybody works. An expired or lost lease keeps the task and its id;
it is offered again. Lost leases never count against a retry budget; what they count against is `activity/crashes` and
`workflow_task/crashed`.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.feature import Deadline, Deciding, Feature
from backstay.kernel.features import pause
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Workflow
from backstay.kernel.task import Lease
from backstay.kernel.turn import Turn
from backstay.kernel.values import LEASE, Micros


class Routed(Protocol):
    """A task's routing, or a lane of tasks with the same."""

    @property
    def connection(self) -> str | None: ...
    @property
    def compatibility(self) -> str | None: ...


class Claimant(Struct, frozen=True, kw_only=True, gc=False):
    """What a worker that claims by name says of itself. `connection` None: it serves every one."""

    connection: str | None = None
    compatibility: frozenset[str] | None = None

    def serves(self, routing: Routed) -> str | None:
        """Why it may not run work routed like this; None if it may. The same rule as for polls."""
        if self.connection is not None and routing.connection != self.connection:
            return "backend_unavailable"
        marker = routing.compatibility
        own = self.compatibility
        return (
            None if marker is None or (own is not None and ("*" in own or marker in own)) else "compatibility_blocked"
        )


# The contract has words of its own for activities.
_OF_ACTIVITIES = {"backend_unavailable": "backend_unsupported", "compatibility_blocked": "compatibility_unsupported"}


class Claim(Message, frozen=True, kw_only=True):
    """Lease one specific task. `by` None: a worker of this process, which was matched before."""

    task_id: str
    lease: Lease
    kind: str | None = None  # refuse another kind of task
    by: Claimant | None = None


class Offer(Message, frozen=True, kw_only=True):
    """Put a ready task before the workers again; whoever has room may take it. `quiet`: only see that it is loaded."""

    task_id: str
    quiet: bool = False


class Release(Message, frozen=True, kw_only=True):
    """The worker cannot use its lease (it went away, or is stopping).

    `begun` False: it is certain that the task never left this process, so nobody has begun to work on it; or a worker that
    lives has given back a workflow task, which nobody need begin twice.
    """

    task_id: str
    owner: str
    attempt: int
    begun: bool = True


class Renew(Message, frozen=True, kw_only=True):
    """The worker is alive and still at it."""

    task_id: str
    owner: str
    attempt: int


def claim(turn: Turn, message: Claim) -> None:
    if turn.due is not None and turn.due.id == message.task_id:
        turn.create_task()
    refusal = claim_status(turn.flow, message.task_id, message.kind, turn.now, message.by)
    if refusal is not None:
        raise Refused(refusal, f"task {message.task_id} cannot be claimed: {refusal}", task_id=message.task_id)
    task = turn.flow.tasks[message.task_id]
    if not turn.machine.expects(turn.flow, task):
        raise Refused("task_not_found", f"nothing waits for task {message.task_id}", task_id=message.task_id)
    turn.reply = turn.grant(task, message.lease)


def claim_status(flow: Workflow, task_id: str, kind: str | None, now: Micros, by: Claimant | None = None) -> str | None:
    """Why this task cannot be claimed now, in the words of the contract; None if it can."""
    task = flow.tasks.get(task_id)
    if task is None:
        return "run_closed" if flow.run is not None and not flow.run.open else "task_not_found"
    if kind is not None and task.kind != kind:
        return f"task_not_{kind}"
    workflow = task.kind == "workflow"
    if task.state != "ready":
        return "task_not_claimable" if workflow else "task_not_ready"
    if not task.due(now):
        return "task_not_claimable" if workflow else "task_not_due"
    if flow.run is not None and not pause.allows(flow.run):
        return "run_paused"
    refusal = None if by is None else by.serves(task.routing)
    return refusal if refusal is None or workflow else _OF_ACTIVITIES[refusal]


def offer(turn: Turn, message: Offer) -> None:
    if message.task_id in turn.flow.tasks and not message.quiet:
        turn.stirred.append(message.task_id)


def release(turn: Turn, message: Release) -> None:
    turn.machine.lost(turn, turn.hold(message.task_id, message.owner, message.attempt), message.begun)


def renew(turn: Turn, message: Renew) -> None:
    task = turn.hold(message.task_id, message.owner, message.attempt)
    if task.until is not None:
        turn.put(replace(task, until=turn.now + LEASE))


def _armed(flow: Workflow, task_id: str) -> Micros | None:
    task = flow.tasks.get(task_id)
    return None if task is None else task.until


def _length(flow: Workflow, task_id: str) -> Micros:
    return LEASE


def _expire(turn: Turn, task_id: str) -> None:
    turn.machine.lost(turn, turn.flow.tasks[task_id])


FEATURE = Feature(
    name="lease",
    deciding=Deciding(
        messages={Claim: claim, Offer: offer, Release: release, Renew: renew},
        deadlines={"lease": Deadline(_armed, _expire, _length)},
    ),
)
