"""The fields of a struct as JSON has them, for code that reads or changes an answer before it is encoded."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct


def wire_fields(value: Struct) -> dict[str, Any]:
    """The fields under their names on the wire, without those that are unset. Their values stay as they are: the encoder knows
    how to write them."""
    config = value.__struct_config__
    if config.omit_defaults or config.tag is not None:
        return msgspec.to_builtins(value)
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    return {wire: part for wire, name in names if (part := getattr(value, name)) is not UNSET}
