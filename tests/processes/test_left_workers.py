"""A worker is gone when its connection is: within seconds, at every server, on every surface that tells of workers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from .conftest import BOTH, Place
from .left_worker import QUEUE
from .program import Program, eventually
from .test_failover import HEADERS, TOKEN

SOON = 25.0
"""Seconds: far less than a worker may be silent (180 s), and enough for a busy machine. It takes two or three."""


class Node:
    """`dw server` in a process of its own."""

    def __init__(self, place: Place) -> None:
        store = str(place.database) if "://" in str(place.database) else f"sqlite:{place.database}"
        command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
        self.process = subprocess.Popen([*command, "--store", store], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self._http = httpx.Client(
            base_url=self.url, headers=HEADERS | {"X-Durable-Workflow-Control-Plane-Version": "2"}, timeout=30
        )

    def get(self, path: str) -> dict[str, Any]:
        answer = self._http.get(f"/api{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def start(self, workflow_id: str) -> None:
        body = {"workflow_type": "left", "workflow_id": workflow_id, "task_queue": QUEUE}
        assert self._http.post("/api/workflows", json=body).status_code in (200, 201)

    def live_workers(self) -> dict[str, int]:
        """How many workers live, as every surface tells it."""
        metrics = self.get("/system/operator-metrics")["operator_metrics"]["workers"]
        queues = {queue["name"]: queue for queue in self.get("/task-queues")["task_queues"]}
        scraped = re.findall(r'^backstay_workers\{.*status="active".*\} (\d+)', self._http.get("/metrics").text, re.M)
        pollers = queues.get(QUEUE, {"pollers": []})["pollers"]
        return {
            "workers": sum(one["status"] == "active" for one in self.get("/workers")["workers"]),
            "fleet": self.get("/overview")["fleet"]["active"],
            "metrics": metrics["active_workers"],
            "prometheus": sum(map(int, scraped)),
            "queue": sum(one["status"] == "active" for one in pollers),
        }

    def gaps(self) -> list[str]:
        return [one["name"] for one in self.get("/system/health")["causes"] if one["check"] == "worker_compatibility"]

    def end(self) -> None:
        self._http.close()
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def node(place: Place) -> Iterator[Callable[[], Node]]:
    started: list[Node] = []

    def start() -> Node:
        started.append(Node(place))
        return started[-1]

    yield start
    for one in started:
        one.end()


def agree(nodes: list[Node], count: int) -> None:
    """Wait until every surface of every node says that so many workers live."""

    def look() -> bool:
        return all(set(one.live_workers().values()) == {count} for one in nodes)

    eventually(f"{count} live: {[one.live_workers() for one in nodes]}", look, SOON)


@BOTH
@pytest.mark.parametrize("kind", ["ours", "polls"])
def test_a_killed_worker_does_not_count_any_more(
    place: Place, node: Callable[[], Node], program: Callable[..., Program], kind: str
) -> None:
    server = node()
    worker = program("left_worker", kind, server.url, TOKEN, "one")
    worker.wait_for_line("connected")
    agree([server], 1)
    worker.kill()
    agree([server], 0)
    server.start("waits")
    why = eventually(
        "the reason is true", lambda: (found := server.get("/workflows/waits/why"))["attention"] and found, SOON
    )
    assert (why["attention"], "No live worker" in why["sentence"]) == ("no_worker", True), why["sentence"]
    assert server.gaps() == ["no_worker"]
    (gone,) = server.get("/workers")["workers"]
    assert (gone["status"], gone["left_at"] is not None) == ("stale", True)
    back = program("left_worker", kind, server.url, TOKEN, "one")
    back.wait_for_line("connected")
    agree([server], 1)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("kind", ["ours", "polls"])
def test_it_does_not_count_at_any_of_several_nodes(
    place: Place, node: Callable[[], Node], program: Callable[..., Program], kind: str
) -> None:
    nodes = [node(), node()]
    stays = program("left_worker", kind, nodes[0].url, TOKEN, "stays")
    worker = program("left_worker", kind, nodes[1].url, TOKEN, "goes")
    for one in (stays, worker):
        one.wait_for_line("connected")
    agree(nodes, 2)
    worker.kill()
    agree(nodes, 1)
    assert [one["worker_id"] for one in nodes[0].get("/workers?status=active")["workers"]] == ["stays"]


def test_a_worker_that_crashes_again_and_again_is_not_a_fleet(
    place: Place, node: Callable[[], Node], program: Callable[..., Program]
) -> None:
    server = node()
    for number in range(4):
        assert program("left_worker", "crashes", server.url, TOKEN, f"crash-{number}").ended() == 9
    agree([server], 0)
    assert len(server.get("/workers")["workers"]) == 4


def test_a_worker_that_died_with_its_server_does_not_count_at_the_next_one(
    place: Place, node: Callable[[], Node], program: Callable[..., Program]
) -> None:
    server = node()
    worker = program("left_worker", "ours", server.url, TOKEN, "one")
    worker.wait_for_line("connected")
    agree([server], 1)
    server.process.kill()
    server.process.wait()
    worker.kill()
    agree([node()], 0)
