"""Attempts that nobody waits for any more while their run goes on: their code is told to stop, wherever it runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backstay import (
    ActivityCancelled,
    ActivityTimedOut,
    Signal,
    activity,
    gather,
    heartbeat,
    race,
    sleep,
    wait,
    workflow,
)

from .kit import eventually, memory

begun: list[str] = []
stopped: list[str] = []
given_up = threading.Event()  # what a thread waits for
go_on = Signal[None]("go-on")


@pytest.fixture(autouse=True)
def _clean() -> None:
    begun.clear()
    stopped.clear()
    given_up.clear()


async def body(name: str) -> None:
    begun.append(name)
    try:
        await asyncio.Event().wait()
    finally:
        stopped.append(name)


@activity(timeout=0.05)
async def too_long() -> None:
    await body("timeout")


@activity(timeout=0.05, retries=2, backoff=0.01)
async def again_and_again() -> None:
    await body("retries")


@activity(heartbeat_timeout=0.05)
async def silent() -> None:
    heartbeat("once")
    await body("heartbeat")


@activity(schedule_timeout=0.05)
async def over_all() -> None:
    await body("schedule")


@activity
async def endless() -> None:
    await body("plain")


@activity(timeout=0.05)
def on_a_thread() -> None:
    begun.append("thread")
    try:
        while True:
            given_up.wait(0.01)
            heartbeat("still here")
    except ActivityCancelled:
        stopped.append("thread")
        raise


ACTIVITIES = [too_long, again_and_again, silent, over_all, endless, on_a_thread]


@workflow
async def tries(which: str) -> str:
    outcome = "?"
    try:
        match which:
            case "timeout":
                await too_long()
            case "retries":
                await again_and_again()
            case "heartbeat":
                await silent()
            case "schedule":
                await over_all()
            case "thread":
                await gather.step(on_a_thread.step())
            case "wait_for":
                await asyncio.wait_for(endless(), 0.05)
            case _:
                won, _ = await race.step(endless.step(), sleep.step(0.05))
                outcome = f"the sleep was {won}"
    except ActivityTimedOut as error:
        outcome = error.timeout_kind
    except TimeoutError:
        outcome = "no time"
    await wait.step(go_on)
    return outcome


@pytest.mark.parametrize(
    ("which", "outcome", "bodies"),
    [
        ("timeout", "start_to_close", ["timeout"]),
        ("retries", "start_to_close", ["retries"] * 3),
        ("heartbeat", "heartbeat", ["heartbeat"]),
        ("schedule", "schedule_to_close", ["schedule"]),
        ("thread", "start_to_close", ["thread"]),
        ("wait_for", "no time", ["plain"]),
        ("race", "the sleep was 1", ["plain"]),
    ],
)
async def test_the_code_of_a_given_up_attempt_stops_while_its_run_goes_on(
    which: str, outcome: str, bodies: list[str]
) -> None:
    async with memory(tries, *ACTIVITIES, threads=2, async_tasks=1) as app:
        run = await app.start(tries, "t", which)
        await eventually(lambda: len(stopped) == len(bodies))
        assert stopped == begun == bodies
        assert (await app.describe("t")).status == "waiting"
        await run.signal(go_on, None)
        assert await run.result() == outcome


@pytest.mark.needs_links("the second attempt, perhaps of another node, has 50 ms")
async def test_the_late_end_of_a_given_up_attempt_leaves_the_next_attempt_alone() -> None:
    """The room of an attempt that was given up is for the next one at once, and its end is not taken for the end of that."""
    tried: list[int] = []
    second = asyncio.Event()

    @activity(type="stubborn", timeout=0.05, retries=1, backoff=0)
    async def stubborn() -> int:
        tried.append(len(tried))
        if len(tried) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await second.wait()
                raise
        second.set()
        return len(tried)

    @workflow(type="stubborn-flow")
    async def flow() -> int:
        return await stubborn()

    async with memory(flow, stubborn, async_tasks=2) as app:
        assert await app.execute(flow, "s") == 2
