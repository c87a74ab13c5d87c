"""The dashboard of a namespace: totals, recent activity, extreme runs, and items that need attention.

Totals are those of the operator metrics. Starts and ends come from tallies, failures from an index of events, states from stored
views: all of it durable, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

import msgspec
from msgspec.structs import asdict

from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.server.operators.causes.collector import CauseCollector
from backstay.server.operators.tallies import TYPES, Tallies, TypeFigures
from backstay.store import Store
from backstay.store.measures import ExtremeRun
from backstay.store.views import HOUR

WEEK = 7 * 24 * HOUR
UNHEALTHY, DEGRADED = 0.5, 0.95  # the share of runs that completed, of those that completed or failed

MetricsOf = Callable[[str], Awaitable[dict[str, Any]]]


class AttentionCounts(TypedDict):
    count: int
    sentence: str
    causes: list[dict[str, Any]]


class DashboardAnswer(TypedDict):
    """A dict, to which a replacement of the boundary may add fields. Its time of generation is that of the answer."""

    namespace: str
    flows: int
    flows_per_minute: float
    flows_past_hour: int
    exceptions_past_hour: int
    failed_flows_past_week: int
    max_wait_time_workflow: dict[str, Any] | None
    max_duration_workflow: dict[str, Any] | None
    max_exceptions_workflow: dict[str, Any] | None
    workflow_type_health: list[dict[str, Any]]
    needs_attention: AttentionCounts
    fleet_overview: dict[str, Any]
    fleet_trends_series: dict[str, Any]
    operator_metrics: dict[str, Any]


class Dashboard:
    def __init__(self, store: Store, causes: CauseCollector, now: Callable[[], Micros]) -> None:
        self._store = store
        self._causes = causes
        self._now = now
        self._tallies = Tallies(store, now)

    async def read(self, namespace: str, metrics: dict[str, Any]) -> dict[str, Any]:
        """`metrics`: the operator metrics, which it includes."""
        now, store = self._now(), self._store
        hour = await self._tallies.read(namespace, "1h")
        week = await self._tallies.read(namespace, "7d")
        started = sum(point.started for point in hour.series)
        report = await self._causes.read(namespace)
        workers = metrics["workers"]
        return {
            "generated_at": iso(now),
            "flows": metrics["runs"]["total"],
            "flows_per_minute": round(started / 60, 2),
            "flows_past_hour": started,
            "exceptions_past_hour": sum((await store.failures(namespace, now - HOUR)).values()),
            "failed_flows_past_week": sum(point.failed for point in week.series),
            "max_wait_time_workflow": await self._longest_wait(namespace, now),
            "max_duration_workflow": await self._longest_run(namespace, now),
            "max_exceptions_workflow": _shown(await store.most_failures(namespace, now - WEEK), "exceptions"),
            "workflow_type_health": [_health(one) for one in hour.types[:TYPES]],
            "needs_attention": {
                "count": report.verdict.needs_attention,
                "sentence": report.verdict.sentence,
                "causes": msgspec.to_builtins(report.shown_causes()),
            },
            "fleet_overview": {
                name: workers[name] for name in ("active_workers", "stale", "active_worker_scopes", "scopes")
            },
            "fleet_trends_series": msgspec.to_builtins(hour.shown_series()),
            "operator_metrics": metrics,
        }

    async def _longest_wait(self, namespace: str, now: Micros) -> dict[str, Any] | None:
        """The open run that has been in its state for longest."""
        found = await self._store.oldest_wait(namespace)
        if found is None:
            return None
        return _shown(found, None) | {"since": iso(found.value), "wait_ms": _milliseconds(now - found.value)}

    async def _longest_run(self, namespace: str, now: Micros) -> dict[str, Any] | None:
        """The longest of the open runs and of those that closed last."""
        opened = await self._store.oldest_open(namespace)
        closed = await self._store.longest_closed(namespace)
        if opened is not None and (closed is None or now - opened.value >= closed.value):
            return _shown(opened, None) | {"duration_ms": _milliseconds(now - opened.value), "open": True}
        if closed is None:
            return None
        return _shown(closed, None) | {"duration_ms": _milliseconds(closed.value), "open": False}


def _shown(run: ExtremeRun | None, named: str | None) -> Any:
    if run is None:
        return None
    ids = {"workflow_id": run.workflow_id, "run_id": run.run_id, "workflow_type": run.workflow_type}
    return ids if named is None else ids | {named: run.value}


def _milliseconds(length: Micros) -> int:
    return max(0, length) * 1000 // SECOND


def _health(one: TypeFigures) -> dict[str, Any]:
    """How the runs of a type did in the past hour."""
    rate = one.pass_rate
    word = "idle" if rate is None else "failing" if rate < UNHEALTHY else "degraded" if rate < DEGRADED else "healthy"
    return asdict(one.shown()) | {"health": word}
