"""Nodes that cannot call each other: each has the database, and a load balancer leads every request to any of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, BackstayError, activity, query, update, wait, workflow
from backstay.kernel.values import SECOND, partition_of
from backstay.protocol.native import client as calls
from backstay.protocol.native import worker as wire
from backstay.server.native import worker_links
from backstay.server.server import Server
from backstay.server.settings import Settings
from backstay.server.workers import heartbeats

from ..many_nodes import ManyNodes, Shape
from ..sdk.kit import eventually
from .kit import TOKEN

pytestmark = pytest.mark.one_server("has its own nodes")


@workflow
class Order:
    def __init__(self) -> None:
        self.total = 0

    @query
    def so_far(self) -> int:
        return self.total

    @update
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @add.validator
    def _positive(self, amount: int) -> None:
        if amount <= 0:
            raise ValueError("too little")

    def handle(self) -> int:
        wait(lambda: self.total >= 30)
        return self.total


def delivering() -> tuple[list[str], asyncio.Event, Any, Any]:
    """A workflow with an activity that says that it has begun, and waits until it may end."""
    begun: list[str] = []
    may_end = asyncio.Event()

    @activity
    async def ship(id: str) -> str:
        begun.append(id)
        await may_end.wait()
        return id

    @workflow
    async def delivery(id: str) -> str:
        return await ship(id)

    return begun, may_end, delivery, ship


async def test_questions_find_the_node_with_a_worker(postgresql_url: str) -> None:
    settings = Settings(store=postgresql_url, token=TOKEN, port=0)
    async with (
        ManyNodes(settings, Shape(3, links=False)) as nodes,
        AsyncWorker(nodes.url, [Order], token=TOKEN, drain=0.3),
        AsyncClient(nodes.url, token=TOKEN) as client,
    ):
        order = await client.start(Order, "o-1")
        for n in range(3):
            assert await order.query(Order.so_far) == 10 * n
            assert await order.update(Order.add, 10) == 10 * n + 10
        assert await order.result() == 30


async def test_a_worker_that_another_node_has_just_registered_is_known(postgresql_url: str) -> None:
    settings = Settings(store=postgresql_url, token=TOKEN, port=0)
    async with ManyNodes(settings, Shape(3, links=False)) as nodes:
        for server in nodes.servers:
            server.registries.stop()  # no node looks by itself
        async with (
            AsyncWorker(nodes.url, [Order], token=TOKEN, drain=0.3),
            AsyncClient(nodes.url, token=TOKEN) as client,
        ):
            order = await client.start(Order, "o-1")
            for _ in range(5):
                assert await order.query(Order.so_far) == 0
                with pytest.raises(BackstayError, match="too little"):
                    await order.update(Order.add, -1)


async def test_a_request_for_a_node_without_an_address_is_told_what_is_missing(postgresql_url: str) -> None:
    settings = Settings(store=postgresql_url, token=TOKEN, port=0)
    headers = {"Authorization": f"Bearer {TOKEN}", calls.HEADER: str(calls.VERSION)}
    async with (
        ManyNodes(settings, Shape(2, links=False)) as nodes,
        httpx.AsyncClient(base_url=nodes.url, headers=headers) as http,
    ):
        asked = [
            await http.post(wire.OPEN, content=b"{}", headers={wire.TO_HEADER: str(server.node.shards.me)})
            for server in nodes.servers
        ]
    (refused,) = [answer for answer in asked if answer.status_code == 421]
    assert refused.json()["reason"] == wire.OTHER_NODE
    assert "advertises no address" in refused.json()["message"]


async def test_a_worker_keeps_its_task_when_a_node_where_it_has_no_link_comes_to_own_it(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_links, "LOST", 3 * SECOND // 2)
    monkeypatch.setattr(wire, "PARKED", 0.1)
    monkeypatch.setattr(heartbeats, "EVERY", SECOND // 10)
    begun, may_end, delivery, ship = delivering()
    # A node that joins gets the first half of the shards.
    ids = [id for n in range(200) if partition_of("default", id := f"d-{n}") & 255 < 64][:5]
    settings = Settings(store=postgresql_url, token=TOKEN, port=0)
    async with (
        ManyNodes(settings, Shape(1, links=False)) as first,
        AsyncWorker(first.url, [delivery, ship], token=TOKEN, drain=0.3),
        AsyncClient(first.url, token=TOKEN) as client,
    ):
        runs = [await client.start(delivery, id, id) for id in ids]
        await eventually(lambda: sorted(begun) == sorted(ids), "the activities ran")
        async with Server(settings) as second:
            await eventually(lambda: sum(second.engine.owned) == 128 and second.recovery.up, "shards moved")
            assert len(list(second.engine.leases)) == len(ids), "with their tasks"
            over = second.engine.world.now() + 2 * SECOND
            await eventually(lambda: second.engine.world.now() > over, "workers had time to come")
            may_end.set()
            assert [await run.result() for run in runs] == ids
    assert sorted(begun) == sorted(ids), "each ran once"


async def test_a_worker_that_comes_to_another_node_keeps_its_task(postgresql_url: str) -> None:
    begun, may_end, delivery, ship = delivering()
    settings = Settings(store=postgresql_url, token=TOKEN, port=0)
    async with (
        ManyNodes(settings, Shape(2, links=False)) as nodes,
        AsyncWorker(nodes.url, [delivery, ship], token=TOKEN, drain=0.3),
        AsyncClient(nodes.url, token=TOKEN) as client,
    ):
        first, second = nodes.servers
        id = next(f"d-{n}" for n in range(200) if first.engine.owned[partition_of("default", f"d-{n}") & 255])
        run = await client.start(delivery, id, id)
        await eventually(lambda: begun == [id], "the activity ran")
        nodes.move_workers()
        await eventually(lambda: any(link.station.held for link in second.worker_links), "its task is known there")
        may_end.set()
        assert await run.result() == id
    assert begun == [id], "it ran once"
