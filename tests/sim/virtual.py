"""A world without a clock and without threads: time jumps to the next alarm, and everything happens in one order.

The same seed gives the same run, event for event and microsecond for microsecond.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.engine.world import AsyncioWorld, Minted
from holdfast.kernel.values import SECOND, Micros

T = TypeVar("T")
EPOCH = 1_800_000_000 * SECOND


TURNS = 100_000
"""So many rounds of the loop at one and the same moment are a circle."""


class Standstill(RuntimeError):
    """Nothing will ever happen again, or the same thing for ever."""


class _Jump(selectors.DefaultSelector):
    """Never waits: when nothing is ready, the time of the loop moves to its next timer."""

    loop: VirtualLoop
    turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Standstill("everything waits and no timer is set: this world has come to a stop")
        self.turns += 1
        if not ready and timeout:
            self.loop.skip(timeout)
            self.turns = 0
        elif self.turns > TURNS:
            raise Standstill("the same moment goes on and on: something waits by asking again and again")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = 0.0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual

    def skip(self, seconds: float) -> None:
        self._virtual += seconds


class InlinePool:
    """Blocking calls run on the loop itself, one after another."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        self._loop.call_soon(lambda: done(call()))

    def close(self) -> None:
        pass


class VirtualWorld(AsyncioWorld):
    def __init__(self, loop: VirtualLoop, seed: int, epoch: Micros = EPOCH) -> None:
        self._virtual = loop  # the base class asks for the time at once
        self._epoch = epoch
        super().__init__(loop)
        self.random = random.Random(seed)
        self.ids = Minted(self.now, self.random)

    def now(self) -> Micros:
        return self._epoch + round(self._virtual.time() * SECOND)

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
