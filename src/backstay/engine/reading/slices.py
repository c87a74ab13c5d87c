"""Slices: how readers of long histories share the engine's thread. No request holds it for longer than one slice takes.

A slice is a page of events. It is read on the engine's thread, between other work, and folded on a thread of its own. All readers
share that one thread and take turns slice by slice, so a short question never waits for a long export.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from backstay import collector
from backstay.engine.core.world import Pool, World, turn
from backstay.engine.reading.history_pages import read_page
from backstay.kernel.event import Recorded
from backstay.store import Store

T = TypeVar("T")

SLICE = 256 << 10  # bytes of events that are read at a stretch
INLINE = 100  # events that are folded at once, without a thread
END = 1 << 62


class Slices:
    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._pool: Pool | None = None
        self._users = 0

    async def through(
        self,
        run: int,
        take: Callable[[Sequence[Recorded]], object],
        *,
        after: int = 0,
        last: int = END,
        inline: int = INLINE,
    ) -> int:
        """Hand the events of a run after `after` and up to `last` to `take`, slice by slice; returns where it ended.

        `take` is called on another thread, one call at a time; with up to `inline` events at once, on this one. It may return
        False to say that it has enough.
        """
        while after < last:
            page = await read_page(self._store, run, after, last, SLICE)
            if not page:
                break
            after = page[-1].sequence
            enough = take(page) if len(page) <= inline else await self.aside(partial(take, page))
            if enough is False:
                break
            await self.turn()
        return after

    async def aside(self, make: Callable[[], T]) -> T:
        """Call `make` on the thread of the readers."""
        if self._pool is None:
            self._pool = self._world.pool(1, "backstay-slices")
        self._users += 1
        future: asyncio.Future[tuple[T | None, Exception | None]] = self._world.future()
        try:
            self._pool.submit(partial(_tried, make), lambda made: None if future.done() else future.set_result(made))
            made, error = await future
        finally:
            self._users -= 1
            if not self._users:  # an idle engine has no thread for this
                self._pool.close()
                self._pool = None
        if error is not None:
            raise error
        return cast(T, made)

    async def turn(self) -> None:
        """Let the event loop do other work."""
        await turn(self._world)


def _tried(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        with collector.resting():
            return make(), None
    except Exception as error:
        return None, error
