"""Reading an export back: the history of a run from the file alone.

An export says nothing of a clock that was set back, and nothing of a task whose row was gone. Everything else comes back as it was
recorded, so the code of a run replays on it as it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast, get_args, get_type_hints

import msgspec

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.kernel.event import Context, Event, Recorded, encode_context, record
from backstay.kernel.features.message_stream import SIGNAL, MessageCursorCarried, MessageReceived
from backstay.kernel.values import Micros
from backstay.protocol.history import MESSAGE, MESSAGE_CURSOR

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnreadableEvent(ValueError):
    """An event of an export that cannot be read."""


def read_events(events: Iterable[dict[str, Any]], kinds: dict[str, type[Event]], run: int = 0) -> Iterator[Recorded]:
    """The events of an export as a history of the run with this key."""
    checksum = 0
    for place, wire in enumerate(events, 1):
        try:
            name = wire.get("type") or wire["event_type"]
            event, context = _event(wire, kinds[name]), _context(wire)
            at = micros(wire["recorded_at"])
        except (LookupError, AttributeError, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise UnreadableEvent(f"event {place} cannot be read: {error!r}") from error
        entry = record(run, wire["sequence"], at, event, context, encode_context(context), checksum)
        checksum = entry.checksum
        yield entry


def micros(text: str) -> Micros:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


@cache
def _moments(kind: type[Event]) -> list[str]:
    """The fields that are points in time."""
    hints = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if Micros in (hint, *get_args(hint))]


def _event(wire: dict[str, Any], kind: type[Event]) -> Event:
    payload = dict(wire["payload"])
    if payload.get("signal_name") == SIGNAL:
        message = _message(payload)
        if message is not None:
            return message
    for name in _moments(kind):
        if name in payload:
            payload[name] = micros(payload[name])
    for name in ("entries", "merged"):
        if isinstance(payload.get(name), dict) and "blob" in payload[name]:
            payload[name] = _map(payload[name]["blob"])
    for holder in (payload, payload.get("activity")):
        if holder and isinstance(holder.get("retry_policy"), dict):
            holder["retry_policy"].setdefault("max_attempts", None)  # absent: it has no end
    return msgspec.convert(payload, kind, strict=False)


def _map(blob: str) -> dict[str, bytes | None]:
    plain = cast(dict[str, Any], avro.decode(avro.from_text(blob)))
    return {key: None if value is None else avro.encode(value) for key, value in plain.items()}


def _message(payload: dict[str, Any]) -> Event | None:
    """The message of a message stream, which is a signal on the wire; None if it is one in truth."""
    try:
        (told,) = cast(list[dict[str, Any]], avro.decode(avro.from_text(payload["arguments"])))
        if told.get("schema") == MESSAGE_CURSOR:
            return MessageCursorCarried(stream_name=told["stream_name"], through_position=told["through_position"])
        if told.get("schema") == MESSAGE:
            return MessageReceived(
                workflow_command_id=payload["workflow_command_id"],
                signal_id=payload["signal_id"],
                stream_name=told["stream_name"],
                message_id=told["message_id"],
                position=told["position"],
                payload=avro.from_text(told["payload_envelope"]["blob"]),
            )
    except (PayloadError, KeyError, TypeError, ValueError):
        pass
    return None


def _context(wire: dict[str, Any]) -> Context:
    payload: dict[str, Any] = wire["payload"]
    task: dict[str, Any] = payload.get("task", {})
    command: dict[str, Any] = payload.get("command", {})
    if "source" not in command:
        command = {}  # for operators, to name the command that an event goes back to
    times = {name: micros(task[name]) for name in ("leased_at", "lease_expires_at") if name in task}
    return Context(
        decided_after=wire.get("decided_after"),
        task_id=task.get("id"),
        attempt=task.get("attempt_count"),
        owner=task.get("lease_owner"),
        command_id=command.get("id"),
        command_sequence=command.get("sequence"),
        source=command.get("source"),
        **times,
    )
