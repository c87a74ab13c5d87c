"""What workflow code returns undone: lambdas in its result, or in the list that it is, are called before the run ends.

So a workflow may end with `return [charge(), lambda: gather(pack.step(i) for i in items)]`. A step that is returned by itself
is a call that was forgotten, and a named function is a value without a payload form.
"""

from __future__ import annotations

from inspect import isawaitable
from types import FunctionType
from typing import Any, TypeGuard

from backstay.sdk.step import Step

UNDONE = (list, FunctionType)
"""What a result must be for anything in it to be left undone."""


def done(result: Any) -> Any:
    """The result with everything in it done, in order."""
    if _is_list(result):
        return [_done(item) for item in result] if any(map(_is_lambda, result)) else result
    return _done(result)


async def awaited(result: Any) -> Any:
    """The same in `async def`."""
    if _is_list(result):
        return [await _awaited(item) for item in result] if any(map(_is_lambda, result)) else result
    return await _awaited(result)


def _is_list(result: Any) -> TypeGuard[list[Any]]:
    return isinstance(result, list)


def _is_lambda(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__name__ == "<lambda>"


def _is_step(value: Any) -> TypeGuard[Step[Any]]:
    return isinstance(value, Step)


def _done(value: Any) -> Any:
    while _is_lambda(value):
        value = value()
        if _is_step(value):
            value = value.run()
    return value


async def _awaited(value: Any) -> Any:
    while _is_lambda(value):
        value = value()
        if isawaitable(value):
            value = await value
    return value
