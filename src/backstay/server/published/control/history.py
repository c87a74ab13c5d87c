"""The history of a run from either end, by range, kind, type, step and text; and its export.

A page names the last event that it looked at. With a filter it looks at a bounded number of events, so it may have
fewer than requested, even none, and a token for the next page. With `wait_new_event` a page waits for new events.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, cast

from msgspec import Meta

from backstay.engine.reading.history_pages import read_page, read_page_back
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.protocol.page_tokens import list_token, token_number
from backstay.protocol.shown_events import KINDS, TYPES, EventFilter, ShownEvent, new_story, shown_event, size_shown
from backstay.protocol.shown_payloads import PayloadMode
from backstay.protocol.tasks import after_token, page_token
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    PAGE_BYTES,
    PartAnswer,
    about_run,
    check_parameters,
    choice,
    choices,
    number,
    part,
    quiet,
    selected_run,
)
from backstay.server.published.worker.polls import parked_wait
from backstay.server.server import Server

HOLD = 30.0  # seconds that a page waits for new events
LOOKED_AT = 5000  # events that one request looks at
LEAD = 100  # events before a page that its words need
SLICE = 512 << 10  # bytes that are read at a stretch
TEXT_MAX = 200
_PARAMETERS = (
    *("order", "from", "to", "kind", "type", "step", "text", "payloads"),
    *("page_size", "next_page_token", "wait_new_event"),
)


class HistoryAnswer(PartAnswer, frozen=True, kw_only=True):
    events: list[ShownEvent]
    next_page_token: str | None
    order: Literal["asc", "desc"]
    last_sequence: Annotated[int, Meta(description="The number of the last event of the run.")]
    looked_at: Annotated[int, Meta(description="How many events were looked at.")]
    complete: Annotated[bool, Meta(description="Whether these are all events that match.")]


async def history(server: Server, request: HttpRequest) -> HistoryAnswer:
    """The events of a run, page by page from either end; `kind`, `type`, `step`, `text`, `from` and `to` choose among them."""
    check_parameters(request, *_PARAMETERS)
    row = await selected_run(server, request)
    order = choice(request, "order", ("asc", "desc"), "asc")
    mode = cast(PayloadMode, choice(request, "payloads", ("text", "none"), "blob"))
    if quiet(request):
        mode = "none"
    where = _filter(request)
    low, high = number(request, "from", 1) or 1, number(request, "to", 1)
    if high is not None and high < low:
        raise invalid("to", f"the range ends at {high}, before it begins at {low}", "invalid_range")
    size = request.integer("page_size", 100, 1, 1000)
    list_name = _list_name(request, row, order)
    last = await server.api.stored.last_event(row.key)
    length = 0 if last is None else last.sequence
    token = request.query.get("next_page_token") or None
    place = None if token is None else _place(token, list_name)
    floor, ceiling = low - 1, length if high is None else min(high, length)
    if place is not None and order == "asc":
        floor = max(floor, place)
    elif place is not None:
        ceiling = min(ceiling, place - 1)
    waits = order == "asc" and high is None and where.matches_all and request.flag("wait_new_event")
    if waits and floor >= length and row.closed_at is None:
        async with parked_wait(server, request):
            found = await server.api.news.wait(row.workflow, row.key, floor, size + 1, HOLD)
        ceiling = length = max(length, found[-1].sequence if found else 0)
    look = _Look(server, row, where, size, descending=order == "desc")
    await look.between(floor, ceiling)
    events = await _shown(server, row, look.found, mode, quiet(request), descending=order == "desc")
    return HistoryAnswer(
        **about_run(row),
        events=events,
        next_page_token=None if look.complete else _token(list_name, look.place),
        order="desc" if order == "desc" else "asc",
        last_sequence=length,
        looked_at=look.looked_at,
        complete=look.complete,
    )


def _list_name(request: HttpRequest, row: RunRow, order: str) -> str:
    """The name of the list that the tokens of its pages belong to; empty for the whole history from its beginning."""
    chosen = [request.query.get(name) or "" for name in ("from", "to", "kind", "type", "step", "text")]
    return "" if order == "asc" and not any(chosen) else ":".join(["history", row.run_id, order, *chosen])


def _token(list_name: str, place: int) -> str:
    return list_token(list_name, place) if list_name else page_token(place)


def _place(token: str, list_name: str) -> int:
    return token_number(token, list_name) if list_name else after_token(token, "next_page_token")


class _Look:
    """One look through a part of a history for the events of a page."""

    def __init__(self, server: Server, row: RunRow, where: EventFilter, size: int, *, descending: bool) -> None:
        self._server = server
        self._row = row
        self._where = where
        self._size = size
        self._descending = descending
        self.found: list[Recorded] = []
        self.looked_at = 0
        self.place = 0  # the last event that was looked at
        self.complete = False  # there is no more in this range
        self._bytes = 0

    async def between(self, floor: int, ceiling: int) -> None:
        """Look at the events after `floor` and up to `ceiling`, from the end that the page begins with."""
        store, slices = self._server.api.stored, self._server.api.slices
        while floor < ceiling:
            if len(self.found) >= self._size:
                return
            wanted = self._size - len(self.found) if self._where.matches_all else LOOKED_AT
            if self._descending:
                page = await read_page_back(store, self._row.key, ceiling, max(floor, ceiling - wanted), SLICE)
                page.reverse()
            else:
                page = await read_page(store, self._row.key, floor, min(ceiling, floor + wanted), SLICE)
            if not page:
                break
            if await slices.aside(partial(self._take, page)) if not self._where.matches_all else self._take(page):
                return
            floor, ceiling = (floor, self.place - 1) if self._descending else (self.place, ceiling)
            await slices.turn()
        self.complete = True

    def _take(self, page: Sequence[Recorded]) -> bool:
        for entry in page:
            if self.looked_at >= LOOKED_AT or len(self.found) >= self._size:
                return True
            if self._where.matches(entry):
                self._bytes += size_shown([entry])
                if self._bytes > PAGE_BYTES and self.found:
                    return True
                self.found.append(entry)
            self.looked_at += 1
            self.place = entry.sequence
        return False


async def _shown(
    server: Server, row: RunRow, found: list[Recorded], mode: PayloadMode, hidden: bool, *, descending: bool
) -> list[ShownEvent]:
    if not found:
        return []
    first = min(found[0].sequence, found[-1].sequence)
    lead = await server.api.stored.history(row.key, max(first - 1 - LEAD, 0), min(LEAD, first - 1)) if first > 1 else []

    def make() -> list[ShownEvent]:
        story = new_story(row.workflow_type, row.started_at, lead, hidden)
        told = [shown_event(entry, row.run_id, story, mode) for entry in sorted(found, key=lambda e: e.sequence)]
        return told[::-1] if descending else told

    return await server.api.slices.aside(make) if len(found) > LEAD else make()


def _filter(request: HttpRequest) -> EventFilter:
    text = request.query.get("text") or ""
    if len(text) > TEXT_MAX:
        raise invalid("text", f"text has {len(text)} characters; at most {TEXT_MAX} are searched for")
    return EventFilter(
        kinds=choices(request, "kind", KINDS),
        types=choices(request, "type", TYPES),
        step=number(request, "step", 0),
        text=text,
        payloads=not quiet(request),
    )


ROUTES = part("history", history, "history")
