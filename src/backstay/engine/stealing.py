"""Stealing: takes tasks of other processes' shards that wait for a worker too long, if a worker here is free.

A task waits with the owner of its shard. The owner may have no worker for it, and not know that another process has one. So each
second a process with a free worker reads pages of tasks of other shards, and claims what has been ready for a second and fits,
under a lease with an end. Everything that hands tasks over faster may fail: this is what no task waits longer than.

A process from which a task was taken like this has no worker for its queue. For a while its other tasks of that queue are taken
as soon as they are seen, and are looked for often: a run of many steps would wait for a second at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backstay.engine.engine import Engine
from backstay.engine.periodic import PeriodicJob
from backstay.engine.sweep import ReadyPosition
from backstay.engine.workers import lane_of
from backstay.kernel.features.lease import Offer
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros

EVERY = SECOND
SOON = SECOND // 20  # between two looks, while an owner is known to have no worker
WAITED: Micros = SECOND  # for a task of another shard, before it is taken
WITHOUT: Micros = 10 * SECOND  # for so long an owner counts as without a worker
PAGE = 100
PAGES = 10  # in one look


class Stealing:
    """`owner_of`: the process that owns a shard."""

    def __init__(self, engine: Engine, owner_of: Callable[[int], int | None]) -> None:
        self._engine = engine
        self._owner_of = owner_of
        # Owners without a worker for a queue of a namespace, and until when that counts.
        self._without: dict[tuple[int | None, str, str], Micros] = {}
        self._after: ReadyPosition | None = None  # where the next look begins
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
        now = engine.world.now()
        self._without = {queue: until for queue, until in self._without.items() if now < until <= now + WITHOUT}
        self._job.interval = SOON if self._without else EVERY
        if engine.down is not None or engine.owns_all:
            return
        if not (matching.executors or matching.polls.by_queue or matching.remote_workers.by_queue):
            return
        others = [shard for shard, owned in enumerate(engine.owned) if not owned]
        for _ in range(PAGES):  # of tasks that nobody may have a worker for
            page = await engine.store.ready(PAGE, self._after, shards=others)
            now = engine.world.now()
            more = len(page) == PAGE and page[-1].available_at <= now
            self._after = (page[-1].available_at, page[-1].workflow, page[-1].id) if more else None
            self._take([task for task in page if _ready_at(task) <= now], now)
            if not more:
                return

    def _take(self, waiting: Sequence[Task], now: Micros) -> None:
        engine = self._engine
        start = engine.world.ids.serial() % (len(waiting) or 1)  # not where others begin
        for task in (*waiting[start:], *waiting[:start]):
            if engine.owns(task.workflow) or not self._is_free_for(task):
                continue
            shard = task.workflow & (len(engine.owned) - 1)
            owner = self._owner_of(shard), task.routing.namespace, task.routing.queue
            missing = _ready_at(task) + WAITED - now
            if missing > 0 and owner not in self._without:
                self._job.interval = max(SOON, min(self._job.interval, missing))
                continue
            if missing <= 0:
                self._without.setdefault(owner, now + WITHOUT)
                self._job.interval = SOON
            engine.submit(task.workflow, Offer(task_id=task.id, steals=True), again=False)

    def _is_free_for(self, task: Task) -> bool:
        matching = self._engine.matching
        for executor in matching.executors:
            if executor.serves(task) and (
                executor.inline(task.kind, task.type) or executor.has_room(task.kind, task.type)
            ):
                return True
        return matching.has_taker(lane_of(task))


def _ready_at(task: Task) -> Micros:
    return max(task.available_at, task.created_at)
