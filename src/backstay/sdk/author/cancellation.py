"""Cancellation that code gets to see, for workflows that declare it: `@workflow(handles_cancel="5m")`.

The request is raised once, as `Cancelled`, where the workflow's own code waits at that point of its history. Inside `shield()`
it is put off until the block ends. Code that lets it through closes the run as cancelled; code that returns, as completed.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from backstay.kernel.event import Recorded
from backstay.kernel.feature import Outcome
from backstay.kernel.features.cancel import CancelRequested
from backstay.sdk.errors import NotInWorkflow
from backstay.sdk.replay.live_run import CANCEL, REQUESTED, Fiber, stopped
from backstay.sdk.replay.workflow_greenlet import current_fiber, current_strand

Cancelled = asyncio.CancelledError
"""Raised in workflow code that handles cancellation: asyncio's `CancelledError`, which `except Exception` does not catch."""


class Cancellation:
    def __init__(self) -> None:
        self.requested = False
        self.put_off = False  # until the main code leaves its shield
        self.due = False  # at the next wait of main code with an event loop
        self.shields: dict[Any, int] = {}  # by strand or task
        self.sagas: dict[Any, int] = {}


def requested(fiber: Fiber, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, CancelRequested)
    if event.cleanup_deadline_at is None or fiber.closing is not None:
        return  # the run closed with it, or its code has ended
    fiber.part(Cancellation).requested = True
    _deliver(fiber)
    fiber.drain()


def was_requested(fiber: Fiber) -> bool:
    return fiber.part(Cancellation).requested


def _deliver(fiber: Fiber) -> None:
    """Raise the request where the main code waits, unless it has put that off."""
    part = fiber.part(Cancellation)
    task = fiber.main_task
    if part.shields.get(fiber.main if task is None else task):
        part.put_off = True
    elif task is None:
        assert fiber.main is not None
        fiber.wake(fiber.main, CANCEL)
    elif asyncio.current_task(fiber.loop) is task:
        fiber.wake(fiber.loop.strand, CANCEL)  # in the middle of a call that blocks
    else:
        task.cancel(REQUESTED)


class Shield:
    """Puts a cancel request off. At its end it is raised; behind an error, or `quietly`, at the next wait instead."""

    def __init__(self, *, quietly: bool = False) -> None:
        self._quietly = quietly

    def __enter__(self) -> None:
        fiber = current_fiber()
        if fiber is None:
            raise NotInWorkflow("shield()")
        part = fiber.part(Cancellation)
        who = self._who = _who(fiber)
        part.shields[who] = part.shields.get(who, 0) + 1
        if fiber.owed is who:
            fiber.owed, part.put_off = None, True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        fiber = current_fiber()
        assert fiber is not None
        part = fiber.part(Cancellation)
        who = self._who
        part.shields[who] -= 1
        if part.shields[who]:
            return
        del part.shields[who]
        if not part.put_off or who not in (fiber.main, fiber.main_task):
            return
        part.put_off = False
        if error is None and not self._quietly:
            raise Cancelled
        if fiber.main_task is None:
            fiber.owed = fiber.main
        else:
            _deliver_soon(fiber)


def in_saga(fiber: Fiber) -> bool:
    """Whether a step that is waited for here has its last word when a cancel request comes.

    If it has been done all the same, it returns, its code says how to undo it, and the request is raised at the next wait.
    """
    return bool(fiber.part(Cancellation).sagas.get(_who(fiber)))


async def last_word(fiber: Fiber, future: asyncio.Future[Outcome]) -> Outcome:
    """What `Fiber.call` does in plain code."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    outcome = await future
    if stopped(outcome):
        raise Cancelled
    _deliver_soon(fiber)
    return outcome


def _deliver_soon(fiber: Fiber) -> None:
    """Raise the request at the next wait of main code that has an event loop."""
    fiber.part(Cancellation).due = True
    fiber.loop.call_soon(_deliver_due, fiber)


def _deliver_due(fiber: Fiber) -> None:
    part = fiber.part(Cancellation)
    if part.due:
        part.due = False
        _deliver(fiber)


class Undoing:
    """The code of a saga: steps have their last word in it, and a request that waits for the next wait is raised at its end."""

    def __init__(self) -> None:
        fiber = self._fiber = current_fiber()
        if fiber is not None:
            sagas = fiber.part(Cancellation).sagas
            self._who = _who(fiber)
            sagas[self._who] = sagas.get(self._who, 0) + 1

    def end(self, error: BaseException | None) -> BaseException | None:
        """Why the block ends: its own error, or the request that it has put off."""
        fiber = self._fiber
        if fiber is None:
            return error
        part = fiber.part(Cancellation)
        part.sagas[self._who] -= 1
        if not part.sagas[self._who]:
            del part.sagas[self._who]
        if error is not None:
            return error
        if fiber.owed is not None and fiber.owed is self._who:
            fiber.owed = None
        elif part.due and self._who is fiber.main_task:
            part.due = False
        else:
            return None
        return Cancelled()


def shield() -> AbstractContextManager[None]:
    """A cancel request waits until this block ends."""
    return Shield()


def _who(fiber: Fiber) -> Any:
    return asyncio.current_task() if fiber.running_loop is not None else current_strand()
