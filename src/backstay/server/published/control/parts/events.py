"""One event of a run, with its payloads as exact text, its words, and what caused it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from msgspec import Meta

from backstay.codec.errors import PayloadError
from backstay.kernel.decision import RunRow
from backstay.protocol.shown_events import blob_of, new_story, single_event
from backstay.protocol.shown_payloads import payload_text
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    checked_number,
    choice,
    part,
    quiet,
    selected_run,
    unknown,
)
from backstay.server.server import Server

LEAD = 100  # events before it that its words need
INLINE = 32 << 10  # bytes of an event that is decoded at once, without a thread
PART = 64 << 10


class EventAnswer(PartAnswer, frozen=True, kw_only=True):
    event: Annotated[dict[str, Any], Meta(description="Its facts, words and cause; payloads as text.")]


async def event(server: Server, request: HttpRequest) -> EventAnswer | HttpResponse:
    """One event of a run with its payloads decoded; `download` names a payload to be sent whole."""
    check_parameters(request, "download", "form")
    row = await selected_run(server, request)
    sequence = checked_number("n", request.params["n"])
    lead = min(LEAD, max(sequence - 1, 0))
    events = await server.api.stored.history(row.key, sequence - 1 - lead, lead + 1) if sequence else []
    if not events or events[-1].sequence != sequence:
        raise await no_such_event(server, row, sequence)
    *before, entry = events
    field = request.query.get("download")
    if field:
        return await _download(server, request, row, sequence, field)

    def make() -> dict[str, Any]:
        story = new_story(row.workflow_type, row.started_at, before, quiet(request))
        return single_event(entry, row.run_id, story, quiet(request))

    made = await server.api.slices.aside(make) if len(entry.body) > INLINE else make()
    return EventAnswer(**about_run(row), event=made)


async def no_such_event(server: Server, row: RunRow, sequence: int) -> HttpError:
    last = await server.api.stored.last_event(row.key)
    end = 0 if last is None else last.sequence
    message = f"run {row.run_id} has no event {sequence}; its events are numbered from 1 to {end}"
    return HttpError(404, "event_not_found", message, **about_run(row), sequence=sequence, last_sequence=end)


async def _download(server: Server, request: HttpRequest, row: RunRow, sequence: int, field: str) -> HttpResponse:
    """A payload of an event: the whole of its text, or the bytes that are stored."""
    form = choice(request, "form", ("text", "blob"), "text")
    (entry,) = await server.api.stored.history(row.key, sequence - 1, 1)
    blob = blob_of(entry, row.run_id, field)
    if blob is None:
        known = single_event(entry, row.run_id, new_story(row.workflow_type, row.started_at), quiet=True)
        unknown("payload field", "download", field, known["payload_fields"], "unknown_field")
    if form == "text":
        try:
            text = await server.api.slices.aside(lambda: payload_text(blob).encode())
            return HttpResponse({}, parts=_sent(text), content_type="application/json")
        except PayloadError:
            pass  # a payload that cannot be decoded is sent as it is stored
    return HttpResponse({}, parts=_sent(blob), content_type="application/octet-stream")


async def _sent(content: bytes) -> AsyncGenerator[bytes]:
    for at in range(0, len(content), PART):
        yield content[at : at + PART]


ROUTES = part("events/{n}", event)
