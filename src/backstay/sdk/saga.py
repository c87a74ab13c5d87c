"""Saga: register how to undo each thing that was done; when the block fails, undo them in reverse.

    with Saga() as saga:
        receipt = charge(order)
        saga.undo(refund, receipt)

Compensations run shielded from cancellation. Giving up live code and continuing as new are no failures: nothing is undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, overload

from backstay.sdk.cancellation import Shield
from backstay.sdk.errors import CompensationFailed, ContinueAsNewRequested, Evicted
from backstay.sdk.step import Step

P = ParamSpec("P")


class Saga:
    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    @overload
    def undo(self, step: Step[Any], /) -> None: ...
    @overload
    def undo(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def undo(self, fn: Any, /, *args: Any, **kwargs: Any) -> None:
        """What undoes the thing that was just done."""
        step: Any = fn
        self._undo.append(step if isinstance(fn, Step) else lambda: step(*args, **kwargs))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _failed(error):
            return
        failed: list[Exception] = []
        with Shield(quietly=True):
            while self._undo:
                try:
                    self._undo.pop()()
                except Exception as failure:
                    failed.append(failure)
        _report(error, failed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _failed(error):
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
        _report(error, failed)


def _failed(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, Evicted | ContinueAsNewRequested | GeneratorExit)


def _report(error: BaseException | None, failed: list[Exception]) -> None:
    if failed:
        raise CompensationFailed(error, failed) from error
