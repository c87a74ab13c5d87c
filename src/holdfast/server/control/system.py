"""The system as operators watch it: backlog, leases, workers, and where matching happens."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.values import SECOND
from holdfast.protocol.history import iso
from holdfast.server import repair
from holdfast.server.auth import OPERATOR
from holdfast.server.call import Call
from holdfast.server.discovery import matching_role
from holdfast.server.routing import Answer, Route
from holdfast.server.server import Server


async def operator_metrics(server: Server, call: Call) -> dict[str, Any]:
    return {"namespace": call.namespace, "operator_metrics": await _metrics(server, call.namespace)}


async def health(server: Server, call: Call) -> Answer:
    """Findings about this namespace, worst first."""
    metrics = await _metrics(server, call.namespace)
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
    for gap in metrics["compatibility"]["gaps"]:
        message = f"queue {gap['task_queue']!r}: no live worker takes {gap['ready_count']} ready {gap['kind']} tasks"
        findings.append({"severity": "warning", "code": "waiting_for_compatible_worker", "message": message, **gap})
    worst = "error" if any(f["severity"] == "error" for f in findings) else "warning" if findings else "ok"
    body = {"status": worst, "timestamp": iso(server.now), "findings": findings, "operator_metrics": metrics}
    return Answer(body, 503 if worst == "error" else 200)


async def _metrics(server: Server, namespace: str) -> dict[str, Any]:
    now = server.now
    backlog = {place: since for place, since in server.engine.matching.backlog().items() if place[1] == namespace}
    waiting = [at for since in backlog.values() for at in since]
    leased = [task for task in server.engine.leases if task.routing.namespace == namespace]
    workers = server.workers.of(namespace)
    stale = sum(server.workers.stale(worker) for worker in workers)
    gaps = [
        {"kind": kind, "task_queue": queue, "ready_count": len(since), "oldest_ready_at": iso(min(since))}
        for (kind, _, queue), since in backlog.items()
        if since and not server.questions.alive_on(namespace, queue)
    ]
    return {
        "matching_role": matching_role(server),
        "repair_policy": repair.policy(server.settings),
        "repair": repair.pressure(
            await repair.candidates(server, namespace), server.settings.task_repair_scan_limit, now
        ),
        "backlog": {
            "runnable_tasks": len(waiting),
            "oldest_ready_at": iso(min(waiting)) if waiting else None,
            "oldest_ready_age_ms": (now - min(waiting)) * 1000 // SECOND if waiting else 0,
        },
        "leases": {
            "active": len(leased),
            "expired": sum(task.until is not None and task.until <= now for task in leased),
            "redelivered": sum(task.attempt > 1 for task in leased),
        },
        "workers": {"active": len(workers) - stale, "stale": stale, "parked_polls": server.parked},
        "compatibility": {"gaps": gaps},
    }


ROUTES = [
    Route("GET", "/api/system/operator-metrics", operator_metrics, "control", OPERATOR),
    Route("GET", "/api/system/metrics", operator_metrics, "control", OPERATOR),
    Route("GET", "/api/system/health", health, "control", OPERATOR),
]
