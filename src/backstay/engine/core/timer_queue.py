"""The timer queue: one alarm for the deadlines of all workflows. It keeps the next hour in memory and the rest on disk.

A wake may be early and is never late. Delivering one twice is harmless: the features decide what is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from backstay.engine.core.world import Alarm, World
from backstay.kernel.values import SECOND, Micros
from backstay.store import Store
from backstay.store.errors import StoreError

log = logging.getLogger("backstay.engine")

HORIZON = 3600 * SECOND
NEAR = HORIZON + 600 * SECOND  # a read of deadlines that begins before the current decision is on disk reaches this far
PAGE = 500
SPENT = 1000  # outdated deadlines that may stay in the heap


class TimerQueue:
    """`shards`: those whose deadlines are read; None: all."""

    def __init__(
        self,
        world: World,
        store: Store,
        deliver: Callable[[int], None],
        shards: Callable[[], Sequence[int] | None] = lambda: None,
    ) -> None:
        self._world = world
        self._store = store
        self._deliver = deliver
        self._shards = shards
        self._heap: list[tuple[Micros, int]] = []
        self._armed: dict[int, Micros] = {}
        self._horizon: Micros = 0  # deadlines up to here are in memory
        self._alarm: Alarm | None = None
        self._alarm_at: Micros = 0
        self._stopped = True
        self._term = 0

    async def start(self) -> None:
        """Read the next deadlines. A read that is under way does not count: it may be of fewer shards."""
        self._stopped = False
        self._term += 1
        await self._look_ahead()

    async def look_again(self) -> None:
        """Read the next deadlines again: another process may have set one without a notice."""
        if not self._stopped:
            await self._look_ahead()

    @property
    def horizon(self) -> Micros:
        """Deadlines up to here are in memory, later ones on disk."""
        return self._horizon

    @property
    def nearest(self) -> Micros | None:
        """The next deadline in memory."""
        heap = self._heap
        while heap and self._armed.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def wind(self) -> None:
        """The clock was set forward: deliver the deadlines that are due by the new time."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def forget(self, is_lost: Callable[[int], bool] | None = None) -> None:
        """Drop the deadlines of these instances: another process owns them. Or of all, and stop: the clock was set."""
        if is_lost is None:
            self.stop()
            self._term += 1
            self._heap.clear()
            self._armed.clear()
            self._horizon = 0
        else:
            self._armed = {key: at for key, at in self._armed.items() if not is_lost(key)}

    def set(self, key: int, at: Micros | None) -> None:
        """Set the next wake of an instance."""
        if at is None:
            self._armed.pop(key, None)
        elif (at <= self._horizon or self._stopped or at <= self._world.now() + NEAR) and self._armed.get(key) != at:
            # Also before the start, and beyond the horizon: this wake may reach the disk after the next read of deadlines,
            # or after one that is under way, and then neither finds it.
            self._armed[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._armed) + SPENT:
                # Most deadlines are moved before they are due; their old entries would stay in the heap until then.
                self._heap = [(due, workflow) for due, workflow in self._heap if self._armed.get(workflow) == due]
                heapify(self._heap)
            self._arm()

    def _arm(self) -> None:
        if self._stopped:
            return
        at = min(self._heap[0][0], self._horizon) if self._heap else self._horizon
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._world.at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._stopped:
            return
        now = self._world.now()
        heap = self._heap
        rung = 0
        while heap and heap[0][0] <= now and rung < PAGE:
            at, key = heappop(heap)
            if self._armed.get(key) == at:
                del self._armed[key]
                rung += 1
                self._deliver(key)
        if now >= self._horizon:
            self._world.spawn(self._look_ahead(), "backstay-waking")
        else:
            self._arm()

    async def _look_ahead(self) -> None:
        """Read the deadlines up to the next horizon, one page at a time."""
        until = self._world.now() + HORIZON
        term = self._term
        try:
            wakes = await self._store.due(until, PAGE, shards=self._shards())
            if term != self._term:
                return  # `forget` was called meanwhile: these deadlines may be outdated
        except StoreError as error:
            if term != self._term:
                return
            log.error("the next deadlines could not be read, and are read again in a second: %s", error)
            self._horizon = (
                min(self._horizon, self._world.now()) + SECOND
            )  # read again soon, and keep what is in memory
            self._arm()
            return
        full = len(wakes) == PAGE
        self._horizon = wakes[-1][0] if full else until
        for at, key in wakes:
            if key not in self._armed:  # an armed wake is newer than the row that was read
                self._armed[key] = at
                heappush(self._heap, (at, key))
        if full and self._horizon <= self._world.now():
            # Everything on this page is overdue. Delivering moves the rows, so the next page starts after them.
            self._horizon = self._world.now()
        self._arm()
