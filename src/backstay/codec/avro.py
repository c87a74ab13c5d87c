"""The `avro` codec: plain values as Avro single-object encoding of one fixed recursive schema, and back.

Whatever `encode` accepts `decode` returns equal, with tuples as lists. No other codec exists and none is ever guessed.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Final

from backstay.codec.errors import PayloadError
from backstay.codec.reader import decode
from backstay.codec.schema import misframed
from backstay.codec.writer import encode

__all__ = ["CODEC", "PayloadError", "decode", "encode", "expect_codec", "from_text", "to_text"]

CODEC: Final = "avro"


def expect_codec(codec: object) -> None:
    """Refuse any codec but `avro`; the codec of a payload is never guessed."""
    if codec != CODEC:
        raise PayloadError("unsupported_payload_codec", f"payload codec {codec!r}; send {CODEC!r}")


def to_text(blob: bytes) -> str:
    """The blob as it stands in JSON."""
    return b2a_base64(blob, newline=False).decode("ascii")


def from_text(text: str) -> bytes:
    """The blob of canonical base64; any other spelling would not be given back byte for byte."""
    try:
        blob = a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise misframed(f"not base64 ({error}); send RFC 4648 with padding") from None
    if to_text(blob) != text:
        raise misframed("not canonical base64; send RFC 4648 with padding")
    return blob
