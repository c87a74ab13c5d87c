"""The system as operators watch it: backlog, leases, workers, and where matching happens."""

from __future__ import annotations

from typing import Any

from backstay.protocol.history import iso
from backstay.server.auth import OPERATOR
from backstay.server.call import Call
from backstay.server.routing import Answer, Route
from backstay.server.server import Server


async def operator_metrics(server: Server, call: Call) -> dict[str, Any]:
    return {"namespace": call.namespace, "operator_metrics": await server.observer.metrics(call.namespace)}


async def health(server: Server, call: Call) -> Answer:
    """Findings about this namespace, worst first."""
    metrics = await server.observer.metrics(call.namespace)
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
    return Answer(body, 503 if worst == "error" else 200)


ROUTES = [
    Route("GET", "/api/system/operator-metrics", operator_metrics, "control", OPERATOR),
    Route("GET", "/api/system/metrics", operator_metrics, "control", OPERATOR),
    Route("GET", "/api/system/health", health, "control", OPERATOR),
]
