"""What the plugin of a test runner shares with all apps: their seed, and the histories of the runs of a test, for its report."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from backstay.testing.timelines import RunHistory, timelines

seed = 0
"""The seed of apps that give none."""

histories: list[RunHistory] | None = None
"""The histories of apps that have closed during a test. None: no plugin reports them."""


trial: object | None = None
"""The trial of a crash exploration that apps which open now are part of."""

crash: str | None = None
"""The one schedule that crash explorations run, if `--backstay-crash` gives one."""


class Open(Protocol):
    """An app that is open."""

    def peek(self) -> list[RunHistory]: ...


opened: WeakSet[Open] = WeakSet()


def begin(of: int, schedule: str | None) -> None:
    """A test begins: histories are kept from here on."""
    global seed, crash, histories
    seed, crash, histories = of, schedule, []


def told() -> str:
    """Return the timelines of the test that has ended."""
    found = list(histories or ())
    for app in list(opened):
        found += app.peek()
    return timelines(found)
