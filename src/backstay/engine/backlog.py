"""Ready tasks that wait for a worker: the most urgent first, and among equals each fairness key gets its share.

Shares are start-time fair: a key is stamped with the virtual time at which its share begins, and serving a task of weight
w moves the stamp by 1/w. The earliest stamp is next. A key that was idle begins at the present and has saved up nothing,
so it neither starves nor is it starved: between two tasks of one key every other waiting key of the same urgency comes.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from backstay.kernel.task import Task
from backstay.kernel.values import Micros

_KEEP = 1024  # stamps, before those of the past are forgotten


class Rank(NamedTuple):
    """Where the next task of a backlog stands; the smallest goes first."""

    priority: int
    stamp: float
    available_at: Micros
    task_id: str


class Shares:
    """What each fairness key of a queue has had."""

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
            self._keep = max(_KEEP, 2 * len(self._stamps))  # all of them may be in use: not with every task


class _Waiting(NamedTuple):
    available_at: Micros
    task_id: str
    workflow: int
    weight: int


class _Level:
    """Tasks of one urgency, by fairness key. `order` may be early for a key, never late."""

    __slots__ = ("keys", "order")

    def __init__(self) -> None:
        self.keys: dict[str, list[_Waiting]] = {}
        self.order: list[tuple[float, Micros, str]] = []


class Backlog:
    """The waiting tasks of one lane. `known` says which of them still wait; the others fall out on the way."""

    __slots__ = ("_known", "_levels", "_shares")

    def __init__(self, shares: Shares, known: set[str]) -> None:
        self._shares = shares
        self._known = known
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
        """The rank of what is next, or None: nothing waits here any more."""
        while self._levels:
            priority = min(self._levels)
            level = self._levels[priority]
            while level.order:
                stamp, since, key = level.order[0]
                waiting = level.keys[key]
                while waiting and waiting[0].task_id not in self._known:
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
        """(task id, instance) of what `first` has just ranked."""
        level = self._levels[min(self._levels)]
        key = level.order[0][2]
        taken = heappop(level.keys[key])
        self._shares.served(key, taken.weight)
        return taken.task_id, taken.workflow

    def tidy(self) -> bool:
        """Forget what no longer waits; whether anything does."""
        for priority, level in list(self._levels.items()):
            for key, waiting in list(level.keys.items()):
                level.keys[key] = [one for one in waiting if one.task_id in self._known]
                heapify(level.keys[key])
                if not level.keys[key]:
                    del level.keys[key]
            level.order = [place for place in level.order if place[2] in level.keys]
            heapify(level.order)
            if not level.keys:
                del self._levels[priority]
        return bool(self._levels)

    def all(self) -> list[tuple[Micros, str, int]]:
        """(since when, task id, instance) of everything that waits."""
        return [
            waiting[:3]
            for level in self._levels.values()
            for key in level.keys.values()
            for waiting in key
            if waiting.task_id in self._known
        ]
