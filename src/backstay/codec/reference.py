"""Classes by name: `module:QualName`, which another process can import. Something local to a function has none."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def name_of(target: type | str) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def class_named(name: str) -> Any:
    """What `name` stands for; LookupError if nothing."""
    module, colon, qualname = name.partition(":")
    if not colon or not qualname:
        raise LookupError(f"{name!r} is not of the form module:QualName")
    try:
        found: Any = import_module(module)
    except Exception as error:  # a module may raise anything while it is imported
        raise LookupError(f"module {module!r} cannot be imported: {error}") from None
    for part in qualname.split("."):
        if not hasattr(found, part):
            raise LookupError(f"module {module!r} has no {qualname!r}")
        found = getattr(found, part)
    return found


def exception_named(target: type | str) -> type[Exception]:
    """The same, for what must be a class of exceptions."""
    found = class_named(target) if isinstance(target, str) else target
    if not isinstance(found, type) or not issubclass(found, Exception):
        raise LookupError(f"{name_of(target)!r} is not a subclass of Exception")
    return found
