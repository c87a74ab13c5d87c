"""Every route of the server."""

from __future__ import annotations

import msgspec

from backstay.server.access.auth import EVERY
from backstay.server.http.boundary import through_boundary
from backstay.server.http.documents import openapi, stream_document
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route, with_viewers
from backstay.server.native import call_batches, client_routes, worker_routes
from backstay.server.published.control import (
    activities,
    attributes,
    audit,
    bulk,
    commands,
    detail,
    exports,
    health,
    history,
    live,
    maintenance,
    namespaces,
    nodes,
    operator_commands,
    overview,
    projections,
    prometheus,
    queries,
    run_lists,
    saved_views,
    schedules,
    sessions,
    sign_in,
    starting,
    streams,
    system,
    task_queues,
    time_spent,
    tokens,
    webhooks,
    why,
    workers,
    workflows,
)
from backstay.server.published.control.parts import activities as activity_pages
from backstay.server.published.control.parts import (
    at,
    events,
    failures,
    lineage,
    messages,
    outline,
    replay_difference,
    summary,
    waits,
)
from backstay.server.published.worker import activity_tasks, lifecycle, query_tasks, worker_sessions, workflow_tasks
from backstay.server.server import Server


async def openapi_document(server: Server, request: HttpRequest) -> HttpResponse:
    """This document."""
    return HttpResponse({}, raw=msgspec.json.encode(openapi(ROUTES)))


async def asyncapi_document(server: Server, request: HttpRequest) -> HttpResponse:
    """The worker protocol's stream semantics."""
    return HttpResponse({}, raw=stream_document())


_DECLARED = [
    *health.ROUTES,
    *sign_in.ROUTES,
    *client_routes.ROUTES,
    *call_batches.ROUTES,
    *starting.ROUTES,
    *activities.ROUTES,
    *workflows.ROUTES,
    *run_lists.ROUTES,
    *saved_views.ROUTES,
    *detail.ROUTES,
    *commands.ROUTES,
    *operator_commands.ROUTES,
    *why.ROUTES,
    *queries.ROUTES,
    *history.ROUTES,
    *exports.ROUTES,
    *summary.ROUTES,
    *outline.ROUTES,
    *events.ROUTES,
    *activity_pages.ROUTES,
    *waits.ROUTES,
    *messages.ROUTES,
    *failures.ROUTES,
    *lineage.ROUTES,
    *at.ROUTES,
    *replay_difference.ROUTES,
    *streams.ROUTES,
    *live.ROUTES,
    *bulk.ROUTES,
    *schedules.ROUTES,
    *overview.ROUTES,
    *time_spent.ROUTES,
    *workers.ROUTES,
    *task_queues.ROUTES,
    *sessions.ROUTES,
    *namespaces.ROUTES,
    *nodes.ROUTES,
    *tokens.ROUTES,
    *attributes.ROUTES,
    *system.ROUTES,
    *maintenance.ROUTES,
    *audit.ROUTES,
    *projections.ROUTES,
    *prometheus.ROUTES,
    *webhooks.ROUTES,
    *lifecycle.ROUTES,
    *workflow_tasks.ROUTES,
    *activity_tasks.ROUTES,
    *query_tasks.ROUTES,
    *worker_sessions.ROUTES,
    *worker_routes.ROUTES,
    Route("GET", "/api/openapi.json", openapi_document, "open", EVERY),
    Route("GET", "/api/asyncapi.json", asyncapi_document, "open", EVERY),
]

ROUTES = through_boundary(with_viewers(_DECLARED))
