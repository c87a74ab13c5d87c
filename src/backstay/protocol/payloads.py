"""Payloads as they cross the wire: `{codec, blob}`, the blob in base64 and kept verbatim.

An unknown codec is an error. A value without an envelope, as people and simple tools send it, is
encoded here; whether a string is a value or a bare blob is the field's own business.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.codec.values import dumps
from backstay.kernel.message import Refused
from backstay.kernel.values import CODEC

_FRAME = avro.encode(None)[:10]
_EXTERNAL = ("external_payload", "external_storage")
PREVIEW = 200  # characters of a payload that are shown
PREVIEWED = 64 * 1024  # bytes of a payload that are read to show them


def envelope(blob: bytes | None) -> dict[str, str] | None:
    return None if blob is None else {"codec": CODEC, "blob": avro.to_text(blob)}


def is_envelope(value: object) -> bool:
    """A map of exactly `codec` and `blob`, or one that points outside."""
    return (
        isinstance(value, dict)
        and "codec" in value
        and len(cast(dict[str, Any], value)) == 2
        and ("blob" in value or any(name in value for name in _EXTERNAL))
    )


def payload(value: Any, field: str) -> bytes | None:
    """The blob of an envelope, or of a plain JSON value."""
    if is_envelope(value):
        return _opened(value, field)
    try:
        return None if value is None else dumps(value)
    except PayloadError as error:
        raise Refused("invalid_payload", f"{field} cannot be encoded: {error}", field=field) from None


def arguments(value: Any, field: str) -> bytes | None:
    """Call arguments: an envelope, or a JSON array of positional ones. Undecodable ones are refused here."""
    if value is None or is_envelope(value):
        found = payload(value, field)
        _check_readable(found, field)
        return found
    if not isinstance(value, list):
        raise Refused(
            "invalid_payload",
            f"{field} must be a JSON array of the arguments, or {{codec, blob}}, not {_kind(value)}",
            field=field,
        )
    return payload(value, field)


def bare_blob(value: Any, field: str) -> bytes | None:
    """A field whose strings are blobs in base64."""
    return blob(value, field) if isinstance(value, str) else payload(value, field)


def blob(text: str, field: str) -> bytes:
    """A payload of our codec, taken byte for byte without decoding it."""
    try:
        raw = avro.from_text(text)
    except PayloadError as error:
        raise Refused(error.reason, f"{field}: {error.problem}", field=field) from None
    if raw[:2] != _FRAME[:2]:
        raise Refused(
            "invalid_payload_framing",
            f"{field} does not begin like an Avro payload (C3 01); encode it with the published schema",
            field=field,
        )
    if raw[:10] != _FRAME:
        raise Refused(
            "unsupported_payload_schema",
            f"{field} has the schema fingerprint {raw[2:10].hex()}, known is {_FRAME[2:10].hex()}",
            field=field,
        )
    return raw


def decoded(value: bytes | None) -> Any:
    """The plain value of a payload, for people. One that cannot be decoded says so: it is shown as it is stored, and why."""
    try:
        return None if value is None else plain_value(avro.decode(value))
    except PayloadError as error:
        return undecodable(value, str(error))


def undecodable(value: bytes | None, reason: str) -> dict[str, Any]:
    """The text for a payload that cannot be decoded."""
    return {
        "codec": CODEC,
        "blob": None if value is None else avro.to_text(value),
        "undecodable": True,
        "reason": reason,
    }


def preview(value: bytes) -> str:
    """The beginning of a payload as JSON, for people. A large payload is not decoded."""
    if len(value) > PREVIEWED:
        return f"({len(value)} bytes)"
    try:
        text = msgspec.json.encode(plain_value(avro.decode(value))).decode()
    except PayloadError as error:
        text = f"({len(value)} bytes that cannot be decoded: {error})"
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"


def _check_readable(blob: bytes | None, field: str) -> None:
    try:
        if blob is not None:
            avro.decode(blob)
    except PayloadError as error:
        raise Refused("invalid_payload", f"{field} cannot be read: {error}", field=field) from None


def _opened(value: dict[str, Any], field: str) -> bytes | None:
    codec = value["codec"]
    if codec != CODEC:
        raise Refused(
            "unsupported_payload_codec", f"{field} has the codec {codec!r}; the one codec is {CODEC!r}", field=field
        )
    if "blob" not in value:
        raise Refused(
            "external_payload_unsupported",
            f"{field} points to a payload kept elsewhere; this server takes payloads inline only",
            field=field,
        )
    text = value["blob"]
    if text is None:
        return None
    if not isinstance(text, str):
        raise Refused("invalid_payload_framing", f"{field}.blob must be a base64 string", field=f"{field}.blob")
    return blob(text, f"{field}.blob")


def plain_value(value: Any) -> Any:
    """A decoded value as JSON can hold it: bytes are marked."""
    match value:
        case bytes():
            return {"$type": "bytes", "base64": avro.to_text(value)}
        case list():
            return [plain_value(item) for item in cast(list[Any], value)]
        case dict():
            return {key: plain_value(item) for key, item in cast(dict[str, Any], value).items()}
        case _:
            return value


def _kind(value: object) -> str:
    match value:
        case dict():
            return "an object"
        case str():
            return "a string"
        case _:
            return "a single value"
