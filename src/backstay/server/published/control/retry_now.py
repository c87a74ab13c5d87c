"""Routes that end the backoff of activities: of one, or of all that back off in a run."""

from __future__ import annotations

from typing import Any

from backstay.protocol import commands as tell
from backstay.server.auth import OPERATOR
from backstay.server.http_messages import HttpRequest
from backstay.server.published.control.commands import CommandBody, accepted, addressed
from backstay.server.router import Route
from backstay.server.server import Server


async def retry_now(server: Server, request: HttpRequest) -> dict[str, Any]:
    """Make the next attempt of an activity that backs off due now. Without one in the path, of all that back off."""
    body = request.decode(CommandBody)
    execution = request.params.get("activity_execution_id")
    done = await server.api.call(
        tell.RetryActivityNow(
            activity_execution_id=execution, reason=body.reason, **addressed(request, body.request_id)
        )
    )
    return accepted(request, done, body.request_id) | {"activity_execution_id": execution, "reason": body.reason}


_PLACES = ("/api/workflows/{workflow_id}", "/api/workflows/{workflow_id}/runs/{run_id}")

ROUTES = [
    Route("POST", f"{place}{of}/retry-now", retry_now, "control", OPERATOR, "retry_now", body=CommandBody)
    for place in _PLACES
    for of in ("", "/activities/{activity_execution_id}")
]
