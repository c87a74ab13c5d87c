"""Types of answers that have the fields of several other types."""

from __future__ import annotations

from typing import Any

from msgspec import NODEFAULT, UNSET, Struct, UnsetType, defstruct
from msgspec.structs import fields


def joined(name: str, module: str, *parts: type[Struct], about: str) -> Any:
    """A struct with the fields of all parts, in their order. Of a field that two parts have, the first gives the place and the
    last the type. A field that may be unset keeps that default; any other is required, as an answer is always whole."""
    types: dict[str, Any] = {field.name: field.type for part in parts for field in fields(part)}
    may_be_unset = {
        field.name for part in parts for field in fields(part) if field.default is UNSET or field.type is UnsetType
    }
    declared = [(field, kind, UNSET if field in may_be_unset else NODEFAULT) for field, kind in types.items()]
    return defstruct(name, declared, module=module, frozen=True, kw_only=True, namespace={"__doc__": about})
