"""Reading an export back: from the file alone, as somebody would who has nothing else of a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from backstay.codec import avro
from backstay.kernel.event import Context, Event, Recorded, encode_context, record
from backstay.kernel.values import Micros
from backstay.protocol.export import canonical

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotWhole(Exception):
    """The file is not what was exported."""


def read(text: bytes, kinds: dict[str, type[Event]]) -> list[Recorded]:
    """The history in a bundle, if its checksum holds."""
    bundle: dict[str, Any] = json.loads(text)
    integrity = bundle.pop("integrity")
    if sha256(canonical(bundle)).hexdigest() != integrity["checksum"]:
        raise NotWhole
    found: list[Recorded] = []
    checksum = 0
    for wire in bundle["history_events"]:
        event, context = _event(wire, kinds[wire["type"]]), _context(wire)
        entry = record(
            0, wire["sequence"], micros(wire["recorded_at"]), event, context, encode_context(context), checksum
        )
        checksum = entry.checksum
        found.append(entry)
    return found


def said(context: Context) -> Context:
    """What of a context an export says: nothing of a clock that went back, and nothing of a task whose row was gone."""
    told = replace(context, clock_skew=None)
    return told if told.task_id is not None else replace(told, attempt=None, owner=None)


def micros(text: str) -> Micros:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


@cache
def _moments(kind: type[Event]) -> list[str]:
    """The fields that are points in time."""
    hints = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if Micros in (hint, *get_args(hint))]


def _event(wire: dict[str, Any], kind: type[Event]) -> Event:
    payload = dict(wire["payload"])
    for name in _moments(kind):
        if name in payload:
            payload[name] = micros(payload[name])
    for name in ("entries", "merged"):
        if isinstance(payload.get(name), dict) and "blob" in payload[name]:
            plain = avro.decode(avro.from_text(payload[name]["blob"]))
            assert isinstance(plain, dict)
            payload[name] = {key: None if value is None else avro.encode(value) for key, value in plain.items()}
    for holder in (payload, payload.get("activity")):
        if holder and isinstance(holder.get("retry_policy"), dict):
            holder["retry_policy"].setdefault("max_attempts", None)  # not said: there is no end to it
    return msgspec.convert(payload, kind, strict=False)


def _context(wire: dict[str, Any]) -> Context:
    task, command = wire["payload"].get("task", {}), wire["payload"].get("command", {})
    if "source" not in command:
        command = {}  # explained to operators, who are told which command an event goes back to
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
