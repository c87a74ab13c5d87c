"""Waiting for news of an instance: told by this engine's own commits, or found after those of other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from backstay.engine.engine import Engine
from backstay.engine.watching import Watcher
from backstay.kernel.values import SECOND
from backstay.store import StoreError

T = TypeVar("T")


LOOKS = 32  # at a time
REST = 3  # times as long as those took, before the next ones: however many wait, there is room for everything else


class Waiting:
    """`stopped`: whether this process has stopped to follow what others commit."""

    def __init__(self, engine: Engine, stopped: Callable[[], bool]) -> None:
        self._engine = engine
        self._stopped = stopped
        self._looking = False
        self._look_once_more = False
        self._open: dict[asyncio.Future[Any], None] = {}
        self.ended: Callable[[], Exception] | None = None  # nothing is waited for any more, and what to say instead

    def stop(self, why: Callable[[], Exception]) -> None:
        """Whoever waits has waited for long enough, and so has whoever comes."""
        self.ended = why
        for future in self._open:
            _nothing(future)

    def watch(
        self,
        key: int,
        topic: str,
        future: asyncio.Future[T],
        answer: Callable[[Any], T],
        look: Callable[[], Awaitable[T | None]],
    ) -> None:
        """Resolve this future with what `answer` makes of the news under this topic."""
        self._engine.watching.watch(key, topic, Watcher(answer, look, future))

    async def wait(
        self,
        key: int,
        topic: str,
        answer: Callable[[Any], T],
        look: Callable[[], Awaitable[T | None]],
        seconds: float | None,
        *,
        to_come: bool = False,
    ) -> T | None:
        """The news, from disk or as they come; None if they did not come in time. `to_come`: they are not there yet.

        Who looks first and watches then misses what happens in between, for ever: the engine tells it once.
        """
        future: asyncio.Future[T | None] = self._engine.world.future()
        self.watch(key, topic, future, answer, look)
        try:
            found = None if to_come else await look()
        except BaseException:
            self._engine.watching.unwatch(key, topic, future)
            raise
        if found is not None and not future.done():
            future.set_result(found)
        return await self.until(key, topic, future, seconds)

    async def until(self, key: int, topic: str, future: asyncio.Future[T | None], seconds: float | None) -> T | None:
        """Wait on a future that watches already."""
        world = self._engine.world
        if self.ended is not None:
            _nothing(future)
        alarm = None if seconds is None else world.at(world.now() + round(seconds * SECOND), partial(_nothing, future))
        self._open[future] = None
        try:
            return await future
        finally:
            self._open.pop(future, None)
            if alarm is not None:
                alarm.cancel()
            self._engine.watching.unwatch(key, topic, future)

    def look_for(self, key: int, topic: str) -> None:
        """What is waited for under this topic may have happened."""
        for watcher in self._engine.watching.of(key, topic):
            self._engine.world.spawn(self._look(key, topic, watcher), "backstay-watch")

    def look_around(self) -> None:
        """Another process committed: what somebody waits for here may have happened there."""
        self._look_once_more = True
        if not self._looking:
            self._looking = True
            self._engine.world.spawn(self._look_at_all(), "backstay-watch")

    async def _look_at_all(self) -> None:
        """For everybody who waits; from the beginning if another commit came meanwhile, and never twice at a time."""
        world = self._engine.world
        try:
            while self._look_once_more:
                self._look_once_more = False
                waiting = list(self._engine.watching)
                for first in range(0, len(waiting), LOOKS):
                    began = world.ticks()
                    await asyncio.gather(*(self._look(*one) for one in waiting[first : first + LOOKS]))
                    rest: asyncio.Future[None] = world.future()
                    world.at(world.now() + REST * (world.ticks() - began), partial(_nothing, rest))
                    await rest
                    if self._stopped():
                        return
        finally:
            self._looking = False

    async def _look(self, key: int, topic: str, watcher: Watcher) -> None:
        if watcher.future.done():
            return
        try:
            found = await watcher.look()
        except StoreError:
            world = self._engine.world
            world.at(world.now() + SECOND, lambda: self._look_again(key, topic, watcher))
            return
        except Exception as error:  # the news are there and cannot be read: whoever waits is told that
            self._engine.watching.unwatch(key, topic, watcher.future)
            if not watcher.future.done():
                watcher.future.set_exception(error)
            return
        if found is not None:
            self._engine.watching.unwatch(key, topic, watcher.future)
            if not watcher.future.done():
                watcher.future.set_result(found)

    def _look_again(self, key: int, topic: str, watcher: Watcher) -> None:
        if not watcher.future.done() and not self._stopped():
            self._engine.world.spawn(self._look(key, topic, watcher), "backstay-watch")


def _nothing(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
