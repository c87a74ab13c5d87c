"""The overview of a namespace, part by part."""

from __future__ import annotations

from typing import Literal, TypedDict

from backstay.engine.certificate import CertificateAnswer


class AttentionAction(TypedDict):
    verb: str
    label: str


class AttentionAbout(TypedDict, total=False):
    """What a cause is about. Which fields there are depends on the cause."""

    task_queue: str
    task_type: str
    type: str
    build_id: str | None
    missing: str
    tasks: int
    workflow_type: str
    pass_rate: float


class AttentionAnswer(AttentionAbout):
    cause: str
    tone: Literal["warning", "danger"]
    count: int
    oldest_since: str | None
    oldest_age_seconds: float | None
    sentence: str
    link: str
    action: AttentionAction


class OverviewStock(TypedDict):
    open: int
    states: dict[str, int]
    without_view: int


class RunFlow(TypedDict):
    """How many runs started, and how many ended each way."""

    started: int
    completed: int
    failed: int
    cancelled: int
    terminated: int
    continued: int


class FlowPoint(RunFlow):
    at: str


class FlowSeries(TypedDict):
    interval_seconds: int
    since: str
    points: list[FlowPoint]


class FlowTotals(RunFlow):
    pass_rate: float | None
    p50_ms: float | None
    p95_ms: float | None


class TypeAnswer(FlowTotals):
    workflow_type: str


class TypeTrend(TypedDict):
    """Runs in each of twelve parts of the window, the oldest first."""

    started: list[int]
    completed: list[int]
    failed: list[int]


class BusyTypeAnswer(TypeAnswer):
    trend: TypeTrend


class TypesAnswer(TypedDict):
    count: int
    busiest: list[BusyTypeAnswer]


class OverviewQueue(TypedDict):
    name: str
    backlog: int
    oldest_ready_at: str | None
    oldest_age_seconds: float | None
    leased: int
    workers: int
    throttled_because: str | None


class OverviewQueues(TypedDict):
    count: int
    backlog: int
    oldest_waiting: list[OverviewQueue]


class FleetAnswer(TypedDict):
    active: int
    stale: int
    queues: int
    builds: list[str]


class ScheduleCountsAnswer(TypedDict):
    active: int
    paused: int
    due_next_hour: int
    overdue: int
    next_fire_at: str | None


class WakeInterval(TypedDict):
    at: str
    runs: int


class WakeIntervals(TypedDict):
    runs: int
    interval_seconds: int
    intervals: list[WakeInterval]


class OverviewWakes(TypedDict):
    next_hour: WakeIntervals
    next_day: WakeIntervals
    counted_until: str
    complete: bool


class TimeSpent(TypedDict):
    """In milliseconds. Each moment of a run counts once."""

    code: int
    activities: int
    backoff: int
    queue: int
    timers: int
    waiting: int


class TypeTimeSpent(TypedDict):
    """`sampled`: there are more closed runs than those that were looked at, which are the newest."""

    workflow_type: str
    runs: int
    sampled: bool
    milliseconds: TimeSpent


class TimeSpentAnswer(TypedDict):
    namespace: str
    sample: int
    types: list[TypeTimeSpent]


class OverviewNodes(TypedDict):
    """The living processes at the database, and what this one owns. One that owns nothing only serves."""

    alive: int
    draining: int
    shards: int
    owned_here: int
    unowned: int


class OverviewAnswer(TypedDict):
    namespace: str
    window: str
    engine: Literal["here", "elsewhere"]
    nodes: OverviewNodes | None
    certificate: CertificateAnswer | None
    attention: list[AttentionAnswer]
    stock: OverviewStock
    series: FlowSeries
    totals: FlowTotals
    types: TypesAnswer
    queues: OverviewQueues
    fleet: FleetAnswer | None
    schedules: ScheduleCountsAnswer
    wakes: OverviewWakes
