"""How our own worker treats its server: it asks again at once, takes a full queue for what it is, and sends what is taken."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, Signal, activity, side_effect, update, wait, workflow
from backstay.link.http import HttpClient, Reply
from backstay.protocol.native import worker as wire
from backstay.server.native import worker_routes
from backstay.store.errors import Unavailable

from ..sdk.kit import eventually, names
from .kit import TOKEN, House

more = Signal[int]("more")


@activity
def step(n: int) -> int:
    return n + 1


@workflow(type="polite")
def polite(n: int) -> int:
    return step(n)


@workflow(type="dicing")
def dicing(first: bool) -> int:
    if not first:
        step(1)
    return side_effect(lambda: 4)


@workflow(type="long-talk")
class LongTalk:
    def __init__(self) -> None:
        self.total = 0

    @update
    def add(self, n: int) -> int:
        self.total += n
        return self.total

    def handle(self, count: int) -> int:
        for n in range(count):
            step(n)
        wait(lambda: self.total >= 30, key="enough")
        return self.total


@pytest.mark.contract("POLL-07")
async def test_an_idle_worker_asks_again_at_once_until_it_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PARKED", 0.01)
    asked: list[tuple[float, float]] = []
    post = HttpClient.post

    async def watched(self: HttpClient, path: str, body: bytes, seconds: float, more: str = "") -> Reply:
        if path == wire.EXCHANGE and b'"reports"' not in body:
            asked.append((asyncio.get_running_loop().time(), seconds))
        return await post(self, path, body, seconds, more)

    monkeypatch.setattr(HttpClient, "post", watched)
    async with House() as house:
        worker = AsyncWorker(house.url, [polite, step], token=TOKEN)
        await worker.__aenter__()
        await eventually(lambda: len(asked) > 20, "it asked again and again")
        assert worker.link.lost == 0, "an empty answer is no loss"
        await worker.close()
        until = len(asked)
        async with AsyncClient(house.url, token=TOKEN) as client:
            await client.start(polite, "p", 1)
            assert names(await client.history("p"))[-1] == "WorkflowStarted"
        assert len(asked) == until, "nobody asks any more"
    assert min(seconds for _, seconds in asked[:20]) >= 60, "a server may hold a poll for sixty seconds"


@pytest.mark.contract("POLL-13")
async def test_a_full_queue_is_no_idle_one_and_a_lost_database_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PARKED", 0.05)  # many a poll comes back with nothing while the queue is full
    async with (
        House(workflow_task_max_active_leases_per_queue=1, activity_task_max_active_leases_per_queue=1) as house,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        handles = [await client.start(polite, f"p-{n}", n) for n in range(12)]
        async with AsyncWorker(house.url, [polite, step], token=TOKEN) as worker:
            assert [await handle.result() for handle in handles] == list(range(1, 13))
            assert worker.link.lost == 0, "backpressure is not taken for trouble"
            engine = house.server.engine
            engine.on_unavailable(_away())
            waiting = asyncio.create_task(client.execute(polite, "after", 41))
            await eventually(lambda: engine.down is None, "the database is back")
            assert await waiting == 42


@pytest.mark.contract("POLL-13")
async def test_what_a_full_queue_holds_back_comes_when_there_is_room_and_not_with_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parked poll lasts longer than this test may. Were a full queue an idle one, each task would come with the next."""
    monkeypatch.setattr(wire, "PARKED", 600)
    async with (
        House(workflow_task_max_active_leases_per_queue=1, activity_task_max_active_leases_per_queue=1) as house,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        handles = [await client.start(polite, f"p-{n}", n) for n in range(8)]
        async with AsyncWorker(house.url, [polite, step], token=TOKEN) as worker:
            results = asyncio.gather(*(handle.result() for handle in handles))
            assert await asyncio.wait_for(results, 40) == list(range(1, 9))
            assert worker.link.lost == 0


held = threading.Event()


@activity(queue="here")
def holds() -> str:
    assert held.wait(20)
    return "held"


@activity(queue="there")
def waits() -> str:
    return "waited"


@workflow(type="holding")
def holding() -> str:
    return holds()


@workflow(type="waiting")
def waiting() -> str:
    return waits()


@pytest.mark.one_server("it asks the server that holds the task back")
@pytest.mark.contract("POLL-13")
async def test_a_worker_without_work_is_told_from_one_whose_queue_is_full_and_gets_its_task_when_another_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One lease for all queues together, and two workers. The poll of the second is parked for longer than this test may last."""
    monkeypatch.setattr(wire, "PARKED", 600)
    held.clear()
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
    async with (
        House(activity_task_max_active_leases_per_namespace=1) as house,
        AsyncClient(house.url, token=TOKEN) as client,
        httpx.AsyncClient(base_url=f"{house.url}/api", headers=headers) as operator,
        AsyncWorker(house.url, [holding, waiting], token=TOKEN),
        AsyncWorker(house.url, [holds], queues=["here"], token=TOKEN),
        AsyncWorker(house.url, [waits], queues=["there"], token=TOKEN) as second,
    ):

        async def because() -> str | None:
            return (await operator.get("/task-queues/there")).json()["throttled_because"]

        assert await because() is None, "idle"
        first = await client.start(holding, "h")

        async def begun() -> bool:
            return "ActivityStarted" in names(await first.history())

        await eventually(begun, "the only lease is taken")
        behind = await client.start(waiting, "w")
        assert "1" in (await eventually(because, "its queue is full") or "")
        assert "max_active_leases_per_namespace" in (await operator.get("/workflows/w/why")).json()["sentence"]
        assert "ActivityStarted" not in names(await behind.history())
        held.set()
        assert await first.result() == "held"
        assert await asyncio.wait_for(behind.result(), 40) == "waited"
        assert await because() is None
        assert second.link.lost == 0, "backpressure is not taken for trouble"


def _away() -> Unavailable:
    return Unavailable("somebody pulled the plug")


@pytest.mark.contract("PROTO-13")
async def test_a_command_that_the_server_does_not_advertise_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = list(worker_routes._COMMANDS)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        monkeypatch.setattr(worker_routes, "_COMMANDS", [name for name in everything if name != "record_side_effect"])
        async with AsyncWorker(house.url, [dicing, polite, step], token=TOKEN):
            for first in (True, False):
                stuck = await client.start(dicing, f"d-{first}", first)

                async def block() -> str:
                    described = await client.describe(stuck.id)  # noqa: B023
                    return next((view.task.block.message for view in described.tasks if view.task.block), "")

                assert "takes no command 'record_side_effect'" in await eventually(block, "its task failed")
                assert "SideEffectRecorded" not in names(await client.history(stuck.id))
            assert await client.execute(polite, "fine", 1) == 2, "what the server takes is sent"
        monkeypatch.setattr(worker_routes, "_COMMANDS", everything)
        async with AsyncWorker(house.url, [dicing, polite, step], token=TOKEN):
            for first in (True, False):
                await client.handle(dicing, f"d-{first}").repair()
                assert await client.handle(dicing, f"d-{first}").result() == 4


@pytest.mark.needs_links("a task of an instance that another node owns is taken some 50 ms after it is ready")
@pytest.mark.contract("RESUME-15")
async def test_a_task_says_what_it_is_for_and_its_history_is_on_later_pages() -> None:
    """Of several updates a task names one. It is that one, however much history lies before it."""
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [LongTalk, step], token=TOKEN):
            talk = await client.start(LongTalk, "t", 350)

            async def there() -> bool:
                return "ConditionWaitOpened" in names(await talk.history())

            await eventually(there, "it waits")
            assert len(await talk.history()) > 1000
        submitted = [await talk.submit(LongTalk.add, n) for n in (1, 2, 27)]
        async with AsyncWorker(house.url, [LongTalk, step], token=TOKEN, live=0):
            assert [await update.result() for update in submitted] == [1, 3, 30]
            assert await talk.result() == 30
