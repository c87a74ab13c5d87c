"""Is the cost per step flat? Prints CPU(one run of 10,000 steps) / CPU(ten runs of 1,000 steps).

python bench/flat.py             steps
python bench/flat.py signals     CPU(1,000 signals to one run) / CPU(100 signals to each of ten)
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from backstay import AsyncBackstay, Signal, activity, wait, workflow


@activity
async def add(a: int) -> int:
    return a + 1


@workflow
def seq(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add.step(total).run()
    return total


hit = Signal[int]("hit")


@workflow
def listen(count: int) -> int:
    return sum(wait(hit) for _ in range(count))


async def run(app: AsyncBackstay, what: str, id: str, size: int) -> None:
    if what == "steps":
        await app.execute(seq, id, 10 * size)
        return
    handle = await app.start(listen, id, size)
    for _ in range(size):
        await handle.signal(hit, 1)
    await handle.result()


async def main(what: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncBackstay(Path(directory) / "flat.db", [add, seq, listen]) as app:
            await run(app, what, "warm", 20)
            began = time.process_time()
            for i in range(10):
                await run(app, what, f"short-{i}", 100)
            short = time.process_time() - began
            began = time.process_time()
            await run(app, what, "long", 1000)
            print(f"{(time.process_time() - began) / short:.3f}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "steps"))
