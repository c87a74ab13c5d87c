"""Webhooks: the same commands under other paths, for callers without a client library.

They need the same credential but no version header. An update waits for its end by default.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

from backstay.kernel.names import Name
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.server.access.auth import OPERATOR, WORKER
from backstay.server.http.messages import HttpRequest, HttpResponse, convert_body
from backstay.server.http.router import Route
from backstay.server.published.control import commands, queries
from backstay.server.published.control.commands import (
    SignalAnswer,
    SignalBody,
    SignalWithStartAnswer,
    SignalWithStartBody,
    UpdateAnswer,
    UpdateStatusAnswer,
    UpdateWorkflowBody,
)
from backstay.server.published.control.operator_commands import routes_of
from backstay.server.published.control.starting import StartAnswer, StartBody, start_workflow
from backstay.server.published.control.workflow_json import DescribedRun, ReservedWorkflow, described
from backstay.server.published.worker import activity_tasks
from backstay.server.published.worker.activity_tasks import AttemptOutcome, AttemptState
from backstay.server.published.worker.polls import LeasedTaskAnswer
from backstay.server.server import Server

T = TypeVar("T")


class WaitingUpdateBody(UpdateWorkflowBody, frozen=True, kw_only=True):
    wait_for: str = "completed"


async def start_of_type(server: Server, request: HttpRequest) -> HttpResponse:
    """Start by the type in the path."""
    answer = await start_workflow(server, request, _of_type(request, StartBody))
    return answer._replace(status=202 if answer.status == 201 else answer.status)


async def start_and_signal(server: Server, request: HttpRequest) -> HttpResponse:
    """Start by the type in the path, and signal in the same commit."""
    body = _of_type(request, SignalWithStartBody)
    workflow_id = body.workflow_id or server.new_id()
    return await commands.signal_or_start(server, request, body, workflow_id)


def _of_type(request: HttpRequest, shape: type[T]) -> T:
    """The body as this struct, with the type in the path."""
    return convert_body(request.decode(dict[str, Any]) | {"workflow_type": request.params["workflow_type"]}, shape)


async def update(server: Server, request: HttpRequest) -> HttpResponse:
    return await commands.update_with(server, request, request.decode(WaitingUpdateBody))


async def describe(server: Server, request: HttpRequest) -> DescribedRun | ReservedWorkflow:
    return described(server, await server.api.glance(request.namespace, request.params["workflow_id"]))


class ClaimAttempt(Struct, frozen=True, kw_only=True):
    """The claimant of an activity: a registered worker, or any name; without one it is made. `build_id`: for pinned tasks."""

    worker_id: Name | None = None
    lease_owner: Name | None = None
    build_id: Name | None = None
    connection: Name | None = None


class OwnedBody(Struct, frozen=True, kw_only=True):
    """A body about the attempt in the path. `lease_owner` is optional and is checked if present."""

    lease_owner: Name | None = None


class CompleteAttempt(OwnedBody, frozen=True, kw_only=True):
    result: Any = None


class FailAttempt(OwnedBody, frozen=True, kw_only=True):
    failure: activity_tasks.ActivityFailure


class HeartbeatAttempt(OwnedBody, frozen=True, kw_only=True):
    details: Any = None
    progress: Any = None


async def claim_activity(server: Server, request: HttpRequest) -> HttpResponse:
    """Lease an activity task by its id. The response names the attempt, which the other routes take."""
    body = request.decode(ClaimAttempt)
    owner = body.worker_id or body.lease_owner or f"adapter-{server.new_id()}"
    known = server.workers.get(request.namespace, owner)
    if known is not None:
        server.workers.heard(known)
    build = body.build_id or (None if known is None else known.build_id)
    compatibility = None if build is None else frozenset({build})
    return await activity_tasks.claimed(server, request, owner, compatibility, body.connection)


async def complete_attempt(server: Server, request: HttpRequest) -> AttemptOutcome:
    """Complete an attempt."""
    body = request.decode(CompleteAttempt)
    return await activity_tasks.completed(server, request, request.params["attempt_id"], body.lease_owner, body.result)


async def fail_attempt(server: Server, request: HttpRequest) -> AttemptOutcome:
    """Fail an attempt."""
    body = request.decode(FailAttempt)
    return await activity_tasks.failed(server, request, request.params["attempt_id"], body.lease_owner, body.failure)


async def heartbeat_attempt(server: Server, request: HttpRequest) -> AttemptState:
    """Renew the lease of an attempt and report progress; the response says whether to go on."""
    body = request.decode(HeartbeatAttempt)
    said = body.details if body.progress is None else body.progress
    return await activity_tasks.beat(server, request, request.params["attempt_id"], body.lease_owner, said)


async def attempt_status(server: Server, request: HttpRequest) -> AttemptState:
    """Whether the attempt may go on, without renewing its lease."""
    owner = request.query.get("lease_owner") or None
    return await activity_tasks.stands(server, request, request.params["attempt_id"], owner)


_PLACES = ("/webhooks/instances/{workflow_id}", "/webhooks/instances/{workflow_id}/runs/{run_id}")
_ATTEMPT = "/webhooks/activity-attempts/{attempt_id}"

ROUTES = [
    Route(
        "POST",
        "/webhooks/start/{workflow_type}",
        start_of_type,
        "discovery",
        OPERATOR,
        body=StartBody,
        told=StartAnswer,
    ),
    Route(
        "POST",
        "/webhooks/start/{workflow_type}/signals/{name}",
        start_and_signal,
        "discovery",
        OPERATOR,
        body=SignalWithStartBody,
        told=SignalWithStartAnswer,
    ),
    *(route for command in OPERATOR_COMMANDS.values() for route in routes_of(command, _PLACES, "discovery")),
    *(
        Route(
            "POST",
            f"{place}/signals/{{name}}",
            commands.signal,
            "discovery",
            OPERATOR,
            body=SignalBody,
            told=SignalAnswer,
        )
        for place in _PLACES
    ),
    *(
        Route(
            "POST",
            f"{place}/updates/{{name}}",
            update,
            "discovery",
            OPERATOR,
            body=WaitingUpdateBody,
            told=UpdateAnswer | UpdateStatusAnswer,
        )
        for place in _PLACES
    ),
    *(
        Route(
            "POST", f"{place}/queries/{{name}}", queries.query, "discovery", OPERATOR, body=SignalBody, only_reads=True
        )
        for place in _PLACES
    ),
    Route(
        "POST",
        "/webhooks/activity-tasks/{task_id}/claim",
        claim_activity,
        "discovery",
        WORKER,
        body=ClaimAttempt,
        told=LeasedTaskAnswer,
    ),
    Route("GET", _ATTEMPT, attempt_status, "discovery", WORKER),
    Route("POST", f"{_ATTEMPT}/complete", complete_attempt, "discovery", WORKER, body=CompleteAttempt),
    Route("POST", f"{_ATTEMPT}/fail", fail_attempt, "discovery", WORKER, body=FailAttempt),
    Route("POST", f"{_ATTEMPT}/heartbeat", heartbeat_attempt, "discovery", WORKER, body=HeartbeatAttempt),
    *(
        Route(
            "GET",
            f"{place}/updates/{{update_id}}",
            commands.get_update,
            "discovery",
            OPERATOR,
            told=UpdateStatusAnswer,
        )
        for place in _PLACES
    ),
    Route("GET", f"{_PLACES[0]}/describe", describe, "discovery", OPERATOR),
]
