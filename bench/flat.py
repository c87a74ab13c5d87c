"""Is the cost per step flat? Prints CPU(one run of 10,000 steps) / CPU(ten runs of 1,000 steps)."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from holdfast import AsyncHoldfast, activity, workflow


@activity
async def add(a: int) -> int:
    return a + 1


@workflow
def seq(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add.step(total).run()
    return total


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncHoldfast(Path(directory) / "flat.db", [add, seq]) as app:
            await app.execute(seq, "warm", 200)
            began = time.process_time()
            for i in range(10):
                await app.execute(seq, f"short-{i}", 1000)
            short = time.process_time() - began
            began = time.process_time()
            await app.execute(seq, "long", 10_000)
            print(f"{(time.process_time() - began) / short:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
