"""The routes that go through the observability boundary, each with its method."""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any

import msgspec

from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.observability import Answer, StandardObservability

_RUN = "/api/workflows/{workflow_id}"
_OF_A_RUN = ("/detail", "/why", "/summary", "/outline", "/history", "/events/{n}", "/activities", "/waits", "/messages")
_MORE_OF_A_RUN = ("/failures", "/lineage", "/at/{n}", "/replay-difference")

BOUNDARY = {
    "/api/system/health": "health",
    "/api/overview": "overview",
    "/api/causes": "overview",
    "/api/wakes": "overview",
    "/api/time-spent": "overview",
    "/api/task-queues": "overview",
    "/api/task-queues/{queue}": "overview",
    "/api/task-queues/{queue}/tasks": "overview",
    "/api/task-queues/{queue}/build-ids": "overview",
    "/api/flows/{bucket}": "runs",
    "/api/flows/{bucket}/count": "runs",
    "/api/workflows": "runs",
    "/api/suggest": "runs",
    f"{_RUN}/runs": "runs",
    _RUN: "detail",
    f"{_RUN}/runs/{{run_id}}": "detail",
    **{f"{place}{part}": "detail" for place in (_RUN, f"{_RUN}/runs/{{run_id}}") for part in _OF_A_RUN},
    **{f"{place}{part}": "detail" for place in (_RUN, f"{_RUN}/runs/{{run_id}}") for part in _MORE_OF_A_RUN},
    f"{_RUN}/history/export": "export",
    f"{_RUN}/runs/{{run_id}}/history/export": "export",
}
"""The method of the boundary that each route goes through. Metrics and the dashboard have methods of their own."""


SHARED = frozenset({"/api/flows/{bucket}", "/api/flows/{bucket}/count", "/api/time-spent"})
"""Routes that many pages ask the same at once, and whose answers depend on nothing but the question and the namespace."""


def through_boundary(routes: Iterable[Route]) -> list[Route]:
    """The routes, with those that operators read going through the boundary of the server."""
    return [
        route._replace(handler=_through(_shared(route.handler) if route.path in SHARED else route.handler, method))
        if route.method == "GET" and (method := BOUNDARY.get(route.path)) is not None
        else route
        for route in routes
    ]


def _through(handler: Any, method: str) -> Any:
    @wraps(handler)
    async def read(server: Any, request: HttpRequest) -> Answer:
        if type(server.observer) is StandardObservability:
            return await handler(server, request)
        return await getattr(server.observer, method)(request, lambda: _fields(handler(server, request)))

    return read


async def _fields(answering: Any) -> Answer:
    """An answer as a dict, to which another boundary may add fields."""
    answer = await answering
    return msgspec.to_builtins(answer) if isinstance(answer, msgspec.Struct) else answer


def _shared(handler: Any) -> Any:
    @wraps(handler)
    async def read(server: Any, request: HttpRequest) -> Answer:
        if type(server.observer) is not StandardObservability:  # it may change its answer, for this caller alone
            return await handler(server, request)
        question = (request.namespace, request.path, request.raw_query)
        return await server.shared_answers.get(question, lambda: handler(server, request))

    return read
