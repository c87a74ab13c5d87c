"""A world without a clock and without threads: time jumps to the next alarm, and everything happens in one order.

The same seed gives the same run, event for event and microsecond for microsecond.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

from backstay.engine.core.world import Alarm, AsyncioWorld, Minted, MintedIds
from backstay.kernel.values import SECOND, Micros

T = TypeVar("T")
EPOCH = 1_800_000_000 * SECOND


MOMENT = 1e-9
"""Timers that are no farther apart are due together."""

TURNS = 100_000
"""So many rounds of the loop, or looks at the clock, at one and the same moment are a circle."""


class Standstill(RuntimeError):
    """Nothing will ever happen again, or the same thing for ever."""


class _Call:
    """A call that the loop is to make. What asyncio's own handles remember beyond that, nobody here asks for."""

    __slots__ = ("args", "callback", "context", "moment")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None, moment: float
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.moment = moment

    def cancel(self) -> None:
        self.callback, self.args = None, ()  # what it held on to is free

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.moment


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop that never waits: when nothing is ready, its time moves to its next timer.

    It does what asyncio's loop does without files, other threads and debugging: a simulated day is mostly the turning of
    this loop. Timers of one moment ring in the order in which they were set.
    """

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._turns = 0
        self._calls: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._set = 0  # timers, so far

    def time(self) -> float:
        return self._virtual

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        call = _Call(callback, args, context, 0.0)
        self._calls.append(call)
        return call

    call_soon_threadsafe = call_soon  # there is one thread

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        call = _Call(callback, args, context, when)
        self._set += 1
        heappush(self._timers, (when, self._set, call))
        return call

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._virtual + delay, callback, *args, context=context)

    def looked(self) -> None:
        """Somebody has asked what time it is: who decides one thing after the other does so for each of them."""
        self._turns += 1

    def _run_once(self) -> None:
        calls, timers = self._calls, self._timers
        while timers and timers[0][2].callback is None:
            heappop(timers)
        self._turns += 1
        if not calls and not self._stopping:  # type: ignore[attr-defined]
            self._jump()
        elif self._turns > TURNS:
            raise Standstill("the same moment goes on and on: something waits by asking again and again")
        now = self._virtual + MOMENT
        while timers and timers[0][0] < now:
            calls.append(heappop(timers)[2])
        for _ in range(len(calls)):
            call = calls.popleft()
            if call.callback is not None:
                try:
                    call.context.run(call.callback, *call.args)
                except Exception as error:
                    self.call_exception_handler({"message": f"calling {call.callback} failed", "exception": error})

    def _jump(self) -> None:
        if not self._timers:
            raise Standstill("everything waits and no timer is set: this world has come to a stop")
        pause = self._timers[0][0] - self._virtual
        if pause > 0:
            self._virtual += pause
            self._turns = 0


class InlinePool:
    """Blocking calls run on the loop itself, one after another."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        self._loop.call_soon(lambda: done(call()))

    def submit_here(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        self.submit(call, done)

    def close(self) -> None:
        pass


class VirtualWorld(AsyncioWorld):
    def __init__(self, loop: VirtualLoop, seed: int, epoch: Micros = EPOCH) -> None:
        self._virtual = loop  # the base class asks for the time at once
        self._epoch = epoch
        super().__init__(loop)
        self.looks: Micros | None = None
        self.random = random.Random(seed)
        self.ids: MintedIds = Minted(self.now, self.random)

    def now(self) -> Micros:
        self._virtual.looked()
        return self._epoch + round(self._virtual.time() * SECOND)

    def ticks(self) -> Micros:
        self._virtual.looked()
        return round(self._virtual.time() * SECOND)

    def follow(self, ahead: Micros | None = None, *, at_once: bool = False) -> Micros:
        """Nobody sets this clock. That of the machine may be set during a test, which is none of its business."""
        return 0

    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        """No machine sleeps here: however long, an alarm is one of the loop's."""
        return self._virtual.call_later(max(when - self.now(), 0) / SECOND, call)

    def post(self, call: Callable[[], None]) -> None:
        self._virtual.call_soon(call)

    def pool(self, size: int, name: str) -> InlinePool:
        return InlinePool(self._virtual)


def run(seed: int, story: Callable[[Callable[[], VirtualWorld]], Coroutine[Any, Any, T]]) -> T:
    """Tell a story in a world of its own."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story(lambda: VirtualWorld(loop, seed)))
    finally:
        loop.close()
