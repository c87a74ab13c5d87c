"""The app of a test on the running event loop, and the same one entered from code with and without `await`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from backstay import activity, workflow
from backstay.testing import AsyncTestBackstay, Stuck, TestBackstay, assert_history, kept

from .shop import ALL, Door, careful, charge, order, ship, waits


def test_async_with_gives_the_app_of_the_running_loop() -> None:
    async def story() -> None:
        async with TestBackstay(register=ALL) as app:
            assert isinstance(app, AsyncTestBackstay)
            began = app.now
            assert await app.execute(order, "o-1", "a map") == "receipt for a map: 100"
            assert app.now - began == timedelta(days=30)
            assert_history(await app.history("o-1")).slept("30d").did(charge).completed()
            assert "✓ order completed" in await app.timeline("o-1")

    asyncio.run(story())


def test_time_does_not_jump_over_a_task_that_is_about_to_signal() -> None:
    async def story() -> None:
        async with AsyncTestBackstay(register=ALL) as app:
            began = app.now
            door = await app.start(Door, "d-1")

            async def opens() -> None:
                for _ in range(100):  # turns of the loop, in which it is not quiet
                    await asyncio.sleep(0)
                await door.signal(Door.open)

            said, _ = await asyncio.gather(door.result(), opens())
            assert said == "opened"
            assert app.now == began

    asyncio.run(story())


def test_time_is_held_while_a_task_of_the_test_needs_real_time() -> None:
    async def story() -> None:
        async with AsyncTestBackstay(register=ALL) as app:
            door = await app.start(Door, "d-1")
            outside = asyncio.get_running_loop().create_future()

            async def opens() -> None:
                with app.frozen():
                    asyncio.get_running_loop().call_later(0.001, outside.set_result, None)
                    await outside
                    await door.signal(Door.open)

            said, _ = await asyncio.gather(door.result(), opens())
            assert said == "opened"

    asyncio.run(story())


def test_async_activities_run_on_the_loop_of_the_test_and_hold_the_clock() -> None:
    async def story() -> None:
        may_go = asyncio.Event()

        @activity(type="asks", timeout="1s")
        async def asks() -> str:
            await may_go.wait()
            return "answered"

        @workflow(type="asking")
        async def asking() -> str:
            return await asks()

        async with AsyncTestBackstay(register=[asks, asking, *ALL]) as app:
            began = app.now
            asking_task = asyncio.create_task(app.execute(asking, "a-1"))
            other = asyncio.create_task(app.execute(order, "o-1", "a map"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert app.now == began
            may_go.set()
            assert await asking_task == "answered"
            assert await other == "receipt for a map: 100"

    asyncio.run(story())


def test_an_async_activity_that_waits_for_another_workflow_does_not_hold_the_clock() -> None:
    async def story() -> None:
        @activity(type="client")
        async def client() -> list[str]:
            return list(await asyncio.gather(app.execute(order, None, "a map"), app.execute(order, None, "a globe")))

        @workflow(type="outer")
        async def outer() -> list[str]:
            return await client()

        async with AsyncTestBackstay(register=[outer, client, *ALL]) as app:
            assert len(await app.execute(outer, "o-1")) == 2

    asyncio.run(story())


def test_the_verbs_of_time_and_doubles_are_the_same() -> None:
    async def story() -> None:
        async with AsyncTestBackstay(register=ALL) as app:
            fake = app.fake(ship, hangs=True)
            app.fail_next(charge)
            run = await app.start(careful, "c-1", "a map")

            async def ended() -> bool:
                return (await run.describe()).status == "completed"

            assert await app.run_until(ended)
            assert fake.count == 2
            with pytest.raises(Stuck, match="a condition"):
                await app.run_until(lambda: False)
            begin = app.now
            await app.advance("1h")
            await app.settle()
            assert app.now - begin == timedelta(hours=1)
            with pytest.raises(Stuck, match="the end of 'w-1'"):
                await app.execute(waits, "w-1")

    asyncio.run(story())


def test_a_call_that_the_test_cancels_is_cancelled() -> None:
    async def story() -> None:
        async with AsyncTestBackstay(register=ALL) as app:
            with app.frozen(), pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await app.execute(waits, "w-1")

    asyncio.run(story())


def test_a_sync_app_works_inside_a_running_loop() -> None:
    async def story() -> str:
        with TestBackstay(register=ALL) as app:
            return app.execute(order, "o-1", "a map")

    assert asyncio.run(story()) == "receipt for a map: 100"


def test_a_loop_that_does_not_show_its_handles_is_judged_by_its_turns() -> None:
    uvloop: Any = pytest.importorskip("uvloop")

    async def story() -> None:
        async with AsyncTestBackstay(register=ALL) as app:
            assert await app.execute(order, "o-1", "a map") == "receipt for a map: 100"
            with pytest.raises(Stuck):
                await app.execute(waits, "w-1")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_the_timelines_are_added_to_the_error_of_an_async_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "histories", None)  # as without the plugin

    async def story() -> None:
        async with AsyncTestBackstay(register=ALL) as app:
            await app.execute(order, "o-1", "a map")
            raise AssertionError("wrong")

    with pytest.raises(AssertionError) as failed:
        asyncio.run(story())
    assert "o-1  order  run 1" in failed.value.__notes__[0]
