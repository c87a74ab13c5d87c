"""Backstay, embedded: engine, worker and client in one process on one SQLite file. Same workloads as every peer.

    python bench/peer_backstay.py --workloads w1,w2 --json results.jsonl
    python bench/peer_backstay.py --workloads w1,w2 --db postgresql://postgres@127.0.0.1:5432/postgres

W6 runs the engine in a child process, so that `kill -9` is real.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

HARNESS = Path(os.environ.get("BENCH_HARNESS", Path(__file__).resolve().parents[2] / "shared" / "bench"))
sys.path.insert(0, str(HARNESS))

import common  # noqa: E402
import driver  # noqa: E402

import backstay  # noqa: E402
from backstay import AsyncBackstay, Signal, activity, sleep, wait, workflow  # noqa: E402


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


EVERYTHING = [add, add_async, hello, seq, fan, nap, hello_async, seq_async, signals]


def with_schema(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={name.replace('-', '_')}"


class Backstay(driver.Peer):
    @property
    def durability(self) -> str:
        if self.args.db:
            return "PostgreSQL's defaults: fsync=on, synchronous_commit=on"
        return "SQLite WAL, synchronous=FULL: an fsync before each answer"

    def __init__(self, args) -> None:
        super().__init__(args)
        self.name = "backstay-async" if args.async_activities else "backstay"
        self.app: AsyncBackstay | None = None
        self.child: asyncio.subprocess.Process | None = None

    def versions(self) -> dict[str, str]:
        import sqlite3

        return {"backstay": backstay.__version__, "sqlite": sqlite3.sqlite_version}

    async def start(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="backstay-bench-", dir=self.args.scratch)
        await self._open()

    async def _open(self) -> None:
        store = with_schema(self.args.db, Path(self.dir).name) if self.args.db else Path(self.dir) / "bench.db"
        self.app = AsyncBackstay(store, EVERYTHING)
        await self.app.__aenter__()

    def cpu_roots(self) -> list[int]:
        return super().cpu_roots() + (common.postmaster_pid(self.args.db) if self.args.db else [])

    async def stop(self) -> None:
        if self.app is not None:
            await self.app.__aexit__(None, None, None)
            self.app = None
        await self._kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    async def hello(self, key: str) -> None:
        await self.app.execute(hello_async if self.args.async_activities else hello, key, 1)

    async def seq(self, key: str, steps: int) -> None:
        await self.app.execute(seq_async if self.args.async_activities else seq, key, steps)

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
            await driver.gather_limited(n, 100, lambda i: self.app.start(nap, f"{prefix}-{i}", seconds))
            return
        await self.app.__aexit__(None, None, None)
        self.app = None
        await self._serve("start", prefix, str(n), str(seconds))
        await self._wait_for("started")

    async def sleepers_done(self, prefix: str, n: int) -> int:
        import sqlite3

        file = sqlite3.connect(f"file:{self.dir}/bench.db?mode=ro", uri=True)
        try:
            query = "select count(*) from run where status = 'completed' and workflow_id like ?"
            return file.execute(query, (f"{prefix}-%",)).fetchone()[0]
        finally:
            file.close()

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
        return {"process": common.rss_mib(os.getpid(), children=False)}


async def child(directory: str, what: str, *rest: str) -> None:
    async with AsyncBackstay(Path(directory) / "bench.db", EVERYTHING) as app:
        if what == "start":
            prefix, n, seconds = rest[0], int(rest[1]), float(rest[2])
            await driver.gather_limited(n, 100, lambda i: app.start(nap, f"{prefix}-{i}", seconds))
        print("started" if what == "start" else "up", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(child(*sys.argv[2:]))
        return
    parser = common.parser("peer_backstay")
    parser.add_argument("--async-activities", action="store_true", help="async def activities instead of threads")
    parser.add_argument("--scratch", default=os.environ.get("BACKSTAY_BENCH_DIR"), help="where the database lives")
    parser.add_argument("--db", help="URL of a PostgreSQL instead of SQLite (w1 to w5)")
    driver.run(Backstay(parser.parse_args()))


if __name__ == "__main__":
    main()
