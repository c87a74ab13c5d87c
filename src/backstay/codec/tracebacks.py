"""Tracebacks of recorded exceptions, for people to read. No decision depends on them."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Final

from backstay.kernel.failure import Diagnostics

MAX_FRAMES: Final = 20
LONGEST: Final = 4_000  # characters of a traceback


def diagnose(exc: BaseException) -> Diagnostics:
    """File and line of the innermost frame of the author, and the last frames down to it, outermost first."""
    frames = _frames(exc.__traceback__)
    shown = [frame for frame in frames if not _is_machinery(frame)] or frames
    if not shown:
        return Diagnostics()
    innermost = shown[-1]
    return Diagnostics(
        file=innermost.tb_frame.f_code.co_filename,
        line=innermost.tb_lineno,
        trace=[_line(frame) for frame in shown[-MAX_FRAMES:]],
        traceback=formatted(exc),
    )


def formatted(exc: BaseException) -> str:
    """The traceback as Python prints it, with the exceptions it came from: no locals, no frames of ours, not endless."""
    told = traceback.TracebackException(type(exc), exc, exc.__traceback__, limit=-2 * MAX_FRAMES, compact=True)
    _leave_out_machinery(told)
    text = "".join(told.format()).encode("utf-8", "backslashreplace").decode()
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}\n  [...]\n{text[-half:]}"


def is_own(filename: str) -> bool:
    """Whether this is a file of Backstay."""
    return filename.startswith(_OWN)


def _leave_out_machinery(told: traceback.TracebackException) -> None:
    chain = [told]
    while chain:
        one = chain.pop()
        kept = [frame for frame in one.stack if not is_own(frame.filename)]
        one.stack[:] = kept or one.stack[-1:]
        chain += filter(None, [one.__cause__, one.__context__, *(one.exceptions or ())])


def _frames(innermost: TracebackType | None) -> list[TracebackType]:
    frames: list[TracebackType] = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.tb_next
    return frames


def _is_machinery(frame: TracebackType) -> bool:
    module: str = frame.tb_frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] in _MACHINERY


def _line(frame: TracebackType) -> str:
    code = frame.tb_frame.f_code
    return f"{code.co_filename}:{frame.tb_lineno} in {code.co_qualname}"


_OWN: Final = __file__.removesuffix("codec/tracebacks.py")
_MACHINERY: Final = frozenset({"backstay", "asyncio", "concurrent", "threading", "greenlet"})
