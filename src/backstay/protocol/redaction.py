"""Redaction of exports: a policy may replace the payloads of a run before the file is sent.

A *redactor* is called with every payload and every text that may quote one (messages, traces, reasons, contexts), one by
one, with its path. Its return value replaces the text. An exception ends the export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

from backstay.codec import avro

Redactor: TypeAlias = Callable[[Any, dict[str, Any]], Any]

FRAME = avro.to_text(avro.encode(None)[:9])
"""The first bytes of every payload, which no other text has by accident."""

_PREVIEW = "payload_preview"
_QUOTING = frozenset({_PREVIEW, "message", "reason", "last_error", "stack_trace", "caller_label", "file"})
_ALL_OF_IT = frozenset(
    {"exception", "diagnostics", "trace", "context", "progress", "last_heartbeat_progress", "validation_errors"}
)


class RedactionFailed(ValueError):
    """The redaction policy failed, so nothing is exported."""


class PayloadField(NamedTuple):
    """A text in a bundle, and its path."""

    path: str
    holder: Any
    key: Any
    is_payload: bool


def payloads(content: dict[str, Any]) -> list[PayloadField]:
    return [leaf for leaf in _leaves(content, "", False) if leaf.is_payload]


def redacted(leaf: PayloadField, redactor: Redactor, about: dict[str, Any]) -> Any:
    """The replacement of a text by the policy."""
    payload = leaf.is_payload or leaf.key == _PREVIEW  # a preview is a payload in words
    context = about | {"path": leaf.path, "category": "payload" if payload else "diagnostic"}
    try:
        return redactor(leaf.holder[leaf.key], context)
    except Exception as error:
        raise RedactionFailed(f"the redactor failed at {leaf.path}: {error}") from error


def leaves(value: Any, path: str) -> Iterator[PayloadField]:
    """Payloads, and texts that may quote one, in the order in which they stand in a value at this path."""
    return _leaves(value, path, False)


def _leaves(value: Any, path: str, quoting: bool) -> Iterator[PayloadField]:
    """Payloads, and texts that may quote one, in order."""
    items: list[tuple[Any, Any, str, bool]]
    if isinstance(value, dict):
        held = cast(dict[str, Any], value)
        items = [
            (name, part, f"{path}.{name}" if path else name, quoting or name in _ALL_OF_IT)
            for name, part in held.items()
        ]
    elif isinstance(value, list):
        listed = cast(list[Any], value)
        items = [(place, part, f"{path}[{place}]", quoting) for place, part in enumerate(listed)]
    else:
        return
    for key, part, where, inside in items:
        if isinstance(part, str):
            if part.startswith(FRAME):
                yield PayloadField(where, value, key, True)
            elif part and (inside or key in _QUOTING):
                yield PayloadField(where, value, key, False)
        else:
            yield from _leaves(part, where, inside)
