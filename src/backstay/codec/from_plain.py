"""Conversion of plain values to what an annotation asks for. A value that does not fit is refused with its path, never coerced.

msgspec converts whatever it can describe whole. A type with a part beyond it (a union of two dataclasses, a timedelta
in seconds) is taken apart here, one level at a time, and its parts go the same way. A union takes its members in the
order written, those first that know every key of the map at hand.
"""

from __future__ import annotations

import typing
from collections import abc, deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, NotRequired, Required, TypeVar, Union, cast, get_args, get_origin

from msgspec import Struct, structs

from backstay.codec import msgspec_types
from backstay.codec.errors import PayloadError, mismatch
from backstay.codec.to_plain import plainly

Fit = Callable[[Any], Any]


def convert(value: Any, annotation: Any) -> Any:
    """`value` as `annotation` wants it; `Any`, `object` and `None` want it as it is."""
    return value if annotation is type(value) else fit(annotation)(value)


def fit(annotation: Any) -> Fit:
    """The conversion to `annotation`, made once for as long as the same object is given."""
    # By identity: `A | B` equals `B | A`, yet their members are tried in another order.
    known = _FITS.get(id(annotation))
    if known is not None:
        return known[1]
    made = _made(annotation)
    if len(_FITS) >= 4096:
        _FITS.clear()
    _FITS[id(annotation)] = annotation, made
    return made


def _made(annotation: Any) -> Fit:
    if annotation in (Any, object, None, NoneType):
        return lambda value: value
    try:
        if msgspec_types.describes(annotation):
            return lambda value: msgspec_types.converted(value, annotation)
        made = _taken_apart(annotation)
    except NameError as error:
        raise _unsupported(annotation, f" ({error})") from None
    if made is None:
        raise _unsupported(annotation)
    return made


def _unsupported(annotation: Any, why: str = "") -> PayloadError:
    named = annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)
    problem = f"no payload can become `{named}`{why}; annotate plain types, a dataclass, a Struct or a pydantic model"
    return PayloadError("unsupported_value_type", problem)


def _taken_apart(annotation: Any) -> Fit | None:
    origin = get_origin(annotation)
    kind = origin or annotation
    arguments = get_args(annotation)
    if kind in (Union, UnionType):
        return _union(arguments)
    if kind in (Annotated, Required, NotRequired):
        return fit(arguments[0])
    if isinstance(kind, TypeVar):
        return fit(kind.__bound__)
    for alias in ("__supertype__", "__value__"):  # NewType, and the `type` statement
        if hasattr(kind, alias):
            return fit(getattr(kind, alias))
    return _class(kind, arguments) if isinstance(kind, type) else None


def _class(kind: type[Any], arguments: tuple[Any, ...]) -> Fit | None:
    if kind is timedelta:
        return _timedelta
    if issubclass(kind, Enum):
        return lambda value: _member(kind, value)
    if kind is tuple and arguments and arguments[-1] is not ...:
        return lambda value: _positions(tuple, arguments, value)
    if kind in _COLLECTIONS:
        return lambda value: _COLLECTIONS[kind](_items(arguments[0] if arguments else Any, value))
    if kind in _MAPPINGS:
        key, item = arguments or (Any, Any)
        return lambda value: _entries(key, item, value)
    if hasattr(kind, "_make") and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    fields = _fields(kind)
    return None if fields is None else lambda value: _record(kind, fields, value)


def _timedelta(value: Any) -> timedelta:
    if type(value) not in (int, float):
        raise mismatch(f"Expected seconds as `float`, got `{type(value).__name__}`")
    try:
        return timedelta(seconds=value)
    except OverflowError as error:
        raise mismatch(str(error)) from None


def _member(kind: type[Enum], value: Any) -> Enum:
    for member in kind:
        if plainly(member.value) == value:
            return member
    try:
        if issubclass(kind, Flag):
            return kind(value)
    except (ValueError, TypeError):
        pass
    raise mismatch(f"Invalid enum value {value!r}, expected a `{kind.__qualname__}`")


def _union(members: tuple[Any, ...]) -> Fit:
    def first_that_fits(value: Any) -> Any:
        if value is None and NoneType in members:
            return None
        problems: list[str] = []
        for member in sorted(members, key=lambda member: not _knows_all(member, value)):
            if member is not NoneType:
                try:
                    return convert(value, member)
                except PayloadError as error:
                    problems.append(str(error))
        raise mismatch("fits no member of the union (" + "; ".join(problems) + ")")

    return first_that_fits


