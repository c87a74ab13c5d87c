"""What workflow code returns undone: steps and lambdas in its result, or in the list that it is, are done before the run ends.

So a workflow may end with `return [charge(), lambda: gather(pack.step(i) for i in items)]`. A named function is a value like
any other, and has no payload form.
"""

from __future__ import annotations

from inspect import isawaitable
from types import FunctionType
from typing import Any, TypeGuard

from holdfast.sdk.step import Step


def done(result: Any) -> Any:
    """The result with everything in it done, in order."""
    if _is_list(result):
        return [_done(item) for item in result] if any(map(_undone, result)) else result
    return _done(result)


async def awaited(result: Any) -> Any:
    """The same in `async def`."""
    if _is_list(result):
        return [await _awaited(item) for item in result] if any(map(_undone, result)) else result
    return await _awaited(result)


def _is_list(result: Any) -> TypeGuard[list[Any]]:
    return isinstance(result, list)


def _undone(value: object) -> bool:
    return isinstance(value, Step) or (isinstance(value, FunctionType) and value.__name__ == "<lambda>")


def _done(value: Any) -> Any:
    while _undone(value):
        value = value()
    return value


async def _awaited(value: Any) -> Any:
    while _undone(value):
        found: Any = value if value.__class__ is not FunctionType else value()
        value = await found if isawaitable(found) else found
    return value
