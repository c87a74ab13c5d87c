"""Starts, ends and durations of runs in a window of time, from the tallies of the store.

Intervals that are over hardly change any more: only a projector that was far out of date still adds to them. So they are read
once a minute, and each request reads the last two intervals only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.percentiles import percentile
from backstay.protocol.history import iso
from backstay.store import Store
from backstay.store.figures import DurationCount, TallyCount
from backstay.store.views import HOUR, MINUTE

REREAD = 60 * SECOND
KEPT = 100  # windows of namespaces whose past is kept
TYPES = 50  # workflow types that are shown; the others are counted
PARTS = 12  # of a window, in the trend of a type; they divide its intervals

ENDS = ("completed", "failed")  # whose durations are told


class RunFlow(Struct, frozen=True, kw_only=True):
    """How many runs started, and how many ended each way."""

    started: int
    completed: int
    failed: int
    cancelled: int
    terminated: int
    continued: int


class FlowPoint(RunFlow, frozen=True, kw_only=True):
    at: str


class FlowSeries(Struct, frozen=True, kw_only=True):
    interval_seconds: int
    since: str
    points: list[FlowPoint]


class FlowTotals(RunFlow, frozen=True, kw_only=True):
    pass_rate: float | None
    p50_ms: float | None
    p95_ms: float | None


class TypeAnswer(FlowTotals, frozen=True, kw_only=True):
    workflow_type: str


class TypeTrend(Struct, frozen=True, kw_only=True):
    """Runs in each of twelve parts of the window, the oldest first."""

    started: list[int]
    completed: list[int]
    failed: list[int]


class BusyTypeAnswer(TypeAnswer, frozen=True, kw_only=True):
    trend: TypeTrend


class TypesAnswer(Struct, frozen=True, kw_only=True):
    count: int
    busiest: list[BusyTypeAnswer]


class Window(NamedTuple):
    """A window of time: how many intervals of which length."""

    grain: Micros
    intervals: int
    said: str  # in a sentence


WINDOWS = {
    "1h": Window(MINUTE, 60, "last hour"),
    "24h": Window(HOUR, 24, "last 24 hours"),
    "7d": Window(HOUR, 168, "last 7 days"),
}


class _Past(NamedTuple):
    """The intervals of a window before `until`, as they were read."""

    since: Micros
    until: Micros
    read_at: Micros
    series: list[TallyCount]
    types: dict[str, TypeFigures]


class TypeFigures(NamedTuple):
    """The runs of one workflow type in a window."""

    workflow_type: str
    counts: dict[str, int]  # by outcome
    buckets: dict[int, int]  # durations of those that completed or failed
    trend: dict[str, list[int]]  # the fields of a `TypeTrend`

    @property
    def ended(self) -> int:
        return self.counts.get("completed", 0) + self.counts.get("failed", 0)

    @property
    def pass_rate(self) -> float | None:
        return self.counts.get("completed", 0) / self.ended if self.ended else None

    def shown(self) -> TypeAnswer:
        p50, p95 = percentiles(self.buckets)
        return TypeAnswer(
            workflow_type=self.workflow_type,
            **_flow(self.counts),
            pass_rate=self.pass_rate,
            p50_ms=p50,
            p95_ms=p95,
        )

    def copied(self) -> TypeFigures:
        return self._replace(
            counts=self.counts.copy(),
            buckets=self.buckets.copy(),
            trend={name: parts[:] for name, parts in self.trend.items()},
        )

    def shown_busy(self) -> BusyTypeAnswer:
        return BusyTypeAnswer(**asdict(self.shown()), trend=TypeTrend(**self.trend))


class WindowFigures(NamedTuple):
    window: Window
    since: Micros
    series: list[TallyCount]
    types: list[TypeFigures]  # the busiest first

    def shown_series(self) -> FlowSeries:
        """Every interval of the window, also those in which nothing happened."""
        grain = self.window.grain
        found = {count.at: count for count in self.series}
        nothing = TallyCount(0, 0, 0, 0, 0, 0, 0)
        points = [self.since + number * grain for number in range(self.window.intervals)]
        return FlowSeries(
            interval_seconds=grain // SECOND,
            since=iso(self.since),
            points=[FlowPoint(at=iso(at), **_flow(found.get(at, nothing)._asdict())) for at in points],
        )

    def shown_totals(self) -> FlowTotals:
        totals = {name: sum(one.counts.get(name, 0) for one in self.types) for name in TallyCount._fields[1:]}
        merged: dict[int, int] = {}
        for one in self.types:
            for bucket, number in one.buckets.items():
                merged[bucket] = merged.get(bucket, 0) + number
        ended = totals["completed"] + totals["failed"]
        rate = totals["completed"] / ended if ended else None
        p50, p95 = percentiles(merged)
        return FlowTotals(**_flow(totals), pass_rate=rate, p50_ms=p50, p95_ms=p95)

    def shown_types(self) -> TypesAnswer:
        return TypesAnswer(count=len(self.types), busiest=[one.shown_busy() for one in self.types[:TYPES]])


class Tallies:
    def __init__(self, store: Store, now: Callable[[], Micros]) -> None:
        self._store = store
        self._now = now
        self._past: dict[tuple[str, str], _Past] = {}

    async def read(self, namespace: str, name: str) -> WindowFigures:
        """The figures of a window, up to now."""
        window = WINDOWS[name]
        now = self._now()
        current = now - now % window.grain
        since = current - (window.intervals - 1) * window.grain
        until = max(since, current - window.grain)
        past = self._past.get((namespace, name))
        if past is None or (past.since, past.until) != (since, until) or not 0 <= now - past.read_at < REREAD:
            past = _Past(
                since,
                until,
                now,
                await self._store.started_and_ended(namespace, window.grain, since, until),
                await self._types(namespace, window, since, until),
            )
            self._past.pop((namespace, name), None)
            self._past[namespace, name] = past
            while len(self._past) > KEPT:
                del self._past[next(iter(self._past))]
        after = current + window.grain
        series = await self._store.started_and_ended(namespace, window.grain, until, after)
        durations = await self._store.durations(namespace, window.grain, until, after)
        types = {name: one.copied() for name, one in past.types.items()}
        _add(types, durations, PARTS - 1)
        return WindowFigures(window, since, past.series + series, _busiest_first(types))

    async def _types(self, namespace: str, window: Window, since: Micros, until: Micros) -> dict[str, TypeFigures]:
        """Read part by part. Together these reads go over the same rows as one of the whole window."""
        length = window.intervals // PARTS * window.grain
        found: dict[str, TypeFigures] = {}
        for part in range(PARTS):
            at = since + part * length
            _add(found, await self._store.durations(namespace, window.grain, at, min(at + length, until)), part)
        return found


def _add(found: dict[str, TypeFigures], durations: list[DurationCount], part: int) -> None:
    for one in durations:
        figures = found.get(one.workflow_type)
        if figures is None:
            trend = {name: [0] * PARTS for name in TypeTrend.__struct_fields__}
            figures = found[one.workflow_type] = TypeFigures(one.workflow_type, {}, {}, trend)
        figures.counts[one.outcome] = figures.counts.get(one.outcome, 0) + one.runs
        if one.outcome in figures.trend:
            figures.trend[one.outcome][part] += one.runs
        if one.outcome in ENDS:
            figures.buckets[one.bucket] = figures.buckets.get(one.bucket, 0) + one.runs


def _busiest_first(found: dict[str, TypeFigures]) -> list[TypeFigures]:
    return sorted(found.values(), key=lambda one: (-sum(one.counts.values()), one.workflow_type))


def _flow(counts: Mapping[str, int]) -> dict[str, int]:
    """The fields of a `RunFlow`."""
    return {name: counts.get(name, 0) for name in RunFlow.__struct_fields__}


def percentiles(buckets: Mapping[int, int]) -> tuple[float | None, float | None]:
    """The median and the 95th percentile of durations in milliseconds; the buckets of a tally count in milliseconds, too."""
    return _rounded(percentile(buckets, 0.5)), _rounded(percentile(buckets, 0.95))


def _rounded(length: float | None) -> float | None:
    return None if length is None else round(length, 3)
