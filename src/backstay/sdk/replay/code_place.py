"""Where the code of a live run stands: the line of the author's that asked for a step, waits or ended."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct

from backstay.codec.tracebacks import diagnose, is_own
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet


class CodePlace(Struct, frozen=True):
    """A line of code. `text` is the line itself."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        near = os.path.relpath(self.file)
        return f"{self.file if near.startswith('..') else near}:{self.line}"


def code_place(live_run: LiveRun, definition: WorkflowDefinition) -> CodePlace | None:
    """Return the line at which the replay of a blocked run ended; None if it cannot be told."""
    if live_run.parked is not None:
        return place_in(live_run.parked)
    if live_run.fatal is not None:
        told = diagnose(live_run.fatal)
        return None if told.file is None or told.line is None else _line(told.file, told.line)
    if live_run.closing is not None:
        code: CodeType = definition.entry.__code__
        return _line(code.co_filename, code.co_firstlineno)
    if live_run.main_task is not None:
        return _innermost_awaited(live_run.main_task.get_coro())
    return None if live_run.main is None else _innermost(live_run.main.gr_frame)


def place_in(greenlet: WorkflowGreenlet) -> CodePlace | None:
    """Return the author's line that a greenlet is at, suspended or running."""
    return _innermost(sys._getframe() if greenlet.gr_frame is None else greenlet.gr_frame)  # pyright: ignore[reportPrivateUsage]


def _innermost(frame: FrameType | None) -> CodePlace | None:
    while frame is not None:
        if not is_machinery(frame):
            return _line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def _innermost_awaited(coroutine: Any) -> CodePlace | None:
    found: FrameType | None = None
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None and not is_machinery(frame):
            found = frame
        coroutine = getattr(coroutine, "cr_await", None)
    return None if found is None else _line(found.f_code.co_filename, found.f_lineno)


def is_machinery(frame: FrameType) -> bool:
    """Whether this is a frame of Backstay or of what it runs code with, and not of the author."""
    name: str = frame.f_globals.get("__name__") or ""
    return is_own(frame.f_code.co_filename) or name.partition(".")[0] in ("asyncio", "greenlet")


def _line(file: str, line: int) -> CodePlace:
    return CodePlace(file, line, linecache.getline(file, line).strip())
