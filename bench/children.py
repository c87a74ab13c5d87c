"""Children: how long a parent waits for 1,000 of them, and whether time and memory are linear in their number.

Prints the wall time of the fan (W3 with children instead of activities), and what 1,000 children in flight cost against
ten times 100: CPU, and memory held while all of them wait.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import tracemalloc
from pathlib import Path

from backstay import AsyncBackstay, child, gather, signal, wait, workflow


@workflow
def leaf(n: int) -> int:
    return n


@workflow
def fan(width: int) -> int:
    return sum(gather(leaf.step(n) for n in range(width)))


TYPE = "waiting-child"


@workflow(type=TYPE)
class Waiting:
    def __init__(self) -> None:
        self.told = False

    @signal
    def go(self) -> None:
        self.told = True

    def handle(self) -> int:
        wait(lambda: self.told)
        return 1


@workflow
def crowd(width: int) -> int:
    return sum(gather(child.step(Waiting) for _ in range(width)))


async def in_flight(path: Path, crowds: int, width: int) -> tuple[float, float]:
    """CPU seconds and bytes until all children of so many parents wait."""
    async with AsyncBackstay(path, [crowd, Waiting]) as app:
        tracemalloc.start()
        began = time.process_time()
        for number in range(crowds):
            await app.start(crowd, f"crowd-{number}", width)
        while len(await app.list(type=TYPE, status="waiting", limit=100_000)) < crowds * width:
            await asyncio.sleep(0.1)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return time.process_time() - began, used


async def timed(app: AsyncBackstay, crowds: int, width: int) -> tuple[float, float]:
    """Wall and CPU seconds of so many fans, one after another."""
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(crowds):
        await app.execute(fan, f"fan-{crowds}-{number}", width)
    return time.perf_counter() - wall, time.process_time() - cpu


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncBackstay(Path(directory) / "fan.db", [leaf, fan]) as app:
            await timed(app, 1, 50)
            _, small = await timed(app, 10, 100)
            wall, large = await timed(app, 2, 1000)
        narrow = await in_flight(Path(directory) / "narrow.db", 10, 100)
        wide = await in_flight(Path(directory) / "wide.db", 1, 1000)
    found = {
        "fan_of_1000_children_s": round(wall / 2, 3),
        "cpu_of_1000_against_ten_times_100": round(large / 2 / small, 2),
        "in_flight_cpu_ratio": round(wide[0] / narrow[0], 2),
        "in_flight_memory_ratio": round(wide[1] / narrow[1], 2),
        "bytes_per_child_in_flight": round(wide[1] / 1000),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
