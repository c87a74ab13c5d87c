"""Routes of health and discovery: whether this process is alive and ready, and the findings of a namespace."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from backstay.protocol.history import iso
from backstay.server.access.auth import EVERY, OPERATOR
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators import findings
from backstay.server.operators.discovery import cluster_info
from backstay.server.server import Server
from backstay.store.errors import Unavailable


class HealthAnswer(Struct, frozen=True, kw_only=True):
    status: Literal["serving", "degraded"]
    timestamp: str
    checks: dict[str, str]


class NotReadyReason(Struct, frozen=True, kw_only=True):
    code: Literal["database_unavailable", "engine_elsewhere", "recovering", "draining"]
    message: str


class ReadyAnswer(Struct, frozen=True, kw_only=True):
    status: Literal["ready", "not_ready"]
    timestamp: str
    checks: dict[str, str]
    reasons: Annotated[list[NotReadyReason], Meta(description="Every reason not to send traffic here.")]


class SystemHealthAnswer(Struct, frozen=True, kw_only=True):
    status: Annotated[str, Meta(description="ok, warning or error: that of the worst finding.")]
    timestamp: str
    namespace: str
    checks: dict[str, dict[str, Any]]
    findings: Annotated[list[dict[str, Any]], Meta(description="What is wrong, worst first.")]
    operator_metrics: dict[str, Any] | UnsetType = UNSET


async def health(server: Server, request: HttpRequest) -> HttpResponse:
    """Whether this process serves. It does while its database can be read and can commit."""
    down = await server.control.database_check.trouble()
    answer = HealthAnswer(
        status="serving" if down is None else "degraded",
        timestamp=iso(server.now),
        checks={"database": "ok" if down is None else "unavailable"},
    )
    return HttpResponse(answer, 200 if down is None else 503)


async def ready(server: Server, request: HttpRequest) -> HttpResponse:
    """Whether to send traffic here, and if not, every reason why not."""
    engine = server.engine
    reasons: list[NotReadyReason] = []
    down = await server.control.database_check.trouble()
    if down is not None:
        message = "the database cannot be read or cannot commit; see the log"
        reasons.append(NotReadyReason(code="database_unavailable", message=message))
    # A node that has just got shards of others serves everything meanwhile, as any node does.
    recovering = server.api.stored.exclusive and engine.holder and not server.recovery.up
    if not engine.active:
        message = "another process is the engine of this database"
        reasons.append(NotReadyReason(code="engine_elsewhere", message=message))
    elif recovering:
        message = "the engine is starting: it reads open runs and leases"
        reasons.append(NotReadyReason(code="recovering", message=message))
    draining = server.draining or server.cluster.drains.asked
    if draining:
        why = (
            "this server is stopping"
            if server.cluster.drains.ended
            else "an operator drains this server: it hands its work to others"
        )
        reasons.append(NotReadyReason(code="draining", message=why))
    checks = {
        "database": "ok" if down is None else "unavailable",
        "engine": "held_by_another_process" if not engine.active else "recovering" if recovering else "ok",
        "draining": "yes" if draining else "no",
    }
    status = "not_ready" if reasons else "ready"
    answer = ReadyAnswer(status=status, timestamp=iso(server.now), checks=checks, reasons=reasons)
    return HttpResponse(answer, 503 if reasons else 200)


async def system_health(server: Server, request: HttpRequest) -> HttpResponse:
    """Findings about this namespace, worst first, and the checks they belong to. `metrics=0` leaves the metrics out."""
    try:
        wanted = request.query.get("metrics") != "0"
        problems = await findings.find(server, request.namespace, probe=not wanted)
        measured = wanted and server.engine.down is None
        metrics = await server.observer.metrics(request.namespace) if measured else None
    except Unavailable as unavailable:  # the database went away during the query
        problems, metrics = [findings.unavailable(unavailable)], None
    status, now = findings.worst(problems), server.now
    answer = SystemHealthAnswer(
        status=status,
        timestamp=iso(now),
        namespace=request.namespace,
        checks=findings.shown_checks(problems),
        findings=[finding.view(now) for finding in problems],
        operator_metrics=UNSET if metrics is None else metrics,
    )
    return HttpResponse(answer, 503 if status == "error" else 200)


ROUTES = [
    Route("GET", "/api/health", health, "open", EVERY, told=HealthAnswer),
    Route("GET", "/api/ready", ready, "open", EVERY, told=ReadyAnswer),
    Route("GET", "/api/cluster/info", cluster_info, "discovery", EVERY, any_namespace=True),
    Route("GET", "/api/system/health", system_health, "control", OPERATOR, told=SystemHealthAnswer),
]
