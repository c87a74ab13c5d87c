"""Where an exception was raised, for people. Nothing decides by it."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from backstay.kernel.failure import Diagnostics

MAX_FRAMES: Final = 20


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
    )


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


_MACHINERY: Final = frozenset({"backstay", "asyncio", "concurrent", "threading", "greenlet"})
