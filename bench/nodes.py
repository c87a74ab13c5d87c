"""What one operation costs when 1, 2 and 3 nodes work on one PostgreSQL: the proof that more nodes carry more.

    python bench/nodes.py                           embedded apps and servers, both routings, about five minutes
    python bench/nodes.py --shapes embedded --nodes 1,3 --n 500

The rate of several nodes on one small machine says nothing. What counts is f(N): CPU of nodes and of PostgreSQL for one operation
with N nodes, over that with one. Where f(N) is bounded, N nodes on machines of their own carry N / f(N) times as much, until
PostgreSQL's cores (rate x its CPU) or its disk (rate x bytes of WAL) are full.

W1 is a workflow of one step, W2 one more step of workflows of `--steps` steps. Every node has the same number of them in flight.
`right`: each is told to the node that owns its shard. `random`: to any. An embedded app is told from its own process, a server by
this one, over HTTP, with one worker process for all servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
from measuring import cpu, cpu_with_children, small
from node_children import lanes, seq
from node_meters import SETTLED, Used, counted, told_by, waits

from backstay import AsyncClient
from backstay.kernel.values import partition_of

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.processes.database import Database, free_port  # noqa: E402

TOKEN = "nodes"
SHARDS = 256
IDLE = 3.0  # seconds in which nodes only keep themselves alive
PATIENCE = 30  # seconds until every node has its share

OWNERS = """
select s.id, min(a.application_name) as name from {schema}.shard s
left join pg_locks l on l.locktype = 'advisory' and l.objsubid = 1 and l.granted
  and (l.classid::bigint << 32 | l.objid::bigint) = s.owner
left join pg_stat_activity a on a.pid = l.pid
group by s.id order by s.id
"""
"""The session that writes for a node holds a lock on the node's id, and has the name that its URL gave it."""

_names = count()


class Row(NamedTuple):
    """Of one operation: microseconds of CPU, and what was counted."""

    shape: str
    work: str
    routing: str
    nodes: int
    rate: float
    used: Used
    counts: dict[str, float]
    p50: float

    @property
    def cpu(self) -> float:
        return self.used.nodes + self.used.postgresql


