"""The worker of the published package polls three nodes through a load balancer, which knows nothing of who owns what.

Tasks of a node that has no poll are fetched by one that has: nobody waits for the second after which they are stolen. A reply that is
lost, and an owner that is killed between lease and reply, cost no task.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("durable_workflow")

import durable_workflow
from durable_workflow.errors import WorkflowAlreadyStarted

from .. import postgresql
from ..selection import rotating
from .cluster import Cluster, Node, Worker
from .cluster_worker import OUTAGE, QUEUE, TOKEN
from .program import eventually

STEPS = 2
TASKS = STEPS * 2 + 1
PATIENCE = 90.0


class Polled(Cluster):
    """A cluster whose only worker is the published one, before the load balancer."""

    def start(self) -> None:
        self.database.create()
        for balancer in (self.front, self.back):
            self.network(balancer.start())
        for number in range(3):
            self.join(f"node-{number + 1}")
            if number == 0:
                self.wait_ready()
        self.wait_ready()
        self.workers["published"] = Worker("published", self.front.url, str(self.ledger))
        eventually("the worker is known", lambda: self.ask("/workers?status=active")["workers"], 60)
        eventually("every node owns something", lambda: all(self.owned(node) > 60 for node in self.nodes), 60)

    def _start_workers(self, name: str, url: str) -> None:
        """None of a node's own."""

    def owned(self, node: Node) -> int:
        return self.figure(node, "backstay_shards_owned")

    def figure(self, node: Node, name: str) -> int:
        """A number that a node tells to Prometheus."""
        asked = urllib.request.Request(f"{node.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith((f"{name} ", f"{name}_total ")):
                    return round(float(line.split()[1]))
        return 0

    def total(self, name: str) -> int:
        return sum(self.figure(node, name) for node in self.nodes)

    def marks(self) -> Counter[str]:
        """How often each activity has begun."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return Counter(line.split("\t")[0] for line in lines)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Polled]:
    try:
        postgresql.binaries()
    except postgresql.NoServer as missing:
        pytest.skip(str(missing))
    made = Polled(tmp_path_factory.mktemp("polled"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def run(cluster: Polled, *names: str) -> list[float]:
    """Run a chain for each name, one after the other. How long each took."""

    async def go() -> list[float]:
        took: list[float] = []
        async with durable_workflow.Client(cluster.back.url, token=TOKEN, retry_policy=OUTAGE) as client:
            for name in names:
                begin = time.monotonic()
                assert await _chain(client, name) == [f"{name}/{step}" for step in range(STEPS)]
                took.append(time.monotonic() - begin)
        return took

    try:
        return asyncio.run(asyncio.wait_for(go(), PATIENCE))
    except BaseException:
        for node in cluster.nodes:
            print(f"-- {node.name}\n{node.log()}")
        print("".join(cluster.workers["published"].errors[-40:]))
        raise


async def _chain(client: durable_workflow.Client, name: str) -> Any:
    with suppress(WorkflowAlreadyStarted):  # the answer to an earlier try was lost
        await client.start_workflow(
            workflow_type="published-chain", workflow_id=name, task_queue=QUEUE, input=[name, STEPS]
        )
    return await client.get_result(client.get_workflow_handle(name), poll_interval=0.02, timeout=PATIENCE)


def test_tasks_come_to_a_worker_whose_polls_are_parked_elsewhere(cluster: Polled) -> None:
    took = sorted(run(cluster, *(f"calm-{number}" for number in range(15))))
    fetched, stolen = cluster.total("backstay_tasks_fetched"), cluster.total("backstay_tasks_stolen")
    print(f"{TASKS} tasks: median {took[7]:.3f} s, slowest {took[-1]:.3f} s; fetched {fetched}, stolen {stolen}")
    assert took[7] < 0.2 * TASKS, "far below the second after which a task is stolen"
    assert stolen == 0
    assert fetched > 5
    assert set(cluster.marks().values()) == {1}


def test_replies_that_are_lost_on_the_way_to_the_worker(cluster: Polled) -> None:
    cluster.front.losing = 0.1
    try:
        run(cluster, *(f"lossy-{number}" for number in range(10)))
    finally:
        cluster.front.losing = 0.0
    assert cluster.front.lost > 0
    assert set(cluster.marks().values()) == {1}, "a lease whose reply is lost is found again, by whatever node"


@pytest.mark.parametrize("kind", rotating(["workflow", "activity"], 1))
def test_an_owner_that_is_killed_between_a_lease_and_the_reply(cluster: Polled, kind: str) -> None:
    for node in cluster.nodes:
        assert node.link is not None
        node.link.lost = 0
        node.link.silence(f"fetch-{kind}-task".encode())  # it arrives, and its sender hears nothing more

    async def go() -> list[Any]:
        async with durable_workflow.Client(cluster.back.url, token=TOKEN, retry_policy=OUTAGE) as client:
            chains = [asyncio.create_task(_chain(client, f"killed-{kind}-{number}")) for number in range(4)]
            while not (hit := [node for node in cluster.nodes if node.link is not None and node.link.lost]):
                await asyncio.sleep(0.001)
            await asyncio.to_thread(cluster.kill, hit[0])
            for node in cluster.nodes:
                if node.link is not None:
                    node.link._swallowed.clear()
            return await asyncio.gather(*chains)

    try:
        results = asyncio.run(asyncio.wait_for(go(), PATIENCE))
    finally:
        cluster.heal()
    assert len(results) == 4
    for number in range(4):
        for step in range(STEPS):
            assert cluster.marks()[f"killed-{kind}-{number}/{step}"] >= 1
