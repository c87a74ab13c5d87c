"""Metrics for operators: backlog, leases, workers, and where matching happens."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from backstay.server.access.auth import OPERATOR
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.dashboard import DashboardAnswer
from backstay.server.server import Server


class OperatorMetricsAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    operator_metrics: dict[str, Any]


async def operator_metrics(server: Server, request: HttpRequest) -> OperatorMetricsAnswer:
    return OperatorMetricsAnswer(
        namespace=request.namespace, operator_metrics=await server.observer.metrics(request.namespace)
    )


async def stats(server: Server, request: HttpRequest) -> DashboardAnswer:
    """The dashboard of a namespace: totals, recent activity, extremes, items that need attention, and the metrics."""
    summary = await server.observer.dashboard_summary(request.namespace)
    return cast(DashboardAnswer, {"namespace": request.namespace, **summary})


ROUTES = [
    Route("GET", "/api/stats", stats, "control", OPERATOR),
    Route("GET", "/api/system/operator-metrics", operator_metrics, "control", OPERATOR),
    Route("GET", "/api/system/metrics", operator_metrics, "control", OPERATOR),
]
