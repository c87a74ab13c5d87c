"""Three nodes on one PostgreSQL keep to the limits of a queue together, also when one of them is killed."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncClient, AsyncWorker, activity, workflow

from .. import postgresql
from .cluster import Node
from .cluster_worker import TOKEN
from .database import Database, free_port

FEW, PACED = 2, 12
OVERRIDES = {
    "few": {"activity_tasks": {"max_active_leases": FEW}},
    "paced": {"activity_tasks": {"max_dispatches_per_minute": PACED}},
}
WORK = 0.1

running: set[int] = set()
seen: list[int] = []  # how many ran at a time
begun: Counter[int] = Counter()  # by minute
numbers = iter(range(1_000_000))


@activity(queue="few")
async def one_of_few() -> None:
    number = next(numbers)
    running.add(number)
    seen.append(len(running))
    await asyncio.sleep(WORK)
    running.discard(number)


@activity(queue="paced")
async def paced() -> None:
    begun[int(time.time()) // 60] += 1


@workflow(type="few")
async def few() -> None:
    await one_of_few()


@workflow(type="paced")
async def pace() -> None:
    await paced()


@asynccontextmanager
async def cluster(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    try:
        postgresql.binaries()
    except postgresql.NoServer as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("DW_TASK_QUEUE_ADMISSION_OVERRIDES", json.dumps(OVERRIDES))
    database = Database()
    nodes: list[Node] = []
    try:
        database.create()
        for number in range(3):
            node = Node(f"node-{number}", f"{database.url}&schema=limits", directory, None, free_port())
            nodes.append(node)
            node.start()
            await until(partial(is_ready, node))
        yield nodes
    except BaseException:
        for node in nodes:
            print(f"-- {node.name}\n{node.log()}")
        raise
    finally:
        for node in nodes:
            node.clean_up()
        database.end()


def asked(node: Node, path: str) -> Any:
    request = urllib.request.Request(f"{node.url}/api{path}")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    request.add_header("X-Durable-Workflow-Control-Plane-Version", "2")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def is_ready(node: Node) -> bool:
    try:
        return bool(asked(node, "/ready"))
    except OSError:
        return False


async def until(met: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(met):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@pytest.mark.full(
    "limits over whole minutes, with processes; tests/server/test_limits_of_nodes.py has them in one process"
)
def test_three_nodes_keep_to_the_limits_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(story(tmp_path, monkeypatch))


async def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(tmp_path, monkeypatch) as nodes, AsyncExitStack() as workers:
        for number, node in enumerate(nodes):
            worker = AsyncWorker(
                node.url,
                [few, pace, one_of_few, paced],
                queues=["default", "few", "paced"],
                token=TOKEN,
                guard="off",
                worker_id=f"worker-{number}",
                drain=0.5,
            )
            await workers.enter_async_context(worker)
        async with AsyncClient(nodes[0].url, token=TOKEN) as client:
            for number in range(60):
                await client.start(few, f"few-{number}")
            for number in range(PACED + 10):
                await client.start(pace, f"paced-{number}")
            before = time.monotonic()
            for number in range(30):
                await client.handle(few, f"few-{number}").result(timeout=60)
            shown = await asyncio.to_thread(asked, nodes[1], "/task-queues/few")
            limits = {one["limit"]: one for one in shown["admission"]["activity_tasks"]["budgets"]}
            shared = limits["max_active_leases_per_queue"]
            assert (shared["allowed"], shared["used"] <= FEW, shared["share"] <= FEW) == (FEW, True, True)
            nodes[2].kill()
            for number in range(60):
                await client.handle(few, f"few-{number}").result(timeout=90)
            print(
                f"60 tasks, {FEW} at a time, over a kill -9: {time.monotonic() - before:.1f} s, at once {Counter(seen)}"
            )
            await until(lambda: sum(begun.values()) >= PACED, 130)
    assert max(seen) <= FEW
    assert max(begun.values()) <= PACED
