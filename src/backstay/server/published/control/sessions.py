"""Routes that list worker sessions for operators."""

from __future__ import annotations

from msgspec import Struct

from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.server import Server
from backstay.server.workers.sessions import TERMINAL, WorkerSessionAnswer

STATUSES = ("active", *TERMINAL)


class WorkerSessionsAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    worker_sessions: list[WorkerSessionAnswer]
    session_count: int


async def sessions(server: Server, request: HttpRequest) -> WorkerSessionsAnswer:
    status = request.query.get("status") or None
    if status is not None and status not in STATUSES:
        raise invalid("status", f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    queue = request.query.get("task_queue") or None
    worker = request.query.get("worker_id") or None
    shown = [
        server.sessions.view(session)
        for session in server.sessions.of(request.namespace)
        if status in (None, server.sessions.status(session))
        and queue in (None, session.queue)
        and worker in (None, session.worker_id)
    ]
    return WorkerSessionsAnswer(namespace=request.namespace, worker_sessions=shown, session_count=len(shown))


async def session(server: Server, request: HttpRequest) -> WorkerSessionAnswer:
    record = server.sessions.get(request.namespace, request.params["session_id"])
    if record is None:
        raise HttpError(404, "session_not_found", f"there is no session {request.params['session_id']!r}")
    return server.sessions.view(record)


ROUTES = [
    Route("GET", "/api/worker-sessions", sessions, "control", OPERATOR),
    Route("GET", "/api/worker-sessions/{session_id}", session, "control", OPERATOR),
]
