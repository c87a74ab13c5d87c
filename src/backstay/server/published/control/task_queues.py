"""Routes of task queues: waiting tasks, workers, rates, and the limit that throttles."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.queue_views import QueueAnswer
from backstay.server.server import Server
from backstay.store.figures import WaitingTask

PAGE = 100
PAGE_MAX = 500
LEASES = 10  # of each queue in a list

_decode_token = msgspec.json.Decoder(tuple[str, str, Micros, int, str]).decode


class QueuesAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    task_queues: list[QueueAnswer]
    next_after: Annotated[str | None, Meta(description="The `after` of the next page.")]


class WaitingTaskAnswer(Struct, frozen=True, kw_only=True):
    task_id: str
    task_type: str
    type: str
    workflow_id: str | None
    run_id: str | None
    workflow_type: str | None
    build_id: str | None
    priority: int
    fairness_key: str | None
    attempt: int
    waiting_since: str
    waiting_seconds: float


class WaitingTasksAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    task_queue: str
    tasks: list[WaitingTaskAnswer]
    next_page_token: str | None


async def queues(server: Server, request: HttpRequest) -> QueuesAnswer:
    """The queues of a namespace, by name: those with workers, tasks, or open runs that are pinned to a build."""
    size = request.integer("page_size", PAGE_MAX, 1, PAGE_MAX)
    after = request.query.get("after") or ""
    found = [state for state in await server.control.queues.states(request.namespace) if state.name > after]
    page = found[:size]
    return QueuesAnswer(
        namespace=request.namespace,
        task_queues=[server.control.queues.shown(state, leases=LEASES) for state in page],
        next_after=page[-1].name if len(found) > size else None,
    )


async def queue(server: Server, request: HttpRequest) -> QueueAnswer:
    """One queue."""
    return server.control.queues.shown(await server.control.queues.state(request.namespace, request.params["queue"]))


async def waiting(server: Server, request: HttpRequest) -> WaitingTasksAnswer:
    """Tasks of a queue that are due and that no worker has, the oldest first."""
    name, now = request.params["queue"], server.now
    size = request.integer("page_size", PAGE, 1, PAGE_MAX)
    found = await server.api.stored.waiting_page(request.namespace, name, now, _after(request), size + 1)
    page = found[:size]
    return WaitingTasksAnswer(
        namespace=request.namespace,
        task_queue=name,
        tasks=[_shown(one, now) for one in page],
        next_page_token=_token(request, page[-1]) if len(found) > size else None,
    )


def _shown(one: WaitingTask, now: Micros) -> WaitingTaskAnswer:
    task = one.task
    return WaitingTaskAnswer(
        task_id=task.id,
        task_type=task.kind,
        type=task.type,
        workflow_id=one.workflow_id,
        run_id=one.run_id,
        workflow_type=one.workflow_type,
        build_id=task.routing.compatibility,
        priority=task.routing.priority,
        fairness_key=task.routing.fairness_key,
        attempt=task.attempt,
        waiting_since=iso(task.available_at),
        waiting_seconds=max(now - task.available_at, 0) / SECOND,
    )


def _token(request: HttpRequest, last: WaitingTask) -> str:
    task = last.task
    place = (request.namespace, request.params["queue"], task.available_at, task.workflow, task.id)
    return urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _after(request: HttpRequest) -> tuple[Micros, int, str] | None:
    text = request.query.get("next_page_token")
    if not text:
        return None
    try:
        namespace, name, *place = _decode_token(urlsafe_b64decode(text.encode()))
    except (ValueError, msgspec.MsgspecError):
        raise _refused("this is not a page token; request the first page without one") from None
    if (namespace, name) != (request.namespace, request.params["queue"]):
        raise _refused("this token belongs to the list of another queue; request the first page without one")
    at, workflow, task_id = place
    return int(at), int(workflow), str(task_id)


def _refused(message: str) -> HttpError:
    return HttpError(400, "invalid_page_token", message, field="next_page_token")


ROUTES = [
    Route("GET", "/api/task-queues", queues, "control", OPERATOR),
    Route("GET", "/api/task-queues/{queue}", queue, "control", OPERATOR),
    Route("GET", "/api/task-queues/{queue}/tasks", waiting, "control", OPERATOR),
]
