"""Polls of published workers that reach a node which does not own the task they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


from backstay.engine.fetching import Fetching

from ..remote.lossy import Lossy
from .kit import ME, Api, blob, parked, serving, until

COMPLETE = {"type": "complete_workflow", "result": blob(7)}


class Two(NamedTuple):
    """Two servers of one database: `owner` owns every instance, and `front` none."""

    front: Api
    owner: Api

    @property
    def fetching(self) -> Fetching:
        fetching = self.front.server.api.workers.fetching
        assert fetching is not None
        return fetching

    @property
    def stolen(self) -> int:
        return self.front.server.engine.counters.stolen + self.owner.server.engine.counters.stolen


async def known(*apis: Api) -> None:
    """Until every node knows the others."""
    for api in apis:
        await until(lambda shards=api.server.node.shards: len(shards.linked) == len(apis) - 1)


@asynccontextmanager
async def two(store: str) -> AsyncIterator[Two]:
    async with serving(store=store, still=False) as owner, serving(store=store, still=False, weight=0) as front:
        await known(owner, front)
        await owner.register()
        yield Two(front, owner)


async def test_a_poll_gets_a_task_of_another_node(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        polling = asyncio.ensure_future(both.front.poll(timeout_seconds=20))
        await parked(both.front)
        await both.owner.start("o-1")
        task = await polling
        assert task["workflow_id"] == "o-1"
        assert (await both.front.complete(task, COMPLETE)).status_code == 200
        assert (both.stolen, both.fetching.counts) == (0, {"fetched": 1})


async def test_a_poll_that_comes_later_finds_the_tasks_that_wait_elsewhere(postgresql_url: str) -> None:
    async with two(postgresql_url) as both:
        for number in range(5):
            await both.owner.start(f"o-{number}")
        news = both.owner.server.node.news
        assert news is not None
        await until(lambda: news.counts["told"] > 0)
        tasks = [await both.front.poll(timeout_seconds=20) for _ in range(5)]
        assert sorted(task["workflow_id"] for task in tasks) == [f"o-{number}" for number in range(5)]
        assert (both.stolen, both.fetching.counts) == (0, {"fetched": 5})
