"""Append items to a stream or end it, for callers and for the code of its run. A refused request appends nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from backstay.kernel.features import close
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.stream.records import (
    NAME_MAX,
    SEGMENT,
    TYPE,
    Stream,
    StreamClosed,
    StreamItem,
    StreamItemAppended,
    StreamKey,
    StreamOpened,
    StreamRolledOver,
    existing,
    of,
)
from backstay.kernel.limits import over_count
from backstay.kernel.message import Message, Refused
from backstay.kernel.turn import Turn

if TYPE_CHECKING:
    from backstay.kernel.features.stream.output import WriteToStream

ITEMS_CHANGED = "items"
"""The topic that readers wait for: the stream has more items, or has ended."""

BATCH = 500
"""The most items of one request."""

_NAME = re.compile(rf"[A-Za-z0-9._:-]{{1,{NAME_MAX}}}")


class Items(Struct, frozen=True, kw_only=True):
    """Items to append. `read`: how many items of the stream its readers have gone past, for `max_pending_items`."""

    items: list[StreamItem]
    max_pending_items: int | None = None
    read: int = 0


class AppendItems(Message, frozen=True, kw_only=True):
    to: StreamKey
    batch: Items


class FinishStream(Message, frozen=True, kw_only=True):
    """End a stream; with an `error_reason` it ends as errored."""

    to: StreamKey
    error_reason: str | None = None
    retention_seconds: int | None = None


class AppendReply(Struct, frozen=True, kw_only=True):
    """`offsets` has one for each item, in order; `accepted_offsets` only those of items that were new."""

    stream: Stream
    offsets: list[int]
    accepted_offsets: list[int]
    deduped: int


def check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise Refused(
            "invalid_stream_name",
            f"a stream name is 1 to {NAME_MAX} characters out of A-Z a-z 0-9 . _ : -, not {name[:200]!r}",
            field="stream_name",
        )


def check_items(items: Sequence[StreamItem]) -> None:
    if not 1 <= len(items) <= BATCH:
        raise Refused("invalid_stream_items", f"append 1 to {BATCH} items at a time, not {len(items)}", field="items")
    for position, item in enumerate(items):
        if item.payload is None and item.payload_reference is None:
            field = f"items[{position}].payload"
            raise Refused("invalid_stream_items", f"{field}: an item is a payload or a payload_reference", field=field)


def append(turn: Turn, message: AppendItems) -> None:
    check_name(message.to.stream_name)
    check_items(message.batch.items)
    limit = turn.features.limits.payload_size
    for position, item in enumerate(message.batch.items):
        breach = over_count("payload_size", len(item.payload or b""), limit)
        if breach is not None:
            raise Refused(
                "structural_limit_exceeded",
                breach.message,
                field=f"items[{position}].payload",
                limit_kind=breach.kind,
                current_value=breach.value,
                configured_limit=breach.configured,
            )
    stream = None if turn.instance.run is None else of(turn.instance.run)
    if stream is not None:
        refuse_closed(stream)
    refuse_full(stream, message.to.stream_name, message.batch)
    turn.reply = _append(turn, message.to, message.batch.items, "api", None)


def finish(turn: Turn, message: FinishStream) -> None:
    """End a stream. To end it again in the same way changes nothing."""
    check_name(message.to.stream_name)
    stream = None if turn.instance.run is None else of(turn.instance.run)
    if stream is not None and stream.status != "open":
        if stream.error_reason != message.error_reason:
            refuse_closed(stream)
    else:
        _finish(turn, message.to, message.error_reason, message.retention_seconds)
    turn.reply = _without_keys(existing(turn.run))


def receive_write(turn: Turn, delivery: Deliver) -> None:
    """Append items from the run's own code. It was checked when it was decided; it is dropped only if the stream has
    ended."""
    message: WriteToStream = delivery.send.message  # type: ignore[assignment]
    run = turn.instance.run
    if run is not None and not run.is_open:
        return
    if message.items:
        _append(turn, message.to, message.items, "workflow", message.command_identity)
    if message.finish:
        _finish(turn, message.to, message.error_reason, message.retention_seconds)


def refuse_closed(stream: Stream) -> None:
    if stream.status != "open":
        raise Refused(
            "stream_closed",
            f"stream {stream.stream_name!r} is {stream.status}; nothing can be appended to it any more",
            stream_name=stream.stream_name,
            stream_status=stream.status,
        )


def refuse_full(stream: Stream | None, name: str, batch: Items) -> None:
    """Refuse items if more than `max_pending_items` would then be unread."""
    if batch.max_pending_items is None:
        return
    keys = {} if stream is None else stream.keys
    total = 0 if stream is None else stream.total_items
    new = len([item for item in batch.items if item.idempotency_key not in keys])
    pending = total - min(batch.read, total)
    if new and pending + new > batch.max_pending_items:
        raise Refused(
            "stream_full",
            f"stream {name!r} has {pending} unread items; {new} more would exceed max_pending_items"
            f" ({batch.max_pending_items}). Try again after a reader has read some",
            stream_name=name,
            pending_items=pending,
            max_pending_items=batch.max_pending_items,
            retryable=True,
        )


def _append(turn: Turn, to: StreamKey, items: Sequence[StreamItem], origin: str, reference: str | None) -> AppendReply:
    stream = _opened(turn, to)
    offsets: list[int] = []
    accepted: list[int] = []
    for item in items:
        before = None if item.idempotency_key is None else stream.keys.get(item.idempotency_key)
        if before is None:
            stream = _with_room(turn, stream)
            before = stream.total_items
            accepted.append(before)
            turn.record(StreamItemAppended(**asdict(item), origin=origin, origin_reference=reference))
        offsets.append(before)
    if accepted:
        turn.notify(ITEMS_CHANGED, True)
    return AppendReply(
        stream=_without_keys(stream), offsets=offsets, accepted_offsets=accepted, deduped=len(items) - len(accepted)
    )


def _finish(turn: Turn, to: StreamKey, error_reason: str | None, retention_seconds: int | None) -> None:
    _opened(turn, to)
    status = "closed" if error_reason is None else "errored"
    turn.record(StreamClosed(status=status, error_reason=error_reason, retention_seconds=retention_seconds))
    turn.notify(ITEMS_CHANGED, True)
    close.closed(turn)


def _opened(turn: Turn, to: StreamKey) -> Stream:
    if turn.instance.run is None:
        turn.instance.workflow_type = TYPE
        turn.begin_run(turn.new_run())
        turn.record(StreamOpened(**asdict(to)))
    return existing(turn.run)


def _with_room(turn: Turn, stream: Stream) -> Stream:
    """Go on in a new run if the history is full, so that the cost of a stream does not grow with its length."""
    if stream.total_items - stream.first_offset < SEGMENT:
        return stream
    new = turn.new_run()
    turn.record(StreamRolledOver(continued_to_run_id=new.run_id))
    close.closed(turn)
    turn.begin_run(new)
    turn.record(
        StreamOpened(
            **asdict(stream.key),
            first_offset=stream.total_items,
            opened_at=stream.opened_at,
            last_appended_at=stream.last_appended_at,
            keys=stream.keys,
        )
    )
    return existing(turn.run)


def _without_keys(stream: Stream) -> Stream:
    """A copy for a reply, without the idempotency keys. The stream itself goes on changing."""
    return replace(stream, keys={})
