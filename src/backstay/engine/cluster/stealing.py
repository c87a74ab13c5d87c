"""Stealing: takes tasks of other processes' shards that wait for a worker too long, if a worker here is free.

A task waits with the owner of its shard. The owner may have no worker for it, and not know that another process has
one. So each second a process with a free worker reads pages of tasks of other shards, and claims fitting tasks that
have been ready for a second, under a lease with an end. All faster ways to hand tasks over may fail: this one bounds
the wait of every task.

A process from which a task was taken like this has no worker for its queue. For a while its other tasks of that queue are taken
as soon as they are seen, and are looked for often: a run of many steps would wait for a second at each of them.

The tasks of a paused run are ready, too, and cannot be taken. Its instance is left alone until it has another decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from backstay.engine.core.engine import Engine
from backstay.engine.core.paused_runs import PausedRuns
from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.sweep import ReadyPosition
from backstay.engine.tasks.matching import runs_lane
from backstay.engine.tasks.workers import lane_of
from backstay.kernel.features.lease import Offer
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros

EVERY = SECOND
SOON = SECOND // 20  # between two looks, while an owner is known to have no worker
WAITED: Micros = SECOND  # for a task of another shard, before it is taken
WITHOUT: Micros = 10 * SECOND  # for so long an owner counts as without a worker
PAGE = 100
PAGES = 10  # in one look
UNREADABLE: Micros = 10 * SECOND  # for so long an instance is left alone that could not be read
LEFT_ALONE = 10_000  # instances of which it is remembered

_Owner = tuple[int | None, str, str]
"""A process, and a queue of a namespace."""


class Stealing:
    """`owner_of`: the process that owns a shard."""

    def __init__(self, engine: Engine, owner_of: Callable[[int], int | None]) -> None:
        self._engine = engine
        self._owner_of = owner_of
        # Owners without a worker for a queue of a namespace, and until when that counts.
        self._without: dict[_Owner, Micros] = {}
        self._paused = PausedRuns(engine.store)
        self._unreadable: dict[int, Micros] = {}  # instances, and until when they are left alone
        self._after: ReadyPosition | None = None  # where the next look begins
        self._job = PeriodicJob(engine.world, "steal", self.steal)

    def start(self) -> None:
        if not self._engine.store.exclusive:
            self._job.start(EVERY)

    def stop(self) -> None:
        self._job.stop()

    async def steal(self) -> None:
        """Claim waiting tasks for which a worker of this process is free."""
        engine = self._engine
        matching = engine.matching
        now = engine.world.now()
        self._without = {queue: until for queue, until in self._without.items() if now < until <= now + WITHOUT}
        self._unreadable = {key: until for key, until in self._unreadable.items() if now < until <= now + UNREADABLE}
        self._job.interval = SOON if self._without else EVERY
        if engine.down is not None or engine.owns_all:
            return
        if not (matching.executors or matching.polls.by_queue or matching.remote_workers.by_queue):
            return
        others = [shard for shard, owned in enumerate(engine.owned) if not owned]
        for _ in range(PAGES):  # of tasks that may have no worker anywhere
            page = await engine.store.ready(PAGE, self._after, shards=others)
            now = engine.world.now()
            more = len(page) == PAGE and page[-1].available_at <= now
            self._after = (page[-1].available_at, page[-1].workflow, page[-1].id) if more else None
            await self._paused.look_again({task.workflow for task in page})
            self._take([task for task in page if _ready_at(task) <= now], engine.world.now())
            if not more:
                return

    def _take(self, waiting: Sequence[Task], now: Micros) -> None:
        engine = self._engine
        start = engine.world.ids.serial() % (len(waiting) or 1)  # not where others begin
        for task in (*waiting[start:], *waiting[:start]):
            key = task.workflow
            if engine.owns(key) or key in self._paused or key in self._unreadable or not self._is_free_for(task):
                continue
            shard = task.workflow & (len(engine.owned) - 1)
            owner = self._owner_of(shard), task.routing.namespace, task.routing.queue
            missing = _ready_at(task) + WAITED - now
            if missing > 0 and owner not in self._without:
                self._job.interval = max(SOON, min(self._job.interval, missing))
                continue
            offered = partial(self._offered, key, owner if missing <= 0 else None)
            engine.submit(key, Offer(task_id=task.id, steals=True), offered, again=False)

    def _offered(self, key: int, waited: _Owner | None, paused_at: int | None, error: BaseException | None) -> None:
        """A task of this instance was offered. `waited`: for too long, because this owner had no worker for it."""
        now = self._engine.world.now()
        if error is not None:
            self._unreadable[key] = now + UNREADABLE
            if len(self._unreadable) > LEFT_ALONE:
                del self._unreadable[next(iter(self._unreadable))]
        elif paused_at is not None:
            self._paused.add(key, paused_at)
        elif waited is not None:
            self._without.setdefault(waited, now + WITHOUT)
            self._job.hurry(SOON)

    def _is_free_for(self, task: Task) -> bool:
        matching = self._engine.matching
        for executor in matching.executors:
            if runs_lane(executor, lane_of(task)) and (
                executor.inline(task.kind, task.type) or executor.has_room(task.kind, task.type)
            ):
                return True
        return matching.has_taker(lane_of(task))


def _ready_at(task: Task) -> Micros:
    return max(task.available_at, task.created_at)
