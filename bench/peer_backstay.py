"""Backstay, embedded: engine, worker and client in one process on one SQLite file. Same workloads as every peer.

    python bench/peer_backstay.py --workloads w1,w2 --json results.jsonl
    python bench/peer_backstay.py --workloads w1,w2 --db postgresql://postgres@127.0.0.1:5432/postgres

W6 runs the engine in a child process, so that `kill -9` is real.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import measuring
import workloads

import backstay
from backstay import AsyncBackstay, Signal, activity, gather, sleep, wait, workflow


@activity
def add(a: int) -> int:
    return a + 1


@activity
async def add_async(a: int) -> int:
    return a + 1


@workflow
def hello(a: int) -> int:
    return add(a)


@workflow
def seq(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add(total)
    return total


@workflow
async def fan(n: int) -> int:
    return sum(await asyncio.gather(*(add.step(i) for i in range(n))))


@workflow
def nap(seconds: float) -> None:
    sleep(seconds)


@workflow
def hello_async(a: int) -> int:
    return add_async.step(a).run()


@workflow
def seq_async(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add_async.step(total).run()
    return total


hit = Signal[int]("hit")


@workflow
def signals(n: int) -> int:
    return sum(wait(hit) >= 0 for _ in range(n))


@workflow
def leaf(n: int) -> int:
    return n


@workflow
def family(n: int) -> int:
    return sum(gather(leaf.step(i) for i in range(n)))


EVERYTHING = [add, add_async, hello, seq, fan, nap, hello_async, seq_async, signals, leaf, family]


def with_schema(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={name.replace('-', '_')}"


def postgresql(url: str | None) -> measuring.Meters:
    if url is None:
        return {}
    server = measuring.postmaster(url)
    return {"postgresql": lambda: measuring.cpu_with_children(server)}


def completed(file: Path, prefix: str) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        query = "select count(*) from run where status = 'completed' and workflow_id like ?"
        return database.execute(query, (f"{prefix}-%",)).fetchone()[0]


def used_bytes(file: Path) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        pages, free, size = (
            database.execute(f"pragma {what}").fetchone()[0] for what in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size


class Backstay(workloads.Peer):
    @property
    def durability(self) -> str:
        if self.options.db:
            return "PostgreSQL's defaults: fsync=on, synchronous_commit=on"
        return "SQLite WAL, synchronous=FULL: an fsync before each answer"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.name = "backstay-async" if options.async_activities else "backstay"
        self.app: AsyncBackstay | None = None
        self.child: asyncio.subprocess.Process | None = None

    def versions(self) -> dict[str, str]:
        return {"backstay": backstay.__version__, "sqlite": sqlite3.sqlite_version}

    async def start(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="backstay-bench-", dir=self.options.scratch)
        await self._open()

    async def _open(self) -> None:
        store = with_schema(self.options.db, Path(self.dir).name) if self.options.db else Path(self.dir) / "bench.db"
        self.app = AsyncBackstay(store, EVERYTHING)
        await self.app.__aenter__()

    def meters(self) -> measuring.Meters:
        return {"process": time.process_time, **postgresql(self.options.db)}

    async def stop(self) -> None:
        if self.app is not None:
            await self.app.__aexit__(None, None, None)
            self.app = None
        await self._kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    async def hello(self, key: str) -> None:
        await self.app.execute(hello_async if self.options.async_activities else hello, key, 1)

    async def seq(self, key: str, steps: int) -> None:
        await self.app.execute(seq_async if self.options.async_activities else seq, key, steps)

    async def fan(self, key: str, n: int) -> None:
        await self.app.execute(fan, key, n)

    async def sig_open(self, key: str, n: int) -> None:
        await self.app.start(signals, key, n)

    async def sig_send(self, key: str, i: int) -> None:
        await self.app.handle(signals, key).signal(hit, i)

    async def sig_result(self, key: str) -> None:
        await self.app.handle(signals, key).result()

    async def sleepers(self, prefix: str, n: int, seconds: float) -> None:
        if seconds > 1000:  # memory: in this process
            await workloads.at_a_time(n, 100, lambda i: self.app.start(nap, f"{prefix}-{i}", seconds))
            return
        await self.app.__aexit__(None, None, None)
        self.app = None
        await self._serve("start", prefix, str(n), str(seconds))
        await self._wait_for("started")

    async def sleepers_done(self, prefix: str, n: int) -> int:
        return completed(Path(self.dir) / "bench.db", prefix)

    async def children(self, key: str, n: int) -> None:
        await self.app.execute(family, key, n)

    def disk(self) -> int:
        return used_bytes(Path(self.dir) / "bench.db")

    async def crash(self) -> None:
        await self._kill()

    async def restart(self) -> None:
        await self._serve("serve")
        await self._wait_for("up")

    async def _serve(self, *what: str) -> None:
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--child", self.dir, *what, stdout=asyncio.subprocess.PIPE
        )

    async def _wait_for(self, word: str) -> None:
        line = await self.child.stdout.readline()
        if line.decode().strip() != word:
            raise RuntimeError(f"the engine's process said {line!r}")

    async def _kill(self) -> None:
        if self.child is not None and self.child.returncode is None:
            self.child.kill()
            await self.child.wait()

    def memory(self) -> dict[str, float]:
        return {"process": measuring.rss_mib(os.getpid())}


async def child(directory: str, what: str, *rest: str) -> None:
    async with AsyncBackstay(Path(directory) / "bench.db", EVERYTHING) as app:
        if what == "start":
            prefix, n, seconds = rest[0], int(rest[1]), float(rest[2])
            await workloads.at_a_time(n, 100, lambda i: app.start(nap, f"{prefix}-{i}", seconds))
        print("started" if what == "start" else "up", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(child(*sys.argv[2:]))
        return
    parser = measuring.parser("peer_backstay")
    parser.add_argument("--async-activities", action="store_true", help="async def activities instead of threads")
    parser.add_argument("--scratch", default=os.environ.get("BACKSTAY_BENCH_DIR"), help="where the database lives")
    parser.add_argument("--db", help="URL of a PostgreSQL instead of SQLite (w1 to w5)")
    sys.exit(workloads.run(Backstay(measuring.parsed(parser))))


if __name__ == "__main__":
    main()
