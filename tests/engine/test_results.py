"""Waiting for the end of a chain of runs, however fast the chain is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    ActivityTimedOut,
    AsyncBackstay,
    RequestRefused,
    activity,
    activity_info,
    continue_as_new,
    update,
    wait,
    workflow,
)
from backstay.engine.core.waiters import CHECKS, ENDED, Waiter, Waiters
from backstay.kernel.features.memo import UpsertMemo
from backstay.kernel.features.start import Start
from backstay.protocol import requests as ask
from backstay.sdk.author.primitives import _MEMO
from backstay.sdk.replay.workflow_greenlet import current_run
from backstay.store import Ready
from tests.sdk.kit import eventually

from .slow_read import SlowRead


@workflow
def counted(left: int) -> str:
    if left:
        continue_as_new(counted, left - 1)
    return "zero"


@workflow
def at_once() -> str:
    return "done"


@pytest.mark.parametrize("runs", [0, 1, 2, 7])
def test_runs_that_continue_within_one_commit_are_followed_to_their_end(runs: int):
    async def story() -> str:
        async with AsyncBackstay(":memory:", [counted]) as app:
            return await asyncio.wait_for(app.execute(counted, "c", runs), 20)

    assert asyncio.run(story()) == "zero"


def test_a_workflow_that_ends_in_the_commit_of_its_start_is_answered():
    async def story() -> str:
        async with AsyncBackstay(":memory:", [at_once]) as app:
            return await asyncio.wait_for(app.execute(at_once, "a"), 20)

    assert asyncio.run(story()) == "done"


def test_a_caller_that_breaks_does_not_take_the_others_down():
    async def story() -> list[str]:
        async with AsyncBackstay(":memory:", [counted, at_once]) as app:
            await app.start(at_once, "first")

            def broken(value: object, error: BaseException | None) -> None:
                raise RuntimeError("a reply that breaks")

            message = Start(namespace="default", workflow_id="x", workflow_type="at_once")
            app.engine.address("default", "x", message, broken)
            others = [app.execute(counted, f"c{i}", 1) for i in range(5)]
            return await asyncio.wait_for(asyncio.gather(*others), 20)

    assert asyncio.run(story()) == ["zero"] * 5


@activity(local=True, timeout="20ms")
async def endless() -> None:
    await asyncio.Event().wait()


@activity(local=True, retries=1, backoff="1ms")
def numbered() -> tuple[int, str]:
    if activity_info().number == 1:
        raise ConnectionError("first")
    return activity_info().number, activity_info().idempotency_key


@workflow
def local_steps() -> list[object]:
    try:
        endless.step().run()
    except ActivityTimedOut as late:
        return [late.timeout_kind, *numbered()]
    return []


def test_local_activities_time_out_and_know_their_attempt():
    async def story() -> tuple[list[object], str | None]:
        async with AsyncBackstay(":memory:", [endless, numbered, local_steps]) as app:
            handle = await app.start(local_steps, "l")
            return await asyncio.wait_for(handle.result(), 20), handle.run_id

    result, run_id = asyncio.run(story())
    assert result == ["start_to_close", 2, f"{run_id}-2"]


def test_a_completion_that_is_refused_fails_its_task_with_a_pause_instead_of_spinning():
    runs: list[int] = []

    @workflow(type="asks for nonsense", unchecked=True)
    def nonsense() -> None:
        runs.append(1)
        live_run = current_run()
        assert live_run is not None
        live_run.immediate(_MEMO, lambda step: UpsertMemo(sequence=step, entries={"bad key": b""}))

    async def story() -> None:
        async with AsyncBackstay(":memory:", [nonsense]) as app:
            handle = await app.start(nonsense, "n")
            for _ in range(200):
                await asyncio.sleep(0)
            (view,) = (await handle.describe()).tasks
            assert view.transport_state == "repair_backoff"
            assert view.task.block is not None
            assert view.task.block.reason == "invalid_memo"

    asyncio.run(story())
    assert len(runs) == 1


def test_an_unknown_duplicate_policy_is_refused_by_name():
    unknown: Any = "whatever"

    async def story() -> str:
        async with AsyncBackstay(":memory:", [at_once]) as app:
            with pytest.raises(RequestRefused) as caught:
                await app.call(ask.StartWorkflow(workflow_type="at_once", duplicate_policy=unknown))
            return caught.value.reason

    assert asyncio.run(story()) == "invalid_duplicate_policy"


@workflow(signals=["go"])
def patient() -> str:
    return wait("go")


@pytest.mark.parametrize("row", ["'completed', 'completed', 1", "'pending', null, null"])
def test_an_end_is_what_history_says_and_not_what_the_index_says(tmp_path: Path, row: str):
    """Asked through another process, which has nothing but the file."""
    path = tmp_path / "app.db"

    def forge() -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"update run set (status, closed_reason, closed_at) = ({row})")
        connection.close()

    async def story() -> None:
        async with AsyncBackstay(path, [patient]) as app, AsyncBackstay(path, [patient]) as guest:
            handle = await app.start(patient, "p")
            forge()
            with pytest.raises(TimeoutError):
                await guest.handle(patient, "p").result(timeout=0.2)
            await handle.signal("go", "gone")
            assert await handle.result(timeout=20) == "gone"
            forge()
            assert await guest.handle(patient, "p").result(timeout=20) == "gone"

    asyncio.run(story())


def evict(app: AsyncBackstay) -> None:
    for entry in app.engine.cache:
        app.engine.discard_cached(entry)


def test_an_end_that_comes_while_its_waiter_looks_is_not_missed():
    async def story() -> None:
        async with AsyncBackstay(":memory:", [patient]) as app:
            handle = await app.start(patient, "p")
            evict(app)
            read = SlowRead(app.engine.store, "load")
            waiting = asyncio.ensure_future(handle.result(timeout=5))
            await read.began.wait()
            await handle.signal("go", "gone")
            assert (await handle.describe()).status == "completed"
            read.may_end.set()
            assert await waiting == "gone"

    asyncio.run(story())


@workflow
class Door:
    @update
    def open(self) -> str:
        return "open"

    def handle(self) -> None:
        wait("go")


def test_an_update_that_ends_while_its_waiter_looks_is_not_missed():
    async def story() -> None:
        async with AsyncBackstay(":memory:", [Door]) as app:
            handle = await app.start(Door, "d")
            await handle.pause()
            asked = await handle.submit(Door.open)
            read = SlowRead(app.engine.store, "history", before=1)  # the first is for its name
            waiting = asyncio.ensure_future(asked.result(timeout=5))
            await read.began.wait()
            await handle.unpause()
            read.may_end.set()
            assert await waiting == "open"

    asyncio.run(story())


def test_waiters_are_looked_at_once_at_a_time_however_often_another_process_commits() -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", []) as app:
            decisions = count(1)
            waiters = Waiters(app.engine.world, lambda seen: Ready({key: next(decisions) for key in seen}))
            commits = asyncio.Event()
            news: list[str] = []
            looks = [0] * (2 * CHECKS + 1)

            async def look(number: int) -> str | None:
                looks[number] += 1
                await commits.wait()
                return news[0] if news else None

            futures = [app.engine.world.future() for _ in looks]
            for number, future in enumerate(futures):
                waiters.add(number, "news", Waiter(str, partial(look, number), future))
            for _ in range(5):
                waiters.check_all()
                await asyncio.sleep(0)
            commits.set()
            await eventually(lambda: not waiters._checking)
            assert set(looks) == {2}  # what was committed while they looked is looked at once more
            news.append("it is here")
            waiters.check_all()
            assert await asyncio.wait_for(asyncio.gather(*futures), 10) == ["it is here"] * len(looks)
            assert not list(waiters)

    asyncio.run(story())


def test_a_waiter_that_gives_up_is_removed_from_the_list() -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", [patient]) as app:
            execution = asyncio.ensure_future(app.execute(patient, "p"))
            await eventually(lambda: bool(list(app.engine.waiters)))
            execution.cancel()
            await asyncio.wait([execution])
            await eventually(lambda: not list(app.engine.waiters))

    asyncio.run(story())


def test_an_engine_that_is_stopped_while_it_looks_around_does_not_begin_to_look(tmp_path: Path) -> None:
    async def story() -> None:
        app = await AsyncBackstay(tmp_path / "x.db", [patient, at_once]).open()
        await app.start(patient, "p")
        waiting = asyncio.ensure_future(app.handle(patient, "p").result())
        await eventually(lambda: bool(list(app.engine.waiters)))
        read = SlowRead(app.store, "notices")
        async with AsyncBackstay(tmp_path / "x.db", [at_once], client_only=True) as other:
            await other.start(at_once, "a")
        await asyncio.wait_for(read.began.wait(), 20)
        await app.close()
        for _ in range(3):
            await asyncio.sleep(0)
            assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"backstay-watch"})
        waiting.cancel()

    asyncio.run(story())


def test_an_engine_that_is_closed_while_it_checks_for_waiters_leaves_no_task() -> None:
    async def story() -> None:
        app = await AsyncBackstay(":memory:", [patient]).open()
        checking = asyncio.Event()

        async def never_found() -> None:
            checking.set()
            await asyncio.Event().wait()

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        app.engine.waiters.add(1, ENDED, Waiter(lambda news: news, never_found, future))
        app.engine.waiters.check_all()
        await checking.wait()
        await app.close()
        for _ in range(3):  # a cancelled task ends with the next turns of the loop
            await asyncio.sleep(0)
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"backstay-watch"})

    asyncio.run(story())


def test_a_waiter_in_the_next_engine_gets_results_that_the_engine_before_committed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was cut off from its database for a moment has not noticed what was committed meanwhile."""

    async def nothing_new() -> bool:
        return False

    async def story() -> None:
        first = await AsyncBackstay(tmp_path / "x.db", [patient]).open()
        async with AsyncBackstay(tmp_path / "x.db", [patient]) as second:
            monkeypatch.setattr(second.engine.store, "changed", nothing_new)
            handle = await first.start(patient, "p")
            waiting = asyncio.ensure_future(second.handle(patient, "p").result(timeout=20))
            await eventually(lambda: bool(list(second.engine.waiters)))
            await handle.signal("go", "gone")
            assert await handle.result(timeout=20) == "gone"
            await first.close()
            assert await waiting == "gone"
            assert second.is_engine

    asyncio.run(story())


def test_waiters_of_owned_instances_are_looked_at_after_a_notice_and_whenever_something_may_have_gone_by_unheard() -> (
    None
):
    async def story() -> None:
        async with AsyncBackstay(":memory:", []) as app:
            decisions = count(1)
            asked: list[set[int]] = []

            def moved(seen: Mapping[int, int | None]) -> Ready[dict[int, int | None]]:
                asked.append(set(seen))
                return Ready({key: next(decisions) for key in seen})

            async def look() -> str | None:
                return None

            waiters = Waiters(app.engine.world, moved, lambda key: key < 3)
            for key in range(5):
                waiters.add(key, "news", Waiter(str, look, app.engine.world.future()))

            async def check(begin: Callable[[], None]) -> set[int]:
                begin()
                await eventually(lambda: not waiters._checking)
                return asked.pop()

            assert await check(waiters.check_all) == {0, 1, 2, 3, 4}, "at first nothing is known"
            assert await check(waiters.check_all) == {3, 4}
            waiters.note([1])
            assert await check(waiters.check_all) == {1, 3, 4}
            assert await check(waiters.check_owned) == {0, 1, 2, 3, 4}
            assert await check(waiters.check_all) == {3, 4}

    asyncio.run(story())
