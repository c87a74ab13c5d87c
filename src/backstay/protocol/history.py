"""Events as they cross the wire: literal names, ISO times, base64 payloads; and compressed histories.

The compact context of an event is written out as the snapshots that the contract names.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Struct

from backstay.codec import avro
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.message_stream import SIGNAL, MessageCursorCarried, MessageReceived
from backstay.kernel.features.signal import SignalApplied, SignalReceived
from backstay.kernel.features.update import UpdateAccepted
from backstay.kernel.spans import iso as iso
from backstay.kernel.values import CODEC, Micros, event_id
from backstay.protocol.payloads import preview

Encoding = Literal["gzip", "deflate"]
COMPRESS_ABOVE = 50
MESSAGE = "durable-workflow.v2.message-stream.message"
MESSAGE_CURSOR = "durable-workflow.v2.message-stream.cursor"

_times: dict[type[Struct], frozenset[str]] = {}


def to_wire(entry: Recorded, run_id: str) -> dict[str, Any]:
    """One history event as a worker or an export sees it."""
    event = entry.event
    kind = entry.type
    if isinstance(event, MessageReceived | MessageCursorCarried):
        event, kind = _as_signal(event), "SignalReceived"
    # Every field by name: defaults, which storage leaves out, are sent.
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    payload: dict[str, Any] = {
        name: _spelled_out(value) for name, value in fields.items() if value is not None and value != {}
    }
    if not payload.get("workflow_command_id", True):
        del payload["workflow_command_id"]  # no command caused it
    for name in time_fields(type(event)) & payload.keys():
        payload[name] = iso(payload[name])
    path = payload.pop("parallel_group_path", None)
    if path:  # the innermost group is also sent flat
        payload |= path[-1] | {"parallel_group_path": path}
    exception = fields.get("exception")
    if isinstance(exception, Failure):
        # Other languages read the short names.
        payload["exception"] |= {"type": exception.exception_type, "class": exception.exception_class}
    if isinstance(event, MemoUpserted):
        payload["entries"], payload["merged"] = _map(event.entries), _map(event.merged)
    context = entry.context
    if context.task_id is not None:
        payload["task"] = {
            key: value
            for key, value in {
                "id": context.task_id,
                "attempt_count": context.attempt,
                "lease_owner": context.owner,
                "leased_at": None if context.leased_at is None else iso(context.leased_at),
                "lease_expires_at": None if context.lease_expires_at is None else iso(context.lease_expires_at),
            }.items()
            if value is not None
        }
    if context.command_id is not None:
        payload["command"] = {
            "id": context.command_id,
            "sequence": context.command_sequence,
            "source": context.source,
        }
    wire: dict[str, Any] = {
        "id": event_id(run_id, entry.sequence),
        "sequence": entry.sequence,
        "event_type": kind,
        "payload": payload,
        "recorded_at": iso(entry.at),
        "workflow_task_id": context.task_id,
        "workflow_command_id": payload.get("workflow_command_id") or context.command_id,
    }
    if context.decided_after is not None:
        wire["decided_after"] = context.decided_after
    return wire


def operator_event(entry: Recorded, run_id: str) -> dict[str, Any]:
    """One history event for operators: with the target of its command and a preview of its payload."""
    wire = to_wire(entry, run_id)
    match entry.event:
        case SignalReceived(signal_name=target, arguments=said) | UpdateAccepted(update_name=target, arguments=said):
            pass
        case SignalApplied(signal_name=target, value=said):
            pass
        case _:
            return wire
    payload: dict[str, Any] = wire["payload"]
    command: dict[str, Any] = payload.get("command") or {"id": wire["workflow_command_id"]}
    quoted = {} if said is None else {"payload_preview": preview(said)}
    payload["command"] = command | {"target_name": target} | quoted
    return wire


def _as_signal(event: MessageReceived | MessageCursorCarried) -> SignalReceived:
    """A stream message, or the cursor of an earlier run, as workers get it: a signal of a fixed name."""
    told: dict[str, Any] = {"schema": MESSAGE_CURSOR, "stream_name": event.stream_name}
    if isinstance(event, MessageCursorCarried):
        told["through_position"] = event.through_position
        id, command = f"message-cursor:{event.stream_name}", ""
    else:
        payload = avro.encode([]) if event.payload is None else event.payload
        told |= {
            "schema": MESSAGE,
            "message_id": event.message_id,
            "position": event.position,
            "payload_envelope": {"codec": CODEC, "blob": avro.to_text(payload)},
        }
        id, command = event.signal_id, event.workflow_command_id
    return SignalReceived(
        workflow_command_id=command,
        signal_id=id,
        signal_name=SIGNAL,
        signal_wait_id=f"signal-command:{command or id}",
        arguments=avro.encode([told]),
    )


def _spelled_out(value: Any) -> Any:
    """Plain values. Fields of nested structs that storage leaves out because they have the default are written here."""
    if not isinstance(value, Struct):
        return msgspec.to_builtins(value)
    parts = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: _spelled_out(part) for name, part in parts.items() if part is not None}


def _map(values: Mapping[str, bytes | None]) -> dict[str, str]:
    """Payloads by name as one payload: the wire has a memo as the envelope of a map."""
    plain = {key: None if blob is None else avro.decode(blob) for key, blob in values.items()}
    return {"codec": CODEC, "blob": avro.to_text(avro.encode(plain))}


def compress(events: list[dict[str, Any]], encoding: Encoding) -> str:
    """A history array, compressed and in base64."""
    plain = msgspec.json.encode(events)
    packed = gzip.compress(plain, mtime=0) if encoding == "gzip" else zlib.compress(plain)
    return base64.b64encode(packed).decode("ascii")


def decompress(text: str, encoding: Encoding) -> list[dict[str, Any]]:
    packed = base64.b64decode(text, validate=True)
    plain = gzip.decompress(packed) if encoding == "gzip" else zlib.decompress(packed)
    return msgspec.json.decode(plain, type=list[dict[str, Any]])


def time_fields(kind: type[Struct]) -> frozenset[str]:
    """The fields of an event or a view that hold points in time."""
    found = _times.get(kind)
    if found is None:
        hints = get_type_hints(kind, include_extras=True)
        found = _times[kind] = frozenset(name for name, hint in hints.items() if Micros in (hint, *get_args(hint)))
    return found
