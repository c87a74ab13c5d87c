"""Webhooks: the same commands under the paths of the web, for callers that are not clients of ours.

The credential is the same; a version header is not asked for. An update waits for its end unless told otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.protocol import requests as ask
from holdfast.server.auth import OPERATOR
from holdfast.server.call import Call
from holdfast.server.control import commands, queries
from holdfast.server.control.commands import CommandBody, SignalBody, SignalWithStartBody, UpdateBody
from holdfast.server.control.starting import StartBody, start
from holdfast.server.control.views import described
from holdfast.server.routing import Answer, Route
from holdfast.server.server import Server


class WaitingUpdateBody(UpdateBody, frozen=True, kw_only=True):
    wait_for: str = "completed"


async def start_of_type(server: Server, call: Call) -> Answer:
    """Start by the type in the path."""
    given = msgspec.json.decode(call.body or b"{}", type=dict[str, Any])
    call.body = msgspec.json.encode(given | {"workflow_type": call.params["workflow_type"]})
    answer = await start(server, call)
    return answer._replace(status=202 if answer.status == 201 else answer.status)


async def start_and_signal(server: Server, call: Call) -> Answer:
    """Start by the type in the path, and signal in the same commit."""
    given = msgspec.json.decode(call.body or b"{}", type=dict[str, Any])
    given["workflow_type"] = call.params["workflow_type"]
    call.params["workflow_id"] = str(given.get("workflow_id") or server.engine.world.ids.ulid())
    call.body = msgspec.json.encode(given)
    return await commands.signal_with_start(server, call)


async def update(server: Server, call: Call) -> Answer:
    call.body = msgspec.json.encode(call.decode(WaitingUpdateBody))
    return await commands.update(server, call)


async def describe(server: Server, call: Call) -> dict[str, Any]:
    found = await server.operations.call(
        ask.DescribeWorkflow(workflow_id=call.params["workflow_id"], namespace=call.namespace)
    )
    return await described(server, found)


_PLACES = ("/webhooks/instances/{workflow_id}", "/webhooks/instances/{workflow_id}/runs/{run_id}")
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
    Route("GET", f"{_PLACES[0]}/updates/{{update_id}}", commands.get_update, "discovery", OPERATOR),
    Route("GET", f"{_PLACES[0]}/describe", describe, "discovery", OPERATOR),
]
