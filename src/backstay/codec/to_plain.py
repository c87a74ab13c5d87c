"""Conversion of Python values to plain ones, before they are encoded: the form of each type on the wire.

`plain` takes one level off and leaves the rest to the encoder, which so knows the path of whatever has no plain form.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

from msgspec import UNSET, Struct

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.codec.msgspec_types import is_pydantic_model

Plain = Callable[[Any], object]


def plain(value: object) -> object:
    """Convert one level of `value` to a plain value; a value without a plain form is returned as it is."""
    kind = type(value)
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        if len(_ADAPTERS) >= _KINDS:  # classes made in functions come and go, and a table of all would keep them
            _ADAPTERS.clear()
        adapter = _ADAPTERS[kind] = _adapter(kind)
    return adapter(value)


def plainly(value: object) -> object:
    """Convert all of `value` to plain values, as a receiver without annotations gets it."""
    return avro.decode(avro.encode(value, plain))


def _adapter(kind: type[Any]) -> Plain:
    # An enum first: its members may also be text or numbers.
    if issubclass(kind, Enum):
        return _member
    if issubclass(kind, Struct):
        return _struct_adapter(kind)
    if hasattr(kind, "__dataclass_fields__"):
        return _dataclass_adapter(kind)
    if is_pydantic_model(kind):
        return _model
    for base, adapter in _BASES.items():
        if issubclass(kind, base):
            return adapter
    return _itself


def _itself(value: object) -> object:
    return value


def _member(member: Enum) -> object:
    return plain(member.value)


def _dataclass_adapter(kind: type[Any]) -> Plain:
    from dataclasses import fields  # imported already wherever there is a dataclass

    names = [field.name for field in fields(kind)]
    return lambda value: {name: getattr(value, name) for name in names}


def _struct_adapter(kind: type[Struct]) -> Plain:
    names = list(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    config = kind.__struct_config__
    if config.array_like:
        tag = [] if config.tag is None else [config.tag]
        return lambda value: tag + [getattr(value, name) for _, name in names]
    tagged = {} if config.tag_field is None else {config.tag_field: config.tag}
    return lambda value: tagged | {key: item for key, name in names if (item := getattr(value, name)) is not UNSET}


def _model(value: Any) -> object:
    # A round trip leaves out computed fields, which a model that forbids extras would refuse on the way back.
    return plain(value.model_dump(by_alias=True, round_trip=True))


def _listed(items: Iterable[object]) -> list[object]:
    return list(items)


def _ordered(items: Iterable[object]) -> list[object]:
    """A set as a list in the same order in every process: sorted, or else sorted by the encoded items."""
    kinds = {type(item) for item in items}
    if len(kinds) == 1 and kinds <= _SORTABLE:
        return sorted(cast(Iterable[Any], items))
    try:
        blobs = sorted(avro.encode(item, plain) for item in items)
    except RecursionError:
        raise PayloadError("nesting_too_deep", "too many sets in sets; is it cyclic? Send it flat") from None
    # Returned as plain values: their own sets are sorted already, and the set that holds this one need not sort them again.
    return [avro.decode(blob) for blob in blobs]


def _mapped(mapping: Mapping[object, object]) -> dict[object, object]:
    return dict(mapping)


def _moment(moment: datetime) -> str:
    offset = moment.utcoffset()
    return datetime.isoformat(moment if not offset or not offset % _MINUTE else _to_the_minute(moment, offset))


def _time_of_day(moment: time) -> str:
    offset = moment.utcoffset()
    if offset and offset % _MINUTE:
        moment = _to_the_minute(datetime.combine(date(2000, 1, 1), moment), offset).timetz()
    return time.isoformat(moment)


def _to_the_minute(moment: datetime, offset: timedelta) -> datetime:
    """The same moment of the same day under an offset of whole minutes: readers know no other (RFC 3339).

    Zones had other ones while they kept local mean time.
    """
    local = moment.replace(tzinfo=None)
    past = offset % _MINUTE
    for shift in (_MINUTE - past, -past):
        with suppress(OverflowError, ValueError):
            shifted = (local + shift).replace(tzinfo=timezone(offset + shift))
            if shifted.date() == local.date():
                return shifted
    problem = f"{moment} is {offset} from UTC, and offsets travel in whole minutes; send it in UTC"
    raise PayloadError("unsupported_value_type", problem)


_MINUTE: Final = timedelta(minutes=1)
_SORTABLE: Final = frozenset({int, float, str, bytes, date, UUID, Decimal})

# In this order: a datetime is a date, a bool an int.
_BASES: Final[dict[type[Any], Plain]] = {
    str: str.__str__,
    bool: bool,
    int: int,
    float: float,
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
    datetime: _moment,
    date: date.isoformat,
    time: _time_of_day,
    timedelta: timedelta.total_seconds,
    UUID: str,
    Decimal: str,
    os.PathLike: os.fspath,
    list: _listed,
    tuple: _listed,
    deque: _listed,
    set: _ordered,
    frozenset: _ordered,
    Mapping: _mapped,
}
_KINDS: Final = 1024
_ADAPTERS: Final[dict[type[Any], Plain]] = {}
