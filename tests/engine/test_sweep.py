"""The sweep comes back for what does not move, and only for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from backstay import AsyncBackstay, activity, spawn, wait, workflow
from backstay.engine.core import sweep
from backstay.kernel.machine import Machine
from backstay.kernel.values import SECOND
from backstay.store import Loaded, Ready
from tests.sim.disk import Disk, MemoryStore, Seam
from tests.sim.virtual import VirtualWorld, run


@workflow(type="greeting")
def greeting() -> str:
    return "hello"


@workflow(type="patient", signals=["go"])
def patient() -> str:
    return wait("go")


@activity(queue="nobody serves it")
def elsewhere() -> str:
    return "never"


@workflow(type="both", signals=["go"])
def both() -> str:
    spawn(elsewhere)
    return wait("go")


class Counted(MemoryStore):
    """Counts how often something was folded from it."""

    loads = 0

    def load(self, key: int) -> Ready[Loaded | None]:
        self.loads += 1
        return super().load(key)


class OnDisk(AsyncBackstay):
    def __init__(self, disk: Disk, world: Callable[[], VirtualWorld]) -> None:
        super().__init__("simulated", [greeting, patient, both, elsewhere], guard="off", world=world)
        self.disk = disk

    def _open_store(self, machine: Machine, offload: Any) -> Ready[Any]:
        self.counted = Counted(self.disk, machine.kinds, Seam())
        return Ready(self.counted)

    async def loads_during(self, seconds: float) -> int:
        before = self.counted.loads
        await asyncio.sleep(seconds)
        return self.counted.loads - before


def test_rows_that_say_something_else_are_written_again_once() -> None:
    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            await app.execute(greeting, "over")
            await app.start(patient, "waits")
            over = next(run for run in disk.runs.values() if run.workflow_id == "over")
            disk.runs[over.key] = replace(over, status="pending", closed_reason=None, closed_at=None)
            waits = disk.workflows[disk.names["default", "waits"]]
            disk.workflows[waits.key] = replace(waits, expects=waits.expects + 1)
            assert await app.loads_during(400) >= 2
            assert disk.runs[over.key] == over
            assert disk.workflows[waits.key].expects == waits.expects
            assert await app.loads_during(3600) == 0

    run(1, story)


def test_a_task_that_is_withheld_is_not_taken_for_stuck() -> None:
    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            handle = await app.start(patient, "waits")
            await handle.pause()
            await handle.signal("go", "on")
            assert [task.state for task in disk.all_tasks()] == ["ready"]
            assert await app.loads_during(3600) == 0
            await handle.unpause()
            assert await handle.result() == "on"

    run(1, story)


def test_a_task_that_is_withheld_is_not_read_again_and_again_if_its_run_does_not_stay_in_memory() -> None:
    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            handle = await app.start(patient, "waits")
            app.engine.cache.limit = 0
            await handle.pause()
            await handle.signal("go", "on")
            before = app.counted.loads
            for number in range(20):
                await app.execute(greeting, f"other-{number}")
                assert app.engine.cache.get(disk.names["default", "waits"]) is None
                await asyncio.sleep(2 * sweep.SWEEP / SECOND)
            assert app.counted.loads - before <= 1
            await handle.unpause()
            assert await handle.result() == "on"

    run(1, story)


def test_a_long_backlog_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PAGE", 3)

    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            for number in range(8):
                await app.options(queue="nobody serves it").start(greeting, f"w{number}")
            app.engine.matching.lanes.forget(lambda key: True)
            await asyncio.sleep(60)
            assert all(task.id in app.engine.matching.lanes.waiting for task in disk.all_tasks())
            assert len(list(disk.all_tasks())) == 8

    run(1, story)


def test_a_row_that_is_lost_is_not_forgotten_over_what_comes_meanwhile() -> None:
    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            handle = await app.start(both, "waits")
            await handle.pause()
            key = disk.names["default", "waits"]
            (lost,) = disk.tasks[key]
            del disk.tasks[key][lost]
            entry = app.engine.cache.get(key)
            assert entry is not None
            app.engine.discard_cached(entry)
            await handle.signal("go", "on")
            assert lost not in disk.tasks[key]
            assert disk.workflows[key].expects == len(disk.tasks[key]) + 1
            await asyncio.sleep(60)
            assert lost in disk.tasks[key]
            assert disk.workflows[key].expects == len(disk.tasks[key]) == 2

    run(1, story)


@pytest.mark.parametrize("how", ["by another process", "with a commit of its own"])
def test_after_long_idleness_a_row_that_is_lost_is_found_in_the_promised_time(how: str) -> None:
    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            handle = await app.start(both, "waits")
            key = disk.names["default", "waits"]
            await asyncio.sleep(1800)
            (lost,) = disk.tasks[key]
            del disk.tasks[key][lost]
            if how == "by another process":
                disk.version += 1
            else:
                await app.start(patient, "another")
            await asyncio.sleep(2 * sweep.SWEEP / SECOND)
            assert lost in disk.tasks[key]
            await handle.terminate()

    run(1, story)


def test_an_idle_engine_rests() -> None:
    async def story(world: Callable[[], VirtualWorld]) -> None:
        disk = Disk()
        async with OnDisk(disk, world) as app:
            await app.start(patient, "waits")
            await asyncio.sleep(1800)
            swept: list[None] = []
            app._node.lifecycle.on_sweep.append(lambda: swept.append(None))
            await asyncio.sleep(3600)
            assert 10 <= len(swept) <= 15

    run(1, story)
