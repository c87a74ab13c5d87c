"""A pipeline in `async def`: asyncio's own TaskGroup, gather, timeout and sleep, all of them durable.

The workflow has an event loop of its own whose time is the run's history: `asyncio.sleep` is a durable timer, and a run
that is replayed after a crash interleaves its tasks exactly as before.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from backstay import Backstay, activity, workflow

PAGES = {"a": "the cat sat", "b": "on the mat", "c": "and looked at the moon"}


@activity(retries=2)
async def fetch(page: str) -> str:
    await asyncio.sleep(0.05)
    return PAGES[page]


@activity
def count(text: str) -> int:
    return len(text.split())


async def words_of(page: str) -> int:
    """A helper of the workflow: several steps, no decorator."""
    return await count.step(await fetch(page))


@workflow
async def pipeline(pages: list[str]) -> dict[str, int]:
    async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
        tasks = {page: group.create_task(words_of(page)) for page in pages}
    await asyncio.sleep(0.1)  # a durable timer
    first, second = await asyncio.gather(count.step("one two"), count.step("three"))
    return {page: task.result() for page, task in tasks.items()} | {"check": first + second}


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Backstay(Path(directory) / "pipeline.db", register=[pipeline, fetch, count]) as backstay,
    ):
        print(backstay.execute(pipeline, "pipeline-1", list(PAGES)))


if __name__ == "__main__":
    main()
