"""Outlines of runs in memory: each is made once, extended by new events, and dropped when others were requested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from backstay.engine.reading.slices import Slices
from backstay.kernel.event import Recorded
from backstay.kernel.views.outline import Outline
from backstay.store import Store

T = TypeVar("T")

MOST = 64 << 20  # bytes


class CachedOutline:
    """An outline, the lock under which it is extended and read, and how large it was when it was last read."""

    __slots__ = ("lock", "outline", "size")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.outline = Outline()
        self.size = 0


class Outlines:
    def __init__(self, slices: Slices, store: Store, most: int = MOST) -> None:
        self._slices = slices
        self._store = store
        self._most = most
        self.cached: dict[int, CachedOutline] = {}  # by run, the last requested one comes last

    async def ask(self, run: int, question: Callable[[Outline], T]) -> T:
        """The answer of `question` about the outline of a run with all of its events. It is called on another thread."""
        cached = self.cached.pop(run, None) or CachedOutline()
        self.cached[run] = cached
        async with cached.lock:
            try:
                await self._extend(run, cached)
                return await self._slices.aside(lambda: question(cached.outline))
            except BaseException:
                self.cached.pop(run, None)
                raise
            finally:
                cached.size = cached.outline.size
                self._drop_oldest()

    @property
    def size(self) -> int:
        return sum(cached.size for cached in self.cached.values())

    async def _extend(self, run: int, cached: CachedOutline) -> None:
        known = cached.outline
        if known.through:
            last = await self._store.history(run, known.through - 1, 1)
            if not last or last[0].checksum != known.checksum:
                known = cached.outline = Outline()  # another history has taken the place of the one that it was made of

        def take(events: Sequence[Recorded]) -> None:
            for entry in events:
                known.add(entry)

        await self._slices.through(run, take, after=known.through)

    def _drop_oldest(self) -> None:
        size = self.size
        for run in list(self.cached):
            if size <= self._most:
                return
            if not self.cached[run].lock.locked():
                size -= self.cached.pop(run).size
