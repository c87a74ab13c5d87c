"""A database that is far away: between a question and its answer other things happen. `tests/sim` has many more of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, activity, wait, workflow
from backstay.codec.values import dumps
from backstay.engine.core import sweep
from backstay.engine.core.timer_queue import HORIZON, TimerQueue
from backstay.kernel.values import SECOND
from backstay.protocol.requests import ClaimWorkflowTask, CompleteActivityTask, PollActivityTask, PollWorkflowTask
from backstay.store.errors import Unavailable
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import VirtualWorld, run

from .slow_read import SlowRead, far
from .two_processes import OnDisk, SlowAnswers, of, shared


@workflow
def patient() -> str:
    return wait("go")


@workflow
def twice() -> list[str]:
    return [wait("go"), wait("go")]


async def evict(app: AsyncBackstay) -> None:
    await eventually(lambda: not any(entry.inflight or entry.code_is_busy for entry in app.engine.cache))
    for entry in app.engine.cache:
        app.engine.discard_cached(entry)


def test_a_request_that_comes_twice_at_once_is_done_once_and_both_are_answered() -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", [twice]) as app:
            handle = await app.start(twice, "t")
            again = app.options(request_id="r1").handle(twice, "t")
            read = SlowRead(app.engine.store, "command")
            late = asyncio.ensure_future(again.signal("go", "once"))
            await read.began.wait()
            await again.signal("go", "once")
            read.may_end.set()
            await late
            assert [e.type for e in await handle.history()].count("SignalReceived") == 1

    asyncio.run(story())


def test_an_instance_that_another_process_changed_during_a_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SWEEP", 3600 * SECOND)  # nothing but the notice tells of it

    async def story() -> None:
        path = tmp_path / "far.db"
        async with AsyncBackstay(path, [patient]) as holder, AsyncBackstay(path, [patient]) as guest:
            assert (holder.engine.holder, guest.engine.holder) == (True, False)
            await holder.start(patient, "p")
            (key,) = [entry.instance.key for entry in holder.engine.cache]
            await evict(holder)
            read = SlowRead(holder.engine.store, "load")
            holder.engine.reconcile(key)
            await read.began.wait()
            await guest.handle(patient, "p").signal("go", "gone")
            noticed = asyncio.Event()
            holder._node.lifecycle.on_foreign_commit.append(noticed.set)
            await asyncio.wait_for(noticed.wait(), 10)
            read.may_end.set()
            assert await holder.handle(patient, "p").result(timeout=10) == "gone"

    asyncio.run(story())


def test_code_whose_history_was_read_before_an_outage_does_not_run_in_it() -> None:
    """What it decides would be written under the row that its process gets then, for shards that only the old one has owned."""

    async def story(_: object) -> str:
        disk = Disk()
        async with OnDisk(disk, 1, [patient]) as app:
            handle = await app.start(patient, "p")
            await evict(app)
            read = SlowRead(app.engine.store, "history")
            await handle.signal("go", "gone")
            await read.began.wait()
            app.engine.on_unavailable(Unavailable("the connection is lost"))
            read.may_end.set()
            (key,) = disk.workflows
            before = disk.workflows[key].last_decision
            await asyncio.sleep(0.1)
            assert app.engine.down is not None
            assert disk.workflows[key].last_decision == before
            return await handle.result(timeout=30)

    assert run(1, story) == "gone"


def test_a_poll_goes_on_to_the_next_task_when_the_one_it_was_offered_is_gone() -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", [patient]) as app:
            elsewhere = app.options(queue="elsewhere")
            await elsewhere.start(patient, "gone")
            (task_id,) = [id for entry in app.engine.cache for id in entry.instance.tasks]
            await elsewhere.start(patient, "there")
            await app._engine_room.call(ClaimWorkflowTask(task_id=task_id, worker_id="another"))
            await evict(app)
            far(app.engine.store, "load", "find_all")
            poll = PollWorkflowTask(
                namespace="default", queue="elsewhere", workflow_types=None, worker_id="w", wait_seconds=10
            )
            found: Any = await app._engine_room.call(poll)
            assert found is not None
            assert found.workflow_id == "there"

    asyncio.run(story())


def test_one_free_place_reads_the_instance_of_one_waiting_task_not_of_all() -> None:
    async def story() -> None:
        everybody_waits = asyncio.Event()

        @activity(type="add one")
        async def add_one(number: int) -> int:
            await everybody_waits.wait()
            return number + 1

        @workflow(type="counts")
        async def counts(number: int) -> int:
            return await add_one(number)

        async with AsyncBackstay(":memory:", [counts, add_one], async_tasks=1, cache_bytes=1) as app:
            handles = [await app.start(counts, f"c{number}", number) for number in range(40)]
            await eventually(lambda: len(app.engine.matching.lanes.waiting) == 39)
            far(app.engine.store, "load")
            load, loads = app.engine.store.load, list[int]()
            app.engine.store.load = lambda key: loads.append(key) or load(key)  # type: ignore[method-assign]
            everybody_waits.set()
            assert [await handle.result(timeout=30) for handle in handles] == list(range(1, 41))
            assert len(loads) < 40 * 4  # to hand the activity out, to take its end in; and who waits looks

    asyncio.run(story())


@activity(type="once elsewhere", queue="elsewhere", at_most_once=True)
def once_elsewhere() -> str:
    raise AssertionError("done by hand")


@workflow
def asks() -> str:
    return once_elsewhere()


@pytest.mark.parametrize("tries", [1, 2])
def test_a_task_that_a_poll_has_found_on_disk_is_not_released_as_one_without_a_worker(tries: int) -> None:
    """Its lease is on disk before its owner hears of that, and by then the poll that it was for is over."""

    async def story(_: object) -> list[str]:
        disk, answers = Disk(), SlowAnswers()
        async with OnDisk(disk, 1, [asks], answers) as owner, OnDisk(disk, 2, []) as beside:
            await shared(owner, beside)
            handle = await owner.start(asks, of(owner, 1))
            await eventually(lambda: bool(owner.engine.matching.lanes.waiting), "the activity waits for a worker")
            poll = PollActivityTask(
                worker_id="w",
                activity_types=frozenset({"once elsewhere"}),
                queue="elsewhere",
                wait_seconds=0,
                poll_request_id="p",
            )
            answers.late = 3
            first = asyncio.ensure_future(owner._engine_room.call(poll))
            if tries == 2:  # the worker asks again, and reaches another process
                await eventually(lambda: bool(next(disk.all_tasks()).owner), "the lease is on disk")
                found = await beside._engine_room.call(poll)
            else:
                found = await first
            assert found is not None
            await asyncio.sleep(10)
            answers.late = 0
            who = {"activity_attempt_id": found.activity_attempt_id, "lease_owner": "w"}
            await owner._engine_room.call(CompleteActivityTask(**who, result=dumps("done")))
            assert await handle.result(timeout=30) == "done"
            return [e.type for e in await handle.history() if e.type.startswith("Activity")]

    assert run(1, story) == ["ActivityScheduled", "ActivityStarted", "ActivityCompleted"]


def test_a_process_that_takes_over_does_not_blame_the_code_of_workers_that_it_has_not_heard_yet() -> None:
    """Its tasks are offered again, since replies may have died with the last owner. That says nothing about their code."""

    async def story(_: object) -> None:
        disk = Disk()
        async with OnDisk(disk, 1, [patient]) as owner, OnDisk(disk, 2, [patient]) as next_owner:
            await shared(owner, next_owner)
            await owner.options(queue="elsewhere").start(patient, of(owner, 1))
            poll = PollWorkflowTask(queue="elsewhere", workflow_types=None, worker_id="w", wait_seconds=1)
            assert await owner._engine_room.call(poll) is not None
            owner.engine.store.cut()  # type: ignore[attr-defined]
            await eventually(lambda: next_owner.engine.owns_all, "the other one takes over")
            await eventually(lambda: next(disk.all_tasks()).state == "ready", "the task is offered again")
            assert next(disk.all_tasks()).crashes == 0

    run(1, story)


class Deadlines:
    """The store as a timer queue sees it. What is asked is answered when somebody lets it be."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[list[tuple[int, int]]] = asyncio.get_running_loop().create_future()

    async def due(self, until: int, limit: int, **_: Any) -> list[tuple[int, int]]:
        self.asked.set()
        return await self.answer


