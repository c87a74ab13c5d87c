"""Durations as authors write them: seconds, "90s", "5m", "2h", "3d", "1w", or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

Duration = int | float | str | timedelta

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def to_seconds(duration: Duration) -> float:
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        parts = _PART.findall(duration)
        if not parts or "".join(number + unit for number, unit in parts) != duration.replace(" ", ""):
            raise ValueError(f"{duration!r} is not a duration; write for example '90s', '1h30m', '3d' or a timedelta")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        seconds = duration
    else:
        raise TypeError(f"{duration!r} is not a duration; write seconds, text like '90s' or '3d', or a timedelta")
    if not 0 <= seconds < 1e10:
        raise ValueError(f"a duration is between 0 and 10^10 seconds, not {duration!r}")
    return seconds


def until(duration: Duration) -> float:
    """Return the seconds to wait. A negative duration means 0, as in `sleep(deadline - now())` after the deadline."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return 0 if isinstance(seconds, int | float) and seconds < 0 else to_seconds(duration)
