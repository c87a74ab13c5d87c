"""Payloads as operators read them: the exact text of the encoded value, or the reason why it cannot be decoded.

A number is text here, because a browser would round those above 2^53. A large payload is shown by its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast, get_type_hints

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.kernel.views.timeline import WORDS
from backstay.protocol.payloads import is_envelope, plain_value
from backstay.protocol.redaction import FRAME

PayloadMode = Literal["blob", "text", "none"]
"""How payloads are shown: as they are stored, as text, or not at all."""

WHOLE = 20 << 10  # characters of one payload that are shown of a single event
BRIEF = 2 << 10  # the same in a list
DECODED = 16 << 20  # bytes of the largest payload that is decoded at all


class PayloadPlace(NamedTuple):
    """A payload in the JSON of an event: its path in words, and where it stands."""

    path: str
    holder: Any
    key: Any
    text: str  # base64


PATHS = frozenset(
    name for kind in WORDS for name, hint in get_type_hints(kind).items() if hint in (bytes, bytes | None)
) | {"activity.arguments"}
"""The places in an event that hold a payload, whatever they begin with."""


def payload_places(value: Any, path: str = "") -> Iterator[PayloadPlace]:
    """Every payload in the JSON of an event, in order."""
    if isinstance(value, dict):
        items: list[tuple[Any, Any, str]] = [
            (name, part, f"{path}.{name}" if path else name) for name, part in cast(dict[str, Any], value).items()
        ]
    elif isinstance(value, list):
        items = [(place, part, f"{path}[{place}]") for place, part in enumerate(cast(list[Any], value))]
    else:
        return
    for key, part, where in items:
        if isinstance(part, str):
            if part.startswith(FRAME) or where in PATHS:
                yield PayloadPlace(where, value, key, part)
        elif part is not None:
            yield from payload_places(part, where)


def shown_payload(text: str, most: int) -> dict[str, Any]:
    """A payload as text, at most so many characters of it; or why it cannot be decoded."""
    try:
        blob = avro.from_text(text)
    except PayloadError as error:
        return _undecoded(len(text), error.reason, error.problem)
    if len(blob) > DECODED:
        return _undecoded(len(blob), "payload_too_large", f"more than {DECODED} bytes are not decoded; download it")
    try:
        said = payload_text(blob)
    except PayloadError as error:
        return _undecoded(len(blob), error.reason, error.problem)
    return {
        "bytes": len(blob),
        "decoded": True,
        "text": said[:most],
        "characters": len(said),
        "truncated": len(said) > most,
    }


def _undecoded(size: int, reason: str, message: str) -> dict[str, Any]:
    return {"bytes": size, "decoded": False, "reason": reason, "message": message, "text": None}


def payload_text(blob: bytes) -> str:
    """The JSON of a payload, with every number exactly as it was encoded."""
    try:
        return json.dumps(plain_value(avro.decode(blob)), ensure_ascii=False)
    except RecursionError:
        raise PayloadError("nesting_too_deep", "it is nested too deeply to be shown") from None


def show_payloads(wire: dict[str, Any], mode: PayloadMode, most: int) -> None:
    """Replace the payloads in the JSON of an event in place."""
    if mode == "blob":
        return
    for place in list(payload_places(wire)):
        place.holder[place.key] = None if mode == "none" else shown_payload(place.text, most)
    if mode == "none":
        command = wire.get("command")
        if isinstance(command, dict):
            cast(dict[str, Any], command).pop("payload_preview", None)


def show_envelopes(shown: dict[str, Any], mode: PayloadMode, most: int = BRIEF) -> dict[str, Any]:
    """The JSON of a view with its payloads, which are envelopes there, as text or as null."""
    if mode == "blob":
        return shown
    return {name: _opened(value, mode, most) for name, value in shown.items()}


def _opened(value: Any, mode: PayloadMode, most: int) -> Any:
    if is_envelope(value):
        return None if mode == "none" else shown_payload(cast(dict[str, str], value)["blob"], most)
    if isinstance(value, dict):
        return {name: _opened(part, mode, most) for name, part in cast(dict[str, Any], value).items()}
    return value
