"""The route of queries. A worker answers them from committed history."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.protocol import commands as tell
from backstay.protocol.payloads import decoded, envelope
from backstay.server.access.auth import OPERATOR
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.published.control.commands import SignalBody, arguments_of
from backstay.server.server import Server


class QueryResultAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str
    query_name: str
    result: Annotated[Any, Meta(description="The answer of the code as a plain value.")]
    result_envelope: Annotated[dict[str, str] | None, Meta(description="The same as it was encoded.")]


async def query(server: Server, request: HttpRequest) -> QueryResultAnswer:
    positional, named = arguments_of(request.decode(SignalBody))
    answered = await server.api.call(
        tell.QueryWorkflow(
            workflow_id=request.params["workflow_id"],
            namespace=request.namespace,
            run_id=request.params.get("run_id"),
            query_name=request.params["name"],
            arguments=positional,
            named=named,
        )
    )
    return QueryResultAnswer(
        workflow_id=answered.workflow_id,
        run_id=answered.run_id,
        query_name=answered.query_name,
        result=decoded(answered.result),
        result_envelope=envelope(answered.result),
    )


ROUTES = [
    Route(
        "POST",
        "/api/workflows/{workflow_id}/query/{name}",
        query,
        "control",
        OPERATOR,
        "query",
        body=SignalBody,
        only_reads=True,
    ),
    Route(
        "POST",
        "/api/workflows/{workflow_id}/runs/{run_id}/query/{name}",
        query,
        "control",
        OPERATOR,
        "query",
        body=SignalBody,
        only_reads=True,
    ),
]
