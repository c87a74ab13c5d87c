"""The world: the only source of clock, timers, ids, randomness, tasks and threads for an engine.

A simulator supplies another world, with a clock of its own and no threads, and so controls everything that happens.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from struct import iter_unpack
from typing import Any, Protocol, TypeVar

from backstay.kernel.values import KEY_BITS, KEY_EPOCH, PARTITIONS, SECOND, Ids, Micros
from backstay.threads import ThreadPool
from backstay.ulid import PAIRS

T = TypeVar("T")

FORWARD = SECOND  # a wall clock that was set forward by more is followed at once
BACK = 10 * SECOND  # one that was set back by more, too; after less, the engine's clock goes more slowly for a while
SLEW = SECOND // 20  # the most by which `follow` moves the clock gradually
NOISE = SECOND // 200  # smaller differences are errors of measurement
LONG = 2 * SECOND  # alarms from here on are set again after the machine has slept

# Linux stops its monotonic clock while the machine sleeps; CLOCK_BOOTTIME goes on.
STEADY: Callable[[], int] = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Pool(Protocol):
    """Threads for blocking calls. `done` gets the result on the engine's thread."""

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None: ...
    def submit_here(self, call: Callable[[], T], done: Callable[[T], None]) -> None: ...
    def close(self) -> None: ...


class MintedIds(Ids, Protocol):
    """Ids of a process that may take over from another one."""

    def after(self, time: Micros) -> None:
        """Mint only keys that are later than this time."""
        ...


class World(Protocol):
    ids: MintedIds
    looks: Micros | None
    """How often to call `follow`; None: this clock is never set."""

    def now(self) -> Micros: ...
    def ticks(self) -> Micros:
        """A clock that is never set, for measuring how long something takes."""
        ...

    def follow(self, ahead: Micros | None = None, *, at_once: bool = False) -> Micros:
        """Follow the wall clock, which may have been set. Returns by how much `now` has jumped, mostly 0.

        `ahead`: how far another clock that counts is ahead of `ticks`. `at_once`: not little by little.
        """
        ...

    def soon(self, call: Callable[[], None]) -> None: ...
    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        """Call after the time between now and `when` has passed, even if the wall clock is set meanwhile."""
        ...

    def post(self, call: Callable[[], None]) -> None:
        """Run a call on the engine's thread. May be called from any thread."""
        ...

    def future(self) -> asyncio.Future[Any]: ...
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...
    def pool(self, size: int, name: str) -> Pool: ...


class Bits(Protocol):
    """A source of random bits, such as `random.Random`."""

    def getrandbits(self, k: int, /) -> int: ...


class SystemBits:
    """Random bits of the operating system, so that the next id cannot be predicted from public ids.

    Read in batches: a system call for each id would double the cost of making one.
    """

    BATCH = 4096  # bytes

    def __init__(self) -> None:
        self._words = self._read()

    def getrandbits(self, k: int, /) -> int:
        """The next `k` bits, 64 at most."""
        return next(self._words)[0] >> 64 - k

    def _read(self) -> Iterator[tuple[int]]:
        while True:
            yield from iter_unpack("Q", os.urandom(self.BATCH))


class Minted:
    """Identity: ULIDs, and 63-bit integer keys that grow with time and differ between engines."""

    def __init__(self, now: Callable[[], Micros], source: Bits) -> None:
        self._now = now
        self._random = source
        self._last = 0
        self._stretch = -1  # of 1,024 milliseconds, in which all ULIDs begin alike
        self._prefix = ""
        # The guard of every commit compares serials: engines that start together must not count alike.
        self._serial = source.getrandbits(62)

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def key(self, partition: int) -> int:
        # 51 bits of microseconds (until the year 2091); monotonic within this engine. Two engines that mint for one
        # partition in the same microsecond mint the same key: the store rejects the second commit, which is decided
        # again.
        time = self._now() - KEY_EPOCH
        if time <= self._last:
            time = self._last + 1
        self._last = time
        return time << KEY_BITS | partition

    def after(self, time: Micros) -> None:
        """Mint only keys that are later than this time."""
        self._last = max(self._last, time - KEY_EPOCH)

    def ulid(self) -> str:
        bits = self._random.getrandbits
        return self._ulid(bits(40), bits(40))

    def run_id(self, partition: int) -> str:
        bits = self._random.getrandbits
        return self._ulid(bits(40), bits(40) & -PARTITIONS | partition)

    def _ulid(self, a: int, b: int) -> str:
        # 80 bits in two halves: Python is slow with wide integers.
        millisecond = self._now() // 1000
        pairs = PAIRS
        if millisecond >> 10 != self._stretch:
            self._stretch = millisecond >> 10
            self._prefix = "".join([pairs[(millisecond >> shift) & 1023] for shift in (40, 30, 20, 10)])
        return (
            f"{self._prefix}{pairs[millisecond & 1023]}"
            f"{pairs[a >> 30]}{pairs[a >> 20 & 1023]}{pairs[a >> 10 & 1023]}{pairs[a & 1023]}"
            f"{pairs[b >> 30]}{pairs[b >> 20 & 1023]}{pairs[b >> 10 & 1023]}{pairs[b & 1023]}"
        )


