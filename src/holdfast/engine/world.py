"""The world an engine lives in: clock, timers, ids, randomness, spawning, threads. All of it, and only here.

Whoever supplies another world (a simulator with a clock of its own and no threads) controls everything that happens.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from holdfast.kernel.values import SECOND, Ids, Micros
from holdfast.threads import ThreadPool

T = TypeVar("T")

NODE = 12  # bits of a key that say who made it: processes beside one database must not make the same in one microsecond
EPOCH: Micros = 1_577_836_800 * SECOND  # 2020

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _CROCKFORD for b in _CROCKFORD]


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Pool(Protocol):
    """Threads for blocking calls. Results come back on the engine's thread, all that are there in one go."""

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None: ...
    def close(self) -> None: ...


class World(Protocol):
    ids: Ids
    random: random.Random

    def now(self) -> Micros: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def at(self, when: Micros, call: Callable[[], None]) -> Alarm: ...
    def post(self, call: Callable[[], None]) -> None:
        """From any thread: run this on the engine's thread."""
        ...

    def future(self) -> asyncio.Future[Any]: ...
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...
    def pool(self, size: int, name: str) -> Pool: ...


class Minted:
    """Identity: ULIDs, and 63-bit integer keys that grow with time and differ between engines."""

    def __init__(self, now: Callable[[], Micros], source: random.Random) -> None:
        self._now = now
        self._random = source
        self._node = source.getrandbits(NODE)
        self._last = 0
        self._millisecond = -1  # of the last ULID, whose beginning is kept
        self._prefix = ""
        # The guard of every commit compares serials: engines that start together must not count alike.
        self._serial = source.getrandbits(62)

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def key(self) -> int:
        # 51 bits of microseconds (until the year 2091); monotonic within this engine.
        self._last = last = max(self._last + (1 << NODE), (self._now() - EPOCH << NODE) | self._node)
        return last

    def ulid(self) -> str:
        millisecond = self._now() // 1000
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._prefix = "".join([_PAIRS[(millisecond >> shift) & 1023] for shift in (40, 30, 20, 10, 0)])
        # 80 random bits in two halves: Python is slow with wide integers.
        return self._prefix + self._eight() + self._eight()

    def _eight(self) -> str:
        """Eight random characters."""
        pairs = _PAIRS
        bits = self._random.getrandbits(40)
        return f"{pairs[bits >> 30]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"


class AsyncioWorld:
    """The real one: an asyncio loop, the machine's clock, threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Time is the monotonic clock anchored once: a clock that is set back or forth does not reach a running engine.
        self._anchor = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self.random = random.Random(os.urandom(16))
        self.ids: Ids = Minted(self.now, self.random)

    def now(self) -> Micros:
        return time.monotonic_ns() // 1000 + self._anchor

    def soon(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)

    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        # An alarm never waits longer than a day, so that no delay is too long for the platform's timers.
        delay = min(max(when - self.now(), 0), 86_400 * SECOND)
        return self.loop.call_later(delay / SECOND, call)

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.loop.create_task(work, name=name)

    def pool(self, size: int, name: str) -> Pool:
        return ThreadPool(self, size, name)
