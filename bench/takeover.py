"""How long the work of a node stands still after `kill -9`: others take over its shards, and say so by doing the work.

    python bench/takeover.py                    three embedded apps, five times
    python bench/takeover.py --shape server     three servers and a worker

A node that owns something is killed while nothing else happens. At the same moment another one is told workflows of the dead
node's shards. The time until the first and until the last of them is complete is what callers notice.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
from contextlib import AsyncExitStack
from itertools import count

import asyncpg
from measuring import small
from nodes import Database, Nodes

WORKFLOWS = 16
_names = count()


def owned_by(nodes: Nodes, number: int, many: int) -> list[str]:
    found: list[str] = []
    while len(found) < many:
        id = f"t-{next(_names)}"
        if nodes.owner(id) == number:
            found.append(id)
    return found


async def once(database: Database, shape: str, number: int) -> tuple[float, float, float]:
    """Seconds for the same work before, and until the first and the last are complete after the kill."""
    connection = await asyncpg.connect(database.url)
    try:
        async with AsyncExitStack() as stack:
            nodes = Nodes(database, connection, shape, number)
            await nodes.start(stack)
            dead = nodes.owner(f"t-{next(_names)}")
            alive = (dead + 1) % number
            await nodes.do(alive, owned_by(nodes, dead, WORKFLOWS), 1, WORKFLOWS)
            before = max(await nodes.do(alive, owned_by(nodes, dead, WORKFLOWS), 1, WORKFLOWS))
            ids = owned_by(nodes, dead, WORKFLOWS)
            began = time.perf_counter()
            await nodes.kill(dead)
            took = await nodes.do(alive, ids, 1, WORKFLOWS)
            late = time.perf_counter() - began - max(took)
            return before, min(took) + late, max(took) + late
    finally:
        await connection.close()


async def measure(database: Database, options: argparse.Namespace) -> None:
    rounds = [await once(database, options.shape, options.nodes) for _ in range(options.rounds)]
    for label, times in zip(
        ("before", "first after the kill", "last after the kill"), zip(*rounds, strict=True), strict=True
    ):
        print(f"{label}: median {statistics.median(times) * 1e3:.0f} ms, worst {max(times) * 1e3:.0f} ms", flush=True)


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="embedded", choices=("embedded", "server"))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    small(parser)
    options = parser.parse_args()
    if options.small:
        options.nodes, options.rounds = 2, 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    database = Database({"shared_preload_libraries": "pg_stat_statements"})
    try:
        database.create()
        asyncio.run(measure(database, options))
    finally:
        database.end()


if __name__ == "__main__":
    cli()
