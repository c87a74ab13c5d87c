"""Three servers are restarted one after the other, under load: a caller that asks who is ready loses no request."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from .cluster_worker import TOKEN
from .database import free_port

HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
ASKED = 0.05  # seconds between two questions who is ready
NOTICE = 0.5  # more than that, on a machine that is busy
PATIENCE = 60


class Restarted:
    """A `dw server` that keeps its name and port."""

    def __init__(self, name: str, store: str, directory: Path) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._log = directory / f"{name}.log"
        self._command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", str(port)]
        self._command += ["--node-name", name, "--store", store, "--token", TOKEN]
        self.start()

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DW_")}
        with open(self._log, "ab") as log:
            env = kept | {"DW_DRAIN_NOTICE_SECONDS": str(NOTICE)}
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=env)

    async def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.wait, PATIENCE) == 0, self._log.read_text()


class Caller:
    """Sends each request to the next server that has said that it is ready, once, and repeats nothing."""

    def __init__(self, servers: list[Restarted], http: httpx.AsyncClient) -> None:
        self._servers = servers
        self._http = http
        self.ready: set[str] = set()
        self.answered: dict[str, int] = {server.name: 0 for server in servers}
        self.lost: list[str] = []

    async def ask_who_is_ready(self) -> None:
        while True:
            for server in self._servers:
                try:
                    answer = await self._http.get(f"{server.url}/api/ready")
                    is_ready = answer.status_code == 200
                except httpx.HTTPError:
                    is_ready = False
                (self.ready.add if is_ready else self.ready.discard)(server.name)
            await asyncio.sleep(ASKED)

    async def call(self) -> None:
        turns = itertools.cycle(self._servers)
        for number in itertools.count():
            server = next(turns)
            if server.name not in self.ready:
                await asyncio.sleep(0)
                continue
            body = {"workflow_type": "order", "workflow_id": f"o-{number}", "task_queue": "q"}
            try:
                answer = await self._http.post(f"{server.url}/api/workflows", json=body, headers=HEADERS)
            except httpx.HTTPError as error:
                self.lost.append(f"{server.name}: {error!r}")
                continue
            if answer.status_code != 201:
                self.lost.append(f"{server.name}: {answer.status_code} {answer.text[:300]}")
            self.answered[server.name] += 1

    async def until_ready(self, *names: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.ready.issuperset(names):
                await asyncio.sleep(ASKED)

    async def until_answered(self, more: int) -> None:
        """Until every server that is ready has answered so many more."""
        wanted = {name: self.answered[name] + more for name in self.ready}
        async with asyncio.timeout(PATIENCE):
            while any(self.answered[name] < wanted[name] for name in wanted if name in self.ready):
                await asyncio.sleep(ASKED)


def test_a_rolling_restart_loses_no_request(postgresql_url: str, tmp_path: Path) -> None:
    asyncio.run(restart_one_by_one(postgresql_url, tmp_path))


async def restart_one_by_one(postgresql_url: str, tmp_path: Path) -> None:
    servers = [Restarted("node-1", postgresql_url, tmp_path)]
    try:
        async with httpx.AsyncClient(timeout=30) as http:
            caller = Caller(servers, http)
            asking = asyncio.create_task(caller.ask_who_is_ready())
            await caller.until_ready("node-1")  # it makes the schema
            servers += [Restarted(name, postgresql_url, tmp_path) for name in ("node-2", "node-3")]
            caller.answered |= {"node-2": 0, "node-3": 0}
            await caller.until_ready("node-1", "node-2", "node-3")
            calling = asyncio.create_task(caller.call())
            for server in servers:
                await caller.until_answered(5)
                await server.stop()
                server.start()
                await caller.until_ready(server.name)
            await caller.until_answered(5)
            calling.cancel()
            asking.cancel()
            assert caller.lost == []
            found = (await http.get(f"{servers[0].url}/api/nodes", headers=HEADERS)).json()
            assert (found["unowned_shards"], len(found["nodes"])) == (0, 3), "who has left is not told of"
            open_runs = (await http.get(f"{servers[0].url}/api/overview", headers=HEADERS)).json()["stock"]["open"]
            assert open_runs >= sum(caller.answered.values()), "each was answered when it was on disk"
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()
