"""Limits of queues bind our own workers as they bind polls, and whoever waited is served when there is room again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from backstay import AsyncClient, AsyncWorker, activity, workflow
from backstay.server.settings import load

from ..sdk.kit import eventually
from ..server.kit import Api, serving, settle
from .kit import TOKEN


class Bench:
    """What runs now, how much ran at once at most, and a gate that everything stops at while it is shut."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.began: list[str] = []
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def work(self, what: str) -> str:
        self.began.append(what)
        self.running.append(what)
        self.most = max(self.most, len(self.running))
        await asyncio.sleep(0)
        await self.gate.wait()
        self.running.remove(what)
        return what


bench: Bench


@activity(type="admission-here")
async def here(what: str) -> str:
    return await bench.work(what)


@activity(type="admission-there", queue="there")
async def there(what: str) -> str:
    return await bench.work(what)


@workflow(type="admission-fan")
async def fan(count: int) -> int:
    return len(await asyncio.gather(*(here.step(f"{n}") for n in range(count))))


@workflow(type="admission-one")
async def one(what: str) -> str:
    return await here.step(what)


@workflow(type="admission-other")
async def other(what: str) -> str:
    return await there.step(what)


KNOWN = (here, there, fan, one, other)


@pytest.fixture(autouse=True)
def _anew() -> None:
    global bench
    bench = Bench()


class House:
    """A server whose clock stands still, with a client of ours, and as many workers as a test wants."""

    def __init__(self, api: Api, client: AsyncClient, stack: AsyncExitStack) -> None:
        self.api = api
        self.client = client
        self._stack = stack

    async def worker(self, **options: Any) -> AsyncWorker:
        worker = AsyncWorker(str(self.api.http.base_url), KNOWN, token=TOKEN, **options)
        return await self._stack.enter_async_context(worker)

    async def admission(self, queue: str = "default") -> dict[str, Any]:
        return (await self.api.control("GET", f"/task-queues/{queue}")).json()["admission"]["activity_tasks"]


@asynccontextmanager
async def house(**settings: Any) -> AsyncIterator[House]:
    async with serving(**settings) as api, AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(str(api.http.base_url), token=TOKEN))
        yield House(api, client, stack)


LEASES = [
    {"activity_task_max_active_leases_per_queue": 3},
    {"activity_task_max_active_leases_per_namespace": 3},
    {
        "task_queue_admission_overrides": load(
            {"task_queue_admission_overrides": {"default": {"max_active_leases": 3}}}, {}
        ).task_queue_admission_overrides
    },
]


@pytest.mark.parametrize("limit", LEASES, ids=["queue", "namespace", "override"])
async def test_a_worker_of_ours_never_has_more_leases_of_a_queue_than_its_limit(limit: dict[str, Any]) -> None:
    async with house(**limit) as it:
        await it.worker()
        await it.worker()
        bench.gate.clear()
        wide = await it.client.start(fan, "wide", 12)
        small = [await it.client.start(one, f"s{n}", f"s{n}") for n in range(9)]
        await eventually(lambda: len(bench.running) >= 3)
        await settle()
        assert len(bench.running) == 3, "of many that one decision makes ready, and of many decisions in one commit"
        bench.gate.set()
        assert await wide.result(timeout=20) == 12
        for run in small:
            await run.result(timeout=20)
        assert bench.most == 3
        assert (await it.admission())["active_leases"] == 0


async def test_a_minute_later_a_worker_of_ours_is_given_what_the_limit_held_back() -> None:
    async with house(activity_task_max_dispatches_per_minute=10) as it:
        await it.worker()
        run = await it.client.start(fan, "f", 15)
        await eventually(lambda: len(bench.began) >= 10)
        await settle()
        assert len(bench.began) == 10
        assert (await it.admission())["status"] == "throttled"
        await it.api.world.advance(60)
        assert await run.result(timeout=20) == 15


async def test_a_minute_later_workflows_begin_that_the_limit_held_back() -> None:
    async with house(workflow_task_max_dispatches_per_minute=2) as it:
        await it.worker()
        runs = [await it.client.start(one, f"w{n}", f"w{n}") for n in range(5)]
        for _ in range(10):
            await settle()
            await it.api.world.advance(60)
        for run in runs:
            await run.result(timeout=20)


