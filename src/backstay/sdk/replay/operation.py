"""A durable call as a live run sees it, and the ways in which one ends without an answer."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from backstay.kernel.command import Command
from backstay.kernel.feature import Outcome, Thrown

if TYPE_CHECKING:
    from backstay.sdk.replay.live_run import LiveRun

CANCEL = object()
"""A greenlet that is woken with this value gets a cancellation where it waits."""


REQUESTED = "a cancel request reached the run"


def asked_for(error: CancelledError) -> bool:
    """Return whether a cancellation is the cancel request of the run, and not a timeout in the code."""
    return error.args == (REQUESTED,)


def stopped(outcome: Outcome) -> bool:
    """Return whether a step ended because of a cancel request."""
    return isinstance(outcome, Thrown) and outcome.category == "cancelled"


class LocalActivityPlaceholder(Command, frozen=True, kw_only=True, gc=False):
    """Keeps the place of a local activity among the commands until the worker has run it. It is never sent."""

    step: int


class Operation(Protocol):
    """A durable call as a live run sees it. `hears`: it may be answered by a signal or a condition, not only by its own event."""

    shape: str
    detail: str | None
    hears: bool

    def command(self, step: int) -> Command: ...
    def describe(self) -> str: ...
    def check(self, live_run: LiveRun) -> None: ...
    def asked(self, live_run: LiveRun, step: int, answer: Callable[[Outcome], None]) -> Outcome | None: ...
    def differs(self, event: Any) -> str | None: ...
    def cancel(self, live_run: LiveRun, step: int) -> None: ...
    def spared(self, live_run: LiveRun, step: int) -> bool: ...
