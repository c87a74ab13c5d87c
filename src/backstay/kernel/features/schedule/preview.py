"""The next fires of a schedule, before it exists or while it runs: each in its own time zone, with notes where local time jumps."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from itertools import islice

from msgspec import Struct

from backstay.kernel.features.schedule.cron import parse, zone_of
from backstay.kernel.features.schedule.spec import Fire, Spec, fires
from backstay.kernel.values import SECOND, Micros


class PreviewedFire(Struct, frozen=True, kw_only=True):
    """One fire: for an occurrence, due `at` a time that jitter may have delayed. `local` is the occurrence in its zone."""

    occurrence: Micros
    at: Micros
    local: datetime
    note: str | None = None


def preview(spec: Spec, name: str, jitter: int, after: Micros, count: int) -> list[PreviewedFire]:
    """The fires for the next occurrences after this moment. The spec must have been checked."""
    zone = zone_of(spec.timezone)
    found: list[PreviewedFire] = []
    before = _local(after, zone)
    for fire in islice(fires(spec, name, jitter, after), count):
        local = _local(fire.occurrence, zone)
        note = _note(spec, before, local, zone)
        found.append(PreviewedFire(occurrence=fire.occurrence, at=fire.at, local=local, note=note))
        before = local
    return found


def next_times(spec: Spec, name: str, jitter: int, first: Fire, count: int) -> list[Micros]:
    """When a running schedule fires next: `first` is decided, the others follow from the spec."""
    rest = islice(fires(spec, name, jitter, first.occurrence), count - 1)
    return [first.at, *(fire.at for fire in rest)]


def _note(spec: Spec, before: datetime, local: datetime, zone: tzinfo) -> str | None:
    said: list[str] = []
    jump = (local.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
    if jump:
        way = "forward" if jump > timedelta() else "back"
        said.append(f"The clock of {spec.timezone} goes {way} by {_length(abs(jump))} before this fire.")
    if spec.cron_expressions and not spec.intervals:
        crons = [parse(expression) for expression in spec.cron_expressions]
        minute = local.hour * 60 + local.minute
        if not any(minute in cron.minutes for cron in crons):
            said.append("This time of day does not exist on this day: it fires right after the gap.")
        elif _comes_twice(local, zone):
            once = any(minute in cron.minutes and not cron.elapsed for cron in crons)
            said.append(
                "This time of day occurs twice on this day: it fires "
                + ("the first time only." if once else "both times.")
            )
    return " ".join(said) or None


def _comes_twice(local: datetime, zone: tzinfo) -> bool:
    reading = local.replace(tzinfo=zone)
    first, second = reading.replace(fold=0).utcoffset(), reading.replace(fold=1).utcoffset()
    return first is not None and second is not None and first > second


def _length(jump: timedelta) -> str:
    minutes = round(jump.total_seconds() / 60)
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"


def _local(at: Micros, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at // SECOND, zone)