async def test_queues_of_a_budget_group_take_turns() -> None:
    """A queue that is looked at first does not use up what both of them may."""
    settings = load(
        {
            "task_queue_admission_overrides": {
                "default": {"activity_tasks": {"budget_group": "bank"}},
                "there": {"activity_tasks": {"budget_group": "bank"}},
            },
            "task_queue_budget_groups": {"bank": 2},
        },
        {},
    )
    async with house(
        task_queue_admission_overrides=settings.task_queue_admission_overrides,
        task_queue_budget_groups=settings.task_queue_budget_groups,
    ) as it:
        await it.worker(queues=["default", "there"])
        await it.client.start(fan, "wide", 8)
        await eventually(lambda: len(bench.began) == 2)
        late = await it.client.start(other, "late", "late")
        await eventually(lambda: len(it.api.server.engine.matching.lanes.waiting) == 7)
        await it.api.world.advance(60)
        assert await late.result(timeout=20) == "late"
        assert len(bench.began) == 4


async def test_a_slot_that_a_draining_worker_frees_goes_to_another_worker() -> None:
    async with house(activity_task_max_active_leases_per_queue=1) as it:
        leaving = await it.worker()
        bench.gate.clear()
        first = await it.client.start(one, "x1", "x1")
        await eventually(lambda: bench.running == ["x1"])
        await it.worker()
        second = await it.client.start(one, "x2", "x2")
        await eventually(lambda: it.api.server.engine.matching.lanes.waiting)
        left = asyncio.create_task(leaving.close())
        await eventually(lambda: not all(its.station.open for its in it.api.server.worker_links))
        bench.gate.set()
        assert await first.result(timeout=20) == "x1"
        await left
        assert await second.result(timeout=20) == "x2"


async def test_a_slot_that_one_queue_frees_goes_to_a_worker_of_another_queue() -> None:
    async with house(activity_task_max_active_leases_per_namespace=1) as it:
        await it.worker(queues=["default"])
        bench.gate.clear()
        first = await it.client.start(one, "y1", "y1")
        await eventually(lambda: bench.running == ["y1"])
        second = await it.client.start(other, "y2", "y2")
        await eventually(lambda: it.api.server.engine.matching.lanes.waiting)
        await it.worker(queues=["there"])
        bench.gate.set()
        assert await first.result(timeout=20) == "y1"
        assert await second.result(timeout=20) == "y2"
        assert bench.most == 1


async def test_queues_of_a_namespace_take_turns() -> None:
    async with house(activity_task_max_active_leases_per_namespace=1) as it:
        await it.worker(queues=["default"])
        await it.worker(queues=["there"])
        bench.gate.clear()
        runs: list[Any] = [await it.client.start(fan, "wide", 8)]
        await eventually(lambda: len(it.api.server.engine.matching.lanes.waiting) == 7)
        runs.append(await it.client.start(other, "late", "late"))
        await eventually(lambda: len(it.api.server.engine.matching.lanes.waiting) == 8)
        bench.gate.set()
        for run in runs:
            await run.result(timeout=20)
        assert bench.began.index("late") < 4, "the queue with more to do does not keep the other waiting"


@pytest.mark.needs_links("a poll that does not wait finds what the node that it reached has")
async def test_a_lease_that_ends_serves_a_poll_and_a_worker_of_ours_at_the_same_queue() -> None:
    """What a poll cannot take goes to the worker of ours beside it, and the other way round."""
    async with house(activity_task_max_active_leases_per_queue=1) as it:
        api = it.api
        await it.worker()
        await api.register("foreign", queue="default", supported_activity_types=["charge"])
        bench.gate.clear()
        first = await it.client.start(one, "z1", "z1")
        await eventually(lambda: bench.running == ["z1"])
        await api.start("foreign-order", task_queue="default")
        order = await api.poll(worker_id="foreign", queue="default")
        await api.complete(order, {"type": "schedule_activity", "activity_type": "charge", "queue": "default"})
        second = await it.client.start(one, "z2", "z2")
        await eventually(lambda: len(api.server.engine.matching.lanes.waiting) == 2)
        polled = asyncio.create_task(api.poll("activity", "foreign", "default", timeout_seconds=60))
        await eventually(lambda: api.server.engine.matching.polls.by_queue)
        bench.gate.set()
        assert await first.result(timeout=20) == "z1"
        task = await asyncio.wait_for(polled, 20)
        await api.activity("complete", task, result=None)
        assert await second.result(timeout=20) == "z2"