def _knows_all(member: Any, value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(member, type):
        return True
    return _keys(member) >= set(cast(dict[str, Any], value))


def _keys(kind: type[Any]) -> set[str]:
    """The keys that a map for `kind` may have."""
    if msgspec_types.is_pydantic_model(kind):
        return {field.alias or name for name, field in kind.model_fields.items()}
    return {field.key for field in _fields(kind) or ()} | _tag(kind).keys()


def _tag(kind: type[Any]) -> dict[str, Any]:
    """The entry by which tagged Structs are told apart."""
    config = kind.__struct_config__ if issubclass(kind, Struct) else None
    return {} if config is None or config.tag_field is None else {config.tag_field: config.tag}


def _sequence(value: Any) -> list[Any]:
    if isinstance(value, list):
        return cast(list[Any], value)  # plain: of whatever items
    raise mismatch(f"Expected `array`, got `{type(value).__name__}`")


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)  # plain: its keys are text
    raise mismatch(f"Expected `object`, got `{type(value).__name__}`")


def _at(step: int | str, value: Any, annotation: Any) -> Any:
    try:
        return convert(value, annotation)
    except PayloadError as error:
        raise error.within(step) from None


def _items(annotation: Any, value: Any) -> list[Any]:
    return [_at(index, item, annotation) for index, item in enumerate(_sequence(value))]


def _entries(key: Any, annotation: Any, value: Any) -> dict[Any, Any]:
    return {_at(name, name, key): _at(name, item, annotation) for name, item in _mapping(value).items()}


def _positions(build: Fit, annotations: tuple[Any, ...], value: Any) -> Any:
    items = _sequence(value)
    if len(items) > len(annotations) or (build is tuple and len(items) < len(annotations)):
        raise mismatch(f"Expected `array` of length {len(annotations)}, got {len(items)}")
    given = [_at(index, item, annotations[index]) for index, item in enumerate(items)]
    try:
        return build(given)
    except (TypeError, ValueError) as error:
        raise mismatch(str(error)) from None


def _named_tuple(kind: Callable[..., Any]) -> Fit:
    annotations = tuple(typing.get_type_hints(kind, include_extras=True).values())
    return lambda value: _positions(lambda given: kind(*given), annotations, value)


class _RecordField(NamedTuple):
    key: str  # in the map
    name: str  # in the class
    annotation: Any
    required: bool
    initial: bool = True  # taken by the constructor


def _fields(kind: type[Any]) -> list[_RecordField] | None:
    """The fields of a Struct, a dataclass or a TypedDict; None for any other class."""
    if issubclass(kind, Struct):
        return _struct_fields(kind)
    if typing.is_typeddict(kind):
        required: frozenset[str] = kind.__required_keys__
        hints = typing.get_type_hints(kind, include_extras=True)
        return [_RecordField(name, name, hint, name in required) for name, hint in hints.items()]
    return _dataclass_fields(kind) if hasattr(kind, "__dataclass_fields__") else None


def _struct_fields(kind: type[Struct]) -> list[_RecordField] | None:
    if kind.__struct_config__.array_like:
        return None
    return [_RecordField(field.encode_name, field.name, field.type, field.required) for field in structs.fields(kind)]


def _dataclass_fields(kind: type[Any]) -> list[_RecordField]:
    from dataclasses import MISSING, fields  # imported already wherever there is a dataclass

    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        _RecordField(f.name, f.name, hints[f.name], f.init and f.default is f.default_factory is MISSING, f.init)
        for f in fields(kind)
    ]


def _record(kind: type[Any], fields: list[_RecordField], value: Any) -> Any:
    """An instance from a map; keys that it does not know are those of a newer version, and let pass."""
    given = _mapping(value)
    for key, tag in _tag(kind).items():
        if given.get(key) != tag:
            raise mismatch(f"Invalid tag {given.get(key)!r}, expected {tag!r}").within(key)
    missing = [field.key for field in fields if field.required and field.key not in given]
    if missing:
        raise mismatch(f"Object missing required field `{missing[0]}`")
    found = [(field, _at(field.key, given[field.key], field.annotation)) for field in fields if field.key in given]
    try:
        made = kind(**{field.name: item for field, item in found if field.initial})
    except (TypeError, ValueError) as error:
        raise mismatch(str(error)) from None
    for field, item in found:
        if not field.initial:  # also on a frozen dataclass
            object.__setattr__(made, field.name, item)
    return made


_COLLECTIONS: Final[dict[type[Any], Callable[[list[Any]], Any]]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    deque: deque,
    abc.Iterable: list,
    abc.Collection: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Set: set,
    abc.MutableSet: set,
}
_MAPPINGS: Final = frozenset({dict, abc.Mapping, abc.MutableMapping})
_FITS: Final[dict[int, tuple[Any, Fit]]] = {}
