"""The leases that a worker reports: they are renewed, or withdrawn from it.

A worker may hold tasks that came from other nodes, and another node may have ended a lease that was given here. So the
list of the worker is compared with its leases whenever it sends one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from backstay.engine.core.cache import Reply
from backstay.engine.tasks.remote_workers import RemoteWorker
from backstay.kernel.features.lease import Renew
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.kernel.values import LEASE, is_activity_task
from backstay.protocol import requests as ask
from backstay.protocol.native import worker as wire
from backstay.server.native.shared_slots import SharedSlots
from backstay.server.workers.worker_registry import RegisteredWorker
from backstay.store.errors import StoreError

if TYPE_CHECKING:
    from backstay.server.native.worker_link import LinkServer


class HeldLeases:
    """`withdraw`: notifies the worker that the attempt of a task is over."""

    def __init__(
        self, server: LinkServer, station: RemoteWorker, slots: SharedSlots, withdraw: Callable[[str], None]
    ) -> None:
        self._server = server
        self._station = station
        self._slots = slots
        self._withdraw = withdraw
        self._doubted: dict[str, Task] = {}  # leases that the worker did not list when it opened this link
        self.closed = False

    def renew(self, task: Task, reply: Reply | None = None) -> None:
        renew = Renew(task_id=task.id, owner=self._station.owner, attempt=task.attempt)
        self._server.engine.submit(task.workflow, renew, reply)

    def take(self, holding: list[wire.HeldTask]) -> None:
        """Renew the leases of the tasks that the worker works on; its other leases run out.

        A task that is not the worker's any more is withdrawn: the notice may have been lost with a commit of unknown
        outcome, and the worker would continue an attempt that no longer counts.
        """
        now = self._server.engine.world.now()
        for held in holding:
            task = self._station.held.get(held.task_id)
            if task is None and not self._server.engine.store.exclusive:
                self._server.engine.world.spawn(self._claim(held), "backstay-claim")
            elif task is None or task.attempt != held.attempt:
                if task is None and is_activity_task(held.task_id) and not self._is_leased(held):
                    self._withdraw(held.task_id)
            elif self._may_be_over(task):
                self._check(task)
            elif task.until is not None and task.until - now < LEASE // 2:
                self.renew(task)

    def _may_be_over(self, task: Task) -> bool:
        """Whether another node may have ended this lease: it cannot notify the worker, since the task did not come from
        there."""
        engine = self._server.engine
        if engine.store.exclusive:
            return False
        entry = engine.cache.get(task.workflow) if engine.owns(task.workflow) else None
        known = None if entry is None else entry.instance.tasks.get(task.id)
        return known is None or (known.state, known.attempt, known.owner) != ("leased", task.attempt, task.owner)

    def _check(self, task: Task) -> None:
        """Renew a lease, or find out that it is over."""
        self.renew(task, partial(self._checked, task))

    def report_refused(self, key: int) -> None:
        """A report about an instance was refused: another node may have ended its leases here."""
        for task in list(self._station.held.values()):
            if task.workflow == key and task.state == "leased" and self._may_be_over(task):
                self._check(task)

    def _checked(self, task: Task, _: Any, error: BaseException | None) -> None:
        held = self._station.held.get(task.id)
        if isinstance(error, Refused) and held is not None and held.attempt == task.attempt:
            self._server.engine.matching.remote_workers.release(task.id)
            if task.kind == "activity":
                self._withdraw(task.id)

    def _is_leased(self, held: wire.HeldTask) -> bool:
        """Whether the worker has this lease on disk, or may have it: leases are read again after an outage."""
        leases = self._server.engine.leases
        if not leases.read:
            return True
        task = leases.get(self._station.namespace, held.task_id)
        return task is not None and task.owner == self._station.owner and task.attempt == held.attempt

    async def _claim(self, held: wire.HeldTask) -> None:
        """Take over a task that came to the worker from another node. It is withdrawn if the worker has no lease of it.

        A task of an instance that another node owns is only checked: it may have come from here before its shard moved, and then
        the worker lists it to no other node.
        """
        engine, station = self._server.engine, self._station
        renew = Renew(task_id=held.task_id, owner=station.owner, attempt=held.attempt)
        try:
            await self._server.api.call(ask.ReportTask(namespace=station.namespace, message=renew))
        except Refused:
            if is_activity_task(held.task_id):
                self._withdraw(held.task_id)
        except StoreError:
            pass  # the worker lists it again
        else:
            # A worker that has a link to this node alone may have come from another one.
            takes_over = engine.owns(held.key) or not self._slots.shared
            task = engine.leases.get(station.namespace, held.task_id) if takes_over else None
            if task is not None and (task.owner, task.attempt) == (station.owner, held.attempt) and not self.closed:
                engine.matching.remote_workers.hold(self._station, task)

    def doubt(self, task: Task) -> None:
        """The worker is asked whether it holds this task. It may have come by another link when this one was being opened."""
        self._doubted[task.id] = task
        self._slots.call_roll()

    def release_doubted(self) -> None:
        """Release the leases in question: the worker is gone, and has not answered."""
        doubted, self._doubted = self._doubted, {}
        for task in doubted.values():
            self._server.release(task)

    def release_unheld(self, held: Iterable[wire.HeldTask]) -> None:
        """Release the leases that the worker has not listed: they were lost on their way to it, with the node that had
        sent them."""
        self._doubted.clear()
        known = {*self._station.held, *(one.task_id for one in held)}
        for task in self._server.engine.leases.of(self._station.namespace, self._station.owner):
            if task.id not in known:
                self._server.release(task)


async def learn(server: LinkServer, worker: RegisteredWorker, holding: list[wire.HeldTask]) -> None:
    """Learn the leases that a worker holds and this node does not know, though it owns their instances: another node may have
    given them a moment ago. A lease that is unknown afterwards is not the worker's, by its row."""
    engine = server.engine
    unknown: list[Awaitable[None]] = []
    for held in holding:
        if engine.store.exclusive or not engine.owns(held.key):
            continue
        known = engine.leases.get(worker.namespace, held.task_id)
        if known is None or known.attempt != held.attempt:
            unknown.append(_renew(server, worker, held))
    await asyncio.gather(*unknown)  # together: they share a commit


async def _renew(server: LinkServer, worker: RegisteredWorker, held: wire.HeldTask) -> None:
    renew = Renew(task_id=held.task_id, owner=worker.worker_id, attempt=held.attempt)
    with suppress(Refused):
        await server.api.call(ask.ReportTask(namespace=worker.namespace, message=renew))
