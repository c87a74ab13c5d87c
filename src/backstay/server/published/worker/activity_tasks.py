"""Routes of activity tasks: poll, claim, complete, fail, heartbeat, status. The task in the path must be the attempt's."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.kernel.features.activity import AttemptReply, HeartbeatReply
from backstay.kernel.names import Name
from backstay.kernel.values import run_of
from backstay.protocol import requests as ask
from backstay.protocol.payloads import payload
from backstay.protocol.progress import progress
from backstay.protocol.task_commands import Text, WireFailure
from backstay.protocol.tasks import activity_task, optional_iso
from backstay.protocol.versions import clamp_long_poll
from backstay.server.access.auth import WORKER
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.worker.polls import PollBody, leased_task, no_task, park, polling_worker
from backstay.server.published.worker.workflow_tasks import ClaimBody, claiming
from backstay.server.server import Server


class AttemptBody(Struct, frozen=True, kw_only=True):
    activity_attempt_id: Name
    lease_owner: Name


class CompleteActivityBody(AttemptBody, frozen=True, kw_only=True):
    result: Any = None


class ActivityFailure(WireFailure, frozen=True, kw_only=True, rename={"class_": "class"}):
    message: Annotated[Text, Meta(min_length=1)]


class FailActivityBody(AttemptBody, frozen=True, kw_only=True):
    failure: ActivityFailure


class HeartbeatActivityBody(AttemptBody, frozen=True, kw_only=True):
    """Published workers send their progress as `details`; both may be of any shape."""

    details: Any = None
    progress: Any = None


class AttemptOutcome(Struct, frozen=True, kw_only=True):
    """What became of a report about an attempt."""

    task_id: str
    activity_attempt_id: str
    outcome: str
    recorded: Annotated[bool, Meta(description="Whether this report was recorded, or an earlier one counts.")]
    reason: str | None
    next_task_id: Annotated[str | None, Meta(description="The task that follows: of the workflow, or a retry.")]


class AttemptState(Struct, frozen=True, kw_only=True):
    """Whether the worker of an attempt should go on."""

    task_id: str | None
    lease_owner: str | None
    activity_attempt_id: str
    can_continue: bool
    cancel_requested: bool
    reason: Annotated[str | None, Meta(description="Why it should not go on.")]
    heartbeat_recorded: bool
    run_status: str | None
    attempt_status: str | None
    task_status: str | None
    lease_expires_at: str | None
    last_heartbeat_at: str | None
    run_closed_reason: str | None
    run_closed_at: str | None


async def poll(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(PollBody)
    worker = await polling_worker(server, request, body)
    seconds = clamp_long_poll(body.timeout_seconds)
    assigned = await park(
        server,
        request,
        worker,
        ask.PollActivityTask(
            worker_id=worker.worker_id,
            activity_types=frozenset(worker.supported_activity_types),
            queue=worker.task_queue,
            namespace=request.namespace,
            connection=body.connection or worker.connection,
            compatibility=worker.compatibility,
            wait_seconds=seconds,
            poll_request_id=body.poll_request_id,
        ),
        seconds,
    )
    if assigned is None:
        return no_task(server, request, "activity", worker)
    server.workers.heard(worker)  # it may not poll while it works
    return leased_task(assigned, activity_task(assigned))


async def claim(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(ClaimBody)
    worker = await claiming(server, request, body.worker_id or body.lease_owner)
    return await claimed(server, request, worker.worker_id, worker.compatibility, body.connection or worker.connection)


async def claimed(
    server: Server, request: HttpRequest, owner: str, compatibility: frozenset[str] | None, connection: str | None
) -> HttpResponse:
    """Lease the task in the path to its owner, who need not be a registered worker."""
    await _check_session(server, request, owner)
    assigned = await server.api.call(
        ask.ClaimActivityTask(
            task_id=request.params["task_id"],
            worker_id=owner,
            namespace=request.namespace,
            connection=connection,
            compatibility=compatibility,
        )
    )
    return leased_task(assigned, activity_task(assigned))


async def complete(server: Server, request: HttpRequest) -> AttemptOutcome:
    body = request.decode(CompleteActivityBody)
    _same_task(request, body)
    return await completed(server, request, body.activity_attempt_id, body.lease_owner, body.result)


async def completed(
    server: Server, request: HttpRequest, attempt_id: str, owner: str | None, result: Any
) -> AttemptOutcome:
    """Complete an attempt. `owner` None: the attempt id is enough, as for the other verbs."""
    outcome = await server.api.call(
        ask.CompleteActivityTask(
            activity_attempt_id=attempt_id,
            namespace=request.namespace,
            lease_owner=owner,
            result=payload(result, "result"),
        )
    )
    return _outcome(outcome)


async def fail(server: Server, request: HttpRequest) -> AttemptOutcome:
    body = request.decode(FailActivityBody)
    _same_task(request, body)
    return await failed(server, request, body.activity_attempt_id, body.lease_owner, body.failure)


async def failed(
    server: Server, request: HttpRequest, attempt_id: str, owner: str | None, failure: ActivityFailure
) -> AttemptOutcome:
    outcome = await server.api.call(
        ask.FailActivityTask(
            activity_attempt_id=attempt_id,
            namespace=request.namespace,
            lease_owner=owner,
            failure=failure.failure("failure"),
        )
    )
    return _outcome(outcome)


async def heartbeat(server: Server, request: HttpRequest) -> AttemptState:
    body = request.decode(HeartbeatActivityBody)
    _same_task(request, body)
    said = body.details if body.progress is None else body.progress
    return _asked(request, body, await beat(server, request, body.activity_attempt_id, body.lease_owner, said))


async def beat(server: Server, request: HttpRequest, attempt_id: str, owner: str | None, said: Any) -> AttemptState:
    reply = await server.api.call(
        ask.HeartbeatActivityTask(
            activity_attempt_id=attempt_id,
            namespace=request.namespace,
            lease_owner=owner,
            progress=progress(said),
        )
    )
    if reply.can_continue and reply.task_id is not None:
        session = await _session_of(server, request, reply.task_id, reply.lease_owner)
        if session is not None:
            server.sessions.heard(request.namespace, session)
    return _state(reply)


async def _session_of(server: Server, request: HttpRequest, task_id: str, owner: str | None) -> str | None:
    """The worker session that an activity runs in. If another process has given its lease, it is looked up on disk."""
    held = server.engine.leases.get(request.namespace, task_id)
    if held is None and any(session.worker_id == owner for session in server.sessions.of(request.namespace)):
        place = await server.api.stored.locate(request.namespace, run_of(task_id))
        tasks = [] if place is None else await server.api.stored.tasks(place.workflow)
        held = next((task for task in tasks if task.id == task_id), None)
    return None if held is None or held.session is None else held.session.session_id


async def status(server: Server, request: HttpRequest) -> AttemptState:
    body = request.decode(AttemptBody)
    _same_task(request, body)
    return _asked(request, body, await stands(server, request, body.activity_attempt_id, body.lease_owner))


async def stands(server: Server, request: HttpRequest, attempt_id: str, owner: str | None) -> AttemptState:
    reply = await server.api.call(
        ask.GetActivityStatus(activity_attempt_id=attempt_id, namespace=request.namespace, lease_owner=owner)
    )
    return _state(reply)


async def _check_session(server: Server, request: HttpRequest, owner: str) -> None:
    """Refuse a task of a worker session to everyone but the registered worker that holds the session."""
    place = await server.api.stored.locate(request.namespace, run_of(request.params["task_id"]))
    loaded = None if place is None else await server.api.stored.load(place.workflow)
    for task in () if loaded is None else loaded.tasks:
        if task.id == request.params["task_id"] and task.session is not None:
            worker = server.workers.registered(request.namespace, owner)
            await server.sessions.check_claim(worker, task.session)
            server.sessions.took(request.namespace, task.session, worker.worker_id)
            if not await server.sessions.holds(request.namespace, task.session, worker.worker_id):
                await server.sessions.check_claim(worker, task.session)  # another server was faster


def _same_task(request: HttpRequest, body: AttemptBody) -> None:
    """Refuse a request whose path names a task of another step than the attempt in its body."""
    task_id = request.params["task_id"]
    run_id, _, rest = body.activity_attempt_id.partition("-")
    step = rest.partition("-")[0]
    if run_of(task_id) != run_id or not task_id.startswith(f"{run_id}-a{step}."):
        raise HttpError(
            409,
            "task_mismatch",
            f"attempt {body.activity_attempt_id!r} is not one of task {task_id!r}",
            field="activity_attempt_id",
        )


def _next_task(outcome: AttemptReply) -> str | None:
    """The workflow task that resumes the run, or the retry of this step; not the next activity of its group."""
    step = outcome.task_id.rpartition(".")[0]
    for id in outcome.created_task_ids:
        if id.startswith(f"{step}.") or not id.startswith(f"{run_of(id)}-a"):
            return id
    return None


def _outcome(outcome: AttemptReply) -> AttemptOutcome:
    return AttemptOutcome(
        task_id=outcome.task_id,
        activity_attempt_id=outcome.activity_attempt_id,
        outcome=outcome.outcome,
        recorded=outcome.recorded,
        reason=outcome.reason,
        next_task_id=_next_task(outcome),
    )


def _asked(request: HttpRequest, body: AttemptBody, state: AttemptState) -> AttemptState:
    """The task and the owner as the request names them, also when the attempt is over."""
    return replace(state, task_id=request.params["task_id"], lease_owner=body.lease_owner)


def _state(reply: HeartbeatReply) -> AttemptState:
    return AttemptState(
        task_id=reply.task_id,
        lease_owner=reply.lease_owner,
        activity_attempt_id=reply.activity_attempt_id,
        can_continue=reply.can_continue,
        cancel_requested=reply.cancel_requested,
        reason=reply.reason,
        heartbeat_recorded=reply.heartbeat_recorded,
        run_status=reply.run_status,
        attempt_status=reply.attempt_status,
        task_status=reply.task_status,
        lease_expires_at=optional_iso(reply.lease_expires_at),
        last_heartbeat_at=optional_iso(reply.last_heartbeat_at),
        run_closed_reason=reply.run_closed_reason,
        run_closed_at=optional_iso(reply.run_closed_at),
    )


ROUTES = [
    Route("POST", "/api/worker/activity-tasks/poll", poll, "worker", WORKER, body=PollBody),
    Route("POST", "/api/worker/activity-tasks/{task_id}/claim", claim, "worker", WORKER, body=ClaimBody),
    Route(
        "POST", "/api/worker/activity-tasks/{task_id}/complete", complete, "worker", WORKER, body=CompleteActivityBody
    ),
    Route("POST", "/api/worker/activity-tasks/{task_id}/fail", fail, "worker", WORKER, body=FailActivityBody),
    Route(
        "POST",
        "/api/worker/activity-tasks/{task_id}/heartbeat",
        heartbeat,
        "worker",
        WORKER,
        body=HeartbeatActivityBody,
    ),
    Route("POST", "/api/worker/activity-tasks/{task_id}/status", status, "worker", WORKER, body=AttemptBody),
]
