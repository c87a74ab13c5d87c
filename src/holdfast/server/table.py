"""Every route of the server."""

from __future__ import annotations

from holdfast.server.control import commands, fleet, history, house, queries, starting, tenants, workflows
from holdfast.server.worker import activity_tasks, lifecycle, query_tasks, workflow_tasks

ROUTES = [
    *house.ROUTES,
    *starting.ROUTES,
    *workflows.ROUTES,
    *commands.ROUTES,
    *queries.ROUTES,
    *history.ROUTES,
    *fleet.ROUTES,
    *tenants.ROUTES,
    *lifecycle.ROUTES,
    *workflow_tasks.ROUTES,
    *activity_tasks.ROUTES,
    *query_tasks.ROUTES,
]
