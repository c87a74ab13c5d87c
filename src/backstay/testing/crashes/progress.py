"""The progress bar of an exploration, on a terminal."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

WIDTH = 24
AFTER = 1.0  # seconds: what is over sooner needs no bar
EVERY = 0.1


class Terminal(Protocol):
    """What a bar is drawn on."""

    def isatty(self) -> bool: ...
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class TrialProgress:
    def __init__(self, out: Terminal | None) -> None:
        self._out = out if out is not None and out.isatty() else None
        self._began = self._shown = monotonic()
        self._all = self._done = 0
        self._drawn = False

    def expect(self, more: int) -> None:
        """So many trials are still to come."""
        self._all += more

    def step(self) -> None:
        self._done += 1
        now = monotonic()
        if self._out is None or now - self._began < AFTER or now - self._shown < EVERY:
            return
        self._shown = now
        self._drawn = True
        filled = WIDTH * self._done // max(self._all, 1)
        bar = "█" * filled + "·" * (WIDTH - filled)
        self._out.write(f"\r{bar}  {self._done} of {self._all} trials\x1b[K")
        self._out.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._out is not None and self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._drawn = False
