"""Live code is a cache: it may be given up at any moment, and nobody can tell from the outside.

Giving it up unwinds it, so its `except` and `finally` blocks do run; nothing they do has an effect.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from backstay import AsyncBackstay, activity, logger, side_effect, sleep, spawn, upsert_memo, workflow
from backstay.sdk.errors import Evicted
from backstay.sdk.replay import workflow_greenlet

from .kit import eventually, evicting, memory, names

done: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    done.clear()


@activity(type="work")
def work(n: int) -> int:
    return n * n


@activity(type="undo")
def undo(what: str) -> None:
    done.append(("undo", what))


@activity(type="undo later")
async def undo_later(what: str) -> None:
    done.append(("undo later", what))


def effect(what: str) -> int:
    done.append(("effect", what))
    return 1


@workflow(type="plain", unchecked=True)
def plain() -> list[int]:
    def branch(n: int) -> int:
        try:
            sleep(0.001)
            return work(n)
        finally:
            clean("branch")

    found: list[int] = []
    try:
        branches = [spawn(branch, n) for n in range(3)]
        for n in range(4):
            found.append(work(n))
            sleep(0.001)
        found += [one.join() for one in branches]
        return found
    finally:
        clean("main")


@workflow(type="later", unchecked=True)
async def later() -> list[int]:
    async def branch(n: int) -> int:
        try:
            await asyncio.sleep(0.001)
            return await work.step(n)
        finally:
            clean("branch")

    found: list[int] = []
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(n)) for n in range(3)]
            for n in range(4):
                found.append(await work.step(n))
                await sleep.step(0.001)
        return found + [task.result() for task in tasks]
    finally:
        clean("main")


def clean(where: str) -> None:
    """What authors write into `finally`. Only the true end of the code may have these effects."""
    logger("backstay.workflow").warning("cleaning %s", where)
    side_effect(lambda: effect(where))
    upsert_memo(last=where)
    undo(where)


@pytest.mark.parametrize("definition", [plain, later])
async def test_evicted_code_ends_the_same_and_has_its_effects_once(
    definition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for app in (memory(definition, work, undo), evicting(definition, work, undo)):
        done.clear()
        caplog.clear()
        async with app:
            assert await app.execute(definition, "r") == [0, 1, 4, 9, 0, 1, 4]
        gc.collect()
        assert sorted(done) == sorted(
            [("undo", "branch"), ("effect", "branch")] * 3 + [("undo", "main"), ("effect", "main")]
        )
        cleaned = sorted(record.getMessage() for record in caplog.records if record.name == "backstay.workflow")
        assert cleaned == ["cleaning branch"] * 3 + ["cleaning main"]


@pytest.mark.parametrize("how", ["def", "async def", "blocking call in async def"])
async def test_giving_code_up_unwinds_it_without_any_effect(how: str, caplog: pytest.LogCaptureFixture) -> None:
    unwound: list[str] = []

    @workflow(type="run", unchecked=True)
    def run() -> None:
        try:
            sleep("1h")
        except Evicted:
            unwound.append("except")
            raise
        finally:
            unwound.append("finally")
            clean("finally")

    @workflow(type="run", unchecked=True)
    async def run_later() -> None:
        async def nested() -> None:
            try:
                await sleep.step("1h")
            finally:
                unwound.append("nested")
                await undo_later("nested")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(nested())
                await sleep.step("1h")
        except BaseException:
            unwound.append("except")
            raise
        finally:
            unwound.append("finally")
            clean("finally")

    @workflow(type="run", unchecked=True)
    async def run_blocking() -> None:
        try:
            sleep("1h")
        except Evicted:
            unwound.append("except")
            raise
        finally:
            unwound.append("finally")
            clean("finally")

    definition = {"def": run, "async def": run_later, "blocking call in async def": run_blocking}[how]
    async with memory(definition, work, undo, undo_later) as app:
        handle = await app.start(definition, "r")
        await eventually(lambda: _sleeping(app))
        before = names(await handle.history())
        (key,) = app.executor._live_runs  # pyright: ignore[reportPrivateUsage]
        app.executor.forget(key)
        gc.collect()
        assert set(unwound) >= {"except", "finally"}
        assert names(await handle.history()) == before
        assert app.executor.weight(key) == 0
    assert done == []
    assert [record for record in caplog.records if record.name == "backstay.workflow"] == []


async def _sleeping(app: AsyncBackstay) -> bool:
    return (await app.describe("r")).wait_kind == "timer"


@pytest.mark.parametrize("how", ["def", "async def"])
async def test_closing_the_engine_gives_all_code_up(how: str, tmp_path: Any) -> None:
    @workflow(type="run", unchecked=True)
    def run() -> str:
        try:
            sleep(0.2)
        finally:
            clean("finally")
        return "woke"

    @workflow(type="run", unchecked=True)
    async def run_later() -> str:
        try:
            await sleep.step(0.2)
        finally:
            clean("finally")
        return "woke"

    definition = run if how == "def" else run_later
    async with AsyncBackstay(tmp_path / "a.db", [definition, undo]) as app:
        await app.start(definition, "r")
    gc.collect()
    assert done == []
    async with AsyncBackstay(tmp_path / "a.db", [definition, undo]) as app:
        assert await app.handle(definition, "r").result() == "woke"
    assert sorted(done) == [("effect", "finally"), ("undo", "finally")]


@pytest.mark.parametrize("how", ["def", "async def", "await in def"])
async def test_code_that_never_lets_go_is_set_aside(how: str) -> None:
    turns: list[int] = []

    @workflow(type="run", unchecked=True)
    def run() -> None:
        while True:
            try:
                turns.append(1)
                sleep("1h")
            except BaseException:
                continue

    @workflow(type="run", unchecked=True)
    async def run_later() -> None:
        while True:
            try:
                turns.append(1)
                await sleep.step("1h")
            except BaseException:
                continue

    @workflow(type="run", unchecked=True)
    def run_joining() -> None:
        branch = spawn(sleep, "1h")
        while True:
            try:
                turns.append(1)
                branch.join()
            except BaseException:
                if len(turns) > 1000:
                    raise
                continue

    definition = {"def": run, "async def": run_later, "await in def": run_joining}[how]
    async with memory(definition) as app:
        await app.start(definition, "r")
        await eventually(lambda: _sleeping(app))
        (key,) = app.executor._live_runs  # pyright: ignore[reportPrivateUsage]
        app.executor.forget(key)
        assert 2 <= len(turns) <= 2 * workflow_greenlet.PATIENCE
        assert (await app.describe("r")).liveness_state == "timer_scheduled", "the run itself lives on"


@pytest.mark.parametrize("room", ["no code", "nothing"])
async def test_many_runs_with_hardly_any_room_all_end(room: str) -> None:
    @workflow(type="run")
    def run(n: int) -> int:
        sleep(0.001)
        return work(n)

    async with evicting(run, work) if room == "no code" else memory(run, work, cache_bytes=1) as app:
        handles = await asyncio.gather(*(app.start(run, f"r-{n}", n) for n in range(700)))
        assert [await handle.result() for handle in handles] == [n * n for n in range(700)]
