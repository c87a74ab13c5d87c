"""Times, durations and payloads as people read them: the words of a history on a terminal and in an answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from backstay.codec.errors import PayloadError
from backstay.codec.values import loads
from backstay.kernel.spans import span as span
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso

WIDEST = 120
LOOKED_AT = 10_000  # characters of a text that is shortened
DECODED = 64 << 10  # bytes of a payload that an answer shows in words; a larger one is named by its size


def offset(since: Micros) -> str:
    """How long after the beginning, for a column: `0.105 s`, `4:05.1`, `2 d 03:04:05`."""
    seconds = max(since, 0) / SECOND
    if seconds < 60:
        return f"{seconds:.3f} s"
    minutes, second = divmod(seconds, 60)
    if minutes < 60:
        return f"{int(minutes)}:{second:04.1f}"
    hours, minute = divmod(int(minutes), 60)
    days, hour = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hour:02}:{minute:02}:{int(second):02}"


def moment(at: Micros) -> str:
    return datetime.fromtimestamp(at / SECOND).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def value(blob: bytes | None) -> str:
    """A payload, shortened."""
    if blob is None:
        return "None"
    try:
        return shortened(repr(loads(blob)))
    except PayloadError:
        return f"<{len(blob)} bytes>"


def arguments(blob: bytes | None) -> str:
    """The arguments of a call as they stand between its parentheses."""
    if blob is None:
        return ""
    try:
        listed = loads(blob)
    except PayloadError:
        return f"<{len(blob)} bytes>"
    if not isinstance(listed, list):
        return shortened(repr(listed))
    parts: list[str] = []
    for item in cast(list[Any], listed):
        named = _named_in(item)
        parts += [repr(item)] if named is None else [f"{name}={given!r}" for name, given in named.items()]
    return shortened(", ".join(parts))


def _named_in(item: object) -> dict[str, Any] | None:
    """The arguments given by name, which travel as one last element."""
    if not isinstance(item, dict):
        return None
    entries = cast(dict[str, Any], item)
    named: Any = entries.get("**") if len(entries) == 1 else None
    return cast(dict[str, Any], named) if isinstance(named, dict) else None


def shortened(text: str, widest: int = WIDEST) -> str:
    """One line without control characters, cut with an ellipsis: nothing a payload holds may reach the terminal raw."""
    line = "".join(c if c.isprintable() else " " for c in text[:LOOKED_AT]).strip()
    return line if len(line) <= widest else line[: widest - 1] + "…"


def failure(type: str | None, message: str) -> str:
    name = (type or "error").rpartition(".")[2]
    return f"{name}: {shortened(message)}" if message else name


class UtcFormat:
    """The same for answers: points in time in UTC, and large payloads only by their size."""

    span = staticmethod(span)
    moment = staticmethod(iso)
    shortened = staticmethod(shortened)
    failure = staticmethod(failure)

    @staticmethod
    def value(blob: bytes | None, /) -> str:
        return f"<{len(blob)} bytes>" if blob is not None and len(blob) > DECODED else value(blob)

    @staticmethod
    def arguments(blob: bytes | None, /) -> str:
        return f"<{len(blob)} bytes>" if blob is not None and len(blob) > DECODED else arguments(blob)
