"""When a schedule fires: cron expressions in a time zone and intervals since the epoch, merged in order.

Jitter delays a fire by an amount that is a hash of the schedule's name and the occurrence, and never up to the next
occurrence: so fires have the order of their occurrences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from heapq import merge
from itertools import count, islice, pairwise, takewhile

from msgspec import Struct

from backstay.kernel.features.schedule.cron import CronError, parse, zone_of
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND, Micros

COUNTED = 10_000  # missed occurrences are counted up to here: more would hold up an engine that starts
MOST = 50  # expressions and intervals of one schedule

_DURATION = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+)S)?)?", re.ASCII
)
_UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}


class Interval(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fires at a fixed distance, counted from the epoch plus `offset`. Both are ISO 8601 durations such as `PT30M`."""

    every: str
    offset: str | None = None


class Spec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    cron_expressions: list[str] = []
    intervals: list[Interval] = []
    timezone: str = "UTC"


def check(spec: Spec, now: Micros) -> None:
    """Refuse a spec that cannot be read or would never fire."""
    if not spec.cron_expressions and not spec.intervals:
        raise _bad("spec", "a schedule needs cron_expressions or intervals, which say when it fires")
    if len(spec.cron_expressions) + len(spec.intervals) > MOST:
        raise _bad("spec", f"a schedule has at most {MOST} cron expressions and intervals")
    try:
        zone_of(spec.timezone)
    except CronError as error:
        raise _bad("spec.timezone", str(error)) from None
    for index, expression in enumerate(spec.cron_expressions):
        field = f"spec.cron_expressions[{index}]"
        try:
            cron = parse(expression)
        except CronError as error:
            raise _bad(field, str(error)) from None
        if next(cron.after(now, zone_of(spec.timezone)), None) is None:
            raise _bad(field, f"{expression!r} never matches a day")
    for index, interval in enumerate(spec.intervals):
        field = f"spec.intervals[{index}]"
        every = _checked_duration(interval.every, f"{field}.every")
        if every < SECOND:
            raise _bad(f"{field}.every", "an interval is at least one second long")
        if interval.offset is not None and _checked_duration(interval.offset, f"{field}.offset") >= every:
            raise _bad(f"{field}.offset", "an offset is shorter than its interval")


def occurrences(spec: Spec, after: Micros) -> Iterator[Micros]:
    """The occurrences after this moment, strictly increasing."""
    zone = zone_of(spec.timezone)
    sources = [parse(expression).after(after, zone) for expression in spec.cron_expressions]
    sources += [_every(interval, after) for interval in spec.intervals]
    last = after
    for moment in merge(*sources) if len(sources) > 1 else sources[0]:
        if moment > last:
            last = moment
            yield moment


def window(spec: Spec, start: Micros, end: Micros, most: int) -> list[Micros]:
    """The occurrences from `start` on and before `end`, one more than `most` of them if there are more."""
    return list(islice(takewhile(lambda moment: moment < end, occurrences(spec, start - 1)), most + 1))


class Fire(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fire: for an `occurrence`, due `at` a time that jitter may have delayed."""

    occurrence: Micros
    at: Micros


def fire_name(place: str, schedule_id: str) -> str:
    """The name by which jitter spreads the fires of a schedule. `place`: the namespace of its instance."""
    return f"{place}/{schedule_id}"


def fires(spec: Spec, name: str, jitter: int, after: Micros) -> Iterator[Fire]:
    """The fires for the occurrences after this moment, in order."""
    if not jitter:
        yield from (Fire(occurrence=moment, at=moment) for moment in occurrences(spec, after))
        return
    for moment, following in pairwise(occurrences(spec, after)):
        room = min(jitter * SECOND, following - moment)
        yield Fire(occurrence=moment, at=moment + _spread(name, moment) * room // (1 << 64))


def missed(spec: Spec, name: str, jitter: int, first: Fire, now: Micros) -> tuple[Fire, int]:
    """The last fire that was due from `first` until now, and how many were due before it."""
    if not jitter and not spec.cron_expressions and len(spec.intervals) == 1:
        every = duration(spec.intervals[0].every)
        number = (now - first.occurrence) // every
        at = first.occurrence + number * every
        return Fire(occurrence=at, at=at), number
    last, number = first, 0
    for fire in fires(spec, name, jitter, first.occurrence):
        if fire.at > now:
            break
        last, number = fire, number + 1
        if number == COUNTED:
            last = _latest(spec, name, jitter, now) or last
            break
    return last, number


def _latest(spec: Spec, name: str, jitter: int, now: Micros) -> Fire | None:
    """The last fire until now. The search goes back in growing steps."""
    back = 3600 * SECOND
    for _ in range(16):
        last = None
        for fire in fires(spec, name, jitter, now - back):
            if fire.at > now:
                break
            last = fire
        if last is not None:
            return last
        back *= 2
    return None


def _spread(name: str, moment: Micros) -> int:
    return int.from_bytes(sha256(f"{name}:{moment}".encode()).digest()[:8])


def _every(interval: Interval, after: Micros) -> Iterator[Micros]:
    every, offset = duration(interval.every), duration(interval.offset or "PT0S")
    return count(after - (after - offset) % every + every, every)


def duration(text: str) -> Micros:
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError(f"{text!r} is not a duration of weeks, days, hours, minutes, seconds like PT30M or P1DT12H")
    return sum(int(found[unit] or 0) * length for unit, length in _UNITS.items()) * SECOND


def _checked_duration(text: str, field: str) -> Micros:
    try:
        found = duration(text)
    except ValueError as error:
        raise _bad(field, str(error)) from None
    if found > 366 * 86_400 * SECOND:
        raise _bad(field, "the longest interval is 366 days")
    return found


def _bad(field: str, message: str) -> Refused:
    return Refused("invalid_schedule_spec", message, field=field)
