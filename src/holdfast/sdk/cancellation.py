"""Cancellation that code gets to see, for workflows that declare it: `@workflow(handles_cancel="5m")`.

The request is raised once, as `Cancelled`, where the workflow's own code waits at that point of its history. Inside `shield()`
it is put off until the block ends. Code that lets it through closes the run as cancelled; code that returns, as completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from holdfast.kernel.event import Recorded
from holdfast.kernel.features.cancel import CancelRequested
from holdfast.sdk.errors import NotInWorkflow
from holdfast.sdk.fiber import CANCEL, Fiber
from holdfast.sdk.strand import current_fiber, current_strand

Cancelled = asyncio.CancelledError
"""One exception in both worlds, and no `Exception`: a broad `except` does not swallow it."""


class Cancellation:
    def __init__(self) -> None:
        self.requested = False
        self.put_off = False
        self.shields: dict[Any, int] = {}  # by strand or task


def requested(fiber: Fiber, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, CancelRequested)
    if event.cleanup_deadline_at is None or fiber.closing is not None:
        return  # the run closed with it, or its code has ended
    part = fiber.part(Cancellation)
    part.requested = True
    if part.shields.get(fiber.main_task if fiber.main_task is not None else fiber.main, 0):
        part.put_off = True
        return
    if fiber.main_task is not None:
        fiber.main_task.cancel()
    elif fiber.main is not None:
        fiber.wake(fiber.main, CANCEL)
    fiber.drain()


def was_requested(fiber: Fiber) -> bool:
    return fiber.part(Cancellation).requested


@contextmanager
def shield() -> Generator[None, None, None]:
    """A cancel request waits until this block ends."""
    fiber = current_fiber()
    if fiber is None:
        raise NotInWorkflow("shield()")
    part = fiber.part(Cancellation)
    who = _who(fiber)
    part.shields[who] = part.shields.get(who, 0) + 1
    try:
        yield
    finally:
        part.shields[who] -= 1
        if not part.shields[who]:
            del part.shields[who]
    if part.put_off and who in (fiber.main, fiber.main_task) and who not in part.shields:
        part.put_off = False
        raise Cancelled


def _who(fiber: Fiber) -> Any:
    return asyncio.current_task() if fiber.running_loop is not None else current_strand()
