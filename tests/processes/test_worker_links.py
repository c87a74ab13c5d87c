"""One worker that knows the address of one of two servers: it works for both, whatever happens to them."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, activity, workflow

from ..remote.account import Account
from ..sdk.kit import eventually
from .conftest import Place
from .test_failover import HEADERS, TOKEN, Server

PATIENCE = 90

pytestmark = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


@activity
def add(n: int) -> int:
    return n + 1


@workflow(type="links-adds")
def adds(count: int) -> int:
    total = 0
    for _ in range(count):
        total = add(total)
    return total


@pytest.fixture
def servers(place: Place) -> Iterator[list[Server]]:
    started: list[Server] = []
    try:
        started += [Server(place, "one")]
        started += [Server(place, "two")]
        yield started
    finally:
        for server in started:
            server.end()


def run(story: object) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE))  # type: ignore[arg-type]


async def stolen(server: Server) -> int:
    async with httpx.AsyncClient(headers=HEADERS) as http:
        text = (await http.get(f"{server.url}/metrics")).text
    return int(re.findall(r"^backstay_tasks_stolen_total (\d+)", text, re.MULTILINE)[0])


async def links_to(worker: AsyncWorker, count: int) -> None:
    await eventually(
        lambda: len([link for link in worker.links.all if link.is_open]) == count == len(worker.links.all),
        f"the worker has {count} links",
    )


async def balanced(servers: list[Server]) -> None:
    """Both own their share."""
    await eventually(lambda: _balanced(servers[0]), "both servers own shards")


async def _balanced(server: Server) -> bool:
    owners = await server.owners()
    return len(owners) == 2 and min(owners.values()) > 100


def test_a_worker_of_one_server_works_for_the_shards_of_the_other(place: Place, servers: list[Server]) -> None:
    run(_works_for_both(servers))


async def _works_for_both(servers: list[Server]) -> None:
    first, second = servers
    await balanced(servers)
    async with (
        AsyncWorker(first.url, [adds, add, Account], token=TOKEN, drain=1.0, threads=8) as worker,
        AsyncClient(first.url, token=TOKEN) as client,
        AsyncClient(second.url, token=TOKEN) as other,
    ):
        await links_to(worker, 2)
        began = time.monotonic()
        for _ in range(5):
            results = await asyncio.gather(*(client.execute(adds, f"{time.monotonic_ns()}-{n}", 3) for n in range(20)))
            assert results == [3] * 20
        assert time.monotonic() - began < 20
        accounts = [await other.start(Account, f"account-{n}") for n in range(8)]
        assert [await account.update(Account.deposit, 5) for account in accounts] == [5] * 8
        assert [await account.query(Account.total) for account in accounts] == [5] * 8
        assert [await stolen(server) for server in servers] == [0, 0]


def test_the_other_server_is_killed_and_comes_back(place: Place, servers: list[Server]) -> None:
    run(_killed(place, servers))


async def _killed(place: Place, servers: list[Server]) -> None:
    first, second = servers
    await balanced(servers)
    async with (
        AsyncWorker(first.url, [adds, add], token=TOKEN, drain=1.0) as worker,
        AsyncClient(first.url, token=TOKEN) as client,
    ):
        await links_to(worker, 2)
        work = [asyncio.create_task(client.execute(adds, f"killed-{n}", 20)) for n in range(20)]
        await asyncio.sleep(0.2)
        second.process.kill()
        second.process.wait()
        assert await asyncio.gather(*work) == [20] * 20
        await links_to(worker, 1)
        servers.append(Server(place, "third"))
        await links_to(worker, 2)
        await balanced(servers)
        results = await asyncio.gather(*(client.execute(adds, f"again-{n}", 3) for n in range(20)))
        assert results == [3] * 20
        assert await stolen(servers[2]) == 0


def test_the_server_that_the_worker_knows_is_drained(place: Place, servers: list[Server]) -> None:
    run(_drained(servers))


async def _drained(servers: list[Server]) -> None:
    first, second = servers
    await balanced(servers)
    async with (
        AsyncWorker(first.url, [adds, add], token=TOKEN, drain=1.0) as worker,
        AsyncClient(second.url, token=TOKEN) as client,
    ):
        await links_to(worker, 2)
        work = [asyncio.create_task(client.execute(adds, f"drained-{n}", 20)) for n in range(20)]
        await asyncio.sleep(0.2)
        first.process.send_signal(signal.SIGTERM)
        assert await asyncio.gather(*work) == [20] * 20
        assert first.process.wait(30) == 0
        await links_to(worker, 1)
        assert await client.execute(adds, "later", 3) == 3


def test_requests_for_another_node_are_handed_on(place: Place, servers: list[Server]) -> None:
    run(_handed_on(servers))


async def _handed_on(servers: list[Server]) -> None:
    first, second = servers
    await balanced(servers)
    own = {"X-Backstay-Protocol": "1", "Authorization": HEADERS["Authorization"]}
    async with httpx.AsyncClient(base_url=first.url, headers=own, timeout=30) as http:

        async def post(path: str, body: object, **headers: str) -> httpx.Response:
            return await http.post(path, json=body, headers=headers)

        opening = {"worker_id": "w", "queues": ["default"]}
        opened = (await post("/api/worker/station", opening)).json()
        other = next(node for node in opened["nodes"] if node[0] != opened["node"])
        assert other[1] == second.url
        there = {"X-Backstay-To": str(other[0])}
        away = (await post("/api/worker/station", opening, **there)).json()
        assert (away["node"], away["station"].partition(".")[0]) == (other[0], str(other[0]))
        exchange = {"worker_id": "w", "station": away["station"]}
        assert (await post("/api/worker/exchange", exchange)).json() == {}, "the link names its node"
        parked = asyncio.create_task(post("/api/worker/exchange", exchange | {"wait": 20}))
        await asyncio.sleep(0.2)
        second.process.send_signal(signal.SIGTERM)
        assert (await parked).json() == {"leaving": True}

        refused = await post("/api/worker/station", opening, **{"X-Backstay-To": "4711"})
        assert (refused.status_code, refused.json()["reason"]) == (421, "other_node")
        refused = await post("/api/worker/station", opening, **there, **{"X-Backstay-Via": "4711"})
        assert (refused.status_code, refused.json()["reason"]) == (421, "other_node"), "it is handed on once"
        refused = await post("/api/worker/station", opening, **there, Authorization="Bearer wrong")
        assert refused.status_code == 401
        mistaken = opening | {"named_by": 4711}
        refused = await post("/api/worker/station", mistaken, **{"X-Backstay-To": str(opened["node"])})
        assert (refused.status_code, refused.json()["reason"]) == (421, "other_node"), "a node of another database"


def test_a_worker_that_reaches_one_of_two_servers_works_for_both(place: Place) -> None:
    servers: list[Server] = []
    try:
        servers.append(Server(place, "one"))
        servers.append(Server(place, "two", "--advertise", "http://127.0.0.1:1"))  # nobody reaches it there
        run(_reaches_one(servers))
    finally:
        for server in servers:
            server.end()


async def _reaches_one(servers: list[Server]) -> None:
    first, second = servers
    await balanced(servers)
    async with (
        AsyncWorker(first.url, [adds, add, Account], token=TOKEN, drain=1.0) as worker,
        AsyncClient(first.url, token=TOKEN) as client,
        AsyncClient(second.url, token=TOKEN) as other,
    ):
        results = await asyncio.gather(*(client.execute(adds, f"far-{n}", 1) for n in range(10)))
        assert results == [1] * 10
        assert len([link for link in worker.links.all if link.is_open]) == 1
        assert await stolen(first) > 0
        accounts = [await other.start(Account, f"account-{n}") for n in range(4)]
        assert [await account.query(Account.total) for account in accounts] == [0] * 4
        assert [await account.update(Account.deposit, 5) for account in accounts] == [5] * 4
