"""What PostgreSQL costs a process that is alone with it: one small workflow, one more step, fifty at a time.

    python bench/postgresql.py                       a server that comes with the development tools
    python bench/postgresql.py --url postgresql://postgres@/postgres?host=/tmp/x
    python bench/postgresql.py --pooler              the same through pgbouncer in transaction mode

For each: CPU of this process and of the server (all its processes), in microseconds, and the median time that one took. The
server's CPU is known for a server of this machine whose socket is next to its data, as the tests have it. Tells also how many
updates of `workflow` needed no new index entry (HOT).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
from measuring import cpu_with_children, small

from backstay import AsyncBackstay, activity, workflow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

IN_FLIGHT = 50
SCHEMA = "bench_postgresql"


@activity
async def add(a: int) -> int:
    return a + 1


@workflow
def seq(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add.step(total).run()
    return total


def meter(url: str) -> Callable[[], float]:
    """How to read the CPU seconds of the server; always 0 if its process is not known."""
    place = parse_qs(urlsplit(url).query).get("host", [""])[0]
    data = Path(place, "data", "postmaster.pid")
    if not data.exists():
        return lambda: 0.0
    pid = int(data.read_text().split()[0])
    return lambda: cpu_with_children(pid)


async def measure(
    name: str, server: Callable[[], float], operations: int, work: Callable[[], Awaitable[list[float]]]
) -> None:
    before, pg = time.process_time(), server()
    took = await work()
    cpu, pg = time.process_time() - before, server() - pg
    print(
        f"{name}: node {cpu / operations * 1e6:.0f} us, PostgreSQL {pg / operations * 1e6:.0f} us,"
        f" median {statistics.median(took) * 1e3:.2f} ms",
        flush=True,
    )


async def alone(app: AsyncBackstay, prefix: str, count: int, steps: int) -> list[float]:
    took: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        await app.execute(seq, f"{prefix}-{number}", steps)
        took.append((time.perf_counter() - began) / steps)
    return took


async def together(app: AsyncBackstay, prefix: str, count: int, steps: int) -> list[float]:
    took: list[float] = []

    async def client(first: int) -> None:
        for number in range(first, count, IN_FLIGHT):
            began = time.perf_counter()
            await app.execute(seq, f"{prefix}-{number}", steps)
            took.append((time.perf_counter() - began) / steps)

    await asyncio.gather(*(client(first) for first in range(IN_FLIGHT)))
    return took


async def main(url: str, store: str, scale: float) -> None:
    hellos, many = int(300 * scale), int(2000 * scale)
    length = max(int(100 * scale), 2)
    server = meter(url)
    connection = await asyncpg.connect(url)
    await connection.execute(f"drop schema if exists {SCHEMA} cascade")
    async with AsyncBackstay(f"{store}{'&' if '?' in store else '?'}schema={SCHEMA}", [seq, add]) as app:
        await together(app, "warm", min(200, many), 1)
        await alone(app, "warm-alone", min(20, hellos), 3)
        await measure("hello alone", server, hellos, lambda: alone(app, "alone", hellos, 1))
        await measure("step alone", server, 5 * length, lambda: alone(app, "step", 5, length))
        await measure("hello, fifty", server, many, lambda: together(app, "many", many, 1))
        await measure("step, fifty", server, many, lambda: together(app, "steps", max(many // 20, 1), 20))
        await asyncio.sleep(1.1)  # what the sessions have counted is published once a second
    updates, hot = await connection.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = $1 and relname = 'workflow'",
        SCHEMA,
    )
    print(f"updates of workflow: {updates}, {hot / max(updates, 1):.0%} of them HOT")
    await connection.execute(f"drop schema {SCHEMA} cascade")
    await connection.close()


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="the server, without a schema")
    parser.add_argument("--pooler", action="store_true", help="with pgbouncer, which must be installed, in between")
    parser.add_argument("--scale", type=float, default=1.0, help="how many operations, as a multiple of the usual")
    small(parser)
    args = parser.parse_args()
    if args.small:
        args.scale = 0.01
    url = args.url
    if url is None:
        from tests import postgresql

        postgresql.begin_session()
        url = postgresql.server_url()
    if not args.pooler:
        return asyncio.run(main(url, url, args.scale))
    from tests.store.pooler import StorePooler, server_of

    pooler = StorePooler(server_of(url) or "127.0.0.1", "transaction")
    try:
        asyncio.run(main(url, f"{pooler.url}?pooler=transaction", args.scale))
    finally:
        pooler.end()


if __name__ == "__main__":
    cli()
