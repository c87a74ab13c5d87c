"""The lifecycle of an engine: callbacks for what happens to it as a whole, not to one instance.

One object is given to the parts of a node. A part that causes something calls the list; who has to act on it is in the list
from the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Callback = Callable[[], None]


def _none() -> list[Callback]:
    return []


def _none_awaited() -> list[Callable[[], Awaitable[None]]]:
    return []


@dataclass
class EngineHooks:
    before_take_over: list[Callable[[], Awaitable[None]]] = field(default_factory=_none_awaited)
    """Awaited when another process was the engine and this one is about to become it."""
    on_up: list[Callback] = field(default_factory=_none)
    """This process is the engine, and has read what is on disk."""
    on_lost: list[Callback] = field(default_factory=_none)
    """This process is the engine no longer, or cannot reach its database for long now."""
    on_unavailable: list[Callback] = field(default_factory=_none)
    """The database could not be reached."""
    on_foreign_commit: list[Callback] = field(default_factory=_none)
    """Another process has committed."""
    on_busy: list[Callback] = field(default_factory=_none)
    """Something was committed after a time in which nothing was."""
    on_sweep: list[Callback] = field(default_factory=_none)
    """A sweep has ended."""


def call_all(callbacks: list[Callback]) -> None:
    for callback in callbacks:
        callback()
