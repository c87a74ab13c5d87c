"""Webhooks: the same commands under the paths of the web, for callers that are not clients of ours.

The credential is the same; a version header is not asked for. An update waits for its end unless told otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from backstay.server.auth import OPERATOR, WORKER
from backstay.server.call import Call
from backstay.server.control import commands, queries
from backstay.server.control.commands import CommandBody, SignalBody, SignalWithStartBody, UpdateBody
from backstay.server.control.starting import StartBody, start
from backstay.server.control.views import described, look
from backstay.server.problems import invalid
from backstay.server.routing import Answer, Route
from backstay.server.server import Server
from backstay.server.worker import activity_tasks
from backstay.server.worker.polls import Name
from backstay.server.worker.workflow_tasks import ClaimBody


class WaitingUpdateBody(UpdateBody, frozen=True, kw_only=True):
    wait_for: str = "completed"


async def start_of_type(server: Server, call: Call) -> Answer:
    """Start by the type in the path."""
    given = call.decode(dict[str, Any])
    call.body = msgspec.json.encode(given | {"workflow_type": call.params["workflow_type"]})
    answer = await start(server, call)
    return answer._replace(status=202 if answer.status == 201 else answer.status)


async def start_and_signal(server: Server, call: Call) -> Answer:
    """Start by the type in the path, and signal in the same commit."""
    given = call.decode(dict[str, Any])
    given["workflow_type"] = call.params["workflow_type"]
    call.params["workflow_id"] = str(given.get("workflow_id") or server.engine.world.ids.ulid())
    call.body = msgspec.json.encode(given)
    return await commands.signal_with_start(server, call)


async def update(server: Server, call: Call) -> Answer:
    call.body = msgspec.json.encode(call.decode(WaitingUpdateBody))
    return await commands.update(server, call)


async def describe(server: Server, call: Call) -> dict[str, Any]:
    return described(server, *await look(server, call))


class OwnedBody(Struct, frozen=True, kw_only=True):
    """Whose attempt it is; which one, the path says."""

    lease_owner: Name


class CompleteAttempt(OwnedBody, frozen=True, kw_only=True):
    result: Any = None


class FailAttempt(OwnedBody, frozen=True, kw_only=True):
    failure: activity_tasks.ActivityFailure


class HeartbeatAttempt(OwnedBody, frozen=True, kw_only=True):
    details: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None


async def complete_attempt(server: Server, call: Call) -> dict[str, Any]:
    return await activity_tasks.complete(server, _of_attempt(call, CompleteAttempt))


async def fail_attempt(server: Server, call: Call) -> dict[str, Any]:
    return await activity_tasks.fail(server, _of_attempt(call, FailAttempt))


async def heartbeat_attempt(server: Server, call: Call) -> dict[str, Any]:
    return await activity_tasks.heartbeat(server, _of_attempt(call, HeartbeatAttempt))


async def attempt_status(server: Server, call: Call) -> dict[str, Any]:
    owner = call.query.get("lease_owner")
    if not owner:
        raise invalid("lease_owner", "say in the query whose attempt it is: ?lease_owner=WORKER")
    call.body = msgspec.json.encode({"lease_owner": owner})
    return await activity_tasks.status(server, _of_attempt(call, OwnedBody))


def _of_attempt(call: Call, shape: type[OwnedBody]) -> Call:
    """The worker's verb for the attempt in the path. Its task is any of the same step: the attempt says which."""
    given: dict[str, Any] = msgspec.to_builtins(call.decode(shape))
    attempt = call.params["attempt_id"]
    run_id, _, rest = attempt.partition("-")
    call.params["task_id"] = f"{run_id}-a{rest.partition('-')[0]}.1"
    call.body = msgspec.json.encode(given | {"activity_attempt_id": attempt})
    return call


_PLACES = ("/webhooks/instances/{workflow_id}", "/webhooks/instances/{workflow_id}/runs/{run_id}")
_ATTEMPT = "/webhooks/activity-attempts/{attempt_id}"
_VERBS = {
    "cancel": commands.cancel,
    "terminate": commands.terminate,
    "repair": commands.repair,
    "archive": commands.archive,
}

ROUTES = [
    Route("POST", "/webhooks/start/{workflow_type}", start_of_type, "discovery", OPERATOR, body=StartBody),
    Route(
        "POST",
        "/webhooks/start/{workflow_type}/signals/{name}",
        start_and_signal,
        "discovery",
        OPERATOR,
        body=SignalWithStartBody,
    ),
    *(
        Route("POST", f"{place}/{verb}", handler, "discovery", OPERATOR, body=CommandBody)
        for place in _PLACES
        for verb, handler in _VERBS.items()
    ),
    *(
        Route("POST", f"{place}/signals/{{name}}", commands.signal, "discovery", OPERATOR, body=SignalBody)
        for place in _PLACES
    ),
    *(
        Route("POST", f"{place}/updates/{{name}}", update, "discovery", OPERATOR, body=WaitingUpdateBody)
        for place in _PLACES
    ),
    *(
        Route("POST", f"{place}/queries/{{name}}", queries.query, "discovery", OPERATOR, body=SignalBody)
        for place in _PLACES
    ),
    Route(
        "POST", "/webhooks/activity-tasks/{task_id}/claim", activity_tasks.claim, "discovery", WORKER, body=ClaimBody
    ),
    Route("GET", _ATTEMPT, attempt_status, "discovery", WORKER),
    Route("POST", f"{_ATTEMPT}/complete", complete_attempt, "discovery", WORKER, body=CompleteAttempt),
    Route("POST", f"{_ATTEMPT}/fail", fail_attempt, "discovery", WORKER, body=FailAttempt),
    Route("POST", f"{_ATTEMPT}/heartbeat", heartbeat_attempt, "discovery", WORKER, body=HeartbeatAttempt),
    *(Route("GET", f"{place}/updates/{{update_id}}", commands.get_update, "discovery", OPERATOR) for place in _PLACES),
    Route("GET", f"{_PLACES[0]}/describe", describe, "discovery", OPERATOR),
]
