"""How long the engine's thread was held at a stretch: the longest of the last minute.

A timer rings four times a second; how late it rings is how long something else had the thread.
"""

from __future__ import annotations

import asyncio

EVERY = 0.25
HALF = 30.0  # seconds: the longest of the last and of the current half minute are kept


class LoopWatch:
    def __init__(self) -> None:
        self._longest = [0.0, 0.0]
        self._half = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._half = loop.time()
        self._wait(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def longest(self) -> float:
        """Seconds."""
        return max(self._longest)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + EVERY
        self._timer = loop.call_later(EVERY, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if now - self._half >= HALF:
            self._half = now
            self._longest = [0.0, self._longest[0]]
        self._longest[0] = max(self._longest[0], now - self._due)
        self._wait(loop)
