"""Stealing: takes tasks of other processes' shards that wait for a worker too long, if a worker here is free.

A task waits with the owner of its shard. The owner may have no worker for it, and not know that another process has one. So each
second a process with a free worker reads a page of tasks of other shards that have been ready for a second, and claims what fits,
under a lease with an end. Everything that hands tasks over faster may fail: this is what no task waits longer than.
"""

from __future__ import annotations

from backstay.engine.engine import Engine
from backstay.engine.periodic import PeriodicJob
from backstay.engine.workers import lane_of
from backstay.kernel.features.lease import Offer
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros

EVERY = SECOND
WAITED: Micros = SECOND  # for a task of another shard, before it is taken
PAGE = 100


class Stealing:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._job = PeriodicJob(engine.world, "steal", self.steal)

    def start(self) -> None:
        if not self._engine.store.exclusive:
            self._job.start(EVERY)

    def stop(self) -> None:
        self._job.stop()

    async def steal(self) -> None:
        """Claim what has waited, as far as a worker of this process is free for it."""
        engine = self._engine
        matching = engine.matching
        if engine.down is not None or engine.owns_all:
            return
        if not (matching.executors or matching.polls.by_queue or matching.remote_workers.by_queue):
            return
        others = [shard for shard, owned in enumerate(engine.owned) if not owned]
        page = await engine.store.ready(PAGE, shards=others)
        before = engine.world.now() - WAITED
        waiting = [task for task in page if max(task.available_at, task.created_at) <= before]
        start = engine.world.ids.serial() % (len(waiting) or 1)  # not where others begin
        for task in (*waiting[start:], *waiting[:start]):
            if not engine.owns(task.workflow) and self._is_free_for(task):
                engine.submit(task.workflow, Offer(task_id=task.id, steals=True), again=False)

    def _is_free_for(self, task: Task) -> bool:
        matching = self._engine.matching
        for executor in matching.executors:
            if executor.serves(task) and (
                executor.inline(task.kind, task.type) or executor.has_room(task.kind, task.type)
            ):
                return True
        return matching.has_taker(lane_of(task))
