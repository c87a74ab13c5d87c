"""The published `durable-workflow` package, worker and client unmodified, against `dw server`: hello workflows per second.

    python bench/published.py                       400 workflows, 50 at a time, one worker process
    python bench/published.py --workers 4 --n 1000  more of it

A workflow of one activity. Its own server completes 2.8 of them a second on this kind of machine; the goal is thirty times
that. The CPU of each side is told, because both the package and the machine's other users have their share in the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from typing import Any

from durable_workflow import Client, Worker, activity, workflow
from measuring import cpu, small

THEIRS = 2.8  # workflows a second, with the server that the package was made for
GOAL = 30
TOKEN = "published"
QUEUE = "hello"


@activity.defn(name="greet")
def greet(name: str) -> str:
    return f"hello, {name}"


@workflow.defn(name="hello")
class Hello:
    def run(self, ctx: Any, name: str) -> Any:
        return (yield ctx.schedule_activity("greet", [name]))


async def work(url: str, number: str) -> None:
    async with Client(url, token=TOKEN) as client:
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Hello],
            activities=[greet],
            worker_id=f"published-{number}",
            max_concurrent_workflow_tasks=20,
            max_concurrent_activity_tasks=20,
        )
        await worker.run()


async def hello(client: Client, name: str) -> None:
    await client.start_workflow(workflow_type="hello", workflow_id=name, task_queue=QUEUE, input=[name])
    said = await client.get_workflow_handle(name).result(timeout=120)
    assert said == f"hello, {name}", said


async def many(client: Client, prefix: str, n: int, at_a_time: int) -> None:
    names = iter([f"{prefix}-{number}" for number in range(n)])

    async def lane() -> None:
        for name in names:
            await hello(client, name)

    await asyncio.gather(*(lane() for _ in range(at_a_time)))


async def measure(url: str, server: int, workers: list[int], n: int, at_a_time: int) -> float:
    async with Client(url, token=TOKEN) as client:
        while len((await client.list_workers(status="active")).workers) < len(workers):
            await asyncio.sleep(0.05)
        await many(client, "warm", min(20, n), at_a_time)
        before = [cpu(server), sum(map(cpu, workers)), time.process_time()]
        began = time.perf_counter()
        await many(client, "hello", n, at_a_time)
        rate = n / (time.perf_counter() - began)
        after = [cpu(server), sum(map(cpu, workers)), time.process_time()]
    ours, theirs, asking = ((b - a) / n * 1000 for a, b in zip(before, after, strict=True))
    print(f"{rate:.1f} workflows/s, {rate / THEIRS:.0f} times its own server's (goal {GOAL})")
    print(f"CPU per workflow: server {ours:.2f} ms, published worker {theirs:.2f} ms, published client {asking:.2f} ms")
    return rate


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(work(sys.argv[2], sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--at-a-time", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1)
    small(parser)
    options = parser.parse_args()
    if options.small:
        options.n, options.at_a_time = 2, 2
    with tempfile.TemporaryDirectory() as directory:
        dw = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
        store = f"sqlite:{directory}/published.db"
        processes = [subprocess.Popen([*dw, "--store", store], stdout=subprocess.PIPE, text=True)]
        try:
            assert processes[0].stdout is not None
            url = processes[0].stdout.readline().split()[-1]
            child = [sys.executable, __file__, "--child", url]
            workers = [subprocess.Popen([*child, str(number)]) for number in range(options.workers)]
            processes += workers
            rate = asyncio.run(measure(url, processes[0].pid, [w.pid for w in workers], options.n, options.at_a_time))
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(60)
    return 0 if rate >= GOAL * THEIRS or options.small else 1


if __name__ == "__main__":
    sys.exit(main())
