"""Runs that are known to be paused, though they are not in memory. Their tasks are ready, and no worker gets them.

Their instances need not be read again until they have another decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from backstay.store import Store

REMEMBERED = 10_000  # instances


class PausedRuns:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[int, int] = {}  # instances and their last decisions

    def __contains__(self, key: int) -> bool:
        return key in self._last

    def add(self, key: int, last_decision: int) -> None:
        self._last[key] = last_decision
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]

    async def look_again(self, keys: Iterable[int]) -> None:
        """Forget those of these instances that something has happened to since."""
        known = {key: self._last[key] for key in keys if key in self._last}
        for key in await self._store.moved(known) if known else ():
            self._last.pop(key, None)
