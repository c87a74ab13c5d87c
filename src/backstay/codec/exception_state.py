"""The state of an exception: recorded for history, and restored without a call of its `__init__`.

State is `args`, the attributes in `__dict__` and those in slots, the fields of the builtin errors among them. What has
no payload form is left out. A class that refuses an instance made in this way is `Unrestorable`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from backstay.codec import avro
from backstay.codec.arguments import Signature
from backstay.codec.class_names import name_of
from backstay.codec.errors import PayloadError
from backstay.codec.from_plain import convert
from backstay.codec.hints import hints_of
from backstay.codec.values import dumps, encoded, loads
from backstay.kernel.failure import Failure, Property

Slot = MemberDescriptorType | GetSetDescriptorType


class Unrestorable(ValueError):
    """The class is known, but no instance of it can be made from the recorded state."""


def readable(thing: object) -> str:
    """`str(thing)` as text that can be stored, even if it is broken."""
    try:
        text = str(thing)
    except (Exception, SystemExit) as error:  # the __str__ of anyone
        text = f"<{type(thing).__qualname__} without text: {type(error).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def details_of(exc: BaseException) -> bytes | None:
    """The blob of `args`, with the text of those that have no payload form."""
    args = (exc.message,) if isinstance(exc, BaseExceptionGroup) else exc.args
    return encoded(args) or encoded([arg if encoded(arg) else readable(arg) for arg in args])


def properties_of(exc: BaseException, record: Callable[[BaseException], Failure]) -> list[Property]:
    """The attributes that have a payload form; `record` is for the members of a group."""
    properties = [
        Property(declaring_class=name_of(kind), name=name, value=blob)
        for kind, name, value in _attributes(exc)
        if (blob := encoded(value)) is not None
    ]
    if isinstance(exc, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], exc)
        kind, name = _MEMBERS
        members = dumps([record(member) for member in group.exceptions])
        properties.append(Property(declaring_class=kind, name=name, value=members))
    return properties


def rebuild(cls: type[Exception], failure: Failure, restore: Callable[[Failure], Exception]) -> Exception:
    """An instance of `cls` with the recorded state; `restore` is for the members of a group."""
    if failure.details is not None:
        avro.expect_codec(failure.details_payload_codec)
    members = [restore(member) for member in _members(failure)]
    args = _args(failure)
    if members:
        return _instance(cls, (*args[:1], members), failure)
    exc = _instance(cls, args, failure)
    if str(exc) == failure.message or (typed := _args_as_annotated(cls, failure)) is None:
        return exc
    return _instance(cls, typed, failure)


def _instance(cls: type[Exception], args: tuple[Any, ...], failure: Failure) -> Exception:
    try:
        exc = cls.__new__(cls, *args)
        # Not by assignment: an exception may be a frozen dataclass.
        BaseException.__setattr__(exc, "args", args)
        _set_attributes(exc, failure)
        str(exc)
    except Exception as error:  # the __new__, the slots and the __str__ of anyone
        raise Unrestorable(f"`{name_of(cls)}` refuses its recorded state: {type(error).__name__}: {error}") from None
    return exc


def _members(failure: Failure) -> list[Failure]:
    for recorded in failure.properties:
        if _is_members(recorded):
            return loads(recorded.value, list[Failure])
    return []


def _is_members(recorded: Property) -> bool:
    return (recorded.declaring_class, recorded.name) == _MEMBERS


def _args(failure: Failure) -> tuple[Any, ...]:
    # Only our own failures keep `args` in their details; those of other languages keep what they like there.
    if failure.exception_class is None or failure.details is None:
        return (failure.message,)
    args = avro.decode(failure.details)
    return tuple(cast(list[Any], args)) if isinstance(args, list) else (failure.message,)


def _args_as_annotated(cls: type[Exception], failure: Failure) -> tuple[Any, ...] | None:
    """`args` as `__init__` annotates them, for a class that hands its arguments on and prints more than their text."""
    if failure.exception_class is None or failure.details is None:
        return None
    try:
        return tuple(Signature(cls.__init__, drop_self=True).unpack(failure.details)[0])
    except (PayloadError, ValueError):
        return None  # its __init__ does not take them; ValueError: a builtin __init__ without a signature


def _attributes(exc: BaseException) -> Iterator[tuple[type, str, object]]:
    for name, value in vars(exc).items():
        yield type(exc), name, value
    for kind, name, slot in _slots(type(exc)):
        try:
            value = slot.__get__(exc)
        except AttributeError:
            continue  # a slot that was never set
        # A builtin error with None set says so in its text; one without does not.
        if value is not None or kind.__module__ != "builtins":
            yield kind, name, value


def _slots(cls: type) -> Iterator[tuple[type, str, Slot]]:
    for kind in cls.__mro__:
        if kind in (BaseException, BaseExceptionGroup, object):
            continue
        for name, slot in vars(kind).items():
            # AttributeError.obj is whatever lacked the attribute: not state, and not ours to store.
            if isinstance(slot, Slot) and not name.startswith("__") and (kind, name) != (AttributeError, "obj"):
                yield kind, name, slot


def _set_attributes(exc: Exception, failure: Failure) -> None:
    slots = {name: slot for _, name, slot in _slots(type(exc))}
    for name, value in _recorded(type(exc), failure):
        if name in slots:
            slots[name].__set__(exc, value)
        else:
            vars(exc)[name] = value


def _recorded(cls: type[Exception], failure: Failure) -> Iterator[tuple[str, Any]]:
    """The attributes of a failure, as the class or its `__init__` annotates them."""
    hints = _hints(cls)
    for recorded in failure.properties:
        if not _is_members(recorded):
            yield recorded.name, _fitted(avro.decode(recorded.value), hints.get(recorded.name, Any))
    if failure.exception_class is None:
        if failure.code is not None:
            yield "code", failure.code
        if failure.details is not None:
            yield "details", avro.decode(failure.details)


def _hints(cls: type[Exception]) -> dict[str, Any]:
    try:
        declared = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # whatever an annotation may raise when it is evaluated
        declared = {}
    return hints_of(cls) | declared


def _fitted(value: Any, annotation: Any) -> Any:
    try:
        return convert(value, annotation)
    except PayloadError:
        return value  # an attribute may hold what its annotation does not say; it did when it was recorded


_MEMBERS: Final = (name_of(BaseExceptionGroup), "exceptions")
