"""Tasks whose owner has no worker for them are taken by a process that has one: first after a second, then soon."""

from __future__ import annotations

import asyncio

from backstay import activity, workflow
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, of, shared

STEPS = 8


@activity
def add_one(n: int) -> int:
    return n + 1


@workflow
def count() -> int:
    n = 0
    for _ in range(STEPS):
        n = add_one(n)
    return n


def test_tasks_of_an_owner_without_workers_are_soon_taken_one_after_another() -> None:
    async def story(_: object) -> list[float]:
        disk, took = Disk(), list[float]()
        now = asyncio.get_running_loop().time
        async with OnDisk(disk, 1, []) as owner, OnDisk(disk, 2, [count, add_one]) as helper:
            await shared(owner, helper)
            for n in range(2):
                began = now()
                assert await (await helper.start(count, of(owner, n))).result() == STEPS
                took.append(now() - began)
        return took

    first, second = run(1, story)
    assert 1.0 <= first < 1.0 + STEPS * 0.2, "the first task waits for a second, the others do not"
    assert second < (STEPS + 1) * 0.2


def test_a_task_is_taken_when_it_has_waited_for_a_second() -> None:
    """Not up to another second later, because the process had looked a moment too soon."""

    async def story(_: object) -> list[float]:
        disk, took = Disk(), list[float]()
        now = asyncio.get_running_loop().time
        async with OnDisk(disk, 1, []) as owner, OnDisk(disk, 2, [count, add_one]) as helper:
            await shared(owner, helper)
            for n in range(5):
                await asyncio.sleep(60.2)  # virtual seconds: that the owner has no worker is forgotten then
                before, began = helper.engine.counters.stolen, now()
                handle = await helper.start(count, of(owner, n))
                await eventually(lambda before=before: helper.engine.counters.stolen > before, "it was taken")
                took.append(now() - began)
                await handle.result()
        return took

    assert all(1.0 <= seconds < 1.3 for seconds in run(1, story))


def test_tasks_without_a_worker_are_in_the_way_of_no_other_task() -> None:
    async def story(_: object) -> float:
        disk = Disk()
        now = asyncio.get_running_loop().time
        async with OnDisk(disk, 1, []) as owner, OnDisk(disk, 2, [count, add_one]) as helper:
            await shared(owner, helper)
            for n in range(130):
                await owner.start("elsewhere", of(owner, n))
            began = now()
            assert await (await helper.start(count, of(owner, 200))).result() == STEPS
            return now() - began

    assert run(1, story) < 3


def test_a_paused_run_of_another_process_is_left_alone_until_it_goes_on() -> None:
    async def story(_: object) -> tuple[int, float]:
        disk, loads = Disk(), list[int]()
        now = asyncio.get_running_loop().time
        async with OnDisk(disk, 1, []) as owner, OnDisk(disk, 2, [count, add_one]) as helper:
            await shared(owner, helper)
            id = of(owner, 0)
            await owner.start("count", id)
            await owner.handle(count, id).pause()
            load = helper.engine.store.load
            helper.engine.store.load = lambda key: loads.append(key) or load(key)  # type: ignore[method-assign]
            await asyncio.sleep(60)
            before, began = len(loads), now()
            await owner.handle(count, id).unpause()
            assert await helper.handle(count, id).result() == STEPS
            return before, now() - began

    loads, took = run(1, story)
    assert loads <= 5
    assert took < 3, "it is taken again like any other"
