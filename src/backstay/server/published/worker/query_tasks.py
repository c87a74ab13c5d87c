"""Routes of query tasks and update validation tasks, which a worker answers from the history it is sent.

A question is in the memory of one node. The id of its task names that node, so that an answer which a load balancer leads to another
one is handed on.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.codec.values import dumps
from backstay.kernel.features.signal import SignalReceived
from backstay.kernel.features.start import WorkflowStarted, started_of
from backstay.kernel.message import Refused
from backstay.kernel.names import Name
from backstay.kernel.values import CODEC, SECOND
from backstay.protocol.history import iso, to_wire
from backstay.protocol.payloads import envelope, payload
from backstay.protocol.task_commands import Text
from backstay.protocol.versions import clamp_long_poll
from backstay.server.access.auth import WORKER
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.native.node_proxy import meant, station_id
from backstay.server.published.worker.definitions import hidden
from backstay.server.published.worker.polls import PollBody, nothing_ready, parked_wait, refuse_unless_engine
from backstay.server.server import Server
from backstay.server.workers.remote_queries import Kind, PendingQuery

Attempt = Annotated[int, Meta(ge=1)]
QUERY = frozenset({"query"})
VALIDATE = frozenset({"validate"})

Answered = dict[str, Any] | HttpResponse

# The failure that a published worker reports -> the reason that the caller gets.
_UNKNOWN = "rejected_unknown_query"


class CompleteQueryBody(Struct, frozen=True, kw_only=True):
    lease_owner: Name
    query_task_attempt: Attempt
    result: Any = None
    result_envelope: Any = None


class QueryFailure(Struct, frozen=True, kw_only=True):
    message: Text
    reason: str = "query_rejected"
    type: str | None = None


class FailQueryBody(Struct, frozen=True, kw_only=True):
    lease_owner: Name
    query_task_attempt: Attempt
    failure: QueryFailure


class ValidationBody(Struct, frozen=True, kw_only=True):
    lease_owner: Name
    update_validation_attempt: Attempt


class RejectUpdateBody(ValidationBody, frozen=True, kw_only=True):
    failure: QueryFailure


async def poll(server: Server, request: HttpRequest) -> HttpResponse:
    """Poll for queries. A draining worker gets them too: no other worker may have its build."""
    return await _poll(server, request, QUERY)


async def poll_validation(server: Server, request: HttpRequest) -> HttpResponse:
    return await _poll(server, request, VALIDATE)


async def _poll(server: Server, request: HttpRequest, kinds: frozenset[str]) -> HttpResponse:
    body = request.decode(PollBody)
    await server.registries.look_for_worker(request.namespace, body.worker_id)
    seconds = clamp_long_poll(body.timeout_seconds)
    worker = server.workers.polling(request.namespace, body.worker_id, body.task_queue, body.build_id, seconds)
    refuse_unless_engine(server, request)
    if not seconds or server.draining:
        found = server.questions.poll(worker, kinds)
        return nothing_ready(server) if found is None else leased(server, found)
    asker = server.questions.park(worker, kinds)
    try:
        async with parked_wait(server, request, worker):
            alarm = server.engine.world.at(server.now + round(seconds * SECOND), lambda: server.questions.unpark(asker))
            found = await asyncio.shield(asker.future)
            alarm.cancel()
    except BaseException:
        server.questions.unpark(asker)
        if asker.future.done() and (missed := asker.future.result()) is not None:
            server.questions.give_back(missed)
        raise
    if found is None:
        refuse_unless_engine(server, request)  # it may have lost the engine meanwhile
    return nothing_ready(server) if found is None else leased(server, found)


def leased(server: Server, question: PendingQuery) -> HttpResponse:
    expires = iso(question.until)
    lease = {"leased_at": iso(server.now), "lease_expires_at": expires}
    return HttpResponse({"task": task(server, question), "poll_status": "leased", "lease": lease})


def task(server: Server, question: PendingQuery) -> dict[str, Any]:
    id = station_id(server, question.id)
    inquiry = question.inquiry
    # A task records how far its code had seen history, also in a closed run.
    first = next(entry for entry in question.history if isinstance(entry.event, WorkflowStarted))
    started = started_of(question.history)
    assert started is not None, "a history begins with the start of its run"
    horizon = max(first.sequence, inquiry.cursor, *(entry.context.decided_after or 0 for entry in question.history))
    unseen = hidden(question.history, started, None)
    seen = [
        entry
        for entry in question.history
        if (entry.context.decided_after is not None or entry.sequence <= horizon)
        and not (isinstance(entry.event, SignalReceived) and entry.event.signal_id in unseen)
    ]
    word = "query" if inquiry.kind == "query" else "update_validation"
    shared = {
        "task_id": id,
        "task_type": "query" if inquiry.kind == "query" else "workflow",
        "task_kind": word,
        f"{word}_task_id": id,
        "namespace": inquiry.namespace,
        "workflow_id": inquiry.workflow_id,
        "run_id": inquiry.run_id,
        "run_number": inquiry.run_number,
        "workflow_type": inquiry.workflow_type,
        "payload_codec": CODEC,
        "workflow_arguments": envelope(started.arguments),
        "history_events": [to_wire(entry, inquiry.run_id) for entry in seen],
        "last_history_sequence": seen[-1].sequence,
        "task_queue": question.queue,
        "lease_owner": question.owner,
        "lease_expires_at": iso(question.until),
    }
    if inquiry.kind == "query":
        return shared | {
            "query_task_attempt": question.attempt,
            "query_name": inquiry.name,
            "query_arguments": envelope(inquiry.arguments),
        }
    return shared | {
        "update_validation_attempt": question.attempt,
        "update_name": inquiry.name,
        "update_arguments": envelope(inquiry.arguments),
    }


async def complete(server: Server, request: HttpRequest) -> Answered:
    body = request.decode(CompleteQueryBody)
    blob = payload(body.result_envelope, "result_envelope")
    question = await _held(server, request, "query", body.lease_owner, body.query_task_attempt)
    if not isinstance(question, PendingQuery):
        return question
    server.questions.answer(question, dumps(body.result) if blob is None else blob)
    return _closed(server, request, question, "completed")


async def fail(server: Server, request: HttpRequest) -> Answered:
    body = request.decode(FailQueryBody)
    question = await _held(server, request, "query", body.lease_owner, body.query_task_attempt)
    if not isinstance(question, PendingQuery):
        return question
    reason = body.failure.reason if body.failure.reason == _UNKNOWN else "query_rejected"
    server.questions.refuse(
        question,
        Refused(reason, body.failure.message, query_name=question.inquiry.name, worker_reason=body.failure.reason),
    )
    return _closed(server, request, question, "failed")


async def approve(server: Server, request: HttpRequest) -> Answered:
    body = request.decode(ValidationBody)
    question = await _held(server, request, "validate", body.lease_owner, body.update_validation_attempt)
    if not isinstance(question, PendingQuery):
        return question
    server.questions.answer(question, None)
    return _closed(server, request, question, "approved")


async def reject(server: Server, request: HttpRequest) -> Answered:
    body = request.decode(RejectUpdateBody)
    question = await _held(server, request, "validate", body.lease_owner, body.update_validation_attempt)
    if not isinstance(question, PendingQuery):
        return question
    if body.failure.reason == "update_validation_worker_failed":
        server.questions.refuse(question, Refused("update_validation_worker_failed", body.failure.message))
    else:
        server.questions.answer(question, body.failure.message)
    return _closed(server, request, question, "rejected")


async def _held(
    server: Server, request: HttpRequest, kind: Kind, owner: str, attempt: int
) -> PendingQuery | dict[str, Any] | HttpResponse:
    """The query that this worker answers, or the reply to one that it has answered before, or that another node gives."""
    told = request.params["task_id"]
    node = meant(server, request, told)
    if node is not None:
        return await server.worker_links.proxy.hand_on(request, node)
    id = told.rpartition(".")[2]
    before = server.questions.closed(request.namespace, id, kind, owner, attempt)
    if before is not None:
        return {"task_id": told, "outcome": before, "recorded": True, "reason": "already_recorded"}
    return server.questions.held(request.namespace, id, kind, owner, attempt, _refusal)


def _closed(server: Server, request: HttpRequest, question: PendingQuery, outcome: str) -> dict[str, Any]:
    server.questions.remember(question, outcome)
    return {"task_id": request.params["task_id"], "outcome": outcome, "recorded": True, "reason": None}


def _refusal(reason: str, message: str) -> HttpError:
    return HttpError(404 if reason.endswith("_not_found") else 409, reason, message)


ROUTES = [
    Route("POST", "/api/worker/query-tasks/poll", poll, "worker", WORKER, body=PollBody),
    Route("POST", "/api/worker/query-tasks/{task_id}/complete", complete, "worker", WORKER, body=CompleteQueryBody),
    Route("POST", "/api/worker/query-tasks/{task_id}/fail", fail, "worker", WORKER, body=FailQueryBody),
    Route("POST", "/api/worker/update-validation-tasks/poll", poll_validation, "worker", WORKER, body=PollBody),
    Route(
        "POST", "/api/worker/update-validation-tasks/{task_id}/approve", approve, "worker", WORKER, body=ValidationBody
    ),
    Route(
        "POST", "/api/worker/update-validation-tasks/{task_id}/reject", reject, "worker", WORKER, body=RejectUpdateBody
    ),
]
