"""Routes of health and discovery: whether this process is alive and ready, and the findings of a namespace."""

from __future__ import annotations

from typing import Any

from backstay.protocol.history import iso
from backstay.server.access.auth import EVERY, OPERATOR
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators import findings
from backstay.server.operators.discovery import cluster_info
from backstay.server.server import Server
from backstay.store.errors import Unavailable


async def health(server: Server, request: HttpRequest) -> HttpResponse:
    """Whether this process serves. It does while its database can be read and can commit."""
    down = await server.control.database_check.trouble()
    checks = {"database": "ok" if down is None else "unavailable"}
    body: dict[str, Any] = {"status": "serving", "timestamp": iso(server.now), "checks": checks}
    return HttpResponse(body) if down is None else HttpResponse(body | {"status": "degraded"}, 503)


async def ready(server: Server, request: HttpRequest) -> HttpResponse:
    """Whether to send traffic here, and if not, every reason why not."""
    engine = server.engine
    reasons: list[dict[str, str]] = []
    down = await server.control.database_check.trouble()
    if down is not None:
        reasons.append(
            {"code": "database_unavailable", "message": "the database cannot be read or cannot commit; see the log"}
        )
    # A node that has just got shards of others serves everything meanwhile, as any node does.
    recovering = server.api.stored.exclusive and engine.holder and not server.recovery.up
    if not engine.active:
        reasons.append({"code": "engine_elsewhere", "message": "another process is the engine of this database"})
    elif recovering:
        reasons.append({"code": "recovering", "message": "the engine is starting: it reads open runs and leases"})
    draining = server.draining or server.cluster.drains.asked
    if draining:
        why = (
            "this server is stopping"
            if server.cluster.drains.ended
            else "an operator drains this server: it hands its work to others"
        )
        reasons.append({"code": "draining", "message": why})
    checks = {
        "database": "ok" if down is None else "unavailable",
        "engine": "held_by_another_process" if not engine.active else "recovering" if recovering else "ok",
        "draining": "yes" if draining else "no",
    }
    body: dict[str, Any] = {
        "status": "not_ready" if reasons else "ready",
        "timestamp": iso(server.now),
        "checks": checks,
        "reasons": reasons,
    }
    return HttpResponse(body, 503 if reasons else 200)


async def system_health(server: Server, request: HttpRequest) -> HttpResponse:
    """Findings about this namespace, worst first, and the checks they belong to. `metrics=0` leaves the metrics out."""
    try:
        wanted = request.query.get("metrics") != "0"
        found = await findings.find(server, request.namespace, probe=not wanted)
        measured = wanted and server.engine.down is None
        metrics = await server.observer.metrics(request.namespace) if measured else None
    except Unavailable as unavailable:  # the database went away during the query
        found, metrics = [findings.unavailable(unavailable)], None
    status, now = findings.worst(found), server.now
    body: dict[str, Any] = {
        "status": status,
        "timestamp": iso(now),
        "namespace": request.namespace,
        "checks": findings.shown_checks(found),
        "findings": [one.view(now) for one in found],
    }
    if metrics is not None:
        body["operator_metrics"] = metrics
    return HttpResponse(body, 503 if status == "error" else 200)


ROUTES = [
    Route("GET", "/api/health", health, "open", EVERY),
    Route("GET", "/api/ready", ready, "open", EVERY),
    Route("GET", "/api/cluster/info", cluster_info, "discovery", EVERY, any_namespace=True),
    Route("GET", "/api/system/health", system_health, "control", OPERATOR),
]
