"""The summary of a run: its state, what it waits for, and whether it needs somebody, with the clock and the fleet of now."""

from __future__ import annotations

from typing import Any

from backstay.protocol.summaries import shown_summary
from backstay.server.http_messages import HttpRequest
from backstay.server.published.control.parts.selected import about_run, check_parameters, part, selected_run
from backstay.server.published.control.workflow_json import listed
from backstay.server.server import Server


async def summary(server: Server, request: HttpRequest) -> dict[str, Any]:
    """The summary of a run."""
    check_parameters(request)
    row = await selected_run(server, request)
    found = await server.node.projector.summary(row)
    return {
        **about_run(row),
        **listed(row),
        **shown_summary(found),
        "history_length": found.events,
        **server.fleet.of_run(row),
    }


ROUTES = part("summary", summary)
