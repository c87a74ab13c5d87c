"""One worker, several queues: it takes the tasks of all of them, and has its hands full with all of them together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay import AsyncClient, AsyncWorker, Signal, activity, info, query, wait, workflow
from backstay.sdk.errors import RequestRefused

from ..sdk.kit import eventually, names
from .kit import TOKEN, House, remote

go = Signal[None]("go")


@activity(queue="warehouse")
def pack(what: str) -> str:
    return f"packed {what}"


@activity
def bill(what: str) -> str:
    return f"billed {what}"


@workflow
def order(what: str) -> list[str]:
    return [pack(what), bill(what)]


@workflow(queue="warehouse")
class Counting:
    @query
    def where(self) -> str:
        return info().workflow_id

    def handle(self) -> str:
        wait(go)
        return "counted"


async def test_activities_of_other_queues_run_in_the_same_worker() -> None:
    async with remote(order, pack, bill, queues=("default", "warehouse")) as app:
        assert await app.execute(order, "o", "books") == ["packed books", "billed books"]
        (worker,) = app.house.server.workers.of("default")
        assert (worker.task_queue, worker.queues) == ("default", ["default", "warehouse"])


async def test_workflows_of_any_of_its_queues_are_run_and_asked() -> None:
    async with remote(Counting, queues=("default", "warehouse")) as app:
        run = await app.start(Counting, "c")
        assert await run.query(Counting.where) == "c"
        await run.signal(go, None)
        assert await run.result() == "counted"


async def test_the_slots_of_a_worker_are_shared_by_its_queues() -> None:
    gate = asyncio.Event()
    running: list[str] = []

    async def hold(what: str) -> str:
        running.append(what)
        await gate.wait()
        return what

    @activity(type="near")
    async def near() -> str:
        return await hold("near")

    @activity(type="far", queue="warehouse")
    async def far() -> str:
        return await hold("far")

    @workflow(type="both")
    async def both() -> list[str]:
        return list(await asyncio.gather(near.step(), far.step()))

    async with remote(both, near, far, queues=("default", "warehouse"), async_tasks=1) as app:
        run = await app.start(both, "b")
        await eventually(lambda: running, "one of them began")
        (desk,) = app.house.server.worker_links
        assert desk.station.used["async"] == 1
        assert len(running) == 1
        gate.set()
        assert sorted(await run.result()) == ["far", "near"]


async def test_a_build_that_drains_on_one_queue_goes_on_with_the_others() -> None:
    async with remote(order, pack, bill, queues=("default", "warehouse"), compatibility="b1") as app:
        server = app.house.server
        await server.rollouts.drain("default", "warehouse", "b1", server.now)
        run = await app.options(compatibility="b1").start(order, "o", "books")

        async def scheduled() -> bool:
            return "ActivityScheduled" in names(await run.history())

        await eventually(scheduled)
        assert "ActivityStarted" not in names(await run.history()), "nobody got it, though it was there to be taken"
        await server.rollouts.resume("default", "warehouse", "b1")
        assert await run.result() == ["packed books", "billed books"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"queue": "a", "queues": ["b"]}, "not both"),
        ({"queues": "warehouse"}, r"queues=\['warehouse'\]"),
        ({"queues": []}, "at least one"),
    ],
)
def test_a_slip_is_told_at_once(given: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        AsyncWorker("http://127.0.0.1:1", [order], **given)


async def test_a_queue_needs_a_name() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN):
        with pytest.raises(RequestRefused, match="queues has 1 to 255 characters"):
            await AsyncWorker(house.url, [order], queues=["ok", ""], token=TOKEN).__aenter__()
