"""Output streams of a run: list, describe, read with a long poll, append, close."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.kernel.features.stream import StreamItem
from backstay.kernel.values import CODEC
from backstay.protocol import streams as ask
from backstay.protocol.history import iso
from backstay.protocol.payloads import envelope
from backstay.protocol.task_commands.streams import WireItem, WireItems
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import OPERATOR
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.published.worker.polls import parked_wait
from backstay.server.server import Server

MOST = 10**9


class AppendStreamBody(Struct, frozen=True, kw_only=True):
    items: WireItems
    max_pending_items: Annotated[int, Meta(ge=1)] | None = None


class CloseStreamBody(Struct, frozen=True, kw_only=True):
    error_reason: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    retention_seconds: Annotated[int, Meta(ge=1, le=MOST)] | None = None


class StreamAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    workflow_run_id: str
    stream_name: str
    status: str
    last_offset: Annotated[int | None, Meta(description="The offset of the last item; null: it has none.")]
    total_items: int
    pending_items: Annotated[int, Meta(description="Items that no reader has read yet.")]
    error_reason: str | None
    opened_at: str
    last_appended_at: str | None
    closed_at: str | None
    retention_seconds: Annotated[int | None, Meta(description="For how long its items are kept after its end.")]


class StreamItemAnswer(Struct, frozen=True, kw_only=True):
    offset: int
    payload: dict[str, Any] | None
    payload_codec: str
    payload_reference: str | None
    idempotency_key: str | None
    item_type: str | None
    content_type: str | None
    origin: str | None
    origin_reference: str | None
    emitted_at: str


class AboutStreamAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    workflow_run_id: str
    stream: StreamAnswer


class StreamsAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    workflow_run_id: str
    streams: list[StreamAnswer]


class StreamItemsAnswer(AboutStreamAnswer, frozen=True, kw_only=True):
    items: list[StreamItemAnswer]
    next_offset: Annotated[int, Meta(description="Where the next read begins.")]
    terminal: Annotated[bool, Meta(description="Whether the stream is closed and all of its items were read.")]


class AppendedAnswer(AboutStreamAnswer, frozen=True, kw_only=True):
    offsets: Annotated[list[int], Meta(description="The offsets of the items of the request, in its order.")]
    accepted_offsets: list[int]
    accepted: int
    deduped: Annotated[int, Meta(description="Items that the stream had already, by their idempotency keys.")]


async def listing(server: Server, request: HttpRequest) -> StreamsAnswer:
    """The streams of a run, by name."""
    workflow_id, run_id = request.params["workflow_id"], request.params["run_id"]
    found = await server.api.call(ask.ListStreams(workflow_id=workflow_id, run_id=run_id, namespace=request.namespace))
    return StreamsAnswer(workflow_id=workflow_id, workflow_run_id=run_id, streams=[shown(view) for view in found])


async def describe(server: Server, request: HttpRequest) -> AboutStreamAnswer:
    return AboutStreamAnswer(**_about(await server.api.call(ask.DescribeStream(**_to(request)))))


async def read(server: Server, request: HttpRequest) -> StreamItemsAnswer:
    """Items from an offset on; waits up to `wait_seconds` if there are none yet."""
    begin = request.integer("from", 0, 0, MOST)
    wait = request.integer("wait_seconds", 0, 0, ask.WAIT_MAX)
    read_request = ask.ReadStream(
        **_to(request),
        offset=begin,
        limit=request.integer("max_items", ask.PAGE, 1, ask.PAGE_MAX),
        wait_seconds=0 if server.draining else wait,
    )
    if read_request.wait_seconds:
        async with parked_wait(server, request):
            page = await _held(server, read_request)
    else:
        page = await server.api.call(read_request)
    return StreamItemsAnswer(
        **_about(page.view),
        items=[_item(item) for item in page.items],
        next_offset=page.next_offset,
        terminal=page.terminal,
    )


async def _held(server: Server, request: ask.ReadStream) -> ask.StreamPage:
    """Wait for items. A server that drains ends the wait at once."""
    reading = asyncio.ensure_future(server.api.call(request))

    def give_up() -> None:
        reading.cancel()

    server.waiting[reading] = give_up
    try:
        return await reading
    except asyncio.CancelledError:
        if not server.draining:
            raise
        return await server.api.call(replace(request, wait_seconds=0))
    finally:
        server.waiting.pop(reading, None)


async def append(server: Server, request: HttpRequest) -> AppendedAnswer:
    body = request.decode(AppendStreamBody)
    items = [_given(item, position) for position, item in enumerate(body.items)]
    done = await server.api.call(
        ask.AppendStream(**_to(request), items=items, max_pending_items=body.max_pending_items)
    )
    return AppendedAnswer(
        **_about(done.view),
        offsets=done.offsets,
        accepted_offsets=done.accepted_offsets,
        accepted=len(done.accepted_offsets),
        deduped=done.deduped,
    )


async def close(server: Server, request: HttpRequest) -> AboutStreamAnswer:
    """End a stream, well or with `error_reason`."""
    body = request.decode(CloseStreamBody)
    closed = await server.api.call(
        ask.CloseStream(**_to(request), error_reason=body.error_reason, retention_seconds=body.retention_seconds)
    )
    return AboutStreamAnswer(**_about(closed))


def _to(request: HttpRequest) -> dict[str, Any]:
    return {
        "workflow_id": request.params["workflow_id"],
        "run_id": request.params["run_id"],
        "stream_name": request.params["stream"],
        "namespace": request.namespace,
    }


def _given(item: WireItem, position: int) -> StreamItem:
    return item.item(f"items[{position}]")


def _about(view: ask.StreamView) -> dict[str, Any]:
    return {"workflow_id": view.workflow_id, "workflow_run_id": view.run_id, "stream": shown(view)}


def shown(view: ask.StreamView) -> StreamAnswer:
    stream = view.stream
    return StreamAnswer(
        workflow_id=view.workflow_id,
        workflow_run_id=view.run_id,
        stream_name=stream.stream_name,
        status=stream.status,
        last_offset=stream.total_items - 1 if stream.total_items else None,
        total_items=stream.total_items,
        pending_items=view.pending_items,
        error_reason=stream.error_reason,
        opened_at=iso(stream.opened_at),
        last_appended_at=optional_iso(stream.last_appended_at),
        closed_at=optional_iso(stream.closed_at),
        retention_seconds=stream.retention_seconds,
    )


def _item(item: ask.StoredItem) -> StreamItemAnswer:
    return StreamItemAnswer(
        offset=item.offset,
        payload=envelope(item.payload),
        payload_codec=CODEC,
        payload_reference=item.payload_reference,
        idempotency_key=item.idempotency_key,
        item_type=item.item_type,
        content_type=item.content_type,
        origin=item.origin,
        origin_reference=item.origin_reference,
        emitted_at=iso(item.at),
    )


_ALL = "/api/workflows/{workflow_id}/runs/{run_id}/streams"
_ONE = f"{_ALL}/{{stream}}"

ROUTES = [
    Route("GET", _ALL, listing, "control", OPERATOR),
    Route("GET", _ONE, describe, "control", OPERATOR),
    Route("GET", f"{_ONE}/items", read, "control", OPERATOR),
    Route("POST", f"{_ONE}/items", append, "control", OPERATOR, body=AppendStreamBody),
    Route("POST", f"{_ONE}/close", close, "control", OPERATOR, body=CloseStreamBody),
]
