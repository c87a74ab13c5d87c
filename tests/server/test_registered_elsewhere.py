"""What was registered at one node a moment ago is known to whoever reads at another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backstay.server.registries.all import PATIENCE
from backstay.server.registries.registry import tell_nobody
from backstay.server.server import Server
from backstay.server.settings import Settings

from .kit import Api, serving, until


@asynccontextmanager
async def two(store: str) -> AsyncIterator[tuple[Api, Api]]:
    """Two nodes, of which the second looks for changes only when it has to."""
    async with (
        serving(store=store, still=False, query_timeout_seconds=0.1) as one,
        serving(store=store, still=False, query_timeout_seconds=0.1) as other,
    ):
        other.server.registries.stop()
        await until(lambda: all(api.server.node.shards.linked for api in (one, other)))
        yield one, other


async def test_a_search_attribute(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        made = await one.control("POST", "/search-attributes", {"name": "stage", "type": "keyword"})
        assert made.status_code == 201, made.text
        found = await other.control("GET", "/workflows?query=stage%20%3D%20%27waiting%27")
        assert (found.status_code, found.json().get("workflows")) == (200, []), found.text
        unknown = await other.control("GET", "/workflows?query=nobody%20%3D%20%27waiting%27")
        assert unknown.status_code == 422


async def test_a_worker_that_can_be_asked(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        await one.start("o-1")
        nobody = await other.control("POST", "/workflows/o-1/query/total", {})
        assert (nobody.status_code, nobody.json()["reason"]) == (409, "query_worker_unavailable")
        await one.register()
        asked = await other.control("POST", "/workflows/o-1/query/total", {})
        assert asked.json()["reason"] == "query_worker_timeout", "it does not poll, but there is one"


async def test_a_token_opens_every_node_until_it_is_revoked_at_one(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        made = (await one.control("POST", "/tokens", {"role": "admin"})).json()
        token, revoke = made["token"], f"/tokens/{made['token_id']}"
        assert (await other.control("GET", "/workflows", token=token)).status_code == 200
        assert (await one.control("DELETE", revoke)).status_code == 200
        assert (await other.control("GET", "/workflows", token=token)).status_code == 401


async def test_a_namespace(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        made = await one.control("POST", "/namespaces", {"name": "shop"})
        assert made.status_code == 201, made.text
        elsewhere = {"X-Namespace": "shop"}
        started = await other.control(
            "POST", "/workflows", {"workflow_type": "order", "workflow_id": "o-1"}, headers=elsewhere
        )
        assert started.status_code == 201, started.text


async def test_the_signals_of_a_definition(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        contract = {"order": {"signals": ["pay"], "signal_contracts": [{"name": "pay", "parameters": []}]}}
        registered = await one.register(workflow_command_contracts=contract)
        assert registered.status_code in (200, 201), registered.text
        await other.start("o-1")
        refused = await other.control("POST", "/workflows/o-1/signal/nonsense", {})
        assert (refused.status_code, refused.json()["reason"]) == (404, "unknown_signal"), refused.text


async def test_a_promoted_build(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        await one.register(build_id="v2")
        promoted = await one.control("POST", "/task-queues/q/build-ids/promote", {"build_id": "v2"})
        assert promoted.status_code == 200, promoted.text
        await other.start("o-1")
        assert (await other.describe("o-1"))["compatibility"] == "v2"


async def test_what_was_done_to_the_server(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        await one.control("POST", "/search-attributes", {"name": "stage", "type": "keyword"})
        assert [entry.action for entry in other.server.control.system_actions.newest_first()] == [
            "search_attribute.create"
        ]


async def test_a_token_and_a_namespace_that_no_server_was_told_of(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        for registry in (one.server.access.tokens.kept, one.server.namespaces.kept):
            registry.on_write = tell_nobody
        token = (await one.control("POST", "/tokens", {"role": "admin"})).json()["token"]
        body = {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q"}
        assert (await other.control("POST", "/workflows", body, token=token)).status_code == 201
        await one.control("POST", "/namespaces", {"name": "shop"})
        elsewhere = {"X-Namespace": "shop"}
        started = await other.control("POST", "/workflows", body, headers=elsewhere)
        assert started.status_code == 201, started.text
        token = (await one.control("POST", "/tokens", {"role": "viewer"})).json()["token"]
        signed_in = await other.control("POST", "/session", {"token": token})
        assert signed_in.status_code == 201, signed_in.text
        assert (await other.control("GET", "/workflows", token="wrong")).status_code == 401
        nowhere = await other.control("GET", "/workflows", headers={"X-Namespace": "nowhere"})
        assert nowhere.json()["reason"] == "namespace_not_found"


async def test_a_caller_who_hangs_up_while_his_token_is_looked_for(postgresql_url: str) -> None:
    async with two(postgresql_url) as (_, other):
        host, port = other.http.base_url.host, other.http.base_url.port
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /api/workflows HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer wrong\r\n\r\n" * 3)
            await writer.drain()
            writer.transport.abort()
            await writer.wait_closed()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /api/workflows HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer wrong\r\n\r\n" * 3)
        writer.write(b"GET /api/health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        said = await reader.read()
        writer.close()
        assert (said.count(b"HTTP/1.1 401"), said.count(b"HTTP/1.1 200")) == (3, 1), "in their order"


async def test_a_node_that_does_not_answer_holds_no_caller_for_long(postgresql_url: str) -> None:
    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    settings = Settings(store=postgresql_url, token="secret", host="127.0.0.1")
    async with silent, serving(store=postgresql_url, still=False) as one, Server(settings, address=url):
        await until(lambda: len(one.server.node.shards.linked) == 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for name in ("shop", "desk", "yard"):
            assert (await one.control("POST", "/namespaces", {"name": name})).status_code == 201
        assert accepted, "it was told"
        assert loop.time() - began < 2 * PATIENCE + 0.4, "once: nobody waits for it again before it has answered"
        for writer in accepted:
            writer.close()
