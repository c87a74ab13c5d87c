"""Events and state of a stream. Its history is cut into runs of `SEGMENT` items each, so an offset says where its item
is.

The state has the data for an append: the number of items, and the idempotency keys of the last `REMEMBERED` of them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from backstay.kernel.event import Event, Recorded
from backstay.kernel.features import close
from backstay.kernel.features.start import Identity
from backstay.kernel.state import Run
from backstay.kernel.values import CODEC, MAX_ID, Micros

SEGMENT = 1000
REMEMBERED = 1000
TYPE = "backstay.stream"
NAME_MAX = 128

Status = Literal["open", "closed", "errored"]


class StreamKey(Struct, frozen=True, kw_only=True):
    """The run and name of a stream."""

    stream_name: str
    workflow_instance_id: str
    workflow_run_id: str

    @property
    def id(self) -> str:
        """The workflow id of the instance of the stream."""
        id = f"{self.workflow_run_id}:{self.stream_name}"
        assert len(id) <= MAX_ID, "names are short enough"
        return id


class StreamItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item: a payload, or a reference to one that is kept elsewhere."""

    payload: bytes | None = None
    payload_reference: str | None = None
    idempotency_key: str | None = None
    item_type: str | None = None
    content_type: str | None = None


class StreamOpened(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A stream begins, or goes on in a new run from `first_offset`."""

    stream_name: str
    workflow_instance_id: str
    workflow_run_id: str
    first_offset: int = 0
    opened_at: Micros | None = None
    last_appended_at: Micros | None = None
    keys: dict[str, int] = {}


class StreamItemAppended(Event, frozen=True, kw_only=True, omit_defaults=True):
    payload: bytes | None = None
    payload_codec: str = CODEC
    payload_reference: str | None = None
    idempotency_key: str | None = None
    item_type: str | None = None
    content_type: str | None = None
    origin: str | None = None
    origin_reference: str | None = None


class StreamRolledOver(Event, frozen=True, kw_only=True, omit_defaults=True):
    continued_to_run_id: str


class StreamClosed(Event, frozen=True, kw_only=True, omit_defaults=True):
    status: Status
    error_reason: str | None = None
    retention_seconds: int | None = None


class Stream(Struct, kw_only=True):
    """A stream as it is now."""

    stream_name: str
    workflow_instance_id: str
    workflow_run_id: str
    status: Status = "open"
    total_items: int = 0
    error_reason: str | None = None
    opened_at: Micros
    last_appended_at: Micros | None = None
    closed_at: Micros | None = None
    retention_seconds: int | None = None
    first_offset: int = 0  # of this part of its history
    keys: dict[str, int] = {}  # idempotency key -> offset, oldest first

    @property
    def key(self) -> StreamKey:
        return StreamKey(
            stream_name=self.stream_name,
            workflow_instance_id=self.workflow_instance_id,
            workflow_run_id=self.workflow_run_id,
        )


class StreamState:
    __slots__ = ("stream",)

    def __init__(self) -> None:
        self.stream: Stream | None = None


def of(run: Run) -> Stream | None:
    part = run.parts.get(StreamState)
    return None if part is None else part.stream


def existing(run: Run) -> Stream:
    stream = of(run)
    assert stream is not None, "a stream's history begins with its opening"
    return stream


def opened(run: Run, event: StreamOpened, entry: Recorded) -> None:
    at = entry.at if event.opened_at is None else event.opened_at
    run.started_at = at
    run.status = "open"
    run.workflow_type = TYPE
    run.part(Identity).business_key = event.workflow_run_id  # by which the streams of a run are found
    run.part(StreamState).stream = Stream(
        stream_name=event.stream_name,
        workflow_instance_id=event.workflow_instance_id,
        workflow_run_id=event.workflow_run_id,
        total_items=event.first_offset,
        opened_at=at,
        last_appended_at=event.last_appended_at,
        first_offset=event.first_offset,
        keys=dict(event.keys),
    )


def appended(run: Run, event: StreamItemAppended, entry: Recorded) -> None:
    stream = existing(run)
    if event.idempotency_key is not None:
        stream.keys[event.idempotency_key] = stream.total_items
    stream.total_items += 1
    stream.last_appended_at = entry.at
    while stream.keys and next(iter(stream.keys.values())) < stream.total_items - REMEMBERED:
        del stream.keys[next(iter(stream.keys))]


def rolled_over(run: Run, event: StreamRolledOver, entry: Recorded) -> None:
    close.shut(run, entry, "open", "continued")


def closed(run: Run, event: StreamClosed, entry: Recorded) -> None:
    stream = existing(run)
    stream.status = event.status
    stream.error_reason = event.error_reason
    stream.retention_seconds = event.retention_seconds
    stream.closed_at = entry.at
    close.shut(run, entry, event.status if event.retention_seconds is None else "expiring", event.status)


def waits_externally(run: Run) -> bool:
    """An open stream waits for its next item."""
    return of(run) is not None
