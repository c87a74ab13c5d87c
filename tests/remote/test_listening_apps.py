"""Embedded apps that share a PostgreSQL and listen: each hands requests for workflows of the others to their owners."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import AsyncBackstay, activity, update, wait, workflow
from backstay.protocol.native import node_proofs, nodes
from tests.sdk.kit import eventually

pytestmark = pytest.mark.one_server("apps listen, no server takes part")


@activity
async def double(number: int) -> int:
    return number * 2


@workflow
class Sum:
    def __init__(self) -> None:
        self.added = 0
        self.done = False

    def handle(self, number: int) -> int:
        doubled = double.step(number).run()
        wait(lambda: self.done)
        return doubled + self.added

    @update
    def add(self, number: int) -> int:
        self.added += number
        return self.added

    @update
    def end(self) -> None:
        self.done = True


def app(url: str, **options: Any) -> AsyncBackstay:
    return AsyncBackstay(url, [Sum, double], **{"listen": "127.0.0.1:0", **options})


def _listener(of: AsyncBackstay) -> Any:
    assert of._listener is not None
    return of._listener


async def _shared(*apps: AsyncBackstay) -> None:
    """Until every app has its share, and knows where the others listen."""
    await eventually(lambda: all(one.engine.holder and len(one._node.shards.linked) == len(apps) - 1 for one in apps))
    share = 256 // len(apps)
    await eventually(lambda: all(abs(sum(one.engine.owned) - share) <= 8 for one in apps))


async def test_every_app_serves_every_workflow_and_nothing_goes_through_the_database(postgresql_url: str) -> None:
    async with app(postgresql_url) as one, app(postgresql_url) as two, app(postgresql_url) as three:
        everybody = [one, two, three]
        await _shared(*everybody)
        before = sum(each.engine.counters.guest_decisions for each in everybody)

        async def story(number: int) -> int:
            ask, tell = everybody[number % 3], everybody[(number + 1) % 3]
            await ask.start(Sum, f"s-{number}", number)
            handle = tell.handle(Sum, f"s-{number}")
            ended = asyncio.create_task(everybody[(number + 2) % 3].handle(Sum, f"s-{number}").result())
            assert await handle.update(Sum.add, 1) == 1
            await handle.update(Sum.end)
            return await ended

        assert await asyncio.gather(*(story(number) for number in range(30))) == [2 * n + 1 for n in range(30)]
        called = [sum(_listener(each).requests.values()) for each in everybody]
        assert all(called), "each was called by the others"
        beside = sum(each.engine.counters.guest_decisions for each in everybody) - before
        assert beside <= 5, "of hundreds: a shard may have moved in between"


async def test_an_app_that_leaves_is_followed_elsewhere(postgresql_url: str) -> None:
    async with app(postgresql_url) as stays:
        async with app(postgresql_url) as leaves:
            await _shared(stays, leaves)
            for number in range(8):
                await stays.start(Sum, f"s-{number}", number)
            ends = [asyncio.create_task(stays.handle(Sum, f"s-{number}").result()) for number in range(8)]
        for number in range(8):
            await stays.handle(Sum, f"s-{number}").update(Sum.end)
        assert await asyncio.gather(*ends) == [0, 2, 4, 6, 8, 10, 12, 14]


async def test_only_nodes_are_answered_and_only_what_nodes_ask(postgresql_url: str) -> None:
    async with app(postgresql_url) as one:
        address, me = _listener(one).address, one.store.me

        async def sent(client: httpx.AsyncClient, path: str, body: bytes, proof: str | None = None) -> httpx.Response:
            proof = proof or await one._proofs.make(me, "POST", path, body)
            known = {nodes.HEADER: str(nodes.SPEAKS[1]), node_proofs.HEADER: proof, nodes.TO_HEADER: str(me)}
            return await client.post(path, content=body, headers={**known, "Content-Type": "application/json"})

        async with httpx.AsyncClient(base_url=address) as client:
            for path in ("/", "/api/workflows", "/api/health", "/metrics"):
                assert (await client.get(path)).status_code == 404
            for name in nodes.VERBS:
                path = nodes.PATH + name
                said = await sent(client, path, b"{}", "guessed")
                assert (said.status_code, said.json()["reason"]) == (401, "not_a_node")
                answer = await sent(client, path, b"{")
                assert 400 <= answer.status_code < 500, (name, answer.text)
                assert answer.status_code != 401
                answer = await sent(client, path, b"{}")
                assert answer.status_code < 500, (name, answer.text)


async def test_addresses_that_no_node_could_call(postgresql_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        for listen, told in (
            ("0.0.0.0:0", "advertise="),
            ("nonsense", "HOST:PORT"),
            ("host:99999", "HOST:PORT"),
            (in_use, "listen="),
        ):
            with pytest.raises((ValueError, OSError), match=told):
                await app(postgresql_url, listen=listen).open()
    with pytest.raises(ValueError, match="PostgreSQL"):
        await app(str(tmp_path / "app.db")).open()
    async with app(postgresql_url, listen="0.0.0.0:0", advertise="http://10.0.0.5:8090") as one:
        assert one._node.facts.address == "http://10.0.0.5:8090"


@pytest.mark.parametrize(
    "advertise", ["10.0.0.5:8090", "ftp://10.0.0.5", "http://me:secret@10.0.0.5", "http://10.0.0.5:x"]
)
async def test_an_advertised_address_that_is_none_is_refused(postgresql_url: str, advertise: str) -> None:
    with pytest.raises(ValueError, match="advertise=") as refused:
        async with app(postgresql_url, advertise=advertise):
            pass
    assert "secret" not in str(refused.value)


async def test_who_does_not_listen_advertises_nothing(postgresql_url: str) -> None:
    with pytest.raises(ValueError, match="advertise= needs listen="):
        async with app(postgresql_url, listen=None, advertise="http://10.0.0.5:8090"):
            pass


async def test_a_heavier_app_owns_more(postgresql_url: str) -> None:
    async with app(postgresql_url, weight=3) as heavy, app(postgresql_url) as light:
        await eventually(lambda: (sum(heavy.engine.owned), sum(light.engine.owned)) == (192, 64))
