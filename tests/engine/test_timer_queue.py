"""Wakes that this engine did not set itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, WorkflowTimedOut, sleep, workflow
from backstay.engine.core.timer_queue import SPENT, TimerQueue
from backstay.kernel.values import SECOND
from tests.sim.virtual import VirtualWorld, run


@workflow
def waits() -> None:
    sleep("1h")


def test_the_timeout_of_a_run_that_another_process_started_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "wakes.db"
        async with AsyncBackstay(path, [waits]) as holder, AsyncBackstay(path, [waits]) as guest:
            assert (holder.engine.holder, guest.engine.holder) == (True, False)
            handle = await guest.options(run_timeout="300ms").start(waits, "w")
            with pytest.raises(WorkflowTimedOut):
                await handle.result(timeout=10)

    asyncio.run(story())


class Empty:
    """The store as a timer queue sees it."""

    async def due(self, until: int, limit: int, **_: Any) -> list[tuple[int, int]]:
        return []


def test_deadlines_that_are_not_needed_any_more_are_forgotten_and_the_others_kept() -> None:
    async def story(world: Any) -> None:
        here: VirtualWorld = world()
        woken: list[int] = []
        timers = TimerQueue(here, Empty(), woken.append)  # type: ignore[arg-type]
        await timers.start()
        soon = here.now() + 10 * SECOND
        for key in range(5):
            timers.set(key, soon + key)
        for key in range(5, 5 * SPENT):
            timers.set(key, soon + SECOND)
            timers.set(key, None)
        timers.set(7, soon)
        timers.set(7, soon + 2 * SECOND)
        assert len(timers._heap) <= SPENT + 20
        await asyncio.sleep(15)
        assert woken == [0, 1, 2, 3, 4, 7]

    run(1, story)
