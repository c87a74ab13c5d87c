"""The processes that `nodes.py` measures: embedded apps, and a worker of servers. They do what they are told, a JSON line each.

python bench/node_children.py embedded URL      an app: {"ids": [...], "steps": 1, "in_flight": 100}
python bench/node_children.py worker URL TOKEN  a worker of a server, until it is told to end
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from backstay import AsyncBackstay, AsyncWorker, activity, workflow


@activity
async def add(a: int) -> int:
    return a + 1


@workflow(type="nodes-seq")
def seq(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add.step(total).run()
    return total


EVERYTHING = [seq, add]


async def lanes(ids: Sequence[str], in_flight: int, call: Callable[[str], Awaitable[Any]]) -> list[float]:
    """Call with each id, so many at a time. Returns how long each took, in seconds."""
    ahead, took = iter(ids), list[float]()

    async def lane() -> None:
        for id in ahead:
            began = time.perf_counter()
            await call(id)
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(lane() for _ in range(min(in_flight, len(ids)))))
    return took


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


async def told(app: AsyncBackstay, ids: list[str], in_flight: int, steps: int) -> list[float]:
    return await lanes(ids, in_flight, lambda name: app.execute(seq, name, steps))


async def embedded(url: str) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncBackstay(url, EVERYTHING, listen="127.0.0.1:0") as app:
        say(open=True, engine=app.is_engine)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            say(took=await told(app, **order))


async def worker(url: str, token: str) -> None:
    async with AsyncWorker(url, EVERYTHING, token=token):
        say(open=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    try:
        import uvloop

        uvloop.run({"embedded": embedded, "worker": worker}[what](*rest))
    except ImportError:
        asyncio.run({"embedded": embedded, "worker": worker}[what](*rest))
