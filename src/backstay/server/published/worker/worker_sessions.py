"""Routes of worker sessions: create, heartbeat, close."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.names import Name
from backstay.kernel.session import WorkerSession
from backstay.server.access.auth import WORKER
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.server import Server
from backstay.server.workers.sessions import SessionRecord
from backstay.server.workers.worker_registry import RegisteredWorker

Seconds = Annotated[int, Meta(ge=1, le=10**9)]
Count = Annotated[int, Meta(ge=1, le=10**9)]


class CreateSessionBody(Struct, frozen=True, kw_only=True):
    worker_id: Name
    session_id: Name
    queue: Name | None = None
    connection: Name | None = None
    requirements: Annotated[list[Name], Meta(max_length=100)] = []
    lease_seconds: Seconds = 120
    ttl_seconds: Seconds = 1800
    max_concurrent_activities: Count = 1
    create_if_missing: bool = True
    allow_reacquire_after_failure: bool = True


class HeartbeatSessionBody(Struct, frozen=True, kw_only=True):
    worker_id: Name
    lease_seconds: Seconds | None = None


class CloseSessionBody(Struct, frozen=True, kw_only=True):
    worker_id: Name
    reason: Annotated[str, Meta(max_length=1000)] | None = None


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(CreateSessionBody)
    worker = await _worker(server, request, body.worker_id)
    outcome, session = await server.sessions.create(
        worker,
        WorkerSession(
            session_id=body.session_id,
            queue=body.queue,
            connection=body.connection,
            requirements=tuple(dict.fromkeys(body.requirements)),
            lease_seconds=body.lease_seconds,
            ttl_seconds=body.ttl_seconds,
            max_concurrent_activities=body.max_concurrent_activities,
            create_if_missing=body.create_if_missing,
            allow_reacquire_after_failure=body.allow_reacquire_after_failure,
        ),
    )
    return HttpResponse(_answer(server, outcome, session), 200 if outcome == "reused" else 201)


async def heartbeat(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(HeartbeatSessionBody)
    worker = await _worker(server, request, body.worker_id)
    session = await server.sessions.renew(worker, request.params["session_id"], body.lease_seconds)
    return _answer(server, "heartbeat_recorded", session)


async def close(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(CloseSessionBody)
    worker = await _worker(server, request, body.worker_id)
    return _answer(server, *await server.sessions.close(worker, request.params["session_id"], body.reason))


async def _worker(server: Server, request: HttpRequest, worker_id: str) -> RegisteredWorker:
    await server.registries.look_for_worker(request.namespace, worker_id)
    worker = server.workers.get(request.namespace, worker_id)
    if worker is None:
        raise HttpError(
            412,
            "worker_not_registered",
            f"worker {worker_id!r} is not registered in namespace {request.namespace!r}; POST /api/worker/register first",
            worker_id=worker_id,
            admitted=False,
        )
    server.workers.heard(worker)
    return worker


def _answer(server: Server, outcome: str, session: SessionRecord) -> dict[str, Any]:
    return {
        "admitted": True,
        "outcome": outcome,
        "status": server.sessions.status(session),
        "reason": None,
        "session": server.sessions.view(session),
    }


ROUTES = [
    Route("POST", "/api/worker/sessions", create, "worker", WORKER, body=CreateSessionBody),
    Route(
        "POST", "/api/worker/sessions/{session_id}/heartbeat", heartbeat, "worker", WORKER, body=HeartbeatSessionBody
    ),
    Route("DELETE", "/api/worker/sessions/{session_id}", close, "worker", WORKER, body=CloseSessionBody),
]
