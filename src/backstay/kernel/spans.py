"""Lengths of time and points in time as people read them."""

from __future__ import annotations

from backstay.kernel.values import SECOND, Micros, moment


def span(length: Micros) -> str:
    """`3 ms`, `1.25 s`, `2 min 5 s`, `3 h 10 min`, `4 d 2 h`."""
    if length < 0:
        return "0 ms"
    if length < SECOND:
        milliseconds = length / 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    seconds = length / SECOND
    if seconds < 60:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    whole = round(seconds)
    for size, unit, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def whole_span(length: Micros) -> str:
    """The same in whole seconds, for sentences: `3 s`, `2 min 5 s`."""
    seconds = max(0, length) // SECOND
    return "less than a second" if not seconds else span(seconds * SECOND)


def utc(at: Micros, now: Micros) -> str:
    """A point in time: `07:51:12 UTC` if it is today, else with its date."""
    then = moment(at)
    pattern = "%H:%M:%S UTC" if then.date() == moment(now).date() else "%Y-%m-%d %H:%M:%S UTC"
    return then.strftime(pattern)


def iso(at: Micros) -> str:
    """A point in time for programs: `2026-01-31T12:00:00.000000Z`."""
    return moment(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
