"""The lifecycle of an engine: callbacks for events of the engine as a whole, not of one instance.

All parts of a node share one `EngineHooks`. The part that causes something calls the list; the parts that have to act on it
have added themselves when they were constructed.
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
    """Awaited before this process takes over from another one that was the engine."""
    on_up: list[Callback] = field(default_factory=_none)
    """This process is the engine, and has read its state from disk."""
    on_lost: list[Callback] = field(default_factory=_none)
    """This process is no longer the engine, or could not reach its database for a long time."""
    on_unavailable: list[Callback] = field(default_factory=_none)
    """The database could not be reached."""
    on_foreign_commit: list[Callback] = field(default_factory=_none)
    """Another process has committed."""
    on_busy: list[Callback] = field(default_factory=_none)
    """The first commit after a sweep that found the engine idle."""
    on_sweep: list[Callback] = field(default_factory=_none)
    """A sweep has ended."""


def call_all(callbacks: list[Callback]) -> None:
    for callback in callbacks:
        callback()
