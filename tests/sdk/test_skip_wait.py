"""`skip_wait`: an operator ends a sleep or a timed wait; the code goes on as if the time had come, live and in replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay import RequestRefused, Signal, activity, signal, sleep, wait, workflow

from .kit import eventually, evicting, memory, names

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]
paid: Signal[int] = Signal("paid")


@activity(type="echo")
def echo(text: str) -> str:
    return text


@workflow(type="sleeper")
def sleeper() -> list[Any]:
    sleep("30d")
    first = echo("slept")  # so that the code is replayed over the skipped timer
    held = wait(lambda: False, key="never", timeout="30d")
    value = wait(paid, timeout="30d")
    return [first, held, value, echo("done")]


@workflow(type="async.sleeper")
async def async_sleeper() -> list[Any]:
    await asyncio.sleep(30 * 86400)
    first = await echo.step("slept")
    held = await wait.step(lambda: False, key="never", timeout="30d")
    value = await wait.step(paid, timeout="30d")
    return [first, held, value, await echo.step("done")]


@workflow(type="two.sleeps")
class TwoSleeps:
    def __init__(self) -> None:
        self.told = ""

    @signal
    def tell(self, text: str) -> None:
        self.told = text

    async def handle(self) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(86400))
            group.create_task(asyncio.sleep(2 * 86400))
        wait(lambda: bool(self.told))
        return self.told


async def skipped(run: Any, reason: str) -> None:
    """Skip the only timer of a run, as soon as there is one."""
    while True:
        try:
            assert await run.skip_wait(reason=reason) == "wait_skipped"
            return
        except RequestRefused as refusal:
            if refusal.reason != "no_timed_wait":
                raise
        await asyncio.sleep(0.01)


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("code", [sleeper, async_sleeper], ids=["def", "async def"])
async def test_a_skipped_wait_ends_as_if_its_time_had_come(make: Any, code: Any) -> None:
    async with make(sleeper, async_sleeper, echo) as app:
        run = await app.start(code, "s")
        for reason in ("a sleep", "a condition", "a signal"):
            await skipped(run, reason)
        assert await run.result(timeout=20) == ["slept", False, None, "done"]
        history = await run.history()
        found = [entry for entry in history if entry.type == "WaitSkipped"]
        assert [entry.event.reason for entry in found] == ["a sleep", "a condition", "a signal"]
        for entry in found:
            fired = history[entry.sequence]
            assert fired.type == "TimerFired"
            assert fired.event.timer_id == entry.event.timer_id
            assert fired.event.fired_at < fired.event.fire_at


async def test_a_run_is_skipped_through_three_waits() -> None:
    async with memory(sleeper, echo) as app:
        run = await app.start(sleeper, "s")
        for reason in ("one", "two", "three"):
            await skipped(run, reason)
        assert await run.result(timeout=20) == ["slept", False, None, "done"]
        assert names(await run.history()).count("WaitSkipped") == 3


async def test_one_of_several_is_named_and_what_is_no_timer_is_refused() -> None:
    async with memory(TwoSleeps) as app:
        run = await app.start(TwoSleeps, "t")

        async def several() -> bool:
            return names(await run.history()).count("TimerScheduled") == 2

        await eventually(several)
        with pytest.raises(RequestRefused, match=r"several timers; name one: .*-t1, .*-t2") as refused:
            await run.skip_wait()
        assert refused.value.reason == "wait_ambiguous"
        first, second = refused.value.fields["validation_errors"]["wait_id"]
        once = app.options(request_id="only-once").handle(TwoSleeps, "t")
        assert [await once.skip_wait(first, "why"), await once.skip_wait(first, "why")] == ["wait_skipped"] * 2
        with pytest.raises(RequestRefused, match="has ended") as refused:
            await run.skip_wait(first)
        assert refused.value.reason == "wait_not_open"
        assert await run.skip_wait(f"timer:{second}") == "wait_skipped"
        with pytest.raises(RequestRefused, match="no such wait"):
            await run.skip_wait("elsewhere")
        await run.signal(TwoSleeps.tell, "told")
        assert await run.result(timeout=20) == "told"
