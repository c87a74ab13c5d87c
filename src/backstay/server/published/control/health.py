"""Routes of health and discovery: whether this process is alive and ready, and the causes of a namespace."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from backstay.protocol.history import iso
from backstay.server.access.auth import EVERY, OPERATOR
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators.causes.cause import CHECKS, CauseAnswer, CauseVerdict, Status, worst
from backstay.server.operators.causes.collector import CausesAnswer
from backstay.server.operators.causes.of_process import of_process
from backstay.server.operators.discovery import cluster_info
from backstay.server.server import Server
from backstay.store.errors import Unavailable


class HealthAnswer(Struct, frozen=True, kw_only=True):
    status: Literal["serving", "degraded"]
    timestamp: str
    checks: dict[str, str]


class NotReadyReason(Struct, frozen=True, kw_only=True):
    code: Annotated[str, Meta(description="The name of a cause.")]
    message: str


class ReadyAnswer(Struct, frozen=True, kw_only=True):
    status: Literal["ready", "not_ready"]
    timestamp: str
    checks: dict[str, str]
    reasons: Annotated[list[NotReadyReason], Meta(description="Every reason not to send traffic here.")]


class CheckAnswer(Struct, frozen=True, kw_only=True):
    status: Status
    causes: Annotated[list[str], Meta(description="The names of its causes.")]


class SystemHealthAnswer(Struct, frozen=True, kw_only=True):
    status: Annotated[Status, Meta(description="That of the worst cause.")]
    timestamp: str
    namespace: str
    verdict: CauseVerdict
    checks: dict[str, CheckAnswer]
    causes: Annotated[list[CauseAnswer], Meta(description="Errors first.")]
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
    process = server.state()
    reasons = [
        NotReadyReason(code=cause.name, message=cause.sentence)
        for cause in of_process(process)
        if cause.check == "backend_capabilities"
    ]
    down = await server.control.database_check.trouble()
    if down is not None:
        # Every caller reads this, so it names no database.
        message = "the database cannot be read or cannot commit; see the log"
        reasons.insert(0, NotReadyReason(code="database_unavailable", message=message))
    engine = "recovering" if process.recovering else "ok"
    checks = {
        "database": "ok" if down is None else "unavailable",
        "engine": engine if process.engine_active else "held_by_another_process",
        "draining": "yes" if process.stopping or process.drained else "no",
    }
    status = "not_ready" if reasons else "ready"
    answer = ReadyAnswer(status=status, timestamp=iso(server.now), checks=checks, reasons=reasons)
    return HttpResponse(answer, 503 if reasons else 200)


async def system_health(server: Server, request: HttpRequest) -> HttpResponse:
    """The causes of this namespace, worst first, and the checks they belong to. `metrics=0` leaves the metrics out.

    The status of the answer is 503 if this server can do no work: without a database, or without an engine.
    """
    report = await server.control.causes.read(request.namespace)
    metrics: dict[str, Any] | UnsetType = UNSET
    if request.query.get("metrics") != "0" and server.engine.down is None:
        with suppress(Unavailable):  # the database went away during the query
            metrics = await server.observer.metrics(request.namespace)
    checks: dict[str, CheckAnswer] = {}
    for name in CHECKS:
        own = [cause for cause in report.causes if cause.check == name]
        checks[name] = CheckAnswer(status=worst(own), causes=sorted({cause.name for cause in own}))
    answer = SystemHealthAnswer(
        status=report.verdict.status,
        timestamp=iso(report.read_at),
        namespace=request.namespace,
        verdict=report.verdict,
        checks=checks,
        causes=report.shown_causes(),
        operator_metrics=metrics,
    )
    stands = checks["backend_capabilities"].status == "error"
    return HttpResponse(answer, 503 if stands else 200)


async def causes(server: Server, request: HttpRequest) -> CausesAnswer:
    """Why something needs attention, each cause with its number, its subject and the action that helps. It is answered
    without a database, too."""
    return (await server.control.causes.read(request.namespace)).shown()


ROUTES = [
    Route("GET", "/api/health", health, "open", EVERY, told=HealthAnswer),
    Route("GET", "/api/ready", ready, "open", EVERY, told=ReadyAnswer),
    Route("GET", "/api/cluster/info", cluster_info, "discovery", EVERY, any_namespace=True),
    Route("GET", "/api/system/health", system_health, "control", OPERATOR, told=SystemHealthAnswer),
    Route("GET", "/api/causes", causes, "control", OPERATOR),
]
