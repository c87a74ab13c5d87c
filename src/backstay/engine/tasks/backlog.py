"""Ready tasks that wait for a worker: the most urgent first, and among equals each fairness key gets its share.

Shares are start-time fair: a key is stamped with the virtual time at which its share begins, and serving a task of weight
w moves the stamp by 1/w. The earliest stamp is next. A key that was idle begins at the present and has saved up nothing. So no
key starves: between two tasks of one key every other waiting key of the same priority is served.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from backstay.kernel.task import Task
from backstay.kernel.values import Micros

_KEEP = 1024  # stamps, before those in the past are dropped


class Rank(NamedTuple):
    """The order of the first tasks of several backlogs; the smallest is next."""

    priority: int
    stamp: float
    available_at: Micros
    task_id: str


class Shares:
    """The virtual time of each fairness key of a queue."""

    __slots__ = ("_keep", "_stamps", "_time")

    def __init__(self) -> None:
        self._keep = _KEEP
        self._time = 0.0
        self._stamps: dict[str, float] = {}

    def stamp(self, key: str) -> float:
        return max(self._time, self._stamps.get(key, 0.0))

    def served(self, key: str, weight: int) -> None:
        began = self.stamp(key)
        self._time = began
        self._stamps[key] = began + 1 / weight
        if len(self._stamps) > self._keep:
            self._stamps = {key: stamp for key, stamp in self._stamps.items() if stamp > began}
            self._keep = max(
                _KEEP, 2 * len(self._stamps)
            )  # all may be in use, and looking through them for every task would be slow


class _Waiting(NamedTuple):
    available_at: Micros
    task_id: str
    workflow: int
    weight: int


class _Level:
    """Tasks of one priority, by fairness key. The stamp of a key in `order` may be too early, never too late."""

    __slots__ = ("keys", "order")

    def __init__(self) -> None:
        self.keys: dict[str, list[_Waiting]] = {}
        self.order: list[tuple[float, Micros, str]] = []


class Backlog:
    """The waiting tasks of one lane. `waiting` holds the ids that still wait; other tasks are dropped when they are met."""

    __slots__ = ("_levels", "_shares", "_waiting_ids")

    def __init__(self, shares: Shares, waiting: set[str]) -> None:
        self._shares = shares
        self._waiting_ids = waiting
        self._levels: dict[int, _Level] = {}

    def add(self, task: Task) -> None:
        routing = task.routing
        level = self._levels.get(routing.priority)
        if level is None:
            level = self._levels[routing.priority] = _Level()
        key = routing.fairness_key or ""
        waiting = level.keys.get(key)
        if waiting is None:
            waiting = level.keys[key] = []
            heappush(level.order, (self._shares.stamp(key), task.available_at, key))
        heappush(waiting, _Waiting(task.available_at, task.id, task.workflow, max(routing.fairness_weight, 1)))

    def first(self) -> Rank | None:
        """The rank of the next task; None if no task waits."""
        while self._levels:
            priority = min(self._levels)
            level = self._levels[priority]
            while level.order:
                stamp, since, key = level.order[0]
                waiting = level.keys[key]
                while waiting and waiting[0].task_id not in self._waiting_ids:
                    heappop(waiting)
                if not waiting:
                    heappop(level.order)
                    del level.keys[key]
                    continue
                now = (self._shares.stamp(key), waiting[0].available_at)
                if now != (stamp, since):
                    heapreplace(level.order, (*now, key))
                    continue
                return Rank(priority, stamp, since, waiting[0].task_id)
            del self._levels[priority]
        return None

    def take(self) -> tuple[str, int]:
        """Take out the task that `first` has just ranked: (task id, instance)."""
        level = self._levels[min(self._levels)]
        key = level.order[0][2]
        taken = heappop(level.keys[key])
        self._shares.served(key, taken.weight)
        return taken.task_id, taken.workflow

    def tidy(self) -> bool:
        """Drop tasks that no longer wait; True if any task is left."""
        for priority, level in list(self._levels.items()):
            for key, waiting in list(level.keys.items()):
                level.keys[key] = [entry for entry in waiting if entry.task_id in self._waiting_ids]
                heapify(level.keys[key])
                if not level.keys[key]:
                    del level.keys[key]
            level.order = [rank for rank in level.order if rank[2] in level.keys]
            heapify(level.order)
            if not level.keys:
                del self._levels[priority]
        return bool(self._levels)

    def size(self) -> int:
        """How many tasks wait, and perhaps some that closed meanwhile."""
        return sum(len(waiting) for level in self._levels.values() for waiting in level.keys.values())

    def all(self) -> list[tuple[Micros, str, int]]:
        """(ready since, task id, instance) of all waiting tasks."""
        return [
            waiting[:3]
            for level in self._levels.values()
            for key in level.keys.values()
            for waiting in key
            if waiting.task_id in self._waiting_ids
        ]
