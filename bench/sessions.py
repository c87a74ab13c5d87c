"""What one batch costs PostgreSQL when it comes from 1, 4 or 16 sessions at the same total rate: whether sessions hinder each other.

    python bench/sessions.py                    about a minute
    python bench/sessions.py --rate 100 --sessions 1,16

Each session is that of a node of its own, all in this process. A node works at one workflow of one step at a time, so that every
batch is as small as batches get, and there are as many of them whatever the number of sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import AsyncExitStack

import asyncpg
from measuring import cpu_with_children, small
from node_children import EVERYTHING, seq
from node_meters import SETTLED, counted
from nodes import Database

from backstay import AsyncBackstay


async def paced(app: AsyncBackstay, every: float, until: float) -> int:
    """Run workflows one after another, so many seconds apart. Returns how many."""
    done, due = 0, time.perf_counter()
    while due < until:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await app.execute(seq, None, 1)
        done += 1
        due += every
    return done


async def one(
    database: Database, sessions: int, rate: float, seconds: float, settled: float
) -> tuple[float, float, float]:
    """Of one batch: CPU of PostgreSQL in microseconds, WAL records; and workflows a second."""
    schema = f"sessions_{sessions}"
    connection = await asyncpg.connect(database.url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(connection.close)
        apps = [
            await stack.enter_async_context(AsyncBackstay(f"{database.url}&schema={schema}", EVERYTHING))
            for _ in range(sessions)
        ]
        while not all(app.is_engine for app in apps):
            await asyncio.sleep(0.05)
        await asyncio.gather(*(paced(app, sessions / rate, time.perf_counter() + seconds / 5) for app in apps))
        await asyncio.sleep(settled)
        idle = cpu_with_children(database.pid)
        await asyncio.sleep(seconds / 2)
        idle = (cpu_with_children(database.pid) - idle) / (seconds / 2)
        before, used, began = await counted(connection, schema), cpu_with_children(database.pid), time.perf_counter()
        done = sum(await asyncio.gather(*(paced(app, sessions / rate, time.perf_counter() + seconds) for app in apps)))
        took = time.perf_counter() - began
        used = cpu_with_children(database.pid) - used - idle * took
        await asyncio.sleep(settled)
        after = await counted(connection, schema)
        batches = after["batches"] - before["batches"]
        return used / batches * 1e6, (after["wal_records"] - before["wal_records"]) / batches, done / took


async def measure(database: Database, options: argparse.Namespace) -> None:
    connection = await asyncpg.connect(database.url)
    await connection.execute("create extension if not exists pg_stat_statements")
    await connection.close()
    first: float | None = None
    print(f"{'sessions':>9}{'workflows/s':>13}{'PG us a batch':>15}{'against 1':>11}{'WAL records':>13}")
    for sessions in options.sessions:
        cost, records, rate = await one(database, sessions, options.rate, options.seconds, options.settled)
        first = first or cost
        print(f"{sessions:9}{rate:13.0f}{cost:15.0f}{cost / first:11.2f}{records:13.1f}", flush=True)


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=60, help="workflows a second, of all sessions together")
    parser.add_argument("--sessions", default="1,4,16")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number of sessions")
    small(parser)
    options = parser.parse_args()
    options.settled = SETTLED
    if options.small:
        options.sessions, options.seconds, options.settled = "1,2", 0.5, 1.2  # batches are told once a second
    options.sessions = [int(number) for number in options.sessions.split(",")]
    database = Database(
        {"shared_buffers": "128MB", "max_connections": "200", "shared_preload_libraries": "pg_stat_statements"}
    )
    try:
        database.create()
        asyncio.run(measure(database, options))
    finally:
        database.end()


if __name__ == "__main__":
    cli()
