"""Annotations in the words of a contract: `int`, `float`, `string`, `bool`, `array`, `object`, `mixed`, joined by `|`.

They name what a value is on the wire, so that a server without our classes can check an argument.
"""

from __future__ import annotations

import os
import typing
from collections import abc
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

from msgspec import Struct

from backstay.codec import msgspec_types
from backstay.codec.to_plain import plain


def type_name(annotation: Any) -> str:
    names = dict.fromkeys(_name(member) for member in _members(annotation) if member is not NoneType)
    return "mixed" if not names or "mixed" in names else "|".join(names)


def allows_null(annotation: Any) -> bool:
    return any(member in (Any, object, NoneType) for member in _members(annotation))


def _members(annotation: Any) -> list[Any]:
    """The types of which a value may be, with aliases, unions and literals opened."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin is Literal:
        return [type(plain(value)) for value in get_args(annotation)]
    if isinstance(annotation, TypeVar):
        return _members(annotation.__bound__ or Any)
    for alias in ("__supertype__", "__value__"):  # NewType, and the `type` statement
        if hasattr(annotation, alias):
            return _members(getattr(annotation, alias))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [type(plain(member)) for member in annotation]
    return [NoneType if annotation is None else origin or annotation]


def _name(member: Any) -> str:
    if not isinstance(member, type):
        return "mixed"
    kind: type[Any] = member
    if issubclass(kind, Struct):
        return "array" if kind.__struct_config__.array_like else "object"
    if typing.is_typeddict(kind) or msgspec_types.is_pydantic_model(kind) or hasattr(kind, "__dataclass_fields__"):
        return "object"
    return next((name for base, name in _NAMES.items() if issubclass(kind, base)), "mixed")


# In this order: a bool is an int, text is a collection.
_NAMES: Final[dict[type[Any], str]] = {
    bool: "bool",
    int: "int",
    float: "float",
    timedelta: "float",
    str: "string",
    date: "string",
    time: "string",
    UUID: "string",
    Decimal: "string",
    os.PathLike: "string",
    bytes: "mixed",
    bytearray: "mixed",
    memoryview: "mixed",
    abc.Mapping: "object",
    abc.Collection: "array",
}
