"""The waits of a run, open ones first: kind and target, begin, deadline, and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.event import Recorded
from backstay.kernel.views.actions import part_actions
from backstay.kernel.views.waits import Waits, WaitView, back, wait_order
from backstay.protocol.page_tokens import list_token, token_position
from backstay.protocol.run_detail import shown_wait
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    choice,
    fitting_items,
    part,
    selected_run,
)
from backstay.server.server import Server


class WaitCounts(Struct, frozen=True, kw_only=True):
    open: int
    resolved: int
    cancelled: int


class WaitsAnswer(PartAnswer, frozen=True, kw_only=True):
    waits: list[dict[str, Any]]
    counts: Annotated[WaitCounts, Meta(description="How many waits the run has, by status.")]
    next_page_token: str | None


STATUSES = WaitCounts.__struct_fields__


async def waits(server: Server, request: HttpRequest) -> WaitsAnswer:
    """The waits of a run, open ones first; `status` chooses among them."""
    check_parameters(request, "status", "page_size", "next_page_token")
    row = await selected_run(server, request)
    status = choice(request, "status", STATUSES, "all")
    size = request.integer("page_size", 100, 1, 500)
    list_name = f"waits:{row.run_id}:{status}"
    token = request.query.get("next_page_token") or None
    place = "" if token is None else token_position(token, list_name)
    collected = Waits()

    def take(events: Sequence[Recorded]) -> None:
        for entry in events:
            collected.add(entry)

    await server.api.slices.through(row.key, take)
    opening = await server.api.stored.opening(row.workflow)
    is_current = opening is not None and opening.row.run == row.key

    def make() -> tuple[list[dict[str, Any]], str | None, WaitCounts]:
        collected.end(row)
        views = sorted(collected.found.values(), key=wait_order)
        if opening is not None and is_current:
            back(views, opening.tasks, opening.row.next_wake)
        counts = WaitCounts(**{name: sum(view.status == name for view in views) for name in STATUSES})
        chosen = [view for view in views if status in ("all", view.status) and (not place or _place(view) > place)]
        shown = (shown_wait(view) | part_actions("waits", view, is_open=row.is_open) for view in chosen)
        page = fitting_items(shown, size)
        following = _place(chosen[len(page.items) - 1]) if page.more else None
        return page.items, following, counts

    items, following, counts = await server.api.slices.aside(make)
    return WaitsAnswer(
        **about_run(row),
        waits=items,
        counts=counts,
        next_page_token=None if following is None else list_token(list_name, following),
    )


def _place(view: WaitView) -> str:
    """The place of a wait in the list, as text that sorts like it."""
    order, opened_at, wait_id = wait_order(view)
    return f"{order}:{opened_at:020}:{wait_id}"


ROUTES = part("waits", waits)
