"""Requests to the output streams of a run. An appended item is on disk when its request is answered."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from backstay.kernel.features.stream import Stream, StreamItem
from backstay.kernel.values import Micros
from backstay.protocol.requests import Request

R = TypeVar("R")

PAGE = 100
PAGE_MAX = 500
WAIT_MAX = 60


class ToStream(Request[R], frozen=True, kw_only=True):
    """A request to a stream of a run; without `run_id`, of the current one."""

    workflow_id: str
    stream_name: str
    run_id: str | None = None
    namespace: str = "default"


class StreamView(Struct, frozen=True, kw_only=True):
    """A stream as readers see it: it ends with its run, even if it was not closed.

    `pending_items`: items that no reader has passed. A reader has passed the items before the offset it reads from.
    """

    workflow_id: str
    run_id: str
    stream: Stream
    pending_items: int

    @property
    def terminal(self) -> bool:
        return self.stream.status != "open"


class StreamAppended(Struct, frozen=True, kw_only=True):
    view: StreamView
    offsets: list[int]
    accepted_offsets: list[int]
    deduped: int


class AppendStream(ToStream[StreamAppended], frozen=True, kw_only=True):
    items: list[StreamItem]
    max_pending_items: int | None = None


class CloseStream(ToStream[StreamView], frozen=True, kw_only=True):
    error_reason: str | None = None
    retention_seconds: int | None = None


class DescribeStream(ToStream[StreamView], frozen=True, kw_only=True):
    pass


class ListStreams(Request[list[StreamView]], frozen=True, kw_only=True):
    workflow_id: str
    run_id: str | None = None
    namespace: str = "default"


class StoredItem(Struct, frozen=True, kw_only=True):
    """An item with its offset."""

    offset: int
    at: Micros
    payload: bytes | None = None
    payload_reference: str | None = None
    idempotency_key: str | None = None
    item_type: str | None = None
    content_type: str | None = None
    origin: str | None = None
    origin_reference: str | None = None


class StreamPage(Struct, frozen=True, kw_only=True):
    """A page of items. `terminal`: no item follows, now or later."""

    view: StreamView
    items: list[StoredItem]
    next_offset: int
    terminal: bool


class ReadStream(ToStream[StreamPage], frozen=True, kw_only=True):
    """Items from an offset on; if there are none yet, the first ones that come within `wait_seconds`."""

    offset: int = 0
    limit: int = PAGE
    wait_seconds: float = 0
