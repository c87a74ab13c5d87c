"""Python values as payload blobs, and back.

A payload carries no type tags: a datetime travels as text, a dataclass as a map. What comes back follows the
annotation at the place where it arrives; without one it is the plain value.
"""

from __future__ import annotations

from typing import Any

from backstay.codec.from_plain import convert
from backstay.codec.reader import decode
from backstay.codec.to_plain import plain
from backstay.codec.writer import encode


def dumps(value: object) -> bytes:
    """The blob of any supported value; `PayloadError` names the path of an unsupported part."""
    return encode(value, plain)


def loads(blob: bytes, annotation: Any = Any) -> Any:
    """The value in `blob`, as `annotation` wants it."""
    value = decode(blob)
    return value if annotation is type(value) or annotation is Any else convert(value, annotation)


def encoded(value: object) -> bytes | None:
    """The blob of `value`, or None if it has none."""
    try:
        return dumps(value)
    except Exception:  # no plain form, or the attributes and the buffers of anyone
        return None
