"""A process that stood still asks before it begins: what another process has ended meanwhile is not begun again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from backstay import Client
from backstay.store.postgresql.connection import address

from . import flows
from .conftest import Place
from .program import Program, Remote, Told, eventually
from .still_worker import still
from .test_failover import HEADERS, TOKEN
from .test_left_workers import Node

PATIENCE = 60.0


@pytest.fixture
def server(place: Place) -> Iterator[Node]:
    node = Node(place)
    yield node
    node.end()


def begun(place: Place, key: str) -> int:
    """How often the activity has begun."""
    path = Path(place.ledger)
    return path.read_text().splitlines().count(f"work\t{key}") if path.exists() else 0


def live(server: Node) -> set[str]:
    with httpx.Client(headers=HEADERS | {"X-Durable-Workflow-Control-Plane-Version": "2"}, timeout=30) as http:
        found = http.get(f"{server.url}/api/workers?status=active").json()["workers"]
    return {worker["worker_id"] for worker in found}


def test_a_worker_that_was_stopped_begins_nothing_that_another_has_done(
    place: Place, server: Node, program: Callable[..., Program]
) -> None:
    def worker(code: str, name: str) -> Program:
        started = program("still_worker", code, server.url, TOKEN, name, place.ledger)
        started.wait_for_line("connected")
        return started

    worker("code", "code")
    stopped = worker("work", "stopped")
    with Client(server.url, token=TOKEN) as client:
        assert client.execute(still, "first", "first") == "first"
        stopped.process.send_signal(signal.SIGSTOP)
        handle = client.start(still, "second", "second")  # its activity waits unread in the socket of the stopped one
        eventually("the stopped worker is missed", lambda: "stopped" not in live(server), PATIENCE)
        worker("work", "other")
        assert handle.result(timeout=PATIENCE) == "second"
        stopped.process.send_signal(signal.SIGCONT)
        eventually("it is back", lambda: "stopped" in live(server), PATIENCE)
        third = [client.start(still, f"third-{n}", f"third-{n}") for n in range(20)]
        assert [handle.result(timeout=PATIENCE) for handle in third] == [f"third-{n}" for n in range(20)]
    assert {key: begun(place, key) for key in ("first", "second")} == {"first": 1, "second": 1}
    assert {begun(place, f"third-{n}") for n in range(20)} == {1}


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_an_app_that_was_stopped_begins_nothing_that_another_has_done(
    place: Place, remote: Callable[..., Remote]
) -> None:
    asyncio.run(_stopped_app(place, remote))


async def _stopped_app(place: Place, remote: Callable[..., Remote]) -> None:
    where = address(str(place.database))
    stopped = await asyncio.to_thread(lambda: remote().opened())
    for n in range(3):  # so that its statements are prepared: one is all that the commit below consists of
        asked = {"workflow": flows.visit.type, "id": f"before-{n}"}
        await asyncio.to_thread(stopped.ask, "start", **asked, args=[place.ledger, "before"])
        assert await asyncio.to_thread(stopped.ask, "result", **asked) == "before done"
    connection = await asyncpg.connect(where.dsn)

    async def waits() -> bool:
        return await connection.fetchval(
            "select count(*) > 0 from pg_locks where not granted and relation = 'task'::regclass"
        )

    async def is_committed() -> bool:
        return await connection.fetchval("select count(*) > 0 from run where workflow_id = 'late'")

    try:
        await connection.execute(f'set search_path = "{where.schema}"')
        held = connection.transaction()
        await held.start()
        await connection.execute("lock table task in share row exclusive mode")
        stopped.tell("start", workflow=flows.visit.type, id="late", args=[place.ledger, "late"])
        await until("its commit waits", waits)
        stopped.process.send_signal(signal.SIGSTOP)
        await held.rollback()
        await until("the commit has come through", is_committed)
    finally:
        await connection.close()
    assert place.signed("late") == [], "it has not heard of its commit"
    other = await asyncio.to_thread(lambda: remote().opened())
    await until("the other app does it", lambda: _ready(bool(place.signed("late"))))
    assert await asyncio.to_thread(other.ask, "result", workflow=flows.visit.type, id="late") == "late done"
    stopped.process.send_signal(signal.SIGCONT)
    await until("it works again, as one of two", lambda: asyncio.to_thread(_works, place, stopped))
    assert [line.pid for line in place.signed("late")] == [other.pid]


def _works(place: Place, app: Remote) -> bool:
    try:
        return app.ask("execute", workflow=flows.visit.type, id=f"{time.monotonic_ns()}", args=[place.ledger, "again"])
    except Told as told:
        if told.kind != "Deposed":
            raise
        return False


async def _ready(value: bool) -> bool:
    return value


async def until(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while not await look():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
