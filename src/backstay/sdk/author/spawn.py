"""Branches: code of one run that runs concurrently. `spawn(fn)` starts one, `.join()` waits for its value or its exception.

A failed branch that is never joined fails the run when the workflow returns: errors do not pass silently.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from backstay.sdk.errors import ContinueAsNewRequested, DurableCallRefused, Evicted, NotInWorkflow
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet, current_greenlet, required_run

P = ParamSpec("P")
R = TypeVar("R")


class Branch(Generic[R]):
    """A concurrent branch of this run, as `spawn` returns it."""

    def __init__(self, live_run: LiveRun, call: Callable[[], R]) -> None:
        self._live_run = live_run
        self._call = call
        self._done = False
        self._value: R | None = None
        self._error: BaseException | None = None
        self._waiting: list[WorkflowGreenlet] = []

    def join(self) -> R:
        """Wait for this branch and return its value, or raise its exception."""
        self._live_run.branches.pop(self, None)
        if not self._done:
            greenlet = current_greenlet()
            if greenlet is None:
                raise NotInWorkflow("join()")
            self._waiting.append(greenlet)
            try:
                self._live_run.suspend(greenlet)
            except CancelledError:
                self._waiting.remove(greenlet)
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
        for greenlet in self._waiting:
            self._live_run.wake(greenlet, None)


def spawn(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Branch[R]:
    """Run a function as a concurrent branch of this workflow. It may make any number of durable calls.

    Wait for it with `.join()`. If a branch fails and is not joined, the run fails when the workflow returns.
    """
    live_run = required_run("spawn()")
    branch = Branch[R](live_run, lambda: fn(*args, **kwargs))
    live_run.branches[branch] = None
    live_run.spawn(branch.run)
    return branch
