"""What one small workflow costs, embedded, on a SQLite file in the current directory's file system.

    python bench/hello.py            2,000 workflows of one activity, 50 in flight; one at a time; 10,000 asleep

Prints workflows per second, CPU time per workflow, the latency of one at a time, and the memory of this process with
10,000 workflows that sleep. CPU time is the figure to compare: other programs change the rest.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path

from backstay import AsyncBackstay, activity, sleep, workflow

COUNT, IN_FLIGHT, ALONE, ASLEEP = 2_000, 50, 200, 10_000


@activity
async def greet(name: str) -> str:
    return f"Hello {name}"


@workflow
async def hello(name: str) -> str:
    return await greet(name)


@workflow
def nap() -> None:
    sleep("1d")


async def many(app: AsyncBackstay, prefix: str, count: int) -> None:
    async def client(first: int) -> None:
        for number in range(first, count, IN_FLIGHT):
            await app.execute(hello, f"{prefix}-{number}", "Ada")

    await asyncio.gather(*(client(first) for first in range(IN_FLIGHT)))


async def alone(app: AsyncBackstay) -> list[float]:
    took: list[float] = []
    for number in range(ALONE):
        began = time.perf_counter()
        await app.execute(hello, f"alone-{number}", "Ada")
        took.append(time.perf_counter() - began)
    return took


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        async with AsyncBackstay(Path(directory) / "hello.db", [hello, nap, greet]) as app:
            await many(app, "warm", 200)
            wall, cpu = time.perf_counter(), time.process_time()
            await many(app, "hello", COUNT)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"{COUNT / wall:.0f} workflows/s, {cpu / COUNT * 1e6:.0f} us CPU each")
            print(f"one at a time: {statistics.median(await alone(app)) * 1e3:.1f} ms (median)")
            for first in range(0, ASLEEP, 500):
                await asyncio.gather(*(app.start(nap, f"nap-{first + number}") for number in range(500)))
            print(f"{ASLEEP:,} asleep: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB in all")


if __name__ == "__main__":
    asyncio.run(main())
