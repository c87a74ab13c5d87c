"""The database's clock, which all processes at one database follow, so that they differ by milliseconds only.

A sample is as exact as its round trip was short. So the one with the shortest of the last few counts.
"""

from __future__ import annotations

from collections import deque

from backstay.engine.core.world import World
from backstay.kernel.values import Micros
from backstay.store import Store

SAMPLES = 8


class DatabaseClock:
    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._samples: deque[tuple[Micros, Micros]] = deque(maxlen=SAMPLES)  # the round trip, and what was found
        self._told = False  # whether there is a new sample since the last call

    async def ahead(self) -> Micros | None:
        """How far the database's clock is ahead of `World.ticks`; None: the database is on this machine and has none."""
        if not self._told:
            before = self._world.ticks()
            time = await self._store.clock()
            if time is None:
                return None
            self.told(before, time)
        self._told = False
        return min(self._samples)[1]

    def told(self, before: Micros, time: Micros) -> None:
        """A query that was sent at `before` returned with the time of the database."""
        after = self._world.ticks()
        self._samples.append((after - before, time - (before + after) // 2))
        self._told = True
