"""Children that wait: what 1,000 of them in flight cost one parent, against 100 of each of ten.

Prints the CPU until all of them wait and the memory that they hold meanwhile, both as ratios, and the bytes of one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import tracemalloc
from pathlib import Path

from measuring import small

from backstay import AsyncBackstay, child, gather, signal, wait, workflow

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


async def measure(many: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        narrow = await in_flight(Path(directory) / "narrow.db", 10, many // 10)
        wide = await in_flight(Path(directory) / "wide.db", 1, many)
    return {
        "cpu_ratio": round(wide[0] / narrow[0], 2),
        "memory_ratio": round(wide[1] / narrow[1], 2),
        "bytes_per_child": round(wide[1] / many),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="append the result to it")
    small(parser)
    options = parser.parse_args()
    found = asyncio.run(measure(20 if options.small else 1000))
    print(json.dumps(found))
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"results": found}) + "\n")


if __name__ == "__main__":
    main()
