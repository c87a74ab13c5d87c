"""Payloads in answers to callers that may not read them: replaced by a text that says so.

Encoded payloads are found by their first bytes, wherever they are; decoded ones by the names of their fields. Hidden are
arguments, results, memos, details, progress and stream items. Ids, names, times, search attributes, labels, reasons of
commands, and the types and messages of failures stay: without them nobody could tell what a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from backstay.protocol.redaction import FRAME
from backstay.server.http_errors import HttpError

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
"""Sentences about a heartbeat, which quote what it reported."""


def hidden(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same body without payloads, which says so. What is empty stays as it is."""
    return {**_hidden(body), "payloads_hidden": True}


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return HIDDEN if value.startswith(FRAME) else value
    if isinstance(value, bytes):
        return HIDDEN
    if isinstance(value, Mapping):
        held = cast("Mapping[str, Any]", value)
        names = NAMES | QUOTING if held.get("event_type") == "ActivityHeartbeatRecorded" else NAMES
        return {name: HIDDEN if name in names and part else _hidden(part) for name, part in held.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(part) for part in cast("list[Any]", value)]
    if isinstance(value, msgspec.Raw):
        return _hidden(msgspec.json.decode(value))
    if isinstance(value, msgspec.Struct):
        return _hidden(msgspec.to_builtins(value))
    return value


def no_payloads() -> HttpError:
    """The refusal of an answer that is sent as it was written, payloads included."""
    return HttpError(
        403,
        "payloads_not_readable",
        "this token reads no payloads, and this answer is not sent without them",
        remediation="Use a token that may read payloads: dw token create --role viewer",
    )
