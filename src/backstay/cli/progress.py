"""ProgressLine on standard error, of everything that may take longer than a second: a line with the pace and an estimate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from backstay.cli.problems import MOMENT

EVERY = 5.0  # seconds between two lines where it is no terminal


class ProgressLine:
    """Prints the progress of a command, once it takes more than a second. `things`: what it counts."""

    def __init__(self, things: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._things = things
        self._clock = clock
        self._terminal = sys.stderr.isatty()
        self._what = ""
        self._began = self._told = clock()
        self._from = 0
        self._open = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that so many of all things are done. `what` is the verb; the pace is that of the same verb."""
        now = self._clock()
        if what != self._what:
            self._what, self._began, self._from = what, now, 0 if done == total else done
            self._told = now
            return
        if now - self._began < MOMENT or (done < total and now - self._told < (0.2 if self._terminal else EVERY)):
            return
        self._told = now
        pace = (done - self._from) / (now - self._began)
        left = f", {(total - done) / pace:,.0f} s left" if pace and done < total else ""
        line = f"{what} {done:,} of {total:,} {self._things} ({done * 100 // max(total, 1)} %), {pace:,.0f}/s{left}"
        click.echo(f"\r{line}\x1b[K" if self._terminal else line, nl=not self._terminal, err=True)
        self._open = self._terminal

    def end(self) -> None:
        """Leave the line of the terminal."""
        if self._open:
            click.echo(err=True)
            self._open = False