class LongAlarm:
    """An alarm that is set again after the machine has slept, because event loops do not count that time."""

    __slots__ = ("_call", "_due", "_others", "handle")

    def __init__(self, others: set[LongAlarm], due: int, call: Callable[[], None]) -> None:
        self._others = others
        self._due = due
        self._call = call
        self.handle: asyncio.TimerHandle | None = None
        others.add(self)

    def wind(self, loop: asyncio.AbstractEventLoop, now: int) -> None:
        if self.handle is not None:
            self.handle.cancel()
        self.handle = loop.call_later(max(self._due - now, 0) / 1e9, self._ring)

    def cancel(self) -> None:
        self._others.discard(self)
        if self.handle is not None:
            self.handle.cancel()

    def _ring(self) -> None:
        self._others.discard(self)
        self._call()


def wake(waits: asyncio.Future[None]) -> None:
    """Let a future end that may have been given up meanwhile."""
    if not waits.done():
        waits.set_result(None)


async def turn(world: World) -> None:
    """Let the event loop do other work."""
    waits: asyncio.Future[None] = world.future()
    world.soon(partial(wake, waits))
    await waits


async def rest(world: World, long: Micros) -> None:
    waits: asyncio.Future[None] = world.future()
    world.at(world.now() + long, partial(wake, waits))
    await waits


class AsyncioWorld:
    """The real world: an asyncio loop, the machine's clocks, threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = STEADY,
        awake: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`wall` is set by people and by NTP; `steady` is never set and counts on while the machine sleeps; `awake`, the clock
        of the event loop, stops while it sleeps. All in nanoseconds."""
        self.loop = loop
        self.looks: Micros | None = SECOND
        self._wall = wall
        self._steady = steady
        self._awake = awake
        self._anchor = self._anchored()
        self._asleep = self._slept()
        self._long: set[LongAlarm] = set()
        self.ids: MintedIds = Minted(self.now, SystemBits())

    def now(self) -> Micros:
        return self._steady() // 1000 + self._anchor

    def ticks(self) -> Micros:
        return self._steady() // 1000

    def follow(self, ahead: Micros | None = None, *, at_once: bool = False) -> Micros:
        # Time is the steady clock plus an anchor. Between two calls it follows the steady clock alone. A wall clock that has
        # moved away from steady clock plus anchor was set, since NTP slews both alike.
        slept = self._slept()
        if abs(slept - self._asleep) > NOISE:
            self._asleep = slept
            for alarm in tuple(self._long):
                alarm.wind(self.loop, self._steady())
        away = (self._anchored() if ahead is None else ahead) - self._anchor
        if away > FORWARD or away < -BACK or at_once:
            self._anchor += away
            return away
        if abs(away) > NOISE:
            self._anchor += max(-SLEW, min(away, SLEW))
        return 0

    def _anchored(self) -> Micros:
        """By how much the wall clock is ahead of the steady one. The least interrupted of three measurements counts."""
        measurements: list[tuple[int, int]] = []
        for _ in range(3):
            before, wall, after = self._steady(), self._wall(), self._steady()
            measurements.append((after - before, wall - (before + after) // 2))
        return min(measurements)[1] // 1000

    def _slept(self) -> Micros:
        """How long the machine has slept since it was started."""
        return min(self._steady() - self._awake() for _ in range(3)) // 1000

    def soon(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)

    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        # Any pause will do: event loops limit the sleep that they ask the platform for.
        pause = when - self.now()
        if pause < LONG:
            return self.loop.call_later(max(pause, 0) / SECOND, call)
        alarm = LongAlarm(self._long, self._steady() + pause * 1000, call)
        alarm.wind(self.loop, self._steady())
        return alarm

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.loop.create_task(work, name=name)

    def pool(self, size: int, name: str) -> Pool:
        return ThreadPool(self, size, name)
