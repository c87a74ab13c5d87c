"""Waiters: callers that wait for news of an instance, such as its end or the end of one of its updates.

A caller waits under a topic of an instance. This engine's own commits notify it directly. After a commit of another
process one query finds the changed instances among these, and their waiters are checked. Instances that this process
owns are left out until another process leaves a notice about one: no process changes them without a notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from backstay.engine.core.world import World
from backstay.kernel.state import Instance
from backstay.kernel.values import SECOND
from backstay.store.errors import StoreError

T = TypeVar("T")

ENDED = "ended"
"""The topic of the end of a chain of runs."""

CHECKS = 32  # at a time
REST = 3  # the pause before the next checks, as a multiple of what these took: many waiters must not block the engine
LONGEST_REST = SECOND  # if the database was slow, or the process was suspended


UNSEEN = -1
"""No decision: a waiter whose instance was not looked at since it waits."""


class Waiter(Struct, eq=False):
    """One caller that waits. `answer` turns the news into its result; `check` reads the result from the database, from
    the rows of the waiter's instance only."""

    answer: Callable[[Any], Any]
    check: Callable[[], Awaitable[Any]]
    future: asyncio.Future[Any]
    seen: int | None = UNSEEN  # the last decision of the instance before it was last checked


class Waiters:
    """`moved` is that of the store. `owns`: whether this process owns the instance of a key."""

    def __init__(
        self,
        world: World,
        moved: Callable[[Mapping[int, int | None]], Awaitable[dict[int, int | None]]],
        owns: Callable[[int], bool] = lambda key: False,
    ) -> None:
        self._world = world
        self._moved = moved
        self._owns = owns
        self._waiters: dict[tuple[int, str], list[Waiter]] = {}
        self.on_commit: dict[int, list[Callable[[Instance], None]]] = {}  # called after each commit of an instance
        self._checking = False
        self._check_once_more = False
        self._noticed: set[int] = set()  # owned instances that another process has changed since the last check
        self._trusts = False  # no waiter of an owned instance has missed anything beyond `_noticed`
        self._checks: set[asyncio.Task[None]] = set()  # under way
        self._closed = False
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.stopped: Callable[[], Exception] | None = (
            None  # set: waits end at once, with this error for a waiter without a result
        )

    def __iter__(self) -> Iterator[tuple[int, str, Waiter]]:
        """All waiters, with instance and topic."""
        for (key, topic), waiters in list(self._waiters.items()):
            for waiter in list(waiters):
                yield key, topic, waiter

    # -- the list

    def add(self, key: int, topic: str, waiter: Waiter) -> None:
        self._waiters.setdefault((key, topic), []).append(waiter)

    def remove(self, key: int, topic: str, future: asyncio.Future[Any]) -> None:
        """Take the waiter with this future off the list."""
        left = [waiter for waiter in self._waiters.get((key, topic), ()) if waiter.future is not future]
        if left:
            self._waiters[key, topic] = left
        else:
            self._waiters.pop((key, topic), None)

    def notify(self, key: int, topic: str, news: Any) -> None:
        """Answer all waiters of a topic: its news are committed."""
        for waiter in self._waiters.pop((key, topic), ()):
            if waiter.future.done():
                continue
            try:
                answer = waiter.answer(news)
            except Exception as error:  # for this waiter alone; the others get the news
                waiter.future.set_exception(error)
            else:
                waiter.future.set_result(answer)

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
        """Wait for the answer, from disk or from a later commit; None after `seconds`. `to_come`: it is not on disk yet.

        The caller is on the list before it checks the database. In the other order it would miss a commit in between for
        ever, since the engine notifies once (`tests/engine/test_results.py`, and a mutant of the simulator).
        """
        future: asyncio.Future[T | None] = self._world.future()
        self.add(key, topic, Waiter(answer, check, future))
        try:
            result = None if to_come else await check()
        except BaseException:
            self.remove(key, topic, future)
            raise
        if result is not None and not future.done():
            future.set_result(result)
        return await self.wait_on(key, topic, future, seconds)

    async def wait_on(self, key: int, topic: str, future: asyncio.Future[T | None], seconds: float | None) -> T | None:
        """Wait on the future of a waiter that is on the list already."""
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

    # -- checking the database

    def check(self, key: int, topic: str) -> None:
        """Check the database for the waiters of one topic."""
        for waiter in list(self._waiters.get((key, topic), ())):
            self._spawn(self._check(key, topic, waiter))

    def note(self, keys: Iterable[int]) -> None:
        """Other processes have changed these instances. The next check includes them."""
        self._noticed.update(keys)

    def check_owned(self) -> None:
        """Check the database for all waiters, those of owned instances as well: commits may have gone by unheard, because
        shards came or went, or the database was away."""
        self._trusts = False
        self.check_all()

    def check_all(self) -> None:
        """Check the database for the waiters of others' instances, and of those with a notice: another process has committed."""
        self._check_once_more = True
        if not self._checking and not self._closed:
            self._checking = True
            self._spawn(self._check_all())

    def _spawn(self, check: Coroutine[Any, Any, None]) -> None:
        task = self._world.spawn(check, "backstay-watch")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check_all(self) -> None:
        """Check for all whose instances moved, and from the beginning again if there was another commit meanwhile."""
        world = self._world
        try:
            while self._check_once_more:
                self._check_once_more = False
                try:
                    waiting = await self._with_news()
                except StoreError:
                    world.at(world.now() + SECOND, self.check_owned)
                    return
                for first in range(0, len(waiting), CHECKS):
                    began = world.ticks()
                    await asyncio.gather(*(self._check(*entry) for entry in waiting[first : first + CHECKS]))
                    rest: asyncio.Future[None] = world.future()
                    pause = min(REST * (world.ticks() - began), LONGEST_REST)
                    world.at(world.now() + pause, partial(_resolve_empty, rest))
                    await rest
        finally:
            self._checking = False

    async def _with_news(self) -> list[tuple[int, str, Waiter]]:
        """The waiters whose instances have changed since they were last checked.

        The version that a waiter has seen is read before its check. If it were read after the check, a commit in
        between would count as seen, and the waiter would miss it (a mutant of the simulator).
        """
        noticed, self._noticed = self._noticed, set()
        trusts, self._trusts = self._trusts, True
        waiting = [entry for entry in self if entry[0] in noticed or not (trusts and self._owns(entry[0]))]
        seen: dict[int, int | None] = {}
        for key, _, waiter in waiting:
            seen[key] = waiter.seen if seen.get(key, waiter.seen) == waiter.seen else UNSEEN
        moved = await self._moved(seen) if seen else {}
        entries = [entry for entry in self if entry[0] in moved and entry[2].seen != moved[entry[0]]]
        for key, _, waiter in entries:
            waiter.seen = moved[key]
        return entries

    async def _check(self, key: int, topic: str, waiter: Waiter) -> None:
        if waiter.future.done():
            return
        try:
            result = await waiter.check()
        except StoreError:
            waiter.seen = UNSEEN
            self._world.at(self._world.now() + SECOND, lambda: self._check_again(key, topic, waiter))
            return
        except Exception as error:  # the news are on disk and cannot be read: the waiter gets that error
            self.remove(key, topic, waiter.future)
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return
        if result is not None:
            self.remove(key, topic, waiter.future)
            if not waiter.future.done():
                waiter.future.set_result(result)

    def _check_again(self, key: int, topic: str, waiter: Waiter) -> None:
        if not waiter.future.done() and not self._closed:
            self._spawn(self._check(key, topic, waiter))


def _resolve_empty(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
