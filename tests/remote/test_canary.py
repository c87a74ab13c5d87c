"""A bad canary ends with the canary: a run that one worker's code blocked goes on with the code of another worker.

Real worker processes with different code on one queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from socket import gethostname
from typing import Any

import durable_workflow
import httpx
import pytest

from backstay import AsyncBackstay, AsyncClient

from ..many_nodes import Chosen, Shape
from ..processes import canary
from ..processes.program import Program
from ..sdk.kit import eventually
from ..selection import rotating
from .kit import TOKEN, House

RUNS = 40
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}


Start = Callable[..., Program]
SHAPES = pytest.mark.parametrize(
    "_shape",
    rotating(
        [
            pytest.param(Shape(), id="one node"),
            pytest.param(Shape(3), id="three nodes"),
            pytest.param(Shape(3, links=False), id="without links"),
        ],
        1,
    ),
    indirect=True,
)


class Shop:
    """A server, a client, and what an operator sees over HTTP."""

    def __init__(self, house: House, client: AsyncClient, http: httpx.AsyncClient) -> None:
        self.url = house.url
        self.client = client
        self._http = http

    async def get(self, path: str) -> dict[str, Any]:
        answer = await self._http.get(f"{self.url}/api{path}", headers=HEADERS)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def workers_are(self, *names: str) -> None:
        async def look() -> bool:
            found = await self.get("/workers")
            return {one["worker_id"] for one in found["workers"] if one["status"] == "active"} == set(names)

        await eventually(look, f"the live workers are {names}")

    async def start(self, *names: str) -> None:
        for name in names:
            await self.client.start(canary.order, name, "apples", 3)

    async def states(self, *names: str) -> set[tuple[str, str]]:
        found = [await self.get(f"/workflows/{name}") for name in names]
        return {(one["status"], one["liveness_state"]) for one in found}

    async def results(self, *names: str) -> set[str]:
        handles = [self.client.handle(canary.order, name) for name in names]
        return set(await asyncio.wait_for(asyncio.gather(*(one.result() for one in handles)), 60))


@asynccontextmanager
async def open_shop() -> AsyncIterator[Shop]:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client, httpx.AsyncClient() as http:
        yield Shop(house, client, http)


@pytest.fixture
def _shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chosen, "shape", request.param)


@pytest.fixture
def worker() -> Iterator[Start]:
    """Starts a worker of a shop, with this name and good or bad code."""
    started: list[Program] = []

    def start(shop: Shop, name: str, which: str, kind: str = "ours") -> Program:
        started.append(Program("canary", kind, shop.url, TOKEN, name, which))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


async def ended(program: Program) -> None:
    program.process.terminate()
    await asyncio.to_thread(program.ended)


@SHAPES
@pytest.mark.usefixtures("_shape")
async def test_what_a_bad_worker_blocks_goes_on_with_the_good_one_and_waits_for_one_if_there_is_none(
    worker: Start,
) -> None:
    async with open_shop() as shop:
        good = worker(shop, "steady", "good")
        bad = worker(shop, "canary", "bad")
        await shop.workers_are("steady", "canary")
        both = [f"both-{number}" for number in range(RUNS)]
        await shop.start(*both)
        assert await shop.results(*both) == {"3 apples, packed"}

        await ended(good)
        await shop.workers_are("canary")
        alone = [f"alone-{number}" for number in range(5)]
        await shop.start(*alone)
        await eventually(lambda: _all(shop, alone, {("pending", "workflow_replay_blocked")}), "all are blocked")
        block = (await shop.get("/workflows/alone-0/detail"))["replay_block"]
        assert (block["worker_id"], block["host"], block["build_id"]) == ("canary", gethostname(), "build-bad")
        assert block["workflow_definition_fingerprint"] == canary.fingerprint("bad")
        assert block["tried_definitions"] == [canary.fingerprint("bad")]
        why = await shop.client.handle(canary.order, "alone-0").why()
        assert "by worker canary" in why.sentence
        assert "build-bad" in why.sentence

        worker(shop, "again", "bad")  # the same code: no reason to try it again
        await shop.workers_are("canary", "again")
        assert await shop.states(*alone) == {("pending", "workflow_replay_blocked")}
        assert (await shop.get("/workflows/alone-0/detail"))["replay_block"]["worker_id"] == "canary"

        await ended(bad)
        worker(shop, "steady-2", "good")
        assert await shop.results(*alone) == {"3 apples, packed"}


@SHAPES
@pytest.mark.usefixtures("_shape")
async def test_the_same_with_workers_of_the_published_package(worker: Start) -> None:
    async with open_shop() as shop, durable_workflow.Client(shop.url, token=TOKEN) as client:
        good = worker(shop, "steady", "good", "published")
        await shop.workers_are("steady")
        both = [f"both-{number}" for number in range(10)]
        alone = [f"alone-{number}" for number in range(3)]
        handles = {
            name: await client.start_workflow(
                workflow_type="desk", task_queue=canary.QUEUE, workflow_id=name, input=["apples"]
            )
            for name in (*both, *alone)
        }
        await eventually(lambda: _all(shop, [*both, *alone], {("waiting", "waiting_for_condition")}), "all wait")
        worker(shop, "canary", "bad", "published")
        await shop.workers_are("steady", "canary")
        for name in both:
            await handles[name].signal("go")
        results = await asyncio.gather(*(handles[name].result(timeout=60) for name in both))
        assert set(results) == {"apples, packed"}

        await ended(good)
        await shop.workers_are("canary")
        for name in alone:
            await handles[name].signal("go")
        await eventually(lambda: _all(shop, alone, {("waiting", "workflow_replay_blocked")}), "all are blocked")
        block = (await shop.get("/workflows/alone-0/detail"))["replay_block"]
        assert block["worker_id"] == "canary"
        assert len(block["tried_definitions"]) == 1
        worker(shop, "steady-2", "good", "published")
        assert {await handles[name].result(timeout=60) for name in alone} == {"apples, packed"}


async def _all(shop: Shop, names: list[str], states: set[tuple[str, str]]) -> bool:
    return await shop.states(*names) == states


@pytest.mark.one_server("apps run the code, no server takes part")
async def test_the_same_with_apps_that_share_a_database(postgresql_url: str) -> None:
    """Each is an engine with its own code, and is in no registry of workers."""
    names = [f"both-{number}" for number in range(12)]
    async with AsyncBackstay(postgresql_url, [canary.bad_order, canary.pack]) as bad:
        async with AsyncBackstay(postgresql_url, [canary.order, canary.pack]) as good:
            await eventually(lambda: min(sum(one.engine.owned) for one in (good, bad)) > 100, "each owns its share")
            handles = [await good.start(canary.order, name, "apples", 3) for name in names]
            assert set(await asyncio.gather(*(one.result() for one in handles))) == {"3 apples, packed"}
        alone = await bad.start(canary.order, "alone", "apples", 3)
        found = await eventually(lambda: _blocked(bad, "alone"), "it is blocked")
        assert found.tasks[0].task.block.host == gethostname()
        async with AsyncBackstay(postgresql_url, [canary.order, canary.pack]):
            assert await alone.result() == "3 apples, packed"


async def _blocked(app: AsyncBackstay, name: str) -> Any:
    found = await app.describe(name)
    return found if found.blocked else None
