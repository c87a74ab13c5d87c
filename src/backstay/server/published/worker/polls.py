"""Polls: a poll is parked until there is a task, its time is over, the caller hangs up, or the server drains.

A parked poll costs memory, not a thread. A poll gets at most one lease; a poll repeated under its id gets the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict, TypeVar

from msgspec import Meta, Struct

from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.names import Name
from backstay.protocol.history import Encoding
from backstay.protocol.requests import Request
from backstay.protocol.tasks import lease
from backstay.protocol.versions import clamp_long_poll
from backstay.server.http.errors import HttpError, NotTheEngine, too_many_parked
from backstay.server.http.messages import ClientDisconnected, HttpRequest, HttpResponse
from backstay.server.server import Server
from backstay.server.workers.worker_registry import RegisteredWorker

A = TypeVar("A", WorkflowAssignment, ActivityAssignment)


class PollBody(Struct, frozen=True, kw_only=True):
    worker_id: Name
    task_queue: Name
    poll_request_id: Name | None = None
    timeout_seconds: float | None = None
    build_id: Name | None = None
    connection: Name | None = None
    task_kinds: list[str] | None = None
    history_page_size: Annotated[int, Meta(ge=1)] | None = None
    accept_history_encoding: Encoding | None = None


async def polling_worker(server: Server, request: HttpRequest, body: PollBody) -> RegisteredWorker:
    refuse_unless_engine(server, request)
    await server.registries.look_for_worker(request.namespace, body.worker_id)
    seconds = clamp_long_poll(body.timeout_seconds)
    worker = server.workers.polling(request.namespace, body.worker_id, body.task_queue, body.build_id, seconds)
    if server.rollouts.draining(request.namespace, worker.task_queue, worker.build_id):
        raise HttpError(
            409,
            "worker_draining",
            f"build {worker.build_id!r} drains on queue {worker.task_queue!r}: finish your tasks, and take no new ones",
            poll_status="draining",
            task=None,
            retry_after_seconds=None,
        )
    return worker


async def park(
    server: Server, request: HttpRequest, worker: RegisteredWorker, engine_request: Request[A | None], seconds: float
) -> A | None:
    """Park a poll. Returns its task, or None. If the caller hangs up, a lease that it has just got is released."""
    if server.draining:
        return None
    if not seconds:
        return await server.api.call(engine_request)
    async with parked_wait(server, request, worker):
        return await server.api.call(engine_request)


@asynccontextmanager
async def parked_wait(
    server: Server, request: HttpRequest, worker: RegisteredWorker | None = None
) -> AsyncGenerator[None]:
    """Count a wait as parked, and cancel it when the caller hangs up, or when the place is needed for another one. `worker`:
    the one that waits, if it is one."""
    share = request.share
    if not server.parked.admits(share):
        raise _full(request)
    me = asyncio.current_task()
    assert me is not None
    watch = asyncio.get_running_loop().create_task(request.until_disconnected())
    watch.add_done_callback(lambda done: None if done.cancelled() else me.cancel())
    given_way = False

    def give_way() -> None:
        nonlocal given_way
        given_way = me.cancel()

    server.parked.enter(share, watch, give_way)
    if worker is not None:
        server.presence.begin(worker)
    try:
        async with server.reading_turns.rest(request):
            yield
    except asyncio.CancelledError:
        if watch.done():
            raise ClientDisconnected from None
        if given_way and not me.uncancel():
            raise _full(request) from None
        raise
    finally:
        server.parked.leave(share, watch)
        if worker is not None:
            server.presence.end(worker, hung_up=watch.done())
        watch.cancel()


def no_task(server: Server, request: HttpRequest, kind: str, worker: RegisteredWorker) -> HttpResponse:
    """The response without a task: none is ready, the queue is throttled, or the database is unavailable."""
    refuse_unless_engine(server, request)
    queue = (kind, worker.namespace, worker.task_queue)
    refusal = server.admission.refusal(queue)
    if refusal is not None and not server.draining:
        return HttpResponse({"task": None, "poll_status": "throttled", "reason": refusal, "retry_after_seconds": 1})
    return nothing_ready(server)


def nothing_ready(server: Server) -> HttpResponse:
    """The response to a poll of any kind that no limit held back."""
    if server.engine.down is not None and not server.draining:
        return HttpResponse({"task": None, "poll_status": "unavailable", "retry_after_seconds": 1})
    return HttpResponse({"task": None, "poll_status": "empty", "retry_after_seconds": None})


def refuse_unless_engine(server: Server, request: HttpRequest) -> None:
    """Refuse a poll on a server that is not the engine. Published workers know this refusal and poll again."""
    if server.engine.active or server.draining:
        return
    body = request.decode(PollBody)
    kind = request.path.rstrip("/").split("/")[-2].removesuffix("s").replace("-", "_")
    raise NotTheEngine(
        "backend_unavailable",
        operation=f"poll_{kind}",
        outcome="unknown",
        worker_id=body.worker_id,
        task_queue=body.task_queue,
        task=None,
        poll_status="backend_unavailable",
        poll_request_id=body.poll_request_id,
        retry_same_poll_request_id=True,
    )


class LeasedTaskAnswer(TypedDict):
    """A task with its lease. A dict, since a poll answers with it."""

    task: dict[str, Any]
    poll_status: str
    lease: dict[str, Any]


def leased_task(assigned: WorkflowAssignment | ActivityAssignment, task: dict[str, Any]) -> HttpResponse:
    answer: LeasedTaskAnswer = {"task": task, "poll_status": "leased", "lease": lease(assigned.task)}
    return HttpResponse(answer)


def _full(request: HttpRequest) -> HttpError:
    if request.method == "GET":  # it waits for events, not for a task
        return too_many_parked("this server has no room for another waiting call (max_parked_polls); retry in a second")
    return too_many_parked(
        "this server has no room for another poll (max_parked_polls); poll again in a second",
        poll_status="long_poll_capacity_exhausted",
        task=None,
        task_kind=request.path.rstrip("/").split("/")[-2].removesuffix("s").replace("-", "_"),
        task_queue=request.decode(PollBody).task_queue,
    )
