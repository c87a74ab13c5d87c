"""Routes that start a workflow, or reserve an instance id for one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from backstay.kernel.features.start import DuplicatePolicy
from backstay.kernel.message import Refused
from backstay.kernel.names import Name
from backstay.kernel.values import CODEC, Routing, valid_id
from backstay.protocol import requests as ask
from backstay.protocol.payloads import arguments
from backstay.protocol.task_commands import memo
from backstay.server.access.auth import OPERATOR
from backstay.server.access.origin import origin, source
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators.discovery import UNSUPPORTED_START_FIELDS
from backstay.server.server import Server

Timeout = Annotated[float, Meta(gt=0)]

_POLICIES: dict[str, DuplicatePolicy] = {
    "fail": "reject_duplicate",
    "use-existing": "return_existing_active",
    "reject_duplicate": "reject_duplicate",
    "return_existing_active": "return_existing_active",
}


class StartBody(Struct, frozen=True, kw_only=True):
    workflow_type: Name
    workflow_id: str | None = None
    task_queue: Name = "default"
    connection: Name | None = None
    input: Any = None
    payload_codec: str | None = None
    business_key: Name | None = None
    visibility_labels: dict[str, str] | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    duplicate_policy: str = "fail"
    execution_timeout_seconds: Timeout | None = None
    run_timeout_seconds: Timeout | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    fairness_key: Name | None = None
    fairness_weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    build_id: Name | None = None
    compatibility: Name | None = None


class ReserveBody(Struct, frozen=True, kw_only=True):
    workflow_type: Name
    workflow_id: str | None = None


class StartAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str | None
    workflow_type: str
    namespace: str
    task_queue: str
    business_key: str | None
    payload_codec: str
    status: str = "pending"
    outcome: Annotated[str, Meta(description="Whether the run was started now, or an open one was returned.")]
    command_id: str | None
    command_status: str = "accepted"


class ReservationAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    workflow_type: str
    namespace: str
    run_id: Annotated[str | None, Meta(description="The run that has started under this id, if any.")]
    reserved: bool
    outcome: Literal["reserved", "already_reserved", "already_started"]


async def start(server: Server, request: HttpRequest) -> HttpResponse:
    return await start_workflow(server, request, request.decode(StartBody))


async def start_workflow(server: Server, request: HttpRequest, body: StartBody) -> HttpResponse:
    """Start a workflow, and return the outcome."""
    engine_request = start_request(server, request, body, body.workflow_id)
    try:
        done = await server.api.call(engine_request)
    except Refused as refusal:
        if refusal.reason != "instance_already_started":
            raise
        raise HttpError(
            409,
            "instance_already_started",
            f"workflow {engine_request.workflow_id!r} has already been started; ids are used once",
            outcome="rejected_duplicate",
            workflow_id=refusal.fields.get("workflow_id"),
            run_id=refusal.fields.get("run_id"),
            remediation="Use another workflow_id, or duplicate_policy use-existing to get the running one.",
        ) from None
    answer = StartAnswer(
        workflow_id=done.workflow_id,
        run_id=done.run_id,
        workflow_type=body.workflow_type,
        namespace=request.namespace,
        task_queue=body.task_queue,
        business_key=body.business_key,
        payload_codec=CODEC,
        outcome=done.outcome,
        command_id=done.command_id,
    )
    return HttpResponse(answer, 201 if done.outcome == "started_new" else 200)


def start_request(server: Server, request: HttpRequest, body: StartBody, workflow_id: str | None) -> ask.StartWorkflow:
    _refuse_unsupported(request)
    if body.payload_codec not in (None, CODEC):
        raise invalid("payload_codec", f"the one payload codec is {CODEC!r}", "unsupported_payload_codec")
    policy = _POLICIES.get(body.duplicate_policy)
    if policy is None:
        raise invalid("duplicate_policy", f"{body.duplicate_policy!r} is no duplicate policy; use fail or use-existing")
    if workflow_id is not None:
        _check_id(workflow_id)
    build = body.build_id or body.compatibility or server.rollouts.promoted(request.namespace, body.task_queue)
    return ask.StartWorkflow(
        workflow_type=body.workflow_type,
        workflow_id=workflow_id,
        namespace=request.namespace,
        arguments=arguments(body.input, "input"),
        routing=Routing(
            namespace=request.namespace,
            connection=body.connection,
            queue=body.task_queue,
            compatibility=build,
            priority=body.priority,
            fairness_key=body.fairness_key,
            fairness_weight=body.fairness_weight,
        ),
        business_key=body.business_key,
        visibility_labels=body.visibility_labels or {},
        memo={key: blob for key, blob in memo(body.memo or {}, "memo").items() if blob is not None},
        search_attributes=body.search_attributes or {},
        execution_timeout_seconds=body.execution_timeout_seconds,
        run_timeout_seconds=body.run_timeout_seconds,
        duplicate_policy=policy,
        definition=server.workers.definition(request.namespace, body.task_queue, body.workflow_type, build),
        request_id=request.headers.get("x-request-id"),
        traceparent=request.headers.get("traceparent"),
        source=source(request),
        context=origin(request),
    )


def _refuse_unsupported(request: HttpRequest) -> None:
    given = msgspec.json.decode(request.body or b"{}")
    for field in UNSUPPORTED_START_FIELDS:
        if field in given:
            raise invalid(field, f"{field} is not a field of a start; see the request contract in /api/cluster/info")


async def reserve(server: Server, request: HttpRequest) -> HttpResponse:
    """Reserve an instance id for one workflow type before its first run. Without an id one is made."""
    body = request.decode(ReserveBody)
    if body.workflow_id is not None:
        _check_id(body.workflow_id)
    done = await server.api.call(
        ask.ReserveWorkflow(
            workflow_type=body.workflow_type,
            workflow_id=body.workflow_id or server.new_id(),
            namespace=request.namespace,
        )
    )
    outcome = "reserved" if done.reserved else "already_reserved" if done.run_id is None else "already_started"
    answer = ReservationAnswer(
        workflow_id=done.workflow_id,
        workflow_type=body.workflow_type,
        namespace=request.namespace,
        run_id=done.run_id,
        reserved=done.reserved,
        outcome=outcome,
    )
    return HttpResponse(answer, 201 if done.reserved else 200)


def _check_id(workflow_id: str) -> None:
    if not valid_id(workflow_id):
        raise invalid("workflow_id", "a workflow id is 1 to 191 characters out of A-Z a-z 0-9 . _ : ~ -")


ROUTES = [
    Route("POST", "/api/workflows", start, "control", OPERATOR, "start", body=StartBody, told=StartAnswer),
    Route("POST", "/api/reservations", reserve, "control", OPERATOR, body=ReserveBody, told=ReservationAnswer),
]
