"""The outline of a run: its whole timeline as columns of numbers, extended by new events."""

from __future__ import annotations

from typing import Any

from backstay.kernel.views.outline import NONE
from backstay.protocol.history import iso
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import about_run, check_parameters, number, part, selected_run
from backstay.server.server import Server

ROWS = 20_000  # of all tables together; about 55 bytes each


async def outline(server: Server, request: HttpRequest) -> dict[str, Any]:
    """The timeline of a run as columns; `after` requests the changes by later events."""
    check_parameters(request, "after")
    row = await selected_run(server, request)
    after = number(request, "after") or 0
    found, origin = await server.api.outlines.ask(row.key, lambda known: (known.since(after, ROWS), known.origin))
    return {
        **about_run(row),
        "started_at": iso(row.started_at),
        "origin_at": iso(origin),
        "is_terminal": row.closed_at is not None,
        "none": NONE,
        **found,
        "complete": found["through"] >= found["last"],
    }


ROUTES = part("outline", outline)
