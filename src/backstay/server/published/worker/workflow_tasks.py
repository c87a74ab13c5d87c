"""Routes of workflow tasks: poll, claim, history, heartbeat, complete, fail."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.features.child import StartChildWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.message_stream import AdvanceMessageCursor
from backstay.kernel.features.stream import WriteStream
from backstay.kernel.features.workflow_task import TaskReply, WorkflowAssignment, events_shown
from backstay.kernel.task import Block
from backstay.kernel.values import run_of
from backstay.protocol import requests as ask
from backstay.protocol.history import Encoding
from backstay.protocol.task_commands import Text, WireCommand
from backstay.protocol.tasks import after_token, history_page, optional_iso, workflow_task
from backstay.protocol.versions import clamp_long_poll
from backstay.server.access.auth import WORKER
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.worker.definitions import hidden, leading
from backstay.server.published.worker.polls import (
    Name,
    PollBody,
    leased_task,
    no_task,
    park,
    parked_wait,
    polling_worker,
)
from backstay.server.published.worker.query_tasks import VALIDATE
from backstay.server.published.worker.query_tasks import leased as asked
from backstay.server.server import Server
from backstay.server.workers.remote_queries import PendingQuery
from backstay.server.workers.worker_registry import RegisteredWorker

# Failures by which other runtimes report that code and history differ: the run is blocked instead of retried.
_REPLAY_BLOCKED = frozenset(
    {
        "NonDeterministicReplayError",
        "DeterminismFailed",
        "HistoryShapeMismatch",
        "UnresolvedWorkflowFailureException",
        "workflow_entry_arguments_mismatch",
        "history_shape_mismatch",
        "condition_wait_definition_mismatch",
    }
)


class LeaseBody(Struct, frozen=True, kw_only=True):
    lease_owner: Name
    workflow_task_attempt: Annotated[int, Meta(ge=1)]


class CursorBody(Struct, frozen=True, kw_only=True):
    stream_name: Name
    through_position: Annotated[int, Meta(ge=0)]


class WaitBody(Struct, frozen=True, kw_only=True):
    """A wait. It becomes no command: events that came while the code ran make the next task due."""

    stream_name: Name
    after_position: Annotated[int, Meta(ge=0)]


class CompleteTaskBody(LeaseBody, frozen=True, kw_only=True):
    commands: Annotated[list[WireCommand], Meta(min_length=1)]
    handled_failures: list[str] = []
    message_stream_cursors: Annotated[list[CursorBody], Meta(max_length=1000)] = []
    message_stream_waits: Annotated[list[WaitBody], Meta(max_length=1000)] = []
    numbered: bool = False  # the worker names the step and the wait in full


class FailureBody(Struct, frozen=True, kw_only=True):
    message: Annotated[Text, Meta(min_length=1)]
    type: str | None = None
    reason: str | None = None
    stack_trace: Text | None = None


class FailTaskBody(LeaseBody, frozen=True, kw_only=True):
    failure: FailureBody


class HistoryBody(LeaseBody, frozen=True, kw_only=True):
    next_history_page_token: str | None = None
    after_sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    history_page_size: Annotated[int, Meta(ge=1)] | None = None
    page_size: Annotated[int, Meta(ge=1)] | None = None  # the same, as it is called on the control plane
    limit: Annotated[int, Meta(ge=1)] | None = None  # and as it is called elsewhere
    accept_history_encoding: Encoding | None = None


class ClaimBody(Struct, frozen=True, kw_only=True):
    worker_id: Name | None = None
    lease_owner: Name | None = None
    connection: Name | None = None
    history_page_size: Annotated[int, Meta(ge=1)] | None = None
    accept_history_encoding: Encoding | None = None


async def poll(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(PollBody)
    worker = await polling_worker(server, request, body)
    seconds = clamp_long_poll(body.timeout_seconds)
    poll_request = ask.PollWorkflowTask(
        worker_id=worker.worker_id,
        queue=worker.task_queue,
        namespace=request.namespace,
        connection=body.connection or worker.connection,
        compatibility=worker.compatibility,
        workflow_types=worker.workflow_types,
        wait_seconds=seconds,
        poll_request_id=body.poll_request_id,
    )
    if body.task_kinds is not None and "update_validation" in body.task_kinds:
        assigned = await _either(server, request, worker, poll_request, seconds)
    else:
        assigned = await park(server, request, worker, poll_request, seconds)
    if assigned is None:
        return no_task(server, request, "workflow", worker)
    if isinstance(assigned, PendingQuery):
        return asked(server, assigned)
    server.workers.heard(worker)  # it may not poll while it works
    return leased_task(assigned, await _task(server, assigned, body))


async def _either(
    server: Server, request: HttpRequest, worker: RegisteredWorker, poll_request: ask.PollWorkflowTask, seconds: float
) -> WorkflowAssignment | PendingQuery | None:
    """Poll for a workflow task and a validation task at once. The first one wins, the other is given back."""
    if not seconds or server.draining:
        return server.questions.poll(worker, VALIDATE) or await park(server, request, worker, poll_request, seconds)
    asker = server.questions.park(worker, VALIDATE)
    polling_task = asyncio.ensure_future(server.api.call(poll_request))
    try:
        async with parked_wait(server, request, worker):
            await asyncio.wait({polling_task, asker.future}, return_when=asyncio.FIRST_COMPLETED)
            if polling_task.done() or asker.future.result() is None:
                return await polling_task
        return asker.future.result()
    finally:
        server.questions.unpark(asker)
        question = asker.future.result()
        if polling_task.done():
            if question is not None:
                server.questions.give_back(question)
        else:
            polling_task.cancel()


async def claim(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(ClaimBody)
    worker = await claiming(server, request, body.worker_id or body.lease_owner)
    assigned = await server.api.call(
        ask.ClaimWorkflowTask(
            task_id=request.params["task_id"],
            worker_id=worker.worker_id,
            namespace=request.namespace,
            connection=body.connection or worker.connection,
            compatibility=worker.compatibility,
        )
    )
    return leased_task(assigned, await _task(server, assigned, body))


async def complete(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(CompleteTaskBody)
    leased = server.engine.leases.get(request.namespace, request.params["task_id"])
    worker = server.workers.get(request.namespace, body.lease_owner)
    queue = worker.task_queue if worker is not None else ""
    if leased is not None:
        queue = leased.routing.queue
    commands = [
        described(server, request.namespace, queue, command.command(f"commands[{position}]"))
        for position, command in enumerate(body.commands)
    ]
    leads = await leading(server, worker, request.params["task_id"], leased)
    commands = [*leads, *_cursors(body, commands), *commands]
    writes = any(isinstance(command, WriteStream) for command in commands)
    # Without a lease here, this report may be a repeated one, or another node has leased the task.
    if writes and (leased is not None or await _is_leased(server, request)):
        await server.api.streams.admit(request.namespace, run_of(request.params["task_id"]), commands)
    outcome = await server.api.call(
        ask.CompleteTask(
            task_id=request.params["task_id"],
            namespace=request.namespace,
            lease_owner=body.lease_owner,
            workflow_task_attempt=body.workflow_task_attempt,
            commands=commands,
            handled_failures=body.handled_failures,
            numbered=body.numbered,
        )
    )
    return _outcome(outcome)


def _cursors(body: CompleteTaskBody, commands: list[Command]) -> list[Command]:
    """Commands that record how far code has read its messages, before its own commands. The task of an update has none."""
    if any(command.own_task for command in commands):
        return []
    return [
        AdvanceMessageCursor(stream_name=cursor.stream_name, through_position=cursor.through_position)
        for cursor in body.message_stream_cursors
    ]


async def fail(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(FailTaskBody)
    failure = body.failure
    blocked = failure.type in _REPLAY_BLOCKED or failure.reason in _REPLAY_BLOCKED
    outcome = await server.api.call(
        ask.FailTask(
            task_id=request.params["task_id"],
            namespace=request.namespace,
            lease_owner=body.lease_owner,
            workflow_task_attempt=body.workflow_task_attempt,
            failure=Block(
                message=failure.message,
                type=failure.type,
                stack_trace=failure.stack_trace,
                replay_blocked=blocked,
                reason=failure.reason,
                fingerprint=await _fingerprint(server, request, body.lease_owner),
            ),
        )
    )
    return _outcome(outcome) | {"next_task_id": outcome.next_task_id or next(iter(outcome.created_task_ids), None)}


async def heartbeat(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(LeaseBody)
    outcome = await server.api.call(
        ask.HeartbeatTask(
            task_id=request.params["task_id"],
            namespace=request.namespace,
            lease_owner=body.lease_owner,
            workflow_task_attempt=body.workflow_task_attempt,
        )
    )
    return _outcome(outcome) | {
        "lease_owner": body.lease_owner,
        "renewed": True,
        "lease_expires_at": optional_iso(outcome.lease_expires_at),
        "task_status": "leased",
        "can_continue": True,
        "cancel_requested": False,
    }


async def history(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(HistoryBody)
    after = body.after_sequence
    if after is None:
        after = after_token(body.next_history_page_token, "next_history_page_token")
    page = await server.api.call(
        ask.GetTaskHistory(
            task_id=request.params["task_id"],
            namespace=request.namespace,
            lease_owner=body.lease_owner,
            workflow_task_attempt=body.workflow_task_attempt,
            after_sequence=after,
            page_size=body.history_page_size or body.page_size or body.limit or ask.PAGE_DEFAULT,
        )
    )
    run_id = run_of(request.params["task_id"])
    return {
        "task_id": request.params["task_id"],
        "workflow_task_attempt": body.workflow_task_attempt,
        **history_page(page.history_events, run_id, page.total_history_events, body.accept_history_encoding),
    }


def described(server: Server, namespace: str, own_queue: str, command: Command) -> Command:
    """The command with the definition of the run that it starts: that of the newest live worker of its type."""
    match command:
        case StartChildWorkflow(definition=None, workflow_type=type, queue=queue):
            wanted = type
        case ContinueAsNew(definition=None, workflow_type=str(type), queue=queue):
            wanted = type
        case _:
            return command
    definition = server.workers.definition(namespace, own_queue if queue is None else queue, wanted, None)
    return replace(command, definition=definition)


async def claiming(server: Server, request: HttpRequest, worker_id: str | None) -> RegisteredWorker:
    """The worker that claims a task by its id."""
    if worker_id is None:
        raise invalid("worker_id", "worker_id is required")
    await server.registries.look_for_worker(request.namespace, worker_id)
    worker = server.workers.get(request.namespace, worker_id)
    queue = "" if worker is None else worker.task_queue
    return server.workers.polling(request.namespace, worker_id, queue, None)


async def _fingerprint(server: Server, request: HttpRequest, worker_id: str) -> str | None:
    """The fingerprint of the code that failed. The task is tried again when another one is deployed."""
    worker = server.workers.get(request.namespace, worker_id)
    if worker is None or not worker.workflow_definition_fingerprints:
        return None
    task = server.engine.leases.get(request.namespace, request.params["task_id"])
    if task is not None:
        return worker.workflow_definition_fingerprints.get(task.type)
    run = await server.api.stored.run(request.namespace, run_of(request.params["task_id"]))
    return None if run is None else worker.workflow_definition_fingerprints.get(run.workflow_type)


async def _is_leased(server: Server, request: HttpRequest) -> bool:
    """Whether the task is leased by another process."""
    if not server.node.shards.others:
        return False
    task_id = request.params["task_id"]
    place = await server.api.stored.locate(request.namespace, run_of(task_id))
    tasks = [] if place is None else await server.api.stored.tasks(place.workflow)
    return any(task.id == task_id and task.state == "leased" for task in tasks)


async def _task(server: Server, assigned: WorkflowAssignment, body: PollBody | ClaimBody) -> dict[str, Any]:
    size = min(body.history_page_size or ask.PAGE_DEFAULT, ask.PAGE_MAX)
    last = assigned.last_sequence
    if assigned.task.history_limit is not None:
        # The own task of an update is sent only a part of the history.
        events = events_shown(assigned, await server.api.stored.history(assigned.run_key))
        last = events[-1].sequence
    else:
        events = await server.api.stored.history(assigned.run_key, 0, min(size, last))
    worker = None if assigned.cursor else server.workers.get(assigned.namespace, assigned.task.owner or "")
    own = None if worker is None else server.workers.definition_by(worker, assigned.workflow_type)
    unseen = hidden(events, assigned.started, own)
    page = history_page(events, assigned.run_id, last, body.accept_history_encoding, unseen)
    return workflow_task(assigned, page)


def _outcome(outcome: TaskReply) -> dict[str, Any]:
    return {
        "task_id": outcome.task_id,
        "workflow_task_attempt": outcome.workflow_task_attempt,
        "outcome": outcome.outcome,
        "recorded": outcome.recorded,
        "run_id": outcome.run_id,
        "run_status": outcome.run_status,
        "reason": outcome.reason,
        "created_task_ids": outcome.created_task_ids,
    }


ROUTES = [
    Route("POST", "/api/worker/workflow-tasks/poll", poll, "worker", WORKER, body=PollBody),
    Route("POST", "/api/worker/workflow-tasks/{task_id}/claim", claim, "worker", WORKER, body=ClaimBody),
    Route("POST", "/api/worker/workflow-tasks/{task_id}/complete", complete, "worker", WORKER, body=CompleteTaskBody),
    Route("POST", "/api/worker/workflow-tasks/{task_id}/fail", fail, "worker", WORKER, body=FailTaskBody),
    Route("POST", "/api/worker/workflow-tasks/{task_id}/heartbeat", heartbeat, "worker", WORKER, body=LeaseBody),
    Route("POST", "/api/worker/workflow-tasks/{task_id}/history", history, "worker", WORKER, body=HistoryBody),
]
