"""The metrics of an engine as text: version 0.0.4 of the Prometheus format, or OpenMetrics 1.0.

Counters are of this process and begin at 0 when it does. Gauges show the current state. Names that users choose become
labels only in bounded numbers: workflow types in `Counters`, queues here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from backstay.engine.core.counters import OTHER, Histogram
from backstay.engine.views.open_runs import OpenRunCounts
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.summary import OPEN_STATES

if TYPE_CHECKING:
    from backstay.engine.core.engine import Engine

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
QUEUES = 200  # queues with labels of their own, those with the longest backlog first

Labels = Mapping[str, str]
Kind = Literal["counter", "gauge", "histogram"]

OUTCOMES = {
    "scheduled": ("ActivityScheduled",),
    "completed": ("ActivityCompleted",),
    "failed": ("ActivityFailed",),
    "timed_out": ("ActivityTimedOut",),
    "cancelled": ("ActivityCancelled",),
    "retried": ("ActivityRetryScheduled",),
}
"""Outcomes of activities and their attempts, and the events that record them."""


class Sample(NamedTuple):
    labels: Labels
    value: float | Histogram


class MetricFamily(NamedTuple):
    """The samples of one metric. A counter is named without `_total`."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


async def open_states(open_runs: OpenRunCounts, namespaces: Iterable[str]) -> dict[tuple[str, str], int]:
    """Open runs by namespace and state. Those without a stored view yet are `unknown`."""
    states: dict[tuple[str, str], int] = {}
    for namespace in namespaces:
        counted = await open_runs.count(namespace)
        states |= {(namespace, state): counted.states.get(state, 0) for state in OPEN_STATES}
        states[namespace, "unknown"] = max(0, counted.without_view)
    return states


def one(name: str, kind: Kind, help: str, value: float | Histogram) -> MetricFamily:
    return MetricFamily(name, kind, help, [Sample({}, value)])


def engine_families(engine: Engine, states: Mapping[tuple[str, str], int], lag: Micros) -> list[MetricFamily]:
    """The metrics of an engine. `states`: its open runs, by namespace and state. `lag`: of the projector."""
    counters = engine.counters
    return [
        MetricFamily(
            "backstay_workflows_started",
            "counter",
            "Runs that were started.",
            [Sample({"namespace": where, "workflow_type": kind}, n) for (where, kind), n in counters.started.items()],
        ),
        MetricFamily(
            "backstay_workflows_closed",
            "counter",
            "Runs that ended, by outcome.",
            [
                Sample({"namespace": where, "workflow_type": kind, "status": status}, n)
                for (where, kind, status), n in counters.closed.items()
            ],
        ),
        MetricFamily(
            "backstay_activities",
            "counter",
            "Activities that were scheduled, ended or retried.",
            [Sample({"outcome": name}, counters.of_events(kinds)) for name, kinds in OUTCOMES.items()],
        ),
        one("backstay_history_events", "counter", "Events that were recorded.", counters.events.total()),
        one("backstay_commits", "counter", "Batches that were committed.", counters.commits),
        one("backstay_commit_failures", "counter", "Batches that the database refused.", counters.lost_commits),
        one("backstay_decisions", "counter", "Decisions in these batches.", counters.decisions),
        one("backstay_commit_duration_seconds", "histogram", "How long a commit took.", counters.commit_seconds),
        MetricFamily(
            "backstay_tasks_dispatched",
            "counter",
            "Tasks that were leased to workers.",
            [Sample({"kind": kind}, waited.count) for kind, waited in counters.waited.items()],
        ),
        one(
            "backstay_tasks_stolen",
            "counter",
            "Tasks of other nodes that a worker got here because they had waited too long there.",
            counters.stolen,
        ),
        one(
            "backstay_tasks_fetched",
            "counter",
            "Tasks of other nodes that were fetched for a poll which was parked here.",
            counters.fetched,
        ),
        MetricFamily(
            "backstay_schedule_to_start_seconds",
            "histogram",
            "How long a task waited for its worker.",
            [Sample({"kind": kind}, waited) for kind, waited in counters.waited.items()],
        ),
        MetricFamily(
            "backstay_open_runs",
            "gauge",
            "Open runs, by state; `unknown` are those without a stored view yet.",
            [Sample({"namespace": where, "state": state}, n) for (where, state), n in states.items()],
        ),
        *_backlog(engine),
        one(
            "backstay_engine_holder",
            "gauge",
            "Whether this process owns workflows.",
            int(engine.holder),
        ),
        one("backstay_database_up", "gauge", "Whether the database can commit.", int(engine.down is None)),
        one(
            "backstay_projector_lag_seconds",
            "gauge",
            "How long the oldest stored view has been out of date.",
            lag / SECOND,
        ),
        one("backstay_cached_instances", "gauge", "Workflows that are in memory.", len(engine.cache)),
    ]


def _backlog(engine: Engine) -> list[MetricFamily]:
    now = engine.world.now()
    waiting = sorted(engine.matching.lanes.waiting_since().items(), key=lambda entry: -len(entry[1]))
    sizes: list[Sample] = []
    ages: list[Sample] = []
    for (kind, namespace, queue), since in waiting[:QUEUES]:
        labels = {"namespace": namespace, "queue": queue, "kind": kind}
        sizes.append(Sample(labels, len(since)))
        ages.append(Sample(labels, max(0, now - min(since)) / SECOND))
    if len(waiting) > QUEUES:
        rest = {"namespace": OTHER, "queue": OTHER, "kind": OTHER}
        sizes.append(Sample(rest, sum(len(since) for _, since in waiting[QUEUES:])))
        ages.append(Sample(rest, max(0, now - min(min(since) for _, since in waiting[QUEUES:])) / SECOND))
    oldest = max((sample.value for sample in ages if not isinstance(sample.value, Histogram)), default=0)
    return [
        MetricFamily("backstay_task_backlog", "gauge", "Ready tasks of this process that wait for a worker.", sizes),
        MetricFamily("backstay_task_backlog_age_seconds", "gauge", "How long the oldest of them has waited.", ages),
        one(
            "backstay_oldest_ready_task_seconds",
            "gauge",
            "How long the oldest ready task of this process has waited.",
            oldest,
        ),
        one(
            "backstay_tasks_leased",
            "gauge",
            "Tasks of this process that remote workers hold.",
            sum(1 for _ in engine.leases),
        ),
    ]


def exposition(families: Iterable[MetricFamily], open_metrics: bool = False) -> str:
    """The families as text."""
    lines: list[str] = []
    for name, kind, help, samples in families:
        total = f"{name}_total" if kind == "counter" else name
        shown = name if open_metrics else total
        lines += (f"# HELP {shown} {help}", f"# TYPE {shown} {kind}")
        for labels, value in samples:
            if isinstance(value, Histogram):
                _histogram(lines, name, labels, value)
            else:
                lines.append(f"{total}{_labels(labels)} {_number(value)}")
    if open_metrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _histogram(lines: list[str], name: str, labels: Labels, value: Histogram) -> None:
    below = 0
    for bound, count in zip((*value.bounds, None), value.counts, strict=True):
        below += count
        at = "+Inf" if bound is None else _number(bound)
        lines.append(f"{name}_bucket{_labels({**labels, 'le': at})} {below}")
    lines.append(f"{name}_sum{_labels(labels)} {_number(value.total)}")
    lines.append(f"{name}_count{_labels(labels)} {below}")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(round(value, 9))
