"""Saga: register a compensation for each completed step; when the block fails, they run in reverse order.

    with Saga() as saga:
        receipt = charge(order)
        saga.undo(refund, receipt)

A cancel request that arrives while a step runs in the block is raised after the step has ended: if the step completed, its
`undo` is still registered. Compensations run shielded from cancellation. Dropping live code and continuing as new are not
failures, so nothing is undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, overload

from backstay.sdk.author.cancellation import Shield, Undoing
from backstay.sdk.author.step import Step
from backstay.sdk.errors import CompensationFailed, ContinueAsNewRequested, Evicted

P = ParamSpec("P")


class Saga:
    """A block that undoes its completed steps, in reverse order, when it fails or is cancelled.

    Call `saga.undo(activity, ...)` after each step that may have to be undone. If a compensation fails, the others still run,
    and `CompensationFailed` is raised.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._code: Undoing | None = None

    @overload
    def undo(self, step: Step[Any], /) -> None: ...
    @overload
    def undo(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def undo(self, fn: Any, /, *args: Any, **kwargs: Any) -> None:
        """Register the call that undoes the step that just completed."""
        step: Any = fn
        self._undo.append(step if isinstance(fn, Step) else lambda: step(*args, **kwargs))

    def __enter__(self) -> Self:
        self._code = Undoing()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        why = self._left(error)
        if not _failed(why):
            return
        failed: list[Exception] = []
        with Shield(quietly=True):
            while self._undo:
                try:
                    self._undo.pop()()
                except Exception as failure:
                    failed.append(failure)
        _report(why, failed)
        if why is not error and why is not None:
            raise why

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        why = self._left(error)
        if not _failed(why):
            return
        failed: list[Exception] = []
        with Shield(quietly=True):
            while self._undo:
                undo: Any = self._undo.pop()
                try:
                    done: Any = undo() if not inspect.isawaitable(undo) else undo
                    if inspect.isawaitable(done):
                        await done
                except Exception as failure:
                    failed.append(failure)
        _report(why, failed)
        if why is not error and why is not None:
            raise why

    def _left(self, error: BaseException | None) -> BaseException | None:
        code, self._code = self._code, None
        return error if code is None else code.end(error)


def _failed(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, Evicted | ContinueAsNewRequested | GeneratorExit)


def _report(error: BaseException | None, failed: list[Exception]) -> None:
    if failed:
        raise CompensationFailed(error, failed) from error
