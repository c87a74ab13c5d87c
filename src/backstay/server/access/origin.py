"""The origin of a request, as the records of its commands keep it."""

from __future__ import annotations

from typing import Any

from backstay.server.http.messages import HttpRequest

LABEL = 255
"""Characters of a caller's label that are kept."""


def source(request: HttpRequest) -> str:
    """The way in: `webhook` or `http`. Calls of our own clients are `python`."""
    return "webhook" if request.path.startswith("/webhooks/") else "http"


def origin(request: HttpRequest) -> dict[str, Any]:
    """The context of commands. It is made once for all commands of a request."""
    found = request.origin
    if found is None:
        caller = request.caller
        about: dict[str, Any] = {
            "route": request.path,
            "auth": sorted(caller.roles),
            "auth_outcome": "not_required" if caller.method == "none" else "accepted",
            "auth_method": caller.method,
            "address": request.address,
        }
        if caller.token_id is not None:
            about["token_id"] = caller.token_id
        if caller.session_id is not None:
            about["session_id"] = caller.session_id
        label = request.headers.get("x-workflow-caller-label")
        if label is not None:
            about["caller"] = label[:LABEL]
        found = request.origin = {"request": about}
    return found
