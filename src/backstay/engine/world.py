"""The world an engine lives in: clock, timers, ids, spawning, threads. All of it, and only here.

Whoever supplies another world (a simulator with a clock of its own and no threads) controls everything that happens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from struct import iter_unpack
from time import monotonic_ns, time_ns
from typing import Any, Protocol, TypeVar

from backstay.kernel.values import SECOND, Ids, Micros
from backstay.threads import ThreadPool

T = TypeVar("T")

NODE = 12  # bits of a key that say who made it: processes beside one database must not make the same in one microsecond
STEP = 1 << NODE
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

    def now(self) -> Micros: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def at(self, when: Micros, call: Callable[[], None]) -> Alarm: ...
    def post(self, call: Callable[[], None]) -> None:
        """From any thread: run this on the engine's thread."""
        ...

    def future(self) -> asyncio.Future[Any]: ...
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...
    def pool(self, size: int, name: str) -> Pool: ...


class Bits(Protocol):
    """Where randomness comes from: `random.Random` is such a thing, too."""

    def getrandbits(self, k: int, /) -> int: ...


class SystemBits:
    """Randomness of the operating system: nobody foretells the next id from those before, which are told to everybody.

    Read in batches, since a call of the system for each id would cost as much again as making it.
    """

    BATCH = 4096  # bytes

    def __init__(self) -> None:
        self._words = self._read()

    def getrandbits(self, k: int, /) -> int:
        """Up to 64 of them."""
        return next(self._words)[0] >> 64 - k

    def _read(self) -> Iterator[tuple[int]]:
        while True:
            yield from iter_unpack("Q", os.urandom(self.BATCH))


class Minted:
    """Identity: ULIDs, and 63-bit integer keys that grow with time and differ between engines."""

    def __init__(self, now: Callable[[], Micros], source: Bits) -> None:
        self._now = now
        self._random = source
        self._node = source.getrandbits(NODE)
        self._last = 0
        self._stretch = -1  # of 1,024 milliseconds, in which all ULIDs begin alike
        self._prefix = ""
        # The guard of every commit compares serials: engines that start together must not count alike.
        self._serial = source.getrandbits(62)

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def key(self) -> int:
        # 51 bits of microseconds (until the year 2091); monotonic within this engine.
        key = (self._now() - EPOCH << NODE) | self._node
        if key < self._last + STEP:
            key = self._last + STEP
        self._last = key
        return key

    def ulid(self) -> str:
        millisecond = self._now() // 1000
        pairs = _PAIRS
        if millisecond >> 10 != self._stretch:
            self._stretch = millisecond >> 10
            self._prefix = "".join([pairs[(millisecond >> shift) & 1023] for shift in (40, 30, 20, 10)])
        # 80 random bits in two halves: Python is slow with wide integers.
        bits = self._random.getrandbits
        a, b = bits(40), bits(40)
        return (
            f"{self._prefix}{pairs[millisecond & 1023]}"
            f"{pairs[a >> 30]}{pairs[a >> 20 & 1023]}{pairs[a >> 10 & 1023]}{pairs[a & 1023]}"
            f"{pairs[b >> 30]}{pairs[b >> 20 & 1023]}{pairs[b >> 10 & 1023]}{pairs[b & 1023]}"
        )


class AsyncioWorld:
    """The real one: an asyncio loop, the machine's clock, threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Time is the monotonic clock anchored once: a clock that is set back or forth does not reach a running engine.
        self._anchor = time_ns() // 1000 - monotonic_ns() // 1000
        self.ids: Ids = Minted(self.now, SystemBits())

    def now(self) -> Micros:
        return monotonic_ns() // 1000 + self._anchor

    def soon(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)

    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        # However long: event loops themselves wake now and then rather than ask the platform for too long a sleep.
        return self.loop.call_later(max(when - self.now(), 0) / SECOND, call)

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.loop.create_task(work, name=name)

    def pool(self, size: int, name: str) -> Pool:
        return ThreadPool(self, size, name)
