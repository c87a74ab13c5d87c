"""Views of the kernel as JSON: times in ISO, payloads in envelopes, unknown values as null."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from backstay.kernel.groups import GroupEntry
from backstay.protocol.history import iso, time_fields
from backstay.protocol.payloads import envelope

_NO_GROUP: dict[str, Any] = dict.fromkeys(GroupEntry.__struct_fields__)


def plain(view: Struct) -> dict[str, Any]:
    times = time_fields(type(view))
    return {
        name: _plain(value, name in times)
        for name in view.__struct_fields__
        if (value := getattr(view, name)) is not UNSET
    }


def _plain(value: Any, is_time: bool) -> Any:
    match value:
        case None:
            return None
        case int() if is_time:
            return iso(value)
        case bytes():
            return envelope(value)
        case Struct():
            return plain(value)
        case list() | tuple():
            return [_plain(item, False) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def innermost(path: list[GroupEntry]) -> dict[str, Any]:
    """The fields of the innermost group that a step belongs to, flat. A step outside of groups has the same fields, all null."""
    return plain(path[-1]) if path else dict(_NO_GROUP)
