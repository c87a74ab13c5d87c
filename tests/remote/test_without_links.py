"""Nodes that cannot call each other: each has the database, and a load balancer leads every request to any of them."""

from __future__ import annotations

import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, query, update, wait, workflow
from backstay.protocol.native import client as calls
from backstay.protocol.native import worker as wire
from backstay.server.settings import Settings

from ..many_nodes import ManyNodes, Shape
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


async def test_questions_find_the_node_with_a_worker(postgresql_url: str) -> None:
    settings = Settings(store=postgresql_url, token=TOKEN)
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


async def test_a_request_for_a_node_without_an_address_is_told_what_is_missing(postgresql_url: str) -> None:
    settings = Settings(store=postgresql_url, token=TOKEN)
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
