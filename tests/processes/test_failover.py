"""Two servers on one PostgreSQL database: when one is taken for dead, the other works in its place, and workers go along."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, activity, workflow
from backstay.store.postgresql.connection import address

from ..remote.account import Account
from ..remote.lossy import Lossy
from ..sdk.kit import eventually
from .conftest import Place

TOKEN = "secret"
PATIENCE = 90
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Protocol-Version": "1.0"}

pytestmark = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


@activity
def add(n: int) -> int:
    return n + 1


@workflow(type="failover-adds")
def adds(count: int) -> int:
    total = 0
    for _ in range(count):
        total = add(total)
    return total


class Server:
    """`dw server` in a process of its own, known to the database by a name."""

    def __init__(self, place: Place, name: str, *options: str) -> None:
        self._database = str(place.database)
        self.name = f"{name}-{place.directory.name}"[:60]
        store = f"{self._database}&application_name={self.name}"
        command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
        self.process = subprocess.Popen([*command, "--store", store, *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    async def ready(self) -> bool:
        async with httpx.AsyncClient() as http:
            with suppress(httpx.HTTPError):
                return (await http.get(f"{self.url}/api/ready", timeout=0.5)).status_code == 200
        return False

    async def owners(self) -> dict[int, int]:
        """How many shards each process owns; nothing if a shard has no owner."""
        connection = await asyncpg.connect(address(self._database).dsn)
        try:
            await connection.execute(f'set search_path = "{address(self._database).schema}"')
            found = await connection.fetch(
                "select w.id, count(*) from shard left join writer w on w.id = shard.owner and not w.fenced group by w.id"
            )
            return {} if any(row["id"] is None for row in found) else {row["id"]: row["count"] for row in found}
        finally:
            await connection.close()

    async def owns_all(self) -> bool:
        """Whether one process owns every shard."""
        return len(await self.owners()) == 1

    async def cut(self) -> None:
        """End every session that it has with the database."""
        connection = await asyncpg.connect(address(self._database).dsn)
        try:
            assert await connection.fetch(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = $1", self.name
            )
        finally:
            await connection.close()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def servers(place: Place) -> Iterator[list[Server]]:
    started: list[Server] = []
    try:
        started += [Server(place, "first")]
        started += [Server(place, "second")]
        yield started
    finally:
        for server in started:
            server.end()


class Following(Lossy):
    """A proxy that leads every new connection to the server that is ready, and leaves the others alone."""

    def __init__(self, servers: list[Server]) -> None:
        super().__init__(servers[0].url)
        self._servers = servers

    async def target(self) -> tuple[str, int]:
        for server in self._servers:
            if await server.ready():
                return "127.0.0.1", int(server.url.rpartition(":")[2])
        raise ConnectionRefusedError


def test_work_goes_on_at_the_next_engine_while_the_old_one_lives(place: Place, servers: list[Server]) -> None:
    asyncio.run(asyncio.wait_for(_goes_on(servers), PATIENCE))


async def _goes_on(servers: list[Server]) -> None:
    first, second = servers
    assert await first.ready()
    await eventually(second.ready, "the second is up")
    async with (
        Following(servers) as proxy,
        AsyncWorker(proxy.url, [adds, add, Account], token=TOKEN, drain=1.0) as worker,
        AsyncClient(second.url, token=TOKEN) as client,  # the server that the worker is not at
        AsyncClient(proxy.url, token=TOKEN) as through,  # its connections stand, wherever they lead
        httpx.AsyncClient(base_url=first.url, headers=HEADERS, timeout=60) as published,
    ):
        assert await client.execute(adds, "before", 3) == 3
        registered = await published.post("/api/worker/register", json={"worker_id": "p", "task_queue": "other"})
        assert registered.status_code in (200, 201)
        poll = {"worker_id": "p", "task_queue": "other", "poll_request_id": "one", "timeout_seconds": 50}
        parked = asyncio.create_task(published.post("/api/worker/workflow-tasks/poll", json=poll))

        account = await through.start(Account, "account")
        assert await asyncio.gather(*[account.query(Account.total) for _ in range(20)]) == [0] * 20

        first.process.send_signal(signal.SIGSTOP)
        await first.cut()
        await eventually(second.owns_all, "the second has taken over")
        assert await client.execute(adds, "meanwhile", 3) == 3
        first.process.send_signal(signal.SIGCONT)

        assert await client.execute(adds, "after", 3) == 3
        await eventually(lambda: worker.links.lost >= 1, "the first has sent the worker away")
        assert await account.update(Account.deposit, 5) == 5
        assert await asyncio.gather(*[account.query(Account.total) for _ in range(20)]) == [5] * 20
        assert await client.handle(Account, "account").query(Account.total) == 5
        answer = await parked  # the server that was taken for dead has sent all workers away, and serves again
        assert answer.json()["task"] is None
        await eventually(first.ready, "the first is back")
        assert (await published.post("/api/worker/workflow-tasks/poll", json=poll | {"timeout_seconds": 0})).is_success
        await second.cut()  # its sessions alone: it goes on, or the other works in its place
        assert await client.execute(adds, "again", 3) == 3
