"""Queries: what workflow code says of itself, answered by a worker from committed history."""

from __future__ import annotations

from typing import Any

from holdfast.protocol import commands as tell
from holdfast.protocol.payloads import decoded, envelope
from holdfast.server.auth import OPERATOR
from holdfast.server.call import Call
from holdfast.server.control.commands import SignalBody, given
from holdfast.server.routing import Route
from holdfast.server.server import Server


async def query(server: Server, call: Call) -> dict[str, Any]:
    positional, named = given(call.decode(SignalBody))
    found = await server.operations.call(
        tell.QueryWorkflow(
            workflow_id=call.params["workflow_id"],
            namespace=call.namespace,
            run_id=call.params.get("run_id"),
            query_name=call.params["name"],
            arguments=positional,
            named=named,
        )
    )
    return {
        "workflow_id": found.workflow_id,
        "run_id": found.run_id,
        "query_name": found.query_name,
        "result": decoded(found.result),
        "result_envelope": envelope(found.result),
    }


ROUTES = [
    Route("POST", "/api/workflows/{workflow_id}/query/{name}", query, "control", OPERATOR, "query", body=SignalBody),
    Route(
        "POST",
        "/api/workflows/{workflow_id}/runs/{run_id}/query/{name}",
        query,
        "control",
        OPERATOR,
        "query",
        body=SignalBody,
    ),
]
