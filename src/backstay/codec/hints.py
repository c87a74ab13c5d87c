"""The annotations of a callable, evaluated. One that cannot be, as a name known only to checkers, is `Any`."""

from __future__ import annotations

import functools
import inspect
import typing
from types import SimpleNamespace
from typing import Any


def hints_of(target: Any) -> dict[str, Any]:
    """The annotations of a callable by name, with `return` among them."""
    function = _function(target)
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # whatever an annotation may raise when it is evaluated
        written: dict[str, Any] = getattr(function, "__annotations__", {})
        return {name: _hint(name, annotation, function) for name, annotation in written.items()}


def _hint(name: str, annotation: Any, function: Any) -> Any:
    alone = SimpleNamespace(__annotations__={name: annotation})
    try:
        return typing.get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)[name]
    except Exception:  # the same; an annotation that cannot be read takes anything
        return Any


def _function(target: Any) -> Any:
    """The function that has the annotations, in a wrapper, a partial or a callable object."""
    inner: Any = target.func if isinstance(target, functools.partial) else inspect.unwrap(target)
    if inner is not target:
        return _function(inner)
    if inspect.isroutine(inner):
        return inner
    return inner.__init__ if inspect.isclass(inner) else inner.__call__
