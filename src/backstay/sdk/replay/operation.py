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
"""Woken with this, a greenlet meets a cancellation where it waits."""


REQUESTED = "a cancel request reached the run"


def asked_for(error: CancelledError) -> bool:
    """Whether a cancellation is the request that has just reached the run, and not a timeout of the code's own."""
    return error.args == (REQUESTED,)


def stopped(outcome: Outcome) -> bool:
    """Whether a step ended because it was told to."""
    return isinstance(outcome, Thrown) and outcome.category == "cancelled"


class LocalActivityPlaceholder(Command, frozen=True, kw_only=True, gc=False):
    """Keeps the place of a local activity's record among the commands until the worker has run it. It leaves no worker."""

    step: int


class Operation(Protocol):
    """A durable call as a live run sees it. One that `hears` is answered by what reaches the run from outside."""

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
