"""Several real `dw server` on one PostgreSQL, behind a load balancer, with our own worker and the published one: what a
cluster looks like from outside, and everything that can happen to it.

Nodes reach each other through proxies that can be cut, as far as the server has links (a setting `advertise`). The balancers and
proxies run on a thread of their own, so that a cluster can serve several tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from backstay.sdk.client.loop_thread import LoopThread
from backstay.server.settings import Settings

from ..remote.lossy import Lossy
from .balancer import Balancer
from .cluster_worker import TOKEN
from .database import Database, Pooler, free_port
from .program import Program, eventually

HAS_LINKS = "advertise" in Settings.__struct_fields__
"""Whether nodes talk to each other, so that there is something to cut."""


class Blow(NamedTuple):
    """Something that excuses repeats: a process that had work in its hands was killed or stopped."""

    at: float
    what: str


class Node:
    """A `dw server` that keeps its name and its port over restarts."""

    def __init__(self, name: str, store: str, directory: Path, link: Lossy | None, port: int) -> None:
        self.name = name
        self.port = port
        self.link = link
        self._store = store
        self._log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self.process is not None and not self.stopped

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", str(self.port)]
        store = f"{self._store}&application_name={self.name}"
        settings = {"DW_DRAIN_SECONDS": "5"}
        if self.link is not None:
            settings["DW_ADVERTISE"] = self.link.url
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--token", TOKEN, "--store", store],
                stdout=log,
                stderr=log,
                env=os.environ | settings,
            )

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        self._ended()

    def pause(self) -> None:
        self._send(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        self._send(signal.SIGCONT)
        self.stopped = False

    def terminate(self) -> None:
        """By the front door: it drains, hands over what it has, and ends with 0."""
        self._send(signal.SIGTERM)
        assert self._ended() == 0, self.log()

    def log(self) -> str:
        return self._log.read_text()[-4000:] if self._log.exists() else ""

    def clean_up(self) -> None:
        if self.process is not None:
            self.kill()

    def _send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(60)
        self.process, self.stopped = None, False
        return code


class Worker(Program):
    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        super().__init__("cluster_worker", *arguments)


class Cluster:
    """`pooler`: the mode of a pgbouncer between the nodes and the server; None: there is none."""

    def __init__(self, directory: Path, count: int = 3, *, pooler: str | None = None) -> None:
        self.directory = directory
        self.ledger = directory / "ledger"
        self.blows: list[Blow] = []
        self.database = Database()
        self._mode = pooler
        self._pooler: Pooler | None = None
        self._thread = LoopThread("cluster-network", asyncio.new_event_loop)
        self._loop = self._thread.start()
        self.front = Balancer("/api/health")
        self.back = Balancer("/api/ready")
        self.nodes: list[Node] = []
        self.workers: dict[str, Worker] = {}
        self._count = count

    @property
    def store(self) -> str:
        """Where nodes find the database."""
        said = "&pooler=transaction" if self._mode == "transaction" else ""
        return f"{self.database.url if self._pooler is None else self._pooler.url}&schema=cluster{said}"

    def start(self) -> None:
        self.database.create()
        if self._mode is not None:
            self._pooler = Pooler(self.database, self._mode)
        for balancer in (self.front, self.back):
            self.network(balancer.start())
        for number in range(self._count):
            self.join(f"node-{number + 1}")
            if number == 0:
                self.wait_ready()  # it makes the schema
        self.wait_ready()
        self._start_workers("all", self.front.url)
        eventually("both workers are known", lambda: len(self.ask("/workers?status=active")["workers"]) >= 2, 60)

    def end(self) -> None:
        for worker in self.workers.values():
            worker.clean_up()
        for node in self.nodes:
            node.clean_up()
            if node.link is not None:
                self.network(node.link.__aexit__())
        for balancer in (self.front, self.back):
            self.network(balancer.stop())
        self._thread.stop()
        if self._pooler is not None:
            self._pooler.end()
        self.database.end()

    def network(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the thread of the balancers and proxies."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def ask(self, path: str, node: Node | None = None) -> Any:
        """What a node answers, or the next one that is ready."""
        asked = urllib.request.Request(f"{self.back.url if node is None else node.url}/api{path}")
        asked.add_header("Authorization", f"Bearer {TOKEN}")
        asked.add_header("X-Durable-Workflow-Control-Plane-Version", "2")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    # -- what can happen

    def join(self, name: str) -> Node:
        """One more node."""
        port = free_port()
        link = Lossy(f"http://127.0.0.1:{port}") if HAS_LINKS else None
        if link is not None:
            self.network(link.__aenter__())
        node = Node(name, self.store, self.directory, link, port)
        self.nodes.append(node)
        node.start()
        self._tell()
        return node

    def leave(self, node: Node) -> None:
        """It ends by the front door and does not come back."""
        self.nodes.remove(node)
        node.terminate()
        if node.link is not None:
            self.network(node.link.__aexit__())
        self._tell()

    def kill(self, node: Node) -> None:
        self._blow(f"kill -9 {node.name}")
        node.kill()

    def pause(self, node: Node) -> None:
        self._blow(f"stop {node.name}")
        node.pause()

    def go_on(self, node: Node) -> None:
        self._blow(f"continue {node.name}")
        node.go_on()

    async def fail_over(self) -> None:
        """The standby takes over from the server in charge, which is gone."""
        await self.database.fail_over()
        if self._pooler is not None:
            self._pooler.follow(self.database)

    def restart_a_worker(self) -> None:
        name = next(name for name in self.workers if name.startswith("ours"))
        self._blow(f"kill -9 the worker {name}")
        self.workers[name].clean_up()
        self.workers[name] = Worker(*self.workers[name].arguments)

    def _start_workers(self, name: str, url: str) -> None:
        for kind in ("ours", "published"):
            self.workers[f"{kind} of {name}"] = Worker(kind, url, str(self.ledger))

    async def cut_links(self) -> None:
        """Every connection between nodes is lost, and everybody's."""

        async def cut() -> None:
            for node in self.nodes:
                if node.link is not None:
                    node.link.cut()
            self.front.cut()
            self.back.cut()

        await asyncio.to_thread(self.network, cut())

    def drop_links(self, gone: bool) -> None:
        """While it is set, nothing that nodes send to each other arrives."""

        async def drop() -> None:
            for node in self.nodes:
                if node.link is not None and gone:
                    node.link.hole = True
                elif node.link is not None:
                    node.link.close_hole()

        self.network(drop())

    def heal(self) -> None:
        """Everything runs again."""
        self.front.losing = self.back.losing = 0.0
        self.drop_links(False)
        for node in self.nodes:
            if node.stopped:
                node.go_on()
            elif node.process is None:
                node.start()
        self.wait_ready()

    def ready(self) -> list[Node]:
        return [node for node in self.nodes if self.back.is_ready(node.name)]

    def wait_ready(self) -> None:
        """Until all nodes are up, and one at least takes workers."""

        def up() -> bool:
            for node in self.nodes:
                if node.process is not None and node.process.poll() is not None:
                    raise AssertionError(f"{node.name} has ended: {node.log()}")
            return bool(self.ready()) and all(self.front.is_ready(node.name) for node in self.nodes if node.runs)

        eventually("the nodes are up", up, 60)

    def _blow(self, what: str) -> None:
        self.blows.append(Blow(time.monotonic(), what))

    def _tell(self) -> None:
        places = {node.name: ("127.0.0.1", node.port) for node in self.nodes}

        async def tell() -> None:
            for balancer in (self.front, self.back):
                balancer.set_nodes(dict(places))

        self.network(tell())
