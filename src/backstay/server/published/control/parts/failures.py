"""The failures of a run in the order in which they were recorded, and whether code handled them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from backstay.kernel.event import Recorded
from backstay.kernel.views.failures import READS
from backstay.kernel.views.failures import failures as failures_of
from backstay.protocol.run_detail import shown_failure
from backstay.protocol.shown_payloads import show_envelopes
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    fitting_items,
    number,
    part,
    payload_mode,
    selected_run,
)
from backstay.server.server import Server


class FailuresAnswer(PartAnswer, frozen=True, kw_only=True):
    failures: list[dict[str, Any]]
    remaining: Annotated[int, Meta(description="How many there are from the beginning of this page on.")]
    next_after: Annotated[int | None, Meta(description="The event after which the next page begins.")]


async def failures(server: Server, request: HttpRequest) -> FailuresAnswer:
    """The failures of a run after an event."""
    check_parameters(request, "after", "page_size", "payloads")
    row = await selected_run(server, request)
    after = number(request, "after") or 0
    size = request.integer("page_size", 100, 1, 500)
    mode = payload_mode(request)
    told: list[Recorded] = []

    def take(events: Sequence[Recorded]) -> None:
        told.extend(entry for entry in events if isinstance(entry.event, READS))

    await server.api.slices.through(row.key, take, after=after)
    tasks = [task for task in await server.api.stored.tasks(row.workflow) if task.run == row.key]

    def make() -> tuple[int, list[dict[str, Any]], bool]:
        views = failures_of(told, row.run_id, tasks)
        page = fitting_items((show_envelopes(shown_failure(view), mode) for view in views), size)
        return len(views), page.items, page.more

    count, items, more = await server.api.slices.aside(make)
    return FailuresAnswer(
        **about_run(row),
        failures=items,
        remaining=count,
        next_after=items[-1]["sequence"] if more else None,
    )


ROUTES = part("failures", failures)
