"""Conversion by msgspec, for types that it can describe whole in the way that we encode them.

`describes` answers for a type once; `converted` may be called only where it said yes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Flag
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

from backstay.codec.errors import PayloadError, mismatch, path_of


def describes(annotation: Any) -> bool:
    """Whether msgspec converts this type and all that it holds. A name that does not resolve is a NameError."""
    try:
        msgspec.json.Decoder(annotation)
        return all(map(_agrees, _parts(inspect.type_info(annotation))))
    except TypeError:
        return False


def converted(value: Any, annotation: Any) -> Any:
    try:
        return msgspec.convert(value, annotation, builtin_types=_BUILTIN, dec_hook=_custom)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `")
        inner = error.__cause__ if isinstance(error.__cause__, PayloadError) else mismatch(problem)
        at = path.removesuffix("`") or "$"
        raise PayloadError(inner.reason, inner.problem, at + inner.path.removeprefix("$")) from None


def is_pydantic_model(kind: Any) -> bool:
    return _is_a(kind, "pydantic", "BaseModel")


def _is_path(kind: Any) -> bool:
    return _is_a(kind, "pathlib", "PurePath")


def _is_a(kind: Any, module: str, base: str) -> bool:
    """Asked without importing the module: its classes can only exist where it is already imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(kind, type) and issubclass(kind, getattr(loaded, base))


def _parts(root: object) -> Iterator[object]:
    """Every type that a type holds, through fields, items and members; a type may hold itself."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        part = pending.pop()
        if isinstance(part, tuple | list):
            pending.extend(cast(list[object], part))
        elif isinstance(part, inspect.Type | inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            yield part
            pending.extend(getattr(part, name) for name in part.__struct_fields__)


def _agrees(part: object) -> bool:
    match part:
        case inspect.TimeDeltaType():  # text for msgspec, seconds for us
            return False
        case inspect.EnumType(cls=kind):  # a combination of flags is no member
            return not issubclass(kind, Flag)
        case inspect.CustomType(cls=kind):
            return kind is object or is_pydantic_model(kind) or _is_path(kind)
        case _:
            return True


def _custom(kind: type[Any], value: Any) -> Any:
    """The types that msgspec leaves to us."""
    if kind is object:
        return value
    if is_pydantic_model(kind):
        return _validated(kind, value)
    if not isinstance(value, str):
        raise mismatch(f"Expected a path as `str`, got `{type(value).__name__}`")
    return kind(value)


def _validated(model: type[Any], value: Any) -> Any:
    try:
        return model.model_validate(value)
    except sys.modules["pydantic"].ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise PayloadError("value_mismatch", first["msg"], path_of(first["loc"])) from None


_BUILTIN: Final = (bytes, bytearray, memoryview)