def test_a_deadline_that_is_set_while_the_next_ones_are_read_is_kept() -> None:
    async def story(world: Any) -> None:
        here: VirtualWorld = world()
        woken: list[int] = []
        store = Deadlines()
        timers = TimerQueue(here, store, woken.append)  # type: ignore[arg-type]
        looking = asyncio.ensure_future(timers.start())
        await store.asked.wait()
        timers.set(7, here.now() + HORIZON // 2)
        store.answer.set_result([])  # as it was before that
        await looking
        store.answer = asyncio.get_running_loop().create_future()
        await asyncio.sleep(HORIZON / SECOND / 2 + 1)
        assert woken == [7]

    run(1, story)


def test_deadlines_that_were_read_for_an_engine_that_is_none_any_more_are_not_kept() -> None:
    async def story(world: Any) -> None:
        here: VirtualWorld = world()
        woken: list[int] = []
        store = Deadlines()
        timers = TimerQueue(here, store, woken.append)  # type: ignore[arg-type]
        looking = asyncio.ensure_future(timers.start())
        await store.asked.wait()
        timers.forget()
        store.answer.set_result([(here.now() + 50 * SECOND, 7)])
        await looking
        store.answer = asyncio.get_running_loop().create_future()
        store.answer.set_result([(here.now() + 10 * SECOND, 7)])  # another engine has moved it
        await timers.start()
        await asyncio.sleep(11)
        assert woken == [7]

    run(1, story)


def test_a_task_whose_history_cannot_be_read_when_it_is_handed_out_is_handed_out_again() -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", [patient]) as app:
            app.executor._slow.add("patient")
            store: Any = app.engine.store

            def fails(*_: Any) -> Any:
                del store.history
                raise Unavailable("the disk reports an error")

            store.history = fails
            handle = await app.start(patient, "p")
            await handle.signal("go", "gone")
            assert await handle.result(timeout=10) == "gone"

    asyncio.run(story())
