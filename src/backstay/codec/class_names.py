"""Looking up classes by name: `module:QualName`.

A name that comes from outside (history, a payload, a request) is looked up in tables of what this process registered, and
nowhere else: it never imports a module and never reaches an attribute. Only the author's own type map may name classes
that are imported for it.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import unwrap
from types import FunctionType, ModuleType
from typing import Any, Final, cast

from backstay.codec.errors import PayloadError

Namespace = Mapping[str, Any]  # the globals of a module


def name_of(target: type | str) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def module_of(fn: object) -> Namespace | None:
    """The globals of the module that a function stands in, below any other decorators."""
    plain = unwrap(fn) if callable(fn) else None
    return plain.__globals__ if isinstance(plain, FunctionType) else None


class ExceptionClasses:
    """Exception classes by name: Python's own, those added one by one, and those that the included modules can name.

    A module can name what it defines or imports (`Declined`) and what stands in a module it imports (`errors.Declined`).
    """

    def __init__(self) -> None:
        self._added: dict[str, type[Exception]] = {}
        self._found: dict[str, type[Exception]] = {}
        self._modules: dict[int, Namespace] = {}
        self._sizes: tuple[int, ...] = ()

    def add(self, cls: type[Exception]) -> None:
        self._added[name_of(cls)] = cls

    def include(self, module: Namespace) -> None:
        self._modules[id(module)] = module

    def find(self, name: str) -> type[Exception] | None:
        found = self._added.get(name) or _PYTHON.get(name) or self._found.get(name)
        if found is None and self._grown():
            self._found = {name_of(cls): cls for module in self._modules.values() for cls in _nameable(module)}
            found = self._found.get(name)
        return found

    def _grown(self) -> bool:
        """Whether a module has defined more since the last look, so that it is worth another one."""
        before, self._sizes = self._sizes, tuple(map(len, self._modules.values()))
        return self._sizes != before


def configured(target: type | str) -> type[Exception]:
    """The class that an author's type map names; LookupError if it is none."""
    found = _imported(target) if isinstance(target, str) else target
    if not isinstance(found, type) or not issubclass(found, Exception):
        raise LookupError(f"{name_of(cast(type, target))!r} is not a subclass of Exception")
    return found


def _imported(name: str) -> Any:
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


def _nameable(module: Namespace) -> Iterator[type[Exception]]:
    for value in list(module.values()):
        if isinstance(value, ModuleType):
            yield from (inner for inner in list(vars(value).values()) if _is_exception(inner))
        elif isinstance(value, type):
            yield from _with_inner(value, module.get("__name__"))


def _with_inner(cls: type[Any], module: str | None) -> Iterator[type[Exception]]:
    """The class, if it is an exception, and those inside the classes that the module itself defines."""
    if _is_exception(cls):
        yield cls
    if cls.__module__ == module:
        for value in list(vars(cls).values()):
            if isinstance(value, type) and value.__qualname__ == f"{cls.__qualname__}.{value.__name__}":
                yield from _with_inner(value, module)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception) and "<" not in value.__qualname__


_PYTHON: Final = {name_of(kind): kind for kind in (*vars(builtins).values(), PayloadError) if _is_exception(kind)}
