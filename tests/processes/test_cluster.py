"""Three nodes on one PostgreSQL: whatever happens to them, no work is lost, and none is done twice without a reason.

Each story takes a few seconds. `BACKSTAY_LONG=1` tells each for two minutes, and stops nodes for half a minute.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("durable_workflow")

from .. import postgresql
from ..selection import rotating
from .cluster import Cluster, Node
from .database import PGBOUNCER
from .story import Story

LONG = bool(os.environ.get("BACKSTAY_LONG"))
SECONDS = 120.0 if LONG else 3.0
LANES = 3 if LONG else 1
STOPPED = 30.0 if LONG else 1.5
PATIENCE = SECONDS + 200

POOLERS = ["session", "transaction"]

Faults = Callable[[Cluster], Awaitable[None]]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    """The one that runs, if any."""
    try:
        postgresql.binaries()
    except postgresql.NoServer as missing:
        pytest.skip(str(missing))
    running: list[Cluster] = []
    yield running
    for cluster in running:
        cluster.end()


@pytest.fixture
def cluster(clusters: list[Cluster], tmp_path: Path) -> Cluster:
    """Three nodes and two workers, which serve one story after the other."""
    if not clusters:
        clusters.append(Cluster(tmp_path))
        clusters[0].start()
    return clusters[0]


def tell(cluster: Cluster, clusters: list[Cluster], faults: Faults) -> Story:
    story = Story(cluster, LANES)
    try:
        asyncio.run(asyncio.wait_for(story.run(faults), PATIENCE))
    except BaseException:
        for node in cluster.nodes:
            print(f"-- {node.name}\n{node.log()}")
        for kind, worker in cluster.workers.items():
            print(f"-- {kind}\n{''.join(worker.errors[-40:])}")
        clusters.clear()  # the next story gets another one
        cluster.end()
        raise
    print(dict(story.completed), dict(story.requests), f"slowest {story.slowest:.1f} s, repeated {story.repeated}")
    return story


async def calm() -> None:
    """A while in which only work happens."""
    await asyncio.sleep(min(1.0, SECONDS / 4))


def until(deadline: float) -> bool:
    return time.monotonic() < deadline


async def nothing(cluster: Cluster) -> None:
    await calm()


async def kill_nodes(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    number = 0
    while until(deadline):
        await calm()
        node = cluster.ready()[0] if number % 2 == 0 and cluster.ready() else cluster.nodes[number % len(cluster.nodes)]
        number += 1
        await asyncio.to_thread(cluster.kill, node)
        await calm()
        node.start()
        await asyncio.to_thread(cluster.wait_ready)


async def stop_nodes(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    while until(deadline):
        await calm()
        node = (cluster.ready() or cluster.nodes)[0]
        cluster.pause(node)
        await asyncio.sleep(STOPPED)
        cluster.go_on(node)
        await asyncio.to_thread(cluster.wait_ready)
        await asyncio.sleep(STOPPED / 3)


async def cut_links(cluster: Cluster) -> None:
    """Connections are lost, replies are lost, and for a while nothing passes between nodes."""
    deadline = time.monotonic() + SECONDS
    while until(deadline):
        cluster.front.losing = cluster.back.losing = 0.05
        await calm()
        await cluster.cut_links()
        await asyncio.to_thread(cluster.drop_links, True)
        await calm()
        await asyncio.to_thread(cluster.drop_links, False)
        cluster.front.losing = cluster.back.losing = 0.0
        await calm()


async def kill_the_database(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    while until(deadline):
        await calm()
        await asyncio.to_thread(cluster.database.kill)
        await calm()
        await asyncio.to_thread(cluster.database.start)
        await asyncio.to_thread(cluster.wait_ready)
        await asyncio.sleep(SECONDS / 15)  # reports that waited arrive before the next time


async def promote_the_standby(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    while until(deadline):
        await cluster.database.follow()
        await calm()
        await cluster.fail_over()
        await asyncio.to_thread(cluster.wait_ready)
        await calm()


async def restart_one_by_one(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    while until(deadline):
        first = (cluster.ready() or cluster.nodes)[0]
        others = [node for node in cluster.nodes if node is not first]
        for node in (first, *others) if LONG else (first, others[0]):
            await asyncio.to_thread(node.terminate)
            node.start()
            await asyncio.to_thread(cluster.wait_ready)
        await calm()


async def join_and_leave(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    number = 0
    while until(deadline):
        number += 1
        await asyncio.to_thread(cluster.join, f"guest-{number}")
        await asyncio.to_thread(cluster.wait_ready)
        await calm()
        leaving: Node = cluster.nodes[0]  # the oldest, which owns something
        await asyncio.to_thread(cluster.leave, leaving)
        await asyncio.to_thread(cluster.wait_ready)
        await calm()


async def kill_workers(cluster: Cluster) -> None:
    deadline = time.monotonic() + SECONDS
    while until(deadline):
        await calm()
        await asyncio.to_thread(cluster.restart_a_worker)
        await calm()


STORIES: list[Any] = [
    nothing,
    kill_nodes,
    stop_nodes,
    cut_links,
    kill_the_database,
    restart_one_by_one,
    join_and_leave,
    promote_the_standby,
    *([kill_workers] if LONG else []),  # its activities wait for ten seconds
]


@pytest.mark.contract("REPLAY-01")
@pytest.mark.parametrize("faults", rotating(STORIES, 2), ids=lambda faults: faults.__name__)
def test_work_goes_on(faults: Faults, cluster: Cluster, clusters: list[Cluster]) -> None:
    story = tell(cluster, clusters, faults)
    for kind in ("chain", "box", "published-chain", "published-box"):
        assert story.completed[kind] > 0, f"no {kind} was completed"


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize("mode", rotating(POOLERS, 1))
@pytest.mark.parametrize("faults", STORIES if LONG else [kill_nodes], ids=lambda faults: faults.__name__)
def test_work_goes_on_behind_a_pooler(faults: Faults, mode: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3 if LONG else 2, pooler=mode)
    clusters = [cluster]
    try:
        cluster.start()
        assert tell(cluster, clusters, faults).completed["published-box"] > 0
    finally:
        for running in clusters:
            running.end()
