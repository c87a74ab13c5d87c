"""Routes of health and discovery: whether this process is alive and ready, and the findings of a namespace."""

from __future__ import annotations

from typing import Any

from backstay.protocol.history import iso
from backstay.server.auth import EVERY, OPERATOR
from backstay.server.discovery import cluster_info
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.router import Route
from backstay.server.server import Server


async def health(server: Server, request: HttpRequest) -> HttpResponse:
    """Whether this process serves. It does while its database can commit."""
    down = server.engine.down
    checks = {"database": "ok" if down is None else "unavailable"}
    body: dict[str, Any] = {"status": "serving", "timestamp": iso(server.now), "checks": checks}
    return HttpResponse(body) if down is None else HttpResponse(body | {"status": "degraded"}, 503)


async def ready(server: Server, request: HttpRequest) -> HttpResponse:
    """Whether to send traffic here: not while the server drains or waits for the engine lock."""
    checks = {
        "database": "ok" if server.engine.down is None else "unavailable",
        "engine": "ok" if server.engine.holder else "held_by_another_process",
        "draining": "yes" if server.draining else "no",
    }
    good = server.engine.down is None and server.engine.holder and not server.draining
    body: dict[str, Any] = {"status": "ready" if good else "not_ready", "timestamp": iso(server.now), "checks": checks}
    return HttpResponse(body, 200 if good else 503)


async def system_health(server: Server, request: HttpRequest) -> HttpResponse:
    """Findings about this namespace, worst first."""
    metrics = await server.observer.metrics(request.namespace)
    findings: list[dict[str, Any]] = []
    if server.engine.down is not None:
        findings.append({"severity": "error", "code": "database_unavailable", "message": str(server.engine.down)})
    if not server.engine.holder:
        findings.append(
            {"severity": "error", "code": "engine_elsewhere", "message": "another process runs this database"}
        )
    if metrics["leases"]["expired"]:
        findings.append(
            {
                "severity": "warning",
                "code": "stale_leases",
                "message": f"{metrics['leases']['expired']} leases are over",
            }
        )
    blocked = metrics["blocked"]
    if blocked["count"]:
        why = ", ".join(f"{count} {reason}" for reason, count in blocked["by_reason"].items())
        message = (
            f"{blocked['count']} runs are blocked ({why}); `dw describe ID` says by what: deploy corrected code, or"
            " `dw repair ID` tries again"
        )
        findings.append({"severity": "warning", "code": "runs_blocked", "message": message, **blocked})
    for gap in metrics["compatibility"]["gaps"]:
        message = f"queue {gap['task_queue']!r}: no live worker takes {gap['ready_count']} ready {gap['kind']} tasks"
        findings.append({"severity": "warning", "code": "waiting_for_compatible_worker", "message": message, **gap})
    worst = "error" if any(f["severity"] == "error" for f in findings) else "warning" if findings else "ok"
    body = {"status": worst, "timestamp": iso(server.now), "findings": findings, "operator_metrics": metrics}
    return HttpResponse(body, 503 if worst == "error" else 200)


ROUTES = [
    Route("GET", "/api/health", health, "open", EVERY),
    Route("GET", "/api/ready", ready, "open", EVERY),
    Route("GET", "/api/cluster/info", cluster_info, "discovery", EVERY, any_namespace=True),
    Route("GET", "/api/system/health", system_health, "control", OPERATOR),
]
