"""Payloads in answers to callers that may not read them: replaced by a text that says so.

Encoded payloads are found by their first bytes, wherever they are; decoded ones by the names of their fields. Hidden are
arguments, results, memos, details, progress and stream items. Ids, names, times, search attributes, labels, reasons of
commands, and the types and messages of failures stay: without them the state of a run could not be understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from backstay.protocol.redaction import FRAME
from backstay.protocol.wire_fields import wire_fields

HIDDEN = "[hidden: this token reads no payloads]"

NAMES = frozenset(
    {
        "arguments",
        "details",
        "entries",
        "input",
        "input_envelope",
        "last_heartbeat_progress",
        "memo",
        "merged",
        "output",
        "output_envelope",
        "payload_preview",
        "progress",
        "result",
        "result_envelope",
        "value",
    }
)
"""Fields that hold a payload, encoded or not."""

QUOTING = frozenset({"words", "summary", "label"})
"""Sentences about a heartbeat, which quote its report."""


def hide(value: Any) -> Any:
    """The same without payloads. Empty values stay."""
    if isinstance(value, str):
        return HIDDEN if value.startswith(FRAME) else value
    if isinstance(value, bytes):
        return HIDDEN
    if isinstance(value, Mapping):
        held = cast("Mapping[str, Any]", value)
        names = NAMES | QUOTING if held.get("event_type") == "ActivityHeartbeatRecorded" else NAMES
        return {name: HIDDEN if name in names and part else hide(part) for name, part in held.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [hide(part) for part in cast("list[Any]", value)]
    if isinstance(value, msgspec.Raw):
        return hide(msgspec.json.decode(value))
    if isinstance(value, msgspec.Struct):
        return hide(wire_fields(value))
    return value
