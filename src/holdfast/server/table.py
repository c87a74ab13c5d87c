"""Every route of the server."""

from __future__ import annotations

from holdfast.server.control import fleet, history, house, tenants, workflows
from holdfast.server.worker import activity_tasks, lifecycle, workflow_tasks

ROUTES = [
    *house.ROUTES,
    *workflows.ROUTES,
    *history.ROUTES,
    *fleet.ROUTES,
    *tenants.ROUTES,
    *lifecycle.ROUTES,
    *workflow_tasks.ROUTES,
    *activity_tasks.ROUTES,
]
