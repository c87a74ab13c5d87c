"""Leases of this process's workers for tasks of shards that other processes own.

A lease without an end is over when its shard has another owner. So a task of another owner's shard is always held under a lease
with an end, and this process renews it while its worker works on the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Any

from backstay.engine.core.engine import Engine
from backstay.engine.core.periodic import PeriodicJob
from backstay.kernel.features.lease import Renew
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.kernel.values import LEASE

PAGE = 500


class GuestLeases:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: dict[str, Task] = {}
        self._job = PeriodicJob(engine.world, "renew", self._renew_all, lambda: bool(self._held))
        engine.dispatcher.renew = self.add

    def stop(self) -> None:
        self._job.stop()

    def add(self, task: Task) -> None:
        """Renew the lease of this task until its worker has ended it."""
        self._held[task.id] = task
        self._job.start(LEASE // 4)

    async def give_ends(self, shards: Collection[int]) -> bool:
        """Give each lease without an end an end, if a worker of this process works under it, or its report may be on its way: the
        next owner would let another do the work again. True: each has one, on disk."""
        engine = self._engine
        after: tuple[int, str] | None = None
        renewals: list[asyncio.Future[bool]] = []
        while True:
            page = await engine.store.endless(PAGE, after, shards=list(shards))
            held = engine.held_tasks()
            for task in page:
                lives = task.id in held or not engine.is_at_rest(task.workflow)
                if lives and task.owner is not None and engine.matching.executor_of(task.owner) is not None:
                    self.add(task)
                    renewals.append(self._renew(task))
            if len(page) < PAGE:
                return all([await renewal for renewal in renewals])
            after = (page[-1].workflow, page[-1].id)

    async def _renew_all(self) -> None:
        engine = self._engine
        held = engine.held_tasks()
        for task in list(self._held.values()):
            if task.id not in held:
                del self._held[task.id]
            elif engine.down is None:
                self._renew(task)

    def _renew(self, task: Task) -> asyncio.Future[bool]:
        """True: the lease has an end, or is over."""
        renewal: asyncio.Future[bool] = self._engine.world.future()
        renew = Renew(task_id=task.id, owner=task.owner or "", attempt=task.attempt, bounded=True)
        self._engine.submit(task.workflow, renew, partial(self._renewed, task, renewal))
        return renewal

    def _renewed(self, task: Task, renewal: asyncio.Future[bool], value: Any, error: BaseException | None) -> None:
        """A lease that is over ends its attempt here, too; anything else is tried again with the next renewal."""
        if not renewal.done():
            renewal.set_result(error is None or isinstance(error, Refused))
        if isinstance(error, Refused):
            self._held.pop(task.id, None)
            for executor in self._engine.matching.executors:
                if task.id in executor.holding:
                    executor.withdrawn(task.id)
