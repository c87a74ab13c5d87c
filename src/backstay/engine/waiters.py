"""Waiters: callers that wait for news of an instance, such as its end or the end of one of its updates.

A caller waits under a topic of an instance. This engine's own commits notify it directly; what another process commits is
found by checking the database, for every caller that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from backstay.engine.world import World
from backstay.kernel.state import Instance
from backstay.kernel.values import SECOND
from backstay.store import StoreError

T = TypeVar("T")

ENDED = "ended"
"""The topic of the end of a chain of runs."""

CHECKS = 32  # at a time
REST = 3  # times as long as those took, before the next ones: however many wait, there is room for everything else


class Waiter(Struct, frozen=True, eq=False):
    """One caller that waits. `answer` turns the news into its result; `check` looks for the result in the database."""

    answer: Callable[[Any], Any]
    check: Callable[[], Awaitable[Any]]
    future: asyncio.Future[Any]


class Waiters:
    def __init__(self, world: World) -> None:
        self._world = world
        self._watchers: dict[tuple[int, str], list[Waiter]] = {}
        self.on_commit: dict[int, list[Callable[[Instance], None]]] = {}  # called after each commit of an instance
        self._checking = False
        self._check_once_more = False
        self._checks: set[asyncio.Task[None]] = set()  # under way
        self._closed = False
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.stopped: Callable[[], Exception] | None = None  # waits end at once; what to tell who cannot be answered

    def __iter__(self) -> Iterator[tuple[int, str, Waiter]]:
        """Everybody who waits, with instance and topic."""
        for (key, topic), watchers in list(self._watchers.items()):
            for watcher in list(watchers):
                yield key, topic, watcher

    # -- who waits, and for what

    def add(self, key: int, topic: str, watcher: Waiter) -> None:
        self._watchers.setdefault((key, topic), []).append(watcher)

    def remove(self, key: int, topic: str, future: asyncio.Future[Any]) -> None:
        """Nobody waits on this future any more."""
        left = [watcher for watcher in self._watchers.get((key, topic), ()) if watcher.future is not future]
        if left:
            self._watchers[key, topic] = left
        else:
            self._watchers.pop((key, topic), None)

    def notify(self, key: int, topic: str, news: Any) -> None:
        """The news are committed: answer everybody who waits for them."""
        for watcher in self._watchers.pop((key, topic), ()):
            if watcher.future.done():
                continue
            try:
                answer = watcher.answer(news)
            except Exception as error:  # goes to this caller alone: the others get the news
                watcher.future.set_exception(error)
            else:
                watcher.future.set_result(answer)

    def subscribe(self, key: int, committed: Callable[[Instance], None]) -> None:
        self.on_commit.setdefault(key, []).append(committed)

    def unsubscribe(self, key: int, committed: Callable[[Instance], None]) -> None:
        left = self.on_commit[key]
        left.remove(committed)
        if not left:
            del self.on_commit[key]

    # -- waiting

    async def wait(
        self,
        key: int,
        topic: str,
        answer: Callable[[Any], T],
        check: Callable[[], Awaitable[T | None]],
        seconds: float | None,
        *,
        to_come: bool = False,
    ) -> T | None:
        """The answer, from disk or when the news come; None if they did not come in time. `to_come`: they are not on disk.

        The caller is on the list before it checks the database. In the other order it would miss for ever what is committed
        in between, since the engine notifies once (`tests/engine/test_results.py`, and a mutant of the simulator).
        """
        future: asyncio.Future[T | None] = self._world.future()
        self.add(key, topic, Waiter(answer, check, future))
        try:
            found = None if to_come else await check()
        except BaseException:
            self.remove(key, topic, future)
            raise
        if found is not None and not future.done():
            future.set_result(found)
        return await self.wait_on(key, topic, future, seconds)

    async def wait_on(self, key: int, topic: str, future: asyncio.Future[T | None], seconds: float | None) -> T | None:
        """Wait on the future of a watcher that is on the list already."""
        world = self._world
        if self.stopped is not None:
            _resolve_empty(future)
        alarm = (
            None
            if seconds is None
            else world.at(world.now() + round(seconds * SECOND), partial(_resolve_empty, future))
        )
        self._waiting[future] = None
        try:
            return await future
        finally:
            self._waiting.pop(future, None)
            if alarm is not None:
                alarm.cancel()
            self.remove(key, topic, future)

    def stop(self, why: Callable[[], Exception]) -> None:
        """End every wait now, and those that begin later at once."""
        self.stopped = why
        for future in self._waiting:
            _resolve_empty(future)

    def close(self) -> None:
        """Check the database no more: it is about to be closed."""
        self._closed = True
        for task in self._checks:
            task.cancel()

    async def closed(self) -> None:
        """Wait until the checks that `close` has cancelled are over. A task that is left pending outlives its event loop."""
        if self._checks:
            await asyncio.wait(self._checks)

    # -- checking the database

    def check(self, key: int, topic: str) -> None:
        """The news of this topic may be on disk: check for those who wait for them."""
        for watcher in list(self._watchers.get((key, topic), ())):
            self._spawn(self._check(key, topic, watcher))

    def check_all(self) -> None:
        """Another process committed: check for everybody who waits."""
        self._check_once_more = True
        if not self._checking and not self._closed:
            self._checking = True
            self._spawn(self._check_all())

    def _spawn(self, check: Coroutine[Any, Any, None]) -> None:
        task = self._world.spawn(check, "backstay-watch")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check_all(self) -> None:
        """Check for everybody; from the beginning if another commit came meanwhile, and never twice at a time."""
        world = self._world
        try:
            while self._check_once_more:
                self._check_once_more = False
                waiting = list(self)
                for first in range(0, len(waiting), CHECKS):
                    began = world.ticks()
                    await asyncio.gather(*(self._check(*one) for one in waiting[first : first + CHECKS]))
                    rest: asyncio.Future[None] = world.future()
                    world.at(world.now() + REST * (world.ticks() - began), partial(_resolve_empty, rest))
                    await rest
        finally:
            self._checking = False

    async def _check(self, key: int, topic: str, watcher: Waiter) -> None:
        if watcher.future.done():
            return
        try:
            found = await watcher.check()
        except StoreError:
            self._world.at(self._world.now() + SECOND, lambda: self._check_again(key, topic, watcher))
            return
        except Exception as error:  # the news are there and cannot be read: the caller is told that
            self.remove(key, topic, watcher.future)
            if not watcher.future.done():
                watcher.future.set_exception(error)
            return
        if found is not None:
            self.remove(key, topic, watcher.future)
            if not watcher.future.done():
                watcher.future.set_result(found)

    def _check_again(self, key: int, topic: str, watcher: Waiter) -> None:
        if not watcher.future.done() and not self._closed:
            self._spawn(self._check(key, topic, watcher))


def _resolve_empty(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
