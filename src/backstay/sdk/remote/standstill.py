"""Standstill: whether this process was suspended, because it was stopped, its machine slept, or its thread was blocked.

A worker that was suspended for longer than a server waits for it has lost its tasks, and those in a reply that it has
not read yet, too: another worker may have ended them. It must ask before it begins any of them. A beat twice a second
notices a standstill, even if it runs before the reply is read; the reader of a reply compares the number of
standstills, and the time since the last beat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEAT = 0.5
STILL = 5.0
"""Seconds. A server keeps the activities of a worker that it does not see for ten."""


class Standstill:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clock = _clock_of(loop)
        self._last = self._clock()
        self.count = 0  # how often this process was suspended
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._last = self._clock()
        self._timer = self._loop.call_later(BEAT, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def since(self, count: int) -> bool:
        """Whether this process was suspended since there were `count` standstills."""
        return self.count != count or self._clock() - self._last > STILL

    def _beat(self) -> None:
        now = self._clock()
        if now - self._last > STILL:
            self.count += 1
        self._last = now
        self._timer = self._loop.call_later(BEAT, self._beat)


def _clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """A clock that goes on while the machine sleeps. A loop with a time of its own counts by that."""
    if getattr(type(loop), "time", None) is not asyncio.BaseEventLoop.time:
        return loop.time
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot is None else lambda: time.clock_gettime(boot)
