"""The outline of a run: its whole timeline as columns of numbers, extended by new events."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backstay.kernel.views.outline import NONE
from backstay.protocol.history import iso
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    number,
    part,
    selected_run,
)
from backstay.server.server import Server

ROWS = 20_000  # of all tables together; about 55 bytes each


Columns = dict[str, list[Any]]


class OutlineAnswer(PartAnswer, frozen=True, kw_only=True):
    started_at: str
    origin_at: Annotated[str, Meta(description="The time that the columns count from, in milliseconds.")]
    is_terminal: bool
    none: Annotated[int, Meta(description="The number that stands for no value.")]
    after: int
    through: Annotated[int, Meta(description="The last event that this answer covers.")]
    last: Annotated[int, Meta(description="The last event of the run.")]
    texts_from: int
    texts: Annotated[list[str], Meta(description="The texts that the columns name by number.")]
    steps: Columns
    attempts: Columns
    tasks: Columns
    marks: Columns
    complete: bool


async def outline(server: Server, request: HttpRequest) -> OutlineAnswer:
    """The timeline of a run as columns; `after` requests the changes by later events."""
    check_parameters(request, "after")
    row = await selected_run(server, request)
    after = number(request, "after") or 0
    found, origin = await server.api.outlines.ask(row.key, lambda known: (known.since(after, ROWS), known.origin))
    return OutlineAnswer(
        **about_run(row),
        started_at=iso(row.started_at),
        origin_at=iso(origin),
        is_terminal=row.closed_at is not None,
        none=NONE,
        **found,
        complete=found["through"] >= found["last"],
    )


ROUTES = part("outline", outline)
