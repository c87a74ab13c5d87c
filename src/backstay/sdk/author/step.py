"""A Step: one durable call, described and not yet made. Run it in `def`, await it in `async def`, or hand it on.

It is a coroutine for type checkers and for `asyncio.TaskGroup.create_task`, and a plain callable for closures' sake.
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
    """What kind of durable call a step makes, and how its outcome becomes a value."""

    name: str
    hears = False
    group: list[GroupEntry] = []  # where it stands if it is waited for together with others

    def check(self, live_run: LiveRun) -> None:
        """Refuse a call that could never be answered, before it takes a step."""

    def asked(self, live_run: LiveRun, step: int, answer: Callable[[Outcome], None]) -> Outcome | None:
        """The step is taken: listen for what answers it, or give what is there already."""
        return None

    def differs(self, event: Any) -> str | None:
        """What of the recorded call is not what the code asks for now."""
        if topology(getattr(event, "parallel_group_path", self.group)) == topology(self.group):
            return None
        return "it stands elsewhere among the calls it is waited for with"

    @abstractmethod
    def finish(self, live_run: LiveRun, outcome: Outcome) -> T:
        """The author's value, or the author's exception."""

    def cancel(self, live_run: LiveRun, step: int) -> None:
        """Nobody waits for this call any more."""

    def spared(self, live_run: LiveRun, step: int) -> bool:
        """A cancel request reaches the code that waits for this call. True: it is told to end, and its last word waited for."""
        return False

    def outside(self) -> T:
        """The same call outside a workflow."""
        raise NotInWorkflow(self.name)


class Step(Coroutine[Any, Any, T_co]):
    """A durable call that has not been made yet, as `.step(...)` describes it.

    Make it with `.run()`, await it, or pass it to `gather`, `race` or `asyncio.create_task`.
    """

    __slots__ = ("_call", "_coroutine")

    composite: ClassVar[bool] = False  # stands for several calls

    def __init__(self, call: Call[T_co]) -> None:
        self._call = call
        self._coroutine: Coroutine[Any, Any, T_co] | None = None

    def run(self) -> T_co:
        """Make the call here and wait for it."""
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
            future = asyncio.get_running_loop().create_future()  # the one before went with the cancellation
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
