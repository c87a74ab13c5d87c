"""Metrics for operators: backlog, leases, workers, and where matching happens."""

from __future__ import annotations

from typing import Any

from backstay.server.auth import OPERATOR
from backstay.server.http_messages import HttpRequest
from backstay.server.router import Route
from backstay.server.server import Server


async def operator_metrics(server: Server, request: HttpRequest) -> dict[str, Any]:
    return {"namespace": request.namespace, "operator_metrics": await server.observer.metrics(request.namespace)}


async def stats(server: Server, request: HttpRequest) -> dict[str, Any]:
    """The dashboard of a namespace: totals, what happened lately, extremes, what needs somebody, and the metrics."""
    return {"namespace": request.namespace, **await server.observer.dashboard_summary(request.namespace)}


ROUTES = [
    Route("GET", "/api/stats", stats, "control", OPERATOR),
    Route("GET", "/api/system/operator-metrics", operator_metrics, "control", OPERATOR),
    Route("GET", "/api/system/metrics", operator_metrics, "control", OPERATOR),
]
