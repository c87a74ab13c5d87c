"""Workflow code that burns CPU moves to a thread of its own: it gets its work done and disturbs nobody."""

from __future__ import annotations

import asyncio
import logging
import threading
from time import perf_counter, thread_time
from typing import Any

import pytest

from backstay import activity, sleep, spawn, workflow

from .kit import eventually, memory


def burn(seconds: float) -> None:
    end = thread_time() + seconds
    while thread_time() < end:
        sum(range(50))


@activity(type="double")
def double(n: int) -> int:
    return 2 * n


@activity(type="local", local=True)
def local(n: int) -> int:
    return n + 1


@workflow(type="heavy", unchecked=True)
def heavy(rounds: int, seconds: float = 0.01) -> list[Any]:
    threads: list[str] = []
    found: list[int] = []
    for n in range(rounds):
        burn(seconds)
        threads.append(threading.current_thread().name)
        found.append(double(n))
        if n % 3 == 2:
            branch = spawn(double, n)
            found.append(local(n) + branch.join())
    return [found, threads]


@workflow(type="heavy later", unchecked=True)
async def heavy_later(rounds: int) -> list[Any]:
    found: list[int] = []
    threads: list[str] = []
    for n in range(rounds):
        burn(0.01)
        threads.append(threading.current_thread().name)
        first, second = await asyncio.gather(double.step(n), local.step(n))
        found.append(first + second)
        await sleep.step(0.001)
    return [found, threads]


@workflow(type="light")
def light() -> int:
    for _ in range(3):
        sleep(0.005)
    return 1


async def warmed(app: Any, definition: Any, id: str) -> list[Any]:
    """Run it until the engine has had enough of it on its own thread."""
    return await app.execute(definition, id, 8)


@pytest.mark.parametrize("definition", [heavy, heavy_later])
async def test_heavy_code_moves_to_a_thread_of_its_own_and_ends_right(
    definition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory(definition, double, local) as app:
        with caplog.at_level(logging.WARNING, "backstay.worker"):
            first, _ = await warmed(app, definition, "w-1")
            second, threads = await warmed(app, definition, "w-2")
    assert first == second
    if definition is heavy:
        assert first == [0, 2, 4, 7, 6, 8, 10, 16, 12, 14]
    else:
        assert first == [3 * n + 1 for n in range(8)]
    assert set(threads) == {"backstay-workflow-0"}
    assert sum("runs on a thread of its own" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.embedded("measures time")
async def test_timers_of_others_go_on_while_heavy_code_runs() -> None:
    async with memory(heavy, light, double, local) as app:
        await warmed(app, heavy, "warm")
        busy = await app.start(heavy, "busy", 1, 0.6)
        began = perf_counter()
        assert await asyncio.gather(*(app.execute(light, f"l-{n}") for n in range(5))) == [1] * 5
        assert perf_counter() - began < 0.55, "nobody waited for the heavy one"
        assert (await busy.result())[0] == [0]


async def test_several_heavy_runs_at_once_all_end() -> None:
    async with memory(heavy, double, local) as app:
        handles = await asyncio.gather(*(app.start(heavy, f"h-{n}", 5) for n in range(6)))
        results = [(await handle.result(8))[0] for handle in handles]
    assert results == [[0, 2, 4, 7, 6, 8]] * 6


async def test_several_heavy_runs_that_only_sleep_all_end() -> None:
    @workflow(type="naps", unchecked=True)
    def naps() -> str:
        for _ in range(4):
            burn(0.01)
            sleep(0.005)
        return "rested"

    async with memory(naps) as app:
        handles = await asyncio.gather(*(app.start(naps, f"n-{n}") for n in range(6)))
        assert [await handle.result(8) for handle in handles] == ["rested"] * 6


async def test_live_code_that_moves_is_replayed_on_its_new_thread() -> None:
    """A run that began on the engine's thread cannot take its strands along."""

    @workflow(type="heavy", unchecked=True)
    def grows(rounds: int) -> list[str]:
        threads: list[str] = []
        for n in range(rounds):
            burn(0.01)
            threads.append(threading.current_thread().name)
            double(n)
        return threads

    async with memory(grows, double) as app:
        threads = await app.execute(grows, "g", 12)
    assert set(threads) == {"backstay-workflow-0"}, "the result is that of the replay"


async def test_an_app_closes_while_heavy_code_runs() -> None:
    async with memory(heavy, double, local) as app:
        await warmed(app, heavy, "warm")
        await app.start(heavy, "busy", 3, 0.05)
        await eventually(lambda: _leased(app))


async def _leased(app: Any) -> bool:
    return (await app.describe("busy")).liveness_state in ("workflow_task_leased", "activity_task_leased", "closed")