class Nodes:
    """N processes on a schema of their own."""

    def __init__(
        self,
        database: Database,
        connection: Any,
        shape: str,
        number: int,
        *,
        settled: float = SETTLED,
        idle: float = IDLE,
    ) -> None:
        self.shape = shape
        self._settled = settled
        self._idle = idle
        self._database = database
        self._connection = connection
        self.schema = f"nodes_{shape}_{number}_{next(_names)}"
        self._number = number
        self._random = random.Random(1)
        self._processes: list[asyncio.subprocess.Process] = []
        self._worker: asyncio.subprocess.Process | None = None
        self._clients: list[AsyncClient] = []
        self._urls: list[str] = []
        self._engine = 0  # without shards: the one that works
        self._owners: list[int] = []  # by shard, the number of its node
        self.idle: Counter[str] = Counter()

    async def start(self, stack: AsyncExitStack) -> None:
        store = f"{self._database.url}&schema={self.schema}"
        stack.push_async_callback(self._end)
        for number in range(self._number):
            named = f"{store}&application_name=node-{number}"
            if self.shape == "embedded":
                child, said = await self._child("embedded", named)
                self._processes.append(child)
                if said["engine"]:
                    self._engine = number
            else:
                await self._serve(named)
        if self.shape == "server":
            self._worker, _ = await self._child("worker", self._urls[0], TOKEN)
            self._clients = [await stack.enter_async_context(AsyncClient(url, token=TOKEN)) for url in self._urls]
        await self._settle()

    async def _child(self, *what: str) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "node_children.py"),
            *what,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=1 << 24,
        )
        assert child.stdout is not None
        return child, json.loads(await child.stdout.readline())

    async def _serve(self, store: str) -> None:
        port = free_port()
        command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", str(port), "--token", TOKEN]
        child = await asyncio.create_subprocess_exec(*command, "--store", store, stdout=subprocess.PIPE)
        assert child.stdout is not None
        await child.stdout.readline()
        self._processes.append(child)
        self._urls.append(f"http://127.0.0.1:{port}")

    async def _end(self) -> None:
        started = [*([] if self._worker is None else [self._worker]), *self._processes]
        for process in started:
            if process.stdin is not None:
                process.stdin.close()
            elif process.returncode is None:  # not killed
                process.terminate()
        for process in started:
            await process.wait()
        await self._connection.execute(f"drop schema if exists {self.schema} cascade")

    # -- who owns what

    async def _settle(self) -> None:
        """Until every shard has an owner, and every node its share."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._owners = await self._read_owners()
            shares = Counter(self._owners)
            if len(shares) == self._number and -1 not in shares and max(shares.values()) <= SHARDS // self._number + 2:
                return
            if not self._owners or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        if self._owners:
            print(
                f"# shards by node after {PATIENCE} s: {dict(Counter(self._owners))}; -1: nobody that is known",
                flush=True,
            )
        self._owners = [self._engine if owner < 0 else owner for owner in self._owners] or [self._engine] * SHARDS

    async def _read_owners(self) -> list[int]:
        """By shard, the number of the node that owns it. Empty: this version has no shards."""
        if await self._connection.fetchval("select to_regclass($1)", f"{self.schema}.shard") is None:
            return []
        rows = await self._connection.fetch(OWNERS.format(schema=self.schema))
        return [int(row["name"].rpartition("-")[2]) if row["name"] else -1 for row in rows]

    def _spread(self, many: int, routing: str) -> list[list[str]]:
        """Ids for each node."""
        ids: list[list[str]] = [[] for _ in range(self._number)]
        for _ in range(many * self._number):
            id = f"w-{next(_names)}"
            ids[self.owner(id) if routing == "right" else self._random.randrange(self._number)].append(id)
        return ids

    # -- work

    def used(self) -> Used:
        worker = 0.0 if self._worker is None else cpu(self._worker.pid)
        client = time.process_time() if self._clients else 0.0
        nodes = sum(cpu(process.pid) for process in self._processes if process.returncode is None)
        return Used(nodes, worker, client, cpu_with_children(self._database.pid))

    async def counts(self) -> Counter[str]:
        await asyncio.sleep(self._settled)
        found = await counted(self._connection, self.schema)
        if self._urls:
            found.update(await asyncio.to_thread(told_by, self._urls, TOKEN))
        return found

    async def be_idle(self) -> tuple[float, float]:
        """What a second of doing nothing costs: CPU of a node and of PostgreSQL for it, in milliseconds."""
        before, used = await self.counts(), self.used()
        await asyncio.sleep(self._idle)
        used = self.used().since(used)
        after = await self.counts()
        self.idle = Counter({name: (after[name] - before[name]) / (self._idle + self._settled) for name in after})
        return used.nodes / self._idle / self._number * 1e3, used.postgresql / self._idle / self._number * 1e3

    async def work(self, name: str, routing: str, many: int, steps: int, in_flight: int, sample: bool) -> Row:
        ids = self._spread(many, routing)
        before = await self.counts()
        used, began = self.used(), time.perf_counter()
        watching = asyncio.create_task(self._watch()) if sample else None
        took = await asyncio.gather(*(self.do(number, one, steps, in_flight) for number, one in enumerate(ids)))
        seconds, used = time.perf_counter() - began, self.used().since(used)
        if watching is not None:
            watching.cancel()
        after = await self.counts()
        operations = sum(map(len, ids)) * steps
        idle = seconds + self._settled
        counts = {key: (after[key] - before[key] - self.idle[key] * idle) / operations for key in after}
        each = Used(*(value / operations * 1e6 for value in used))
        p50 = statistics.median(one for node in took for one in node) / steps * 1e3
        return Row(self.shape, name, routing, self._number, operations / seconds, each, counts, p50)

    def owner(self, id: str) -> int:
        """The number of the node that owns a workflow."""
        return self._owners[partition_of("default", id) % SHARDS]

    async def kill(self, number: int) -> None:
        self._processes[number].kill()
        await self._processes[number].wait()

    async def do(self, number: int, ids: list[str], steps: int, in_flight: int) -> list[float]:
        """Workflows that this node is told, and how long each took."""
        if not ids:
            return []
        if self._clients:
            client = self._clients[number]
            return await lanes(ids, in_flight, lambda name: client.execute(seq, name, steps))
        child = self._processes[number]
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps({"ids": ids, "steps": steps, "in_flight": in_flight}).encode() + b"\n")
        return json.loads(await child.stdout.readline())["took"]

    async def _watch(self) -> None:
        seen: Counter[str] = Counter()
        connection = await asyncpg.connect(self._database.url)
        try:
            while True:
                seen.update(await waits(connection))
                await asyncio.sleep(0.05)
        finally:
            print(f"# waits: {dict(seen.most_common(6))}", flush=True)
            connection.terminate()


def table(rows: list[Row]) -> None:
    ones = {(row.shape, row.work, row.routing): row for row in rows if row.nodes == 1}
    print(
        f"\n{'':24}{'N':>2}{'ops/s':>8}{'p50 ms':>8}{'nodes us':>10}{'PG us':>8}{'worker':>8}{'client':>8}{'f(N)':>7}"
        f"{'fPG':>6}{'batches':>9}{'commits':>9}{'statem.':>9}{'WAL B':>8}{'WAL rec':>9}{'notices':>9}  of other nodes"
    )
    for row in rows:
        one, counts = ones.get((row.shape, row.work, row.routing)), row.counts
        f = f"{row.cpu / one.cpu:7.2f}{row.used.postgresql / one.used.postgresql:6.2f}" if one else f"{'':13}"
        others = {k: round(v, 4) for k, v in counts.items() if k not in KNOWN and abs(v) > 1e-4}
        print(
            f"{row.shape + ' ' + row.work + ' ' + row.routing:24}{row.nodes:2}{row.rate:8.0f}{row.p50:8.2f}{row.used.nodes:10.0f}"
            f"{row.used.postgresql:8.0f}{row.used.worker:8.0f}{row.used.client:8.0f}{f}{counts['batches']:9.3f}"
            f"{counts['commits']:9.3f}{counts['statements']:9.3f}{counts['wal_bytes']:8.0f}"
            f"{counts['wal_records']:9.1f}{counts['notices']:9.4f}  {others or ''}",
            flush=True,
        )


KNOWN = {"batches", "commits", "statements", "wal_bytes", "wal_records", "notices"}


def middle(rows: list[Row]) -> Row:
    """The one of several rounds whose CPU is in the middle."""
    return sorted(rows, key=lambda row: row.cpu)[len(rows) // 2]


async def measure(database: Database, options: argparse.Namespace) -> list[Row]:
    rows: dict[tuple[str, str, str, int], list[Row]] = {}
    connection = await asyncpg.connect(database.url)
    try:
        await connection.execute("create extension if not exists pg_stat_statements")
        for _ in range(options.rounds):
            for shape in options.shapes:
                for number in options.nodes:
                    async with AsyncExitStack() as stack:
                        nodes = Nodes(database, connection, shape, number, settled=options.settled, idle=options.idle)
                        await nodes.start(stack)
                        await nodes.work("warm", "random", options.warm, 1, options.in_flight, False)
                        idle = await nodes.be_idle()
                        print(
                            f"# {shape} {number}: idle {idle[0]:.1f} ms/s a node, PostgreSQL {idle[1]:.1f} ms/s for it"
                        )
                        for routing in options.routings:
                            for name, many, steps, flight in (
                                ("W1", options.n, 1, options.in_flight),
                                ("W2", options.w2, options.steps, 50),
                            ):
                                if name in options.works:
                                    row = await nodes.work(name, routing, many, steps, flight, options.waits)
                                    rows.setdefault((shape, name, routing, number), []).append(row)
    finally:
        await connection.close()
    return [middle(found) for _, found in sorted(rows.items())]


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,2,3")
    parser.add_argument("--shapes", help="embedded,server unless said otherwise; embedded with --small")
    parser.add_argument("--routings", default="right,random")
    parser.add_argument("--works", default="W1,W2")
    parser.add_argument("--n", type=int, default=1000, help="W1: workflows for each node")
    parser.add_argument("--w2", type=int, default=50, help="W2: workflows for each node")
    parser.add_argument("--steps", type=int, default=50, help="W2: steps of each")
    parser.add_argument("--in-flight", type=int, default=100, help="W1: at a time, for each node")
    parser.add_argument("--rounds", type=int, default=1, help="the one in the middle is shown")
    parser.add_argument("--waits", action="store_true", help="sample what sessions wait for")
    small(parser)
    options = parser.parse_args()
    options.warm, options.settled, options.idle = 100, SETTLED, IDLE
    options.shapes = options.shapes or ("embedded" if options.small else "embedded,server")
    if options.small:
        options.warm, options.settled, options.idle = 2, 0.1, 0.2
        options.nodes, options.routings, options.works = "2", "random", "W1"
        options.n, options.w2, options.steps, options.in_flight = 4, 2, 2, 2
    options.nodes = [int(number) for number in options.nodes.split(",")]
    for name in ("shapes", "routings", "works"):
        setattr(options, name, [part for part in getattr(options, name).split(",") if part])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    database = Database(
        {"shared_buffers": "128MB", "max_connections": "200", "shared_preload_libraries": "pg_stat_statements"}
    )
    try:
        database.create()
        table(asyncio.run(measure(database, options)))
    finally:
        database.end()


if __name__ == "__main__":
    cli()
