"""Reconcile: correct the task rows of an instance to those that its history expects. Recovery, the sweep and repair use
it.

It restores rows that are missing, deletes rows that serve nothing, and ends leases that are over. Work that may still
be running is left alone: a running activity whose row is gone counts as alive until its recorded lease is over.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.agenda import wake_is_late
from backstay.kernel.feature import Deciding, Feature
from backstay.kernel.features import workflow_task
from backstay.kernel.message import Message
from backstay.kernel.task import Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import LEASE, SECOND, Micros

GRACE = 30 * SECOND


class Reconcile(Message, frozen=True, kw_only=True):
    """Bring the task rows back to what history expects.

    `incarnation` is that of this engine: in-process leases of any other are over, and so are its own for tasks that no
    worker of the process is `holding`. None: another engine owns the instance, and in-process leases are left to it. A
    run whose code was blocked is offered to other code, if there is some; `force` tries every failed task. `ask`
    repeats requests to other instances that owe this one an answer.
    """

    incarnation: str | None
    holding: frozenset[str] | None = None
    asked_at: Micros | None = None  # when `holding` was true: it says nothing about leases given since
    force: bool = False
    ask: bool = False
    unoffered: frozenset[str] = frozenset()  # tasks that have been ready for a while and wait in no lane

    def beside_owner(self) -> Reconcile:
        return replace(self, incarnation=None, holding=None)


class Reconciled(Struct, frozen=True, kw_only=True):
    restored: list[str]
    released: list[str]
    dropped: list[str]
    revived: list[str]
    woken: bool = False  # its wake was lost

    @property
    def changed(self) -> bool:
        return bool(self.restored or self.released or self.dropped or self.revived or self.woken)


def reconcile(turn: Turn, message: Reconcile) -> None:
    instance = turn.instance
    # Earlier decisions of this turn are not in the row yet: a wake that differs by them was not lost.
    fresh = not (turn.events or turn.changed_tasks or turn.commands)
    woken = fresh and wake_is_late(instance.next_wake, turn.features.agenda.next_wake(instance))
    turn.create_task()
    expected = turn.features.expect(instance).tasks
    result = Reconciled(restored=[], released=[], dropped=[], revived=[], woken=woken)
    rows = dict(instance.tasks)
    for id, task in rows.items():
        if id not in expected:
            turn.drop_task(id)
            result.dropped.append(id)
        elif task.state == "leased" and (
            _lease_is_over(task.owner, task.until, turn.now, message.incarnation) or _is_abandoned(task, message)
        ):
            turn.features.lease_lost(turn, task)
            result.released.append(id)
        elif message.force and (task.state == "failed" or (task.state == "ready" and task.last_block is not None)):
            workflow_task.revive(turn, replace(task, tried=(), last_block=None))
            result.revived.append(id)
        elif task.is_blocked:
            if workflow_task.others(turn.fleet, task):
                workflow_task.offer_to_others(turn, task)
                result.revived.append(id)
        elif task.state == "ready" and task.last_block is not None and workflow_task.withdraw(turn, task):
            pass  # no other code is left
        elif task.state == "ready" and task.created_at > turn.now:
            turn.put_task(task)  # the clock went back: it waits from now
        elif task.state == "ready" and task.is_due(turn.now):
            turn.to_offer.append(id)
            if id in message.unoffered:
                result.revived.append(id)
    left = 0  # rows that are lost, of work that may still be going on
    for id, task in expected.items():
        if id in rows:
            continue
        if task.state == "leased":
            until = None if task.until is None else task.until + GRACE
            foreign = until is not None and until > turn.now + LEASE + GRACE  # of a clock since set back
            if not foreign and not _lease_is_over(task.owner, until, turn.now, message.incarnation):
                left += 1
                continue
            turn.features.lease_lost(turn, task)
            task = instance.tasks.get(id)
        if task is not None:
            turn.put_task(replace(task, repair_count=1))
        result.restored.append(id)
    if instance.run is not None and (instance.missing_tasks != left or (instance.needs_reconcile and not left)):
        # Write the row of the instance again with the right number of tasks. Otherwise the sweep would come back for ever,
        # or never, if one row too many made up for one that is lost.
        instance.needs_reconcile, instance.missing_tasks = left > 0, left
        turn.index()
    if (message.ask or message.force) and instance.run is not None:
        turn.features.resend_unanswered(turn)
    turn.reply = result


def _lease_is_over(owner: str | None, until: Micros | None, now: Micros, incarnation: str | None) -> bool:
    """Whether a lease is over. One without an end lasts as long as the engine that gave it."""
    if until is not None:
        return until <= now
    return owner is None or (incarnation is not None and owner.partition("/")[0] != incarnation)


def _is_abandoned(task: Task, message: Reconcile) -> bool:
    if task.until is not None or message.holding is None or task.id in message.holding:
        return False
    return message.asked_at is None or task.leased_at is None or task.leased_at < message.asked_at


FEATURE = Feature(
    name="reconcile",
    deciding=Deciding(messages={Reconcile: reconcile}),
)
