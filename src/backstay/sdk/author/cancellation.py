"""Cancellation that workflow code handles, for workflows that declare it: `@workflow(handles_cancel="5m")`.

The request is raised once, as `Cancelled`, where the main code waits at that point of its history. Inside `shield()` it is
postponed until the block ends. Code that lets `Cancelled` through closes the run as cancelled; code that returns, as completed.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from backstay.kernel.event import Recorded
from backstay.kernel.feature import Outcome
from backstay.kernel.features.cancel import CancelRequested
from backstay.sdk.errors import NotInWorkflow
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.operation import CANCEL, REQUESTED, stopped
from backstay.sdk.replay.workflow_greenlet import current_greenlet, current_run

Cancelled = asyncio.CancelledError
"""Raised in workflow code that handles cancellation. It is asyncio's `CancelledError`, which `except Exception` does not catch."""


class Cancellation:
    def __init__(self) -> None:
        self.requested = False
        self.put_off = False  # raised when the main code leaves its shield
        self.due = False  # raised at the next wait of `async def` main code
        self.shields: dict[Any, int] = {}  # by greenlet or task
        self.sagas: dict[Any, int] = {}


def requested(live_run: LiveRun, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, CancelRequested)
    if event.cleanup_deadline_at is None or live_run.closing is not None:
        return  # the request closed the run, or the code has ended
    live_run.part(Cancellation).requested = True
    _deliver(live_run)
    live_run.drain()


def was_requested(live_run: LiveRun) -> bool:
    return live_run.part(Cancellation).requested


def _deliver(live_run: LiveRun) -> None:
    """Raise the request where the main code waits, unless it is shielded."""
    part = live_run.part(Cancellation)
    task = live_run.main_task
    if part.shields.get(live_run.main if task is None else task):
        part.put_off = True
    elif task is None:
        assert live_run.main is not None
        live_run.wake(live_run.main, CANCEL)
    elif asyncio.current_task(live_run.loop) is task:
        live_run.wake(live_run.loop.greenlet, CANCEL)  # the task is inside a blocking durable call
    else:
        task.cancel(REQUESTED)


class Shield:
    """A block that postpones a cancel request to its end; after an error, or with `quietly`, to the next wait."""

    def __init__(self, *, quietly: bool = False) -> None:
        self._quietly = quietly

    def __enter__(self) -> None:
        live_run = current_run()
        if live_run is None:
            raise NotInWorkflow("shield()")
        part = live_run.part(Cancellation)
        who = self._who = _who(live_run)
        part.shields[who] = part.shields.get(who, 0) + 1
        if live_run.owed is who:
            live_run.owed, part.put_off = None, True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        live_run = current_run()
        assert live_run is not None
        part = live_run.part(Cancellation)
        who = self._who
        part.shields[who] -= 1
        if part.shields[who]:
            return
        del part.shields[who]
        if not part.put_off or who not in (live_run.main, live_run.main_task):
            return
        part.put_off = False
        if error is None and not self._quietly:
            raise Cancelled
        if live_run.main_task is None:
            live_run.owed = live_run.main
        else:
            _deliver_soon(live_run)


def in_saga(live_run: LiveRun) -> bool:
    """Return whether the code that waits here is in a saga, so that a cancel request waits for the end of the step.

    If the step completes, it returns, the code registers how to undo it, and the request is raised at the next wait.
    """
    return bool(live_run.part(Cancellation).sagas.get(_who(live_run)))


async def last_word(live_run: LiveRun, future: asyncio.Future[Outcome]) -> Outcome:
    """Wait for the end of a step that got a cancel request, as `LiveRun.call` does in plain code."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    outcome = await future
    if stopped(outcome):
        raise Cancelled
    _deliver_soon(live_run)
    return outcome


def _deliver_soon(live_run: LiveRun) -> None:
    """Raise the request at the next wait of `async def` main code."""
    live_run.part(Cancellation).due = True
    live_run.loop.call_soon(_deliver_due, live_run)


def _deliver_due(live_run: LiveRun) -> None:
    part = live_run.part(Cancellation)
    if part.due:
        part.due = False
        _deliver(live_run)


class Undoing:
    """The block of a saga. A cancel request waits for the running step, and at the latest it is raised at the block's end."""

    def __init__(self) -> None:
        live_run = self._live_run = current_run()
        if live_run is not None:
            sagas = live_run.part(Cancellation).sagas
            self._who = _who(live_run)
            sagas[self._who] = sagas.get(self._who, 0) + 1

    def end(self, error: BaseException | None) -> BaseException | None:
        """Return why the block ends: its own error, or the cancel request that it postponed."""
        live_run = self._live_run
        if live_run is None:
            return error
        part = live_run.part(Cancellation)
        part.sagas[self._who] -= 1
        if not part.sagas[self._who]:
            del part.sagas[self._who]
        if error is not None:
            return error
        if live_run.owed is not None and live_run.owed is self._who:
            live_run.owed = None
        elif part.due and self._who is live_run.main_task:
            part.due = False
        else:
            return None
        return Cancelled()


def shield() -> AbstractContextManager[None]:
    """Return a context manager in which a cancel request waits until the block ends.

    For cleanup that must not be interrupted: `with shield(): ...`. Raises `NotInWorkflow` outside a workflow.
    """
    return Shield()


def _who(live_run: LiveRun) -> Any:
    return asyncio.current_task() if live_run.running_loop is not None else current_greenlet()
