"""A deadline that moves often and passes rarely: one timer that is set again when it fires too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class MovingDeadline:
    """Calls `passed` once the deadline has passed. Moving it into the future costs an assignment, not a timer."""

    __slots__ = ("_loop", "_passed", "_timer", "_timer_at", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.at: float | None = None  # of the loop's clock; None: there is no deadline now

    def set(self, seconds: float) -> None:
        self.at = at = self._loop.time() + seconds
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(seconds, self._fire)

    def close(self) -> None:
        """Stop for good, and let go of the owner, which would otherwise wait for the garbage collector."""
        self.at = None
        del self._passed
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self.at is None:
            return
        left = self.at - self._loop.time()
        if left > 0:
            self._timer_at = self.at
            self._timer = self._loop.call_later(left, self._fire)
        else:
            self.at = None
            self._passed()
