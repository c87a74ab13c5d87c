"""What the tests of the SDK share: an app in memory, words for histories, and a world whose clock only a test moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Self

from backstay import AsyncBackstay
from backstay.engine.core.world import AsyncioWorld
from backstay.kernel.event import Recorded
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.message import Message
from backstay.kernel.task import Lease
from backstay.kernel.values import SECOND, Micros
from backstay.sdk.replay.live_run import LiveRun

PATIENCE = 30.0  # seconds until something that should happen counts as never; a loaded machine is slow, not broken


def memory(*things: Any, **options: Any) -> AsyncBackstay:
    """A Backstay that forgets everything when it is closed."""
    return AsyncBackstay(":memory:", things, **options)


class Evicting(AsyncBackstay):
    """Gives the live code of a run up after each of its tasks, so that every task is a cold replay of all history."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        executor = self.executor
        report = executor.report

        def report_and_forget(live_run: LiveRun, assignment: WorkflowAssignment, lease: Lease | None) -> Message:
            message = report(live_run, assignment, lease)
            executor.forget(assignment.run_key)
            return message

        executor.report = report_and_forget  # type: ignore[method-assign]
        return self


def evicting(*things: Any, **options: Any) -> AsyncBackstay:
    return Evicting(":memory:", things, **options)


def no_threads(app: Any) -> None:
    """From now on every thread for activities is taken: what is scheduled waits."""
    app.executor.activities._free[False] = 0


def names(history: Iterable[Recorded]) -> list[str]:
    return [entry.type for entry in history]


def events(history: Iterable[Recorded], kind: str) -> list[Any]:
    return [entry.event for entry in history if entry.type == kind]


def steps(history: Iterable[Recorded]) -> list[tuple[str, int]]:
    """Every step event with its step number."""
    numbered = ((entry.type, getattr(entry.event, "sequence", None)) for entry in history)
    return [(type, step) for type, step in numbered if step is not None]


async def eventually(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait until something holds, giving way to everything else in between."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = true()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.002)
    raise AssertionError(f"{what} never happened")


async def blocked(app: AsyncBackstay, workflow_id: str) -> Any:
    """The description of a run once its replay is blocked."""

    async def look() -> Any:
        found = await app.describe(workflow_id)
        return found if found.liveness_state == "workflow_replay_blocked" else None

    return await eventually(look, f"{workflow_id} was blocked")


class _Alarm:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class StillWorld(AsyncioWorld):
    """The real world, except that its clock stands still until a test moves it."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.looks: Micros | None = None
        self._still: Micros = 1_800_000_000 * SECOND
        self._alarms: list[tuple[Micros, int, _Alarm]] = []
        self._order = count()

    def now(self) -> Micros:
        return getattr(self, "_still", 0)

    ticks = now

    def at(self, when: Micros, call: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(call)
        heappush(self._alarms, (when, next(self._order), alarm))
        if when <= self._still:
            self.loop.call_soon(self._ring)
        return alarm

    async def advance(self, seconds: float) -> None:
        """Jump ahead: everything that has become due happens, and what follows from it."""
        self._still += round(seconds * SECOND)
        self._ring()
        await settle()

    def _ring(self) -> None:
        while self._alarms and self._alarms[0][0] <= self._still:
            _, _, alarm = heappop(self._alarms)
            if alarm.call is not None:
                alarm.call()


async def settle() -> None:
    """Let everything that is on its way arrive."""
    for _ in range(50):
        await asyncio.sleep(0)
