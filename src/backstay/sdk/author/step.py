"""A Step: one durable call, described and not yet made. Run it in `def`, await it in `async def`, or pass it on.

It is a coroutine for type checkers and for `asyncio.TaskGroup.create_task`. It is also callable, so that it can stand where a
closure is expected.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar, Generic, TypeVar

from backstay.kernel.feature import Outcome
from backstay.kernel.groups import GroupEntry, topology
from backstay.sdk.author.cancellation import last_word
from backstay.sdk.errors import NotInWorkflow
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.operation import Operation, asked_for
from backstay.sdk.replay.workflow_greenlet import current_greenlet, current_run

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Call(Operation, Generic[T]):
    """A kind of durable call: the command it makes, and how its outcome becomes a value."""

    name: str
    hears = False
    group: list[GroupEntry] = []  # its places in the groups that it is a member of

    def check(self, live_run: LiveRun) -> None:
        """Raise, before the call takes a step, if it could never be answered."""

    def asked(self, live_run: LiveRun, step: int, answer: Callable[[Outcome], None]) -> Outcome | None:
        """Register for the answer after the step was taken, or return the answer if it is there already."""
        return None

    def differs(self, event: Any) -> str | None:
        """Return how the recorded call differs from that of the code, if it does."""
        if topology(getattr(event, "parallel_group_path", self.group)) == topology(self.group):
            return None
        return "it stands elsewhere among the calls it is waited for with"

    @abstractmethod
    def finish(self, live_run: LiveRun, outcome: Outcome) -> T:
        """Return the value of an outcome, or raise its exception."""

    def cancel(self, live_run: LiveRun, step: int) -> None:
        """Cancel the call: the code does not wait for it any more."""

    def spared(self, live_run: LiveRun, step: int) -> bool:
        """Handle a cancel request while code waits for this call. True: the call gets a cancel request, and the run
        waits for its end."""
        return False

    def outside(self) -> T:
        """Make the call outside a workflow, as a plain function."""
        raise NotInWorkflow(self.name)


class Step(Coroutine[Any, Any, T_co]):
    """A durable call that has not been made yet, as `.step(...)` describes it.

    Make it with `.run()`, await it, or pass it to `gather`, `race` or `asyncio.create_task`.
    """

    __slots__ = ("_call", "_coroutine")

    composite: ClassVar[bool] = False  # whether it makes several calls

    def __init__(self, call: Call[T_co]) -> None:
        self._call = call
        self._coroutine: Coroutine[Any, Any, T_co] | None = None

    def run(self) -> T_co:
        """Make the call and wait for its value; raises its exception."""
        greenlet = current_greenlet()
        live_run = None if greenlet is None else greenlet.live_run
        if greenlet is None or live_run is None:
            return self._call.outside()
        return self._call.finish(live_run, live_run.call(self._call, greenlet))

    def __call__(self) -> T_co:
        return self.run()

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._awaited().__await__()

    async def _awaited(self) -> T_co:
        live_run = current_run()
        call = self._call
        if live_run is None:
            return call.outside()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answer(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        step = live_run.ask(call, answer)
        try:
            outcome = await future
        except asyncio.CancelledError as error:
            if live_run.abandoned:
                raise
            if not (asked_for(error) and call.spared(live_run, step)):
                live_run.drop(step)
                call.cancel(live_run, step)
                raise
            future = asyncio.get_running_loop().create_future()  # the cancellation has ended the first one
            outcome = await last_word(live_run, future)
        return call.finish(live_run, outcome)

    def _started(self) -> Coroutine[Any, Any, T_co]:
        if self._coroutine is None:
            self._coroutine = self._awaited()
        return self._coroutine

    def send(self, value: Any) -> Any:
        return self._started().send(value)

    def throw(self, *args: Any) -> Any:
        return self._started().throw(*args)

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()

    def __repr__(self) -> str:
        return f"<step {self._call.describe()}>"
