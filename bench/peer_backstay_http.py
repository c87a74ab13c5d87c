"""Backstay over HTTP: a server, a worker and this client, each in a process of its own. Same workloads as every peer.

python bench/peer_backstay_http.py --workloads w1,w2,w4,w5 --json results.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import peer_backstay as embedded
from peer_backstay import EVERYTHING, measuring, workloads

import backstay
from backstay import AsyncClient, Worker

TOKEN = "bench"


class BackstayHttp(workloads.Peer):
    durability = "SQLite WAL, synchronous=FULL: an fsync before each answer"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.name = "backstay-http-async" if options.async_activities else "backstay-http"
        self.processes: list[asyncio.subprocess.Process] = []

    def versions(self) -> dict[str, str]:
        return {"backstay": backstay.__version__}

    async def start(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="backstay-bench-", dir=self.options.scratch)
        url = self.options.db
        store = embedded.with_schema(url, Path(self.dir).name) if url else f"sqlite:{self.dir}/bench.db"
        command = ["-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN, "--store", store]
        self.server, said = await self._process(*command)
        assert said, "the server has not started"
        self.url = said.split()[-1]
        self.worker, _ = await self._process(__file__, "--worker", self.url)
        self.client = AsyncClient(self.url, token=TOKEN)

    async def _process(self, *what: str) -> tuple[asyncio.subprocess.Process, str]:
        process = await asyncio.create_subprocess_exec(sys.executable, *what, stdout=asyncio.subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout is not None
        return process, (await process.stdout.readline()).decode().strip()

    async def stop(self) -> None:
        await self.client.close()
        for process in reversed(self.processes):
            if process.returncode is None:
                process.terminate()
            await process.wait()
        self.processes.clear()
        shutil.rmtree(self.dir, ignore_errors=True)

    def meters(self) -> measuring.Meters:
        server, worker = self.server.pid, self.worker.pid
        return {
            "server": lambda: measuring.cpu(server),
            "worker": lambda: measuring.cpu(worker),
            "client": time.process_time,
            **embedded.postgresql(self.options.db),
        }

    def idle_meters(self) -> measuring.Meters:
        """Of a server that nobody asks."""
        self.worker.terminate()
        return {name: meter for name, meter in self.meters().items() if name in ("server", "postgresql")}

    async def hello(self, key: str) -> None:
        await self.client.execute(embedded.hello_async if self.options.async_activities else embedded.hello, key, 1)

    async def seq(self, key: str, steps: int) -> None:
        await self.client.execute(embedded.seq_async if self.options.async_activities else embedded.seq, key, steps)

    async def fan(self, key: str, n: int) -> None:
        await self.client.execute(embedded.fan, key, n)

    async def sig_open(self, key: str, n: int) -> None:
        await self.client.start(embedded.signals, key, n)

    async def sig_send(self, key: str, i: int) -> None:
        await self.client.handle(embedded.signals, key).signal(embedded.hit, i)

    async def sig_result(self, key: str) -> None:
        await self.client.handle(embedded.signals, key).result()

    def memory(self) -> dict[str, float]:
        return {"server": measuring.rss_mib(self.server.pid)}


def work(url: str) -> None:
    worker = Worker(url, EVERYTHING, token=TOKEN)
    print("up", flush=True)
    worker.run()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
        return
    parser = measuring.parser("peer_backstay_http")
    parser.set_defaults(workloads="w1,w2,w3,w4,w5")
    parser.add_argument("--async-activities", action="store_true", help="async def activities instead of threads")
    parser.add_argument("--scratch", default=os.environ.get("BACKSTAY_BENCH_DIR"), help="where the database lives")
    parser.add_argument("--db", help="URL of a PostgreSQL instead of SQLite")
    sys.exit(workloads.run(BackstayHttp(measuring.parsed(parser))))


if __name__ == "__main__":
    main()
