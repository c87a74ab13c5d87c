"""Cron expressions in a time zone: five fields, matched by local time.

Where local time jumps, the expression decides. One with `*` in its minute or hour goes by elapsed time: it fires in
both halves of a repeated hour, and not in an hour that is left out. Any other names times of the day, and each of them
comes once a day: the first time where the hour repeats, and right after the gap where the hour is left out.

Nothing here reads a clock. The rules of a zone are data of the installation, which `zoneinfo` reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from backstay.kernel.values import SECOND, Micros

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
FARTHEST = 9 * 366  # days to look ahead: the 29th of February can be eight years away

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class _CronField(NamedTuple):
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()
    first: int = 0  # what the first word stands for


_FIELDS = (
    _CronField("minute", 0, 59),
    _CronField("hour", 0, 23),
    _CronField("day of month", 1, 31),
    _CronField("month", 1, 12, _MONTHS, 1),
    _CronField("day of week", 0, 7, _WEEKDAYS),
)


class CronError(ValueError):
    """The expression cannot be read, or the time zone is not known."""


class Cron(NamedTuple):
    minutes: tuple[int, ...]  # of the day
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either_day: bool  # both kinds of day are given: one of them is enough
    elapsed: bool  # goes by elapsed time, not by times of the day

    def on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week

    def after(self, at: Micros, zone: tzinfo) -> Iterator[Micros]:
        """The moments after `at` that the expression names, in order. Ends if there is none for years."""
        day = _local(at, zone).date()
        idle = 0
        while idle < FARTHEST:
            found = False
            for moment in self._of(day, zone, at):
                found = True
                yield moment
            idle = 0 if found else idle + 1
            day += timedelta(days=1)

    def _of(self, day: date, zone: tzinfo, after: Micros) -> Iterator[Micros]:
        wanted = self.on(day)
        if not wanted and not self.elapsed:
            return
        start, end = _start(day, zone), _start(day + timedelta(days=1), zone)
        if end - start == DAY and _offset(start, zone) == _offset(end, zone):
            if wanted:  # an ordinary day
                first = bisect_right(self.minutes, (after - start) // MINUTE) if after >= start else 0
                for minute in self.minutes[first:]:
                    yield start + minute * MINUTE
        elif self.elapsed:
            minutes = set(self.minutes)
            for moment in range(start, end, MINUTE):
                there = _local(moment, zone)
                if moment > after and there.hour * 60 + there.minute in minutes and self.on(there.date()):
                    yield moment
        else:
            last = after
            for minute in self.minutes:
                moment = _instant(datetime(day.year, day.month, day.day, minute // 60, minute % 60), zone)
                if moment > last:  # everything in a gap comes at its end, together
                    last = moment
                    yield moment


@lru_cache(1024)
def parse(expression: str) -> Cron:
    fields = _SHORT.get(expression.strip().lower(), expression).split()
    if len(fields) != len(_FIELDS):
        raise CronError(
            f"{expression!r} has {len(fields)} fields; a cron expression has five:"
            " minute, hour, day of month, month, day of week"
        )
    minutes, hours, days, months, weekdays = (
        _values(text, field, expression) for text, field in zip(fields, _FIELDS, strict=True)
    )
    return Cron(
        tuple(sorted(hour * 60 + minute for hour in hours for minute in minutes)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        not fields[2].startswith("*") and not fields[4].startswith("*"),
        fields[0].startswith("*") or fields[1].startswith("*"),
    )


def _values(text: str, field: _CronField, expression: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = 1
        if slash:
            if not _digits(step_text) or int(step_text) == 0:
                raise CronError(f"{expression!r}: the step {step_text!r} of {field.name} must be a number above 0")
            step = int(step_text)
        if span == "*":
            low, high = field.low, field.high
        else:
            first, dash, last = span.partition("-")
            low = _number(first, field, expression)
            high = _number(last, field, expression) if dash else field.high if slash else low
        if low > high:
            raise CronError(f"{expression!r}: the range {span!r} of {field.name} runs backwards")
        found.update(range(low, high + 1, step))
    return found


def _number(text: str, field: _CronField, expression: str) -> int:
    word = text.lower()
    if word in field.words:
        return field.words.index(word) + field.first
    if _digits(text) and field.low <= int(text) <= field.high:
        return int(text)
    raise CronError(f"{expression!r}: {field.name} is {field.low} to {field.high}, not {text!r}")


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


# -- local time


@lru_cache(256)
def zone_of(name: str) -> tzinfo:
    if name in ("UTC", "Etc/UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CronError(f"there is no time zone {name!r}; name one like Europe/Berlin, or UTC") from None


def _local(at: Micros, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at // SECOND, zone)


def _offset(at: Micros, zone: tzinfo) -> timedelta | None:
    return _local(at, zone).utcoffset()


def _start(day: date, zone: tzinfo) -> Micros:
    return _instant(datetime(day.year, day.month, day.day), zone)


def _instant(reading: datetime, zone: tzinfo) -> Micros:
    """The moment at which local time is first this reading; if it never is, the end of the gap that left it out."""
    moment = _as_if(reading, zone, 0)
    if _local(moment, zone).replace(tzinfo=None) == reading:
        return moment
    # The reading by the offset after the jump is a moment before it, and by the offset before the jump one after it.
    before, after = _as_if(reading, zone, 1), moment
    old = _offset(before, zone)
    while after - before > SECOND:
        middle = (before + after) // 2 // SECOND * SECOND
        before, after = (middle, after) if _offset(middle, zone) == old else (before, middle)
    return after


def _as_if(reading: datetime, zone: tzinfo, fold: int) -> Micros:
    return round(reading.replace(tzinfo=zone, fold=fold).timestamp()) * SECOND
