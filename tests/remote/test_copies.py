"""A database is dumped and restored elsewhere while its nodes work, and servers, workers and clients come to the copy at once.

The rows of the copy name the nodes of the original, with their addresses and the secret that they share. Nothing that is done at the
copy may reach them.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from backstay import AsyncBackstay, AsyncClient, AsyncWorker, activity, workflow
from backstay.server.server import Server

from .. import postgresql
from ..sdk.kit import eventually
from ..server.kit import TOKEN, Api, serving

OLD = [f"old-{number}" for number in range(10)]
NEW = [f"new-{number}" for number in range(60)]


@activity(type="where", extern=True)
def where() -> str: ...


@activity(type="where")
def in_original() -> str:
    return "original"


@activity(type="where")
def in_copy() -> str:
    return "copy"


@workflow
def flow() -> str:
    return where()


def dumped_and_restored(url: str) -> str:
    """The URL of a copy of this schema, in a database of its own."""
    programs = postgresql.binaries()
    asked = parse_qs(urlsplit(url).query)
    schema, place = asked["schema"][0], asked["host"][0]
    database = f"copy_{schema}"
    reach = ["-h", place, "-U", "postgres"]

    def run(program: str, *options: str, given: bytes | None = None) -> bytes:
        command = [str(programs / program), *reach, *options]
        return subprocess.run(command, check=True, input=given, capture_output=True, timeout=60).stdout

    run("psql", "-q", "-c", f"create database {database}", "postgres")
    run("psql", "-q", "-v", "ON_ERROR_STOP=1", database, given=run("pg_dump", "-n", schema, "postgres"))
    return url.replace("@/postgres?", f"@/{database}?")


def url_of(api: Api) -> str:
    return str(api.http.base_url).rstrip("/")


def share(*apis: Api) -> bool:
    """Whether these nodes own all instances, and know that of each other."""
    owned = [sum(api.server.engine.owned) for api in apis]
    known = [{row.owner for row in api.server.node.shards.rows} for api in apis]
    return all(owned) and sum(owned) == 256 and all(one == known[0] for one in known) and len(known[0]) == len(apis)


@asynccontextmanager
async def original(store: str) -> AsyncIterator[tuple[Api, Api]]:
    async with serving(store=store, still=False) as one, serving(store=store, still=False) as other:
        await eventually(lambda: share(one, other), "two nodes shared the instances")
        yield one, other


@asynccontextmanager
async def worker_at(api: Api, *things: Any) -> AsyncIterator[AsyncWorker]:
    async with AsyncWorker(url_of(api), [flow, *things], token=TOKEN) as worker:
        yield worker


def nodes_known_to(server: Server) -> set[str | None]:
    return {node.facts.address for node in server.node.shards.nodes.values()}


async def workers_of(api: Api) -> set[str]:
    return {one["worker_id"] for one in (await api.control("GET", "/workers")).json()["workers"]}


async def statuses(api: Api, ids: list[str]) -> set[str]:
    return {(await api.describe(id))["status"] for id in ids}


@pytest.mark.parametrize("way", ["sessions", "pooler"])
async def test_what_is_done_at_a_copy_does_not_reach_the_original(
    postgresql_url: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = "&pooler=transaction" if way == "pooler" else ""
    async with original(postgresql_url + options) as (one, other), worker_at(one, in_original) as theirs:
        for id in OLD:
            await one.start(id, task_queue="nobody")
        before = await workers_of(one)
        async with serving(
            store=await asyncio.to_thread(dumped_and_restored, postgresql_url) + options, still=False
        ) as copy:
            assert copy.server.node_id() not in one.server.node.shards.nodes
            in_window = nodes_known_to(copy.server) >= {url_of(one), url_of(other)}
            assert in_window or way == "sessions", "it takes the nodes of the original for its own"
            async with worker_at(copy, in_copy) as ours, AsyncClient(url_of(copy), token=TOKEN) as client:
                done = await asyncio.gather(*(client.execute(flow, id) for id in NEW))
                for id in OLD:
                    ended = await copy.control("POST", f"/workflows/{id}/terminate", {"reason": "a test at the copy"})
                    assert ended.status_code == 200, ended.text
                assert set(done) == {"copy"}
                async with AsyncClient(url_of(other), token=TOKEN) as caller:
                    assert await caller.execute(flow, "order-1") == "original"
                assert await statuses(copy, OLD) == {"terminated"}
                assert await statuses(one, OLD) <= {"pending", "running", "waiting"}, "they go on"
                for id in NEW:
                    assert (await one.control("GET", f"/workflows/{id}")).status_code == 404
                assert await workers_of(one) == before, "no worker of the copy has come to the original"
                assert {link.node for link in ours.links.all if link.is_open} == {copy.server.node_id()}
                assert {link.node for link in theirs.links.all} == {one.server.node_id(), other.server.node_id()}
            if in_window:
                assert (
                    f"node {copy.server.node_id()} knows the secret of this database but is not one of its nodes"
                    in caplog.text
                )


async def test_an_app_at_a_copy_does_not_reach_the_original(postgresql_url: str) -> None:
    """The same for an application with an engine of its own, which calls nodes and is called by them."""
    store = f"{postgresql_url}&pooler=transaction"
    async with original(store) as (one, other):
        copied = await asyncio.to_thread(dumped_and_restored, postgresql_url) + "&pooler=transaction"
        async with AsyncBackstay(copied, [flow, in_copy], listen="127.0.0.1:0") as app:
            assert {node.facts.address for node in app._node.shards.nodes.values()} >= {url_of(one), url_of(other)}
            starts = await asyncio.gather(*(app.start(flow, id) for id in NEW))
            assert len(starts) == len(NEW)
            for id in NEW:
                assert (await one.control("GET", f"/workflows/{id}")).status_code == 404
