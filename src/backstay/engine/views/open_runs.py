"""How many runs of a namespace are open, by state: one count for the overview, metrics and Prometheus.

The states come from stored summaries, which follow a commit a moment later. A run that has no summary yet counts as *without a
view*, with the time since which the oldest of them is there. So the figures add up to the number of open runs at any time.
"""

from __future__ import annotations

from typing import NamedTuple

from backstay.engine.core.world import World
from backstay.kernel.values import SECOND, Micros
from backstay.store.figures import FiguresStore, OpenRuns

LAG = 10 * SECOND  # a run that closed longer ago has no summary of an open run any more
NEWEST = 1000  # runs of each status that are searched for those without a view; as a rule these are new
ALL = 1 << 40
AGAIN = 10 * SECOND  # how long the result of a search through all of them is reused


class WithoutView(NamedTuple):
    """Open runs without a summary, and since when the oldest of them is there."""

    runs: int
    oldest: Micros | None


class OpenRunCounts:
    def __init__(self, world: World, store: FiguresStore) -> None:
        self._world = world
        self._store = store
        self._looked: dict[str, tuple[Micros, Micros | None]] = {}  # by namespace: when, and what was the oldest

    async def count(self, namespace: str) -> OpenRuns:
        return await self._store.count_states(namespace, self._world.now() - LAG)

    async def without_view(self, namespace: str, counted: OpenRuns) -> WithoutView:
        """The known facts about the runs without a summary in this count."""
        runs = max(0, counted.without_view)
        if not runs:
            return WithoutView(0, None)
        number, oldest = await self._store.runs_without_view(namespace, NEWEST)
        if number < runs:  # some are older than all that were looked at
            now = self._world.ticks()
            known = self._looked.get(namespace)
            if known is None or now - known[0] > AGAIN:
                _, oldest = await self._store.runs_without_view(namespace, ALL)
                known = self._looked[namespace] = (now, oldest)
            oldest = min((at for at in (oldest, known[1]) if at is not None), default=None)
        return WithoutView(runs, oldest)
