"""Formats for the terminal only: clocks and tracebacks."""

from __future__ import annotations

import time
from datetime import datetime

from backstay.kernel.event import Event
from backstay.kernel.failure import Failure
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.format import arguments, failure, moment, offset, shortened, span, value

__all__ = [
    "ago",
    "arguments",
    "clock",
    "failure",
    "moment",
    "now",
    "offset",
    "shortened",
    "span",
    "value",
    "where",
]


def now() -> Micros:
    return time.time_ns() // 1000


def clock(at: Micros) -> str:
    return datetime.fromtimestamp(at / SECOND).astimezone().strftime("%H:%M:%S")


def ago(at: Micros, today: Micros) -> str:
    return f"{span(today - at)} ago" if today > at else f"in {span(at - today)}"


FOLDED = 4  # frames of a traceback that a timeline shows


def where(event: Event | None, whole: bool = False) -> list[str]:
    """Where the exception of an event was raised, a line a frame: the innermost ones, or all as Python prints them."""
    failure: Failure | None = getattr(event, "exception", None)
    found = None if failure is None else failure.diagnostics
    if found is None:
        return []
    if whole:
        return found.traceback.splitlines() if found.traceback else list(found.trace)
    hidden = len(found.trace) - FOLDED
    more = [f"... {hidden} more, see --traces"] if hidden > 0 else []
    return more + [shortened(f"at {line}", 200) for line in found.trace[-FOLDED:]]
