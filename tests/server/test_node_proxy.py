"""Requests of workers that have links to several nodes: whom they may name, how much they may ask for, what they are told."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

from backstay.link.http import PATHS
from backstay.protocol.native import node_proofs
from backstay.protocol.native import worker as wire

from .kit import TOKEN, Api, serving, until
from .test_links import two, url_of

HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Backstay-Protocol": "1"}
OPENING = {"worker_id": "w", "queues": ["q"]}


async def asked(api: Api, path: str, body: Any, to: str | None = None) -> httpx.Response:
    return await api.http.post(path, json=body, headers=HEADERS | ({} if to is None else {wire.TO_HEADER: to}))


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000])
async def test_a_node_with_more_digits_than_ids_have_is_no_node(postgresql_url: str, digits: str) -> None:
    async with two(postgresql_url) as both:
        opened = await asked(both.front, wire.OPEN, OPENING | {"named_by": both.front.server.node_id()}, digits)
        assert opened.json()["node"] == both.front.server.node_id(), "it is taken for a request to this one"
        link = {"worker_id": "w", "station": f"{digits}.x"}
        exchanged = await asked(both.front, wire.EXCHANGE, link)
        assert (exchanged.status_code, exchanged.json()["reason"]) == (410, "station_unknown")
        page = await asked(both.front, wire.HISTORY, link | {"task_id": "t", "attempt": 1, "after": 0})
        assert (page.status_code, page.json()["reason"]) == (404, "task_not_found")
        assert (await asked(both.front, wire.CLOSE, link)).status_code == 200


async def test_nothing_is_handed_on_to_a_node_that_serves_no_workers(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        node = both.there.server.node
        node.facts = replace(node.facts, embedded=True)
        shards = both.front.server.node.shards
        id = both.there.server.node_id() or 0
        await until(lambda: id in shards.nodes and shards.nodes[id].facts.embedded)
        refused = await asked(both.front, wire.OPEN, OPENING, str(id))
        assert (refused.status_code, refused.json()["reason"]) == (421, "other_node")
        assert "embedded" in refused.json()["message"]


async def test_who_was_handed_on_once_is_told_so(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        id = str(both.there.server.node_id())
        await until(lambda: url_of(both.there) in {one.address for one in both.front.server.node.shards.linked})
        headers = HEADERS | {wire.TO_HEADER: id, wire.VIA_HEADER: "7"}
        body = wire.encode(OPENING)
        proof = await both.front.server.node_proofs.make(int(id), "POST", wire.OPEN, body)
        headers |= {node_proofs.HEADER: proof}
        refused = await both.front.http.post(wire.OPEN, content=body, headers=headers)
        assert (refused.status_code, refused.json()["reason"]) == (421, "other_node")
        assert "forwarded only once" in refused.json()["message"]


async def test_only_a_node_of_the_database_hands_requests_on(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        there = both.there.server
        id = there.node_id() or 0
        for proof in ({}, {node_proofs.HEADER: "1.2.3.4." + "a" * 64 + "." + "b" * 64}):
            headers = HEADERS | {wire.TO_HEADER: str(id), wire.VIA_HEADER: "7"} | proof
            refused = await both.there.http.post(wire.OPEN, json=OPENING, headers=headers)
            assert (refused.status_code, refused.json()["reason"]) == (421, "other_node")
        assert there.workers.get("default", "w") is None


async def test_a_worker_says_which_node_has_told_it_of_another(postgresql_url: str) -> None:
    """Else it may have been a node of a copy of the database, whose rows name the nodes of the original."""
    async with two(postgresql_url) as both:
        there, front = both.there.server, both.front.server
        id = str(there.node_id())
        for named_by in ({}, {"named_by": 7}):
            refused = await asked(both.there, wire.OPEN, OPENING | named_by, id)
            assert (refused.status_code, refused.json()["reason"]) == (421, "other_node")
            assert there.workers.get("default", "w") is None
        there.node.shards.stop()
        there.node.shards.nodes.pop(front.node_id() or 0, None)
        opened = await asked(both.there, wire.OPEN, OPENING | {"named_by": front.node_id()}, id)
        assert opened.status_code == 200, "it has looked for a node that has just begun"


@pytest.mark.parametrize("slots", [[-1, 0, 0], [0, 100_001, 0], [0, 0, 2**70]])
async def test_slots_for_several_nodes_are_as_many_as_for_one(postgresql_url: str, slots: list[int]) -> None:
    async with serving(store=postgresql_url, still=False) as api:
        refused = await asked(api, wire.OPEN, OPENING | {"total": slots})
        assert (refused.status_code, refused.json()["field"]) == (422, "total")
        opened = await asked(api, wire.OPEN, OPENING | {"total": [1, 1, 1]})
        link = {"worker_id": "w", "station": opened.json()["station"]}
        refused = await asked(api, wire.EXCHANGE, link | {"slots": slots})
        assert (refused.status_code, refused.json()["field"]) == (422, "slots")


async def test_a_path_is_handed_on_as_it_was_sent(postgresql_url: str) -> None:
    """A name in it may hold anything, line breaks included: decoded, it would be further requests to the other node."""
    async with two(postgresql_url) as both:
        there = both.there.server
        await until(lambda: url_of(both.there) in {one.address for one in both.front.server.node.shards.linked})
        hidden = "GET /api/cluster/info HTTP/1.1\r\nHost: x\r\n\r\n"
        name = f"{there.node_id()}.x/complete HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n{hidden}POST /y"
        body = {"lease_owner": "w", "query_task_attempt": 1}
        for path in (f"query-tasks/{quote(name, safe='')}/complete", f"query-tasks/{there.node_id()}.é%2F%3F/complete"):
            answer = await both.front.worker(path, body)
            assert (answer.status_code, answer.json()["reason"]) == (404, "query_task_not_found"), answer.text
        assert {route for _, route, _ in there.requests if "info" in route} == set()
        answered = [route for _, route, status in there.requests if status == 404]
        assert answered == ["/api/worker/query-tasks/{task_id}/complete"]


async def test_paths_that_are_handed_on_are_not_remembered(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        id = both.there.server.node_id()
        await until(lambda: url_of(both.there) in {one.address for one in both.front.server.node.shards.linked})
        body = {"lease_owner": "w", "query_task_attempt": 1}
        for number in range(3 * PATHS):
            await both.front.worker(f"query-tasks/{id}.{number}/complete", body)
        (client,) = both.front.server.worker_links.proxy._clients.values()
        assert len(client._heads) <= PATHS
