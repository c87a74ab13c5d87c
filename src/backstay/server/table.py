"""Every route of the server."""

from __future__ import annotations

import msgspec

from backstay.server.auth import EVERY
from backstay.server.call import Call
from backstay.server.control import (
    activities,
    attributes,
    calls,
    commands,
    detail,
    fleet,
    flows,
    history,
    house,
    passes,
    queries,
    schedules,
    sessions,
    starting,
    streams,
    system,
    tenants,
    together,
    tokens,
    webhooks,
    workflows,
)
from backstay.server.documents import openapi, stream_document
from backstay.server.routing import Answer, Route
from backstay.server.server import Server
from backstay.server.worker import activity_tasks, exchange, lifecycle, query_tasks, worker_sessions, workflow_tasks


async def openapi_document(server: Server, call: Call) -> Answer:
    """This document."""
    return Answer({}, raw=msgspec.json.encode(openapi(ROUTES)))


async def asyncapi_document(server: Server, call: Call) -> Answer:
    """The worker protocol's stream semantics."""
    return Answer({}, raw=stream_document())


ROUTES = [
    *house.ROUTES,
    *calls.ROUTES,
    *together.ROUTES,
    *starting.ROUTES,
    *activities.ROUTES,
    *workflows.ROUTES,
    *flows.ROUTES,
    *detail.ROUTES,
    *commands.ROUTES,
    *queries.ROUTES,
    *history.ROUTES,
    *streams.ROUTES,
    *schedules.ROUTES,
    *fleet.ROUTES,
    *sessions.ROUTES,
    *tenants.ROUTES,
    *tokens.ROUTES,
    *attributes.ROUTES,
    *system.ROUTES,
    *passes.ROUTES,
    *webhooks.ROUTES,
    *lifecycle.ROUTES,
    *workflow_tasks.ROUTES,
    *activity_tasks.ROUTES,
    *query_tasks.ROUTES,
    *worker_sessions.ROUTES,
    *exchange.ROUTES,
    Route("GET", "/api/openapi.json", openapi_document, "open", EVERY),
    Route("GET", "/api/asyncapi.json", asyncapi_document, "open", EVERY),
]
