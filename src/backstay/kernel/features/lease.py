"""Leases: the right of one worker to work on a task. ready → leased → (spent | released | expired) → ready again, next
attempt.

A claim is a decision, so it is on disk before the worker begins. When a lease expires or is lost, the task keeps its id
and is offered again. Lost leases never count against a retry budget; `activity/crashes` and `workflow_task/crashed`
count them.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.feature import Deadline, Deciding, Feature
from backstay.kernel.features import pause
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance
from backstay.kernel.task import Lease, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import LEASE, Micros


class Routed(Protocol):
    """The routing of a task, or of a lane of tasks with the same routing."""

    @property
    def connection(self) -> str | None: ...
    @property
    def compatibility(self) -> str | None: ...


class Claimant(Struct, frozen=True, kw_only=True, gc=False):
    """A worker that claims a task by its id. `connection` None: it serves every connection."""

    connection: str | None = None
    compatibility: frozenset[str] | None = None

    def serves(self, routing: Routed) -> str | None:
        """Why the worker may not run tasks with this routing; None if it may. The rule is that of polls."""
        if self.connection is not None and routing.connection != self.connection:
            return "backend_unavailable"
        marker = routing.compatibility
        own = self.compatibility
        return (
            None if marker is None or (own is not None and ("*" in own or marker in own)) else "compatibility_blocked"
        )


# The contract has other reasons for activities.
_OF_ACTIVITIES = {"backend_unavailable": "backend_unsupported", "compatibility_blocked": "compatibility_unsupported"}


class Claim(Message, frozen=True, kw_only=True):
    """Lease one task by its id. `by` None: a worker of this process, which matching has chosen."""

    task_id: str
    lease: Lease
    kind: str | None = None  # refuse another kind of task
    by: Claimant | None = None


class Offer(Message, frozen=True, kw_only=True):
    """Offer a ready task to the workers again. `quiet`: only load its instance. `steals`: also if another process owns it."""

    task_id: str
    quiet: bool = False
    steals: bool = False


class Release(Message, frozen=True, kw_only=True):
    """End a lease that its worker cannot use, because it is gone or stopping.

    `begun` False: work on the task has certainly not begun, because it never left this process; or a worker that is
    alive has given a workflow task back. `until`: only if the lease still ends then. Who has given it to a poll whose caller is
    gone cannot know whether the worker has got it by the same poll at another node, which renews it first.
    """

    task_id: str
    owner: str
    attempt: int
    begun: bool = True
    until: Micros | None = None


class Renew(Message, frozen=True, kw_only=True):
    """Extend a lease: the worker is alive and still works on the task. `bounded`: give an end to a lease that has none."""

    task_id: str
    owner: str
    attempt: int
    bounded: bool = False


def never_heard_of(task: Task) -> Release:
    """End a lease whose worker seems not to have heard of it: its poll is over, or the process that gave it is gone."""
    return Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt, begun=False, until=task.until)


def claim(turn: Turn, message: Claim) -> None:
    if turn.due_task is not None and turn.due_task.id == message.task_id:
        turn.create_task()
    refusal = claim_status(turn.instance, message.task_id, message.kind, turn.now, message.by)
    if refusal is not None:
        raise Refused(refusal, f"task {message.task_id} cannot be claimed: {refusal}", task_id=message.task_id)
    task = turn.instance.tasks[message.task_id]
    if not turn.features.expects(turn.instance, task):
        raise Refused("task_not_found", f"nothing waits for task {message.task_id}", task_id=message.task_id)
    turn.reply = turn.grant(task, message.lease)


def claim_status(
    instance: Instance, task_id: str, kind: str | None, now: Micros, by: Claimant | None = None
) -> str | None:
    """Why this task cannot be claimed now, as a reason of the contract; None if it can."""
    task = instance.tasks.get(task_id)
    if task is None:
        return "run_closed" if instance.run is not None and not instance.run.is_open else "task_not_found"
    if kind is not None and task.kind != kind:
        return f"task_not_{kind}"
    workflow = task.kind == "workflow"
    if task.state != "ready":
        return "task_not_claimable" if workflow else "task_not_ready"
    if not task.is_due(now):
        return "task_not_claimable" if workflow else "task_not_due"
    if instance.run is not None and not pause.allows(instance.run):
        return "run_paused"
    refusal = None if by is None else by.serves(task.routing)
    return refusal if refusal is None or workflow else _OF_ACTIVITIES[refusal]


def offer(turn: Turn, message: Offer) -> None:
    """The reply is the last decision of an instance whose run is paused: until the next one, no worker gets its tasks."""
    instance = turn.instance
    if message.task_id in instance.tasks and not message.quiet:
        turn.to_offer.append(message.task_id)
    if instance.run is not None and not pause.allows(instance.run):
        turn.reply = instance.last_decision


def release(turn: Turn, message: Release) -> None:
    task = turn.require_lease(message.task_id, message.owner, message.attempt)
    if message.until is None or message.until == task.until:
        turn.features.lease_lost(turn, task, message.begun)


def renew(turn: Turn, message: Renew) -> None:
    task = turn.require_lease(message.task_id, message.owner, message.attempt)
    if task.until is not None or message.bounded:
        until = turn.now + LEASE
        turn.put_task(
            replace(task, until=until + 1 if until == task.until else until)
        )  # `Release` identifies the lease by it


def _armed(instance: Instance, task_id: str) -> Micros | None:
    task = instance.tasks.get(task_id)
    return None if task is None else task.until


def _length(instance: Instance, task_id: str) -> Micros:
    return LEASE


def _expire(turn: Turn, task_id: str) -> None:
    turn.features.lease_lost(turn, turn.instance.tasks[task_id])


FEATURE = Feature(
    name="lease",
    deciding=Deciding(
        messages={Claim: claim, Offer: offer, Release: release, Renew: renew},
        deadlines={"lease": Deadline(_armed, _expire, _length)},
    ),
)
