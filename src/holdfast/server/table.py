"""Every route of the server."""

from __future__ import annotations

from holdfast.server.control import history, house, workflows
from holdfast.server.worker import activity_tasks, lifecycle, workflow_tasks

ROUTES = [
    *house.ROUTES,
    *workflows.ROUTES,
    *history.ROUTES,
    *lifecycle.ROUTES,
    *workflow_tasks.ROUTES,
    *activity_tasks.ROUTES,
]
