"""Branches: concurrent strands of one run. `spawn(fn)` starts one, `.join()` waits for its value or its exception.

A failed branch that nobody joins fails the run when the workflow returns: errors do not pass silently.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from backstay.sdk.errors import ContinueAsNewRequested, DurableCallRefused, Evicted, NotInWorkflow
from backstay.sdk.replay.live_run import Fiber
from backstay.sdk.replay.workflow_greenlet import Strand, current_fiber, current_strand

P = ParamSpec("P")
R = TypeVar("R")


class Branch(Generic[R]):
    """A strand of this run on its way."""

    def __init__(self, fiber: Fiber, call: Callable[[], R]) -> None:
        self._fiber = fiber
        self._call = call
        self._done = False
        self._value: R | None = None
        self._error: BaseException | None = None
        self._waiting: list[Strand] = []

    def join(self) -> R:
        """Wait for this branch; its exception is raised here."""
        self._fiber.branches.pop(self, None)
        if not self._done:
            strand = current_strand()
            if strand is None:
                raise NotInWorkflow("join()")
            self._waiting.append(strand)
            try:
                self._fiber.suspend(strand)
            except CancelledError:
                self._waiting.remove(strand)
                raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value] - done without an error

    @property
    def done(self) -> bool:
        return self._done

    @property
    def error(self) -> BaseException | None:
        return self._error

    def run(self) -> None:
        try:
            self._value = self._call()
        except Evicted:
            return
        except ContinueAsNewRequested:
            self._error = DurableCallRefused("continue_as_new() belongs in the workflow's main code, not in a branch")
        except BaseException as error:
            self._error = error
        self._done = True
        for strand in self._waiting:
            self._fiber.wake(strand, None)


def spawn(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Branch[R]:
    """Run a function as a concurrent branch of this workflow; it may make any number of durable calls."""
    fiber: Any = current_fiber()
    if fiber is None:
        raise NotInWorkflow("spawn()")
    branch = Branch[R](fiber, lambda: fn(*args, **kwargs))
    fiber.branches[branch] = None
    fiber.spawn(branch.run)
    return branch
