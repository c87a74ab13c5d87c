"""Routes of standalone activities: start, describe, list. Each is also a workflow of the same id, by which it is cancelled."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.call_options import CallOptions, options_of
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import Activities, ScheduleActivity
from backstay.kernel.features.start import STANDALONE, WorkflowStarted
from backstay.kernel.message import Refused
from backstay.kernel.names import Name
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.state import Instance, Run
from backstay.kernel.values import CODEC, Routing, execution_id, valid_id
from backstay.kernel.views.activities import ActivityView, activities
from backstay.protocol import requests as ask
from backstay.protocol.history import iso
from backstay.protocol.payloads import arguments, envelope
from backstay.protocol.run_detail import BUCKETS
from backstay.protocol.task_commands.base import WireRetry
from backstay.protocol.tasks import after_token, optional_iso, page_token
from backstay.server.access.auth import OPERATOR
from backstay.server.access.origin import origin, source
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.control.starting import Timeout
from backstay.server.published.control.workflow_json import bucket
from backstay.server.server import Server


class ActivityBody(CallOptions, frozen=True, kw_only=True):
    activity_type: Name
    task_queue: Name = "default"
    activity_id: str | None = None
    activity_class: Name | None = None
    business_key: Annotated[str, Meta(min_length=1, max_length=191)] | None = None
    input: Any = None
    retry_policy: WireRetry | None = None
    start_to_close_timeout_seconds: Timeout | None = None
    schedule_to_start_timeout_seconds: Timeout | None = None
    schedule_to_close_timeout_seconds: Timeout | None = None
    heartbeat_timeout_seconds: Timeout | None = None

    def policy(self) -> RetryPolicy:
        return (self.retry_policy or WireRetry()).policy(
            self.start_to_close_timeout_seconds,
            self.schedule_to_start_timeout_seconds,
            self.schedule_to_close_timeout_seconds,
            self.heartbeat_timeout_seconds,
        )


class StartedActivityAnswer(Struct, frozen=True, kw_only=True):
    activity_id: str
    workflow_run_id: str
    activity_execution_id: str
    workflow_type: str
    activity_type: str
    task_queue: str
    namespace: str
    business_key: str | None
    payload_codec: str
    outcome: str


class ActivityAnswer(Struct, frozen=True, kw_only=True):
    """A standalone activity."""

    activity_id: str
    workflow_run_id: str
    activity_execution_id: str
    workflow_type: str
    activity_type: str
    activity_class: str | None
    task_queue: str
    namespace: str
    business_key: str | None
    status: Annotated[str, Meta(description="Of its workflow.")]
    status_bucket: str
    is_terminal: bool
    activity_status: str
    closed_reason: str | None
    message: Annotated[str | None, Meta(description="Of its failure.")]
    payload_codec: str
    input: dict[str, str] | None
    result: dict[str, str] | None
    attempt_count: int
    crash_count: int
    started_at: str
    closed_at: str | None
    last_progress_at: str
    last_heartbeat_at: str | None
    schedule_to_start_deadline_at: Annotated[str | None, Meta(description="When it times out; null if it is closed.")]
    schedule_to_close_deadline_at: str | None


class ActivitiesAnswer(Struct, frozen=True, kw_only=True):
    activities: list[ActivityAnswer]
    activity_count: int
    next_page_token: str | None
    namespace: str


async def start(server: Server, request: HttpRequest) -> HttpResponse:
    """Start an activity as a durable job of its own."""
    body = request.decode(ActivityBody)
    if body.activity_id is not None and not valid_id(body.activity_id):
        raise invalid("activity_id", "an activity id is 1 to 191 characters out of A-Z a-z 0-9 . _ : ~ -")
    build = server.rollouts.promoted(request.namespace, body.task_queue)
    engine_request = ask.StartWorkflow(
        workflow_type=STANDALONE,
        workflow_id=body.activity_id,
        namespace=request.namespace,
        routing=Routing(namespace=request.namespace, queue=body.task_queue, compatibility=build),
        business_key=body.business_key,
        request_id=request.headers.get("x-request-id"),
        traceparent=request.headers.get("traceparent"),
        source=source(request),
        context=origin(request),
        activity=ScheduleActivity(
            activity_type=body.activity_type,
            activity_class=body.activity_class,
            arguments=arguments(body.input, "input"),
            retry_policy=body.policy(),
            **options_of(CallOptions, body),
        ),
    )
    try:
        started = await server.api.call(engine_request)
    except Refused as refusal:
        if refusal.reason != "instance_already_started":
            raise
        raise HttpError(
            409,
            "instance_already_started",
            f"{body.activity_id!r} has already been started; ids are used once, by activities and workflows alike",
            outcome="rejected_duplicate",
            activity_id=refusal.fields.get("workflow_id"),
            workflow_run_id=refusal.fields.get("run_id"),
            remediation="Use another activity_id, or leave it out to have one made.",
        ) from None
    return HttpResponse(
        StartedActivityAnswer(
            activity_id=started.workflow_id,
            workflow_run_id=started.run_id,
            activity_execution_id=execution_id(started.run_id, 1),
            workflow_type=STANDALONE,
            activity_type=body.activity_type,
            task_queue=body.task_queue,
            namespace=request.namespace,
            business_key=body.business_key,
            payload_codec=CODEC,
            outcome=started.outcome,
        ),
        201,
    )


async def describe(server: Server, request: HttpRequest) -> ActivityAnswer:
    activity_id = request.params["activity_id"]
    rows = await server.api.call(
        ask.ListWorkflows(
            namespace=request.namespace, workflow_id=activity_id, workflow_type=STANDALONE, current=True, limit=1
        )
    )
    found = await _shown(server, rows[0]) if rows else None
    if found is None:
        raise HttpError(
            404,
            "activity_not_found",
            f"there is no standalone activity {activity_id!r} in namespace {request.namespace!r}; an activity of a"
            " workflow is in the detail of its run",
            activity_id=activity_id,
        )
    return found


async def listing(server: Server, request: HttpRequest) -> ActivitiesAnswer:
    """Standalone activities, newest first."""
    size = request.integer("page_size", 50, 1, 200)
    status = request.query.get("status")
    if status and status not in BUCKETS:
        raise invalid("status", f"status must be one of {', '.join(BUCKETS)}, not {status!r}")
    token = request.query.get("next_page_token") or None
    rows = await server.api.call(
        ask.ListWorkflows(
            namespace=request.namespace,
            workflow_type=STANDALONE,
            statuses=BUCKETS[status] if status else None,
            current=True,
            before=after_token(token, "next_page_token") if token else None,
            limit=size + 1,
        )
    )
    page = rows[:size]
    shown = [found for row in page if (found := await _shown(server, row)) is not None]
    return ActivitiesAnswer(
        activities=shown,
        activity_count=len(shown),
        next_page_token=page_token(page[-1].key) if len(rows) > size else None,
        namespace=request.namespace,
    )


async def _shown(server: Server, row: RunRow) -> ActivityAnswer | None:
    """A standalone activity from its history; None: the run has the type, but is not one."""
    history = await server.api.stored.history(row.key)
    opening = next((entry.event for entry in history if isinstance(entry.event, WorkflowStarted)), None)
    if opening is None or not opening.standalone:
        return None
    (view,) = activities(history)
    return ActivityAnswer(
        activity_id=row.workflow_id,
        workflow_run_id=row.run_id,
        activity_execution_id=view.id,
        workflow_type=row.workflow_type,
        activity_type=view.activity_type,
        activity_class=view.activity_class,
        task_queue=view.queue,
        namespace=row.namespace,
        business_key=row.business_key,
        status=row.status,
        status_bucket=bucket(row.status),
        is_terminal=row.closed_at is not None,
        activity_status=view.status,
        closed_reason=row.closed_reason,
        message=view.message,
        payload_codec=CODEC,
        input=envelope(view.arguments),
        result=envelope(view.result),
        attempt_count=view.attempt_count,
        crash_count=view.crash_count,
        started_at=iso(row.started_at),
        closed_at=optional_iso(row.closed_at),
        last_progress_at=iso(history[-1].at),
        last_heartbeat_at=optional_iso(view.last_heartbeat_at),
        **_deadlines(server, row, view, history),
    )


def _deadlines(server: Server, row: RunRow, view: ActivityView, history: list[Recorded]) -> dict[str, Any]:
    """The times at which it times out; none if it is closed."""
    run = Run(row.key, row.run_id, row.number)
    server.engine.machine.fold(Instance(row.workflow, row.namespace, row.workflow_id), run, history)
    execution = run.part(Activities).open.get(view.sequence)
    return {
        "schedule_to_start_deadline_at": None if execution is None else optional_iso(execution.start_deadline),
        "schedule_to_close_deadline_at": None if execution is None else optional_iso(execution.total_deadline),
    }


ROUTES = [
    Route("POST", "/api/activities", start, "control", OPERATOR, body=ActivityBody, told=StartedActivityAnswer),
    Route("GET", "/api/activities", listing, "control", OPERATOR),
    Route("GET", "/api/activities/{activity_id}", describe, "control", OPERATOR),
]
