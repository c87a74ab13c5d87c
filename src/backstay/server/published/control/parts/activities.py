"""The activities of a run with all of their attempts, page by page in the order of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from backstay.kernel.event import Recorded
from backstay.kernel.views.actions import part_actions
from backstay.kernel.views.activities import ActivityFold, ActivityView
from backstay.protocol.run_detail import shown_activity
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


class RunActivitiesAnswer(PartAnswer, frozen=True, kw_only=True):
    activities: Annotated[list[dict[str, Any]], Meta(description="Each with all of its attempts.")]
    next_after: Annotated[int | None, Meta(description="The step after which the next page begins.")]


async def activities(server: Server, request: HttpRequest) -> RunActivitiesAnswer:
    """The activities of a run after a step, each with all of its attempts."""
    check_parameters(request, "after", "page_size", "payloads")
    row = await selected_run(server, request)
    after = number(request, "after") or 0
    size = request.integer("page_size", 100, 1, 500)
    mode = payload_mode(request)
    wanted = await server.api.outlines.ask(row.key, lambda known: known.rows_of("activity", after, size + 1))
    more = len(wanted) > size
    wanted = wanted[:size]
    # The outline knows where the events of these activities begin and end, so the rest of the history is not read.
    fold = ActivityFold({step for step, _, _ in wanted})

    def take(events: Sequence[Recorded]) -> None:
        for entry in events:
            fold.add(entry)

    if wanted:
        first, last = min(one[1] for one in wanted), max(one[2] for one in wanted)
        await server.api.slices.through(row.key, take, after=first - 1, last=last)
    views = sorted(fold.found.values(), key=lambda view: view.sequence)

    def shown(view: ActivityView) -> dict[str, Any]:
        return show_envelopes(shown_activity(view), mode) | part_actions("activities", view, is_open=row.is_open)

    page = await server.api.slices.aside(lambda: fitting_items(map(shown, views), size))
    return RunActivitiesAnswer(
        **about_run(row),
        activities=page.items,
        next_after=page.items[-1]["sequence"] if page.items and (page.more or more) else None,
    )


ROUTES = part("activities", activities)
