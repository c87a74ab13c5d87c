"""An activity that kills its worker is begun again a bounded number of times, or never; so is workflow code.

Real processes, really killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import ActivityCrashed, AsyncClient, WorkflowFailed
from backstay.kernel.features.workflow_task.crashed import MOST

from ..many_nodes import Chosen, Shape
from ..processes import deadly, fatal, poison
from ..processes.program import Program
from ..processes.test_deadly import CASES, begun
from .kit import TOKEN, House

Start = Callable[..., Program]


@pytest.fixture
def program() -> Iterator[Start]:
    started: list[Program] = []

    def start(*args: str) -> Program:
        started.append(Program(*args))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


@CASES
async def test_workers_of_a_server_die_of_it_so_often_and_no_more(
    tmp_path: Path, program: Start, name: str, activity: str, starts: int
) -> None:
    ledger = tmp_path / "ledger"
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        handle = await client.start(deadly.BY_NAME[name], name)
        for _ in range(starts):
            assert await asyncio.to_thread(program("deadly", "worker", house.url, TOKEN, str(ledger)).ended) == 9
        program(
            "deadly", "worker", house.url, TOKEN, str(ledger)
        )  # it comes back under its name, and says that it holds nothing
        crashes, message = await asyncio.wait_for(handle.result(), 30)
        assert crashes == starts
        assert "may have done its work" in str(message)
        assert begun(ledger) == [f"{activity} {number}" for number in range(1, starts + 1)]
        history: Any = await client.history(name)
        told = [entry.event.retry_reason for entry in history if entry.type == "ActivityRetryScheduled"]
        assert told == ["activity_crashed"] * (starts - 1)


async def test_a_workflow_that_does_not_catch_the_crash_fails_with_it(tmp_path: Path, program: Start) -> None:
    ledger = tmp_path / "ledger"
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        handle = await client.start(deadly.careless, "careless")
        assert await asyncio.to_thread(program("deadly", "worker", house.url, TOKEN, str(ledger)).ended) == 9
        program("deadly", "worker", house.url, TOKEN, str(ledger))
        with pytest.raises(WorkflowFailed) as failed:
            await asyncio.wait_for(handle.result(), 30)
        cause = failed.value.__cause__
        assert isinstance(cause, ActivityCrashed)
        assert cause.crashes == 1


async def test_workflow_code_that_kills_its_workers_is_set_aside_until_it_is_corrected(program: Start) -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        house.server.engine.machine.failure_backoff = 0  # how the pauses grow is for the kernel's tests
        handle = await client.start(fatal.fatal, "order-1")
        fleet = {name: program("fatal", house.url, TOKEN, name) for name in ("one", "two")}
        killed = 0
        while not (seen := await handle.describe()).blocked:
            for name, worker in fleet.items():
                if worker.process.poll() is not None:
                    assert await asyncio.to_thread(worker.ended) == 9
                    killed += 1
                    fleet[name] = program("fatal", house.url, TOKEN, name)
            await asyncio.sleep(0.01)
        assert killed == MOST
        (task,) = seen.tasks
        assert task.task.block is not None
        assert task.task.block.reason == "workflow_task_crashed"
        assert f"{MOST} times in a row" in task.task.block.message
        innocent = await client.start(fatal.innocent, "order-2")
        assert await asyncio.wait_for(innocent.result(), 30) == "done"
        assert (await handle.describe()).blocked  # who was killed is back with the same code: no reason to try it again
        for worker in fleet.values():
            worker.process.terminate()
            await asyncio.to_thread(worker.ended)
        program("fatal", house.url, TOKEN, "three", "corrected")
        assert await asyncio.wait_for(handle.result(), 30) == "alive"


async def revived(house: House, program: Start, over: Callable[[], Awaitable[bool]]) -> int:
    """A worker that is started again whenever it dies, until all is over. How often it died."""
    worker, deaths = program("poison", "worker", house.url, TOKEN), 0
    while not await over():
        if worker.process.poll() is not None:
            assert await asyncio.to_thread(worker.ended) == 9
            worker, deaths = program("poison", "worker", house.url, TOKEN), deaths + 1
        await asyncio.sleep(0.01)
    return deaths


async def test_neighbours_of_workflow_code_that_kills_its_worker_are_not_blamed(program: Start) -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        house.server.engine.machine.failure_backoff = 0
        killer = await client.start(poison.code_poison, "code-poison")
        others = [await client.start(poison.code_innocent, f"code-{n}") for n in range(poison.NEIGHBOURS)]

        async def over() -> bool:
            found = [await run.describe() for run in (killer, *others)]
            assert not any(one.blocked for one in found[1:]), "an innocent run is blocked"
            return found[0].blocked and all(one.status == "completed" for one in found[1:])

        assert await asyncio.wait_for(revived(house, program, over), 120) == MOST


@pytest.mark.parametrize("shape", [Shape(), Shape(3)], ids=["one node", "three nodes"])
async def test_neighbours_of_an_activity_that_kills_its_worker_are_not_blamed(
    program: Start, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker works for all nodes: each of them spares it while another one tries a suspect."""
    monkeypatch.setattr(Chosen, "shape", shape)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        killer = await client.start(poison.work_poison, "work-poison")
        others = [await client.start(poison.work_innocent, name) for name in poison.NAMES]

        async def over() -> bool:
            return all([(await run.describe()).run.closed_at for run in (killer, *others)])  # type: ignore[union-attr]

        assert await asyncio.wait_for(revived(house, program, over), 120) == poison.CRASHES + 1
        assert [await run.result() for run in others] == ["done"] * poison.NEIGHBOURS
        with pytest.raises(WorkflowFailed):
            await killer.result()
