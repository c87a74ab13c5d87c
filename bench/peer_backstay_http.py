"""Backstay over HTTP: a server, a worker and this client, each in a process of its own. Same workloads as every peer.

python bench/peer_backstay_http.py --workloads w1,w2,w4,w5 --json results.jsonl
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import peer_backstay as embedded
from peer_backstay import EVERYTHING, common, driver

import backstay
from backstay import AsyncClient, Worker

TOKEN = "bench"


class BackstayHttp(driver.Peer):
    durability = embedded.Backstay.durability

    def __init__(self, args) -> None:
        super().__init__(args)
        self.name = "backstay-http-async" if args.async_activities else "backstay-http"
        self.processes: list[asyncio.subprocess.Process] = []

    def versions(self) -> dict[str, str]:
        return {"backstay": backstay.__version__}

    async def start(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="backstay-bench-", dir=self.args.scratch)
        self.server, line = await self._process("serve", self.dir)
        self.url = line
        await self._process("work", self.url)
        self.client = AsyncClient(self.url, token=TOKEN)

    async def _process(self, *what: str) -> tuple[asyncio.subprocess.Process, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--child", *what, stdout=asyncio.subprocess.PIPE
        )
        self.processes.append(process)
        assert process.stdout is not None
        return process, (await process.stdout.readline()).decode().strip()

    async def stop(self) -> None:
        await self.client.close()
        for process in reversed(self.processes):
            process.terminate()
            await process.wait()
        self.processes.clear()
        shutil.rmtree(self.dir, ignore_errors=True)

    async def hello(self, key: str) -> None:
        await self.client.execute(embedded.hello_async if self.args.async_activities else embedded.hello, key, 1)

    async def seq(self, key: str, steps: int) -> None:
        await self.client.execute(embedded.seq_async if self.args.async_activities else embedded.seq, key, steps)

    async def fan(self, key: str, n: int) -> None:
        await self.client.execute(embedded.fan, key, n)

    async def sig_open(self, key: str, n: int) -> None:
        await self.client.start(embedded.signals, key, n)

    async def sig_send(self, key: str, i: int) -> None:
        await self.client.handle(embedded.signals, key).signal(embedded.hit, i)

    async def sig_result(self, key: str) -> None:
        await self.client.handle(embedded.signals, key).result()

    def memory(self) -> dict[str, float]:
        return {"server": common.rss_mib(self.server.pid, children=False)}


def serve(directory: str) -> None:
    from backstay.server.hosting import run

    from backstay.server.settings import Settings

    run(
        Settings(store=f"sqlite:{directory}/bench.db", port=0, token=TOKEN),
        lambda address: print(address, flush=True),
    )


def work(url: str) -> None:
    worker = Worker(url, EVERYTHING, token=TOKEN)
    print("up", flush=True)
    worker.run()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        {"serve": serve, "work": work}[sys.argv[2]](sys.argv[3])
        return
    parser = common.parser("peer_backstay_http")
    parser.add_argument("--async-activities", action="store_true", help="async def activities instead of threads")
    parser.add_argument("--scratch", default=os.environ.get("BACKSTAY_BENCH_DIR"), help="where the database lives")
    driver.run(BackstayHttp(parser.parse_args()))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
