"""Histories that are larger than one reply may be: workers read them page by page, whatever they are shown them for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from backstay import AsyncClient, AsyncWorker, activity, query, signal, update, wait, workflow

from ..sdk.kit import eventually
from .kit import TOKEN, House

PAGE = 8_000  # bytes of history in one reply
EACH = 3_000  # bytes of a result: two of them fit
REPLY = 30_000  # bytes of a reply that the worker takes; histories here have several times as many
MANY = 30

holding, let_go = threading.Event(), threading.Event()


@activity(type="pages-make")
def make(number: int) -> str:
    return f"{number}".ljust(EACH, "x")


@workflow(type="pages-collect")
class Collect:
    """Has a history of many pages, and waits at its end."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.notes: list[str] = []

    @query
    def numbers(self) -> list[int]:
        return [int(text.rstrip("x")) for text in self.made]

    @signal
    def note(self, text: str) -> None:
        self.notes.append(text)

    @update
    def count(self) -> int:
        return len(self.made)

    @count.validator
    def _countable(self) -> None:
        if not self.made:
            raise ValueError("nothing to count")

    def handle(self, notes: int) -> list[int]:
        for number in range(MANY):
            self.made.append(make(number))
        wait(lambda: len(self.notes) >= notes)
        return [*self.numbers(), len(self.notes)]


@activity(type="pages-hold", local=True)
async def hold() -> None:
    holding.set()
    while not let_go.is_set():
        await asyncio.sleep(0.002)


@workflow(type="pages-busy")
class Busy:
    """Gets all of its updates at once, when its first task is over."""

    asked = 0

    @update
    def ask(self) -> str:
        self.asked += 1
        return f"{self.asked}".ljust(EACH, "x")

    async def handle(self) -> int:
        await hold()
        await wait.step(lambda: self.asked == MANY)
        return self.asked


THINGS = [Collect, make, Busy, hold]


@asynccontextmanager
async def working(house: House, live: int = 0) -> AsyncIterator[AsyncWorker]:
    """A worker that takes no large reply, and never has to. `live`: how many runs it keeps the code of."""
    worker = AsyncWorker(house.url, THINGS, token=TOKEN, drain=1.0, live=live)
    worker.access = worker.access._replace(most=REPLY)
    async with worker:
        yield worker
        assert worker.link.lost == 0, "no reply was too large"


@asynccontextmanager
async def paged() -> AsyncIterator[tuple[House, AsyncClient]]:
    async with House(max_page_bytes=PAGE) as house, AsyncClient(house.url, token=TOKEN) as client:
        yield house, client


@pytest.mark.needs_links("a task of an instance that another node owns is taken some 50 ms after it is ready")
@pytest.mark.parametrize("live", [0, 10], ids=["every task a replay", "live code"])
async def test_a_history_of_many_pages_is_replayed_asked_and_updated(live: int) -> None:
    async with paged() as (house, client):
        async with working(house, live):
            run = await client.start(Collect, "c", 1)
            await eventually(lambda: _made(client))
        async with working(house, live):
            assert await run.query(Collect.numbers) == list(range(MANY))
            assert await run.update(Collect.count) == MANY
            await run.signal(Collect.note, "enough")
            assert await run.result() == [*range(MANY), 1]


async def test_signals_that_came_meanwhile_are_more_than_one_reply() -> None:
    async with paged() as (house, client):
        run = await client.start(Collect, "c", MANY)
        for number in range(MANY):
            await run.signal(Collect.note, f"{number}".ljust(EACH, "y"))
        async with working(house, 10):
            assert await run.result() == [*range(MANY), MANY]


@pytest.mark.needs_links("a task of an instance that another node owns is taken some 50 ms after it is ready")
async def test_tasks_of_many_runs_are_more_than_one_reply() -> None:
    async with paged() as (house, client):
        runs = [await client.start(Collect, f"c{number}", 1) for number in range(MANY)]
        for run in runs:
            await run.signal(Collect.note, "y" * EACH)
        async with working(house, 10):
            for run in runs:
                assert await run.result() == [*range(MANY), 1]


async def test_an_event_that_is_larger_than_a_page_comes_alone() -> None:
    async with paged() as (house, client):
        run = await client.start(Collect, "c", 3)
        for text in ("a", "y" * (REPLY // 2), "b"):
            await run.signal(Collect.note, text)
        async with working(house):
            assert await run.result() == [*range(MANY), 3]


async def test_an_update_is_shown_what_was_decided_after_it() -> None:
    """Its task looks no further than the update, except for what code decided for the updates before it."""
    async with paged() as (house, client), working(house):
        run = await client.start(Busy, "b")
        await eventually(holding.is_set)
        asking = [asyncio.ensure_future(run.update(Busy.ask)) for _ in range(MANY)]
        (entry,) = house.server.engine.cache
        await eventually(lambda: len(entry.instance.buffered_events) == MANY)
        let_go.set()
        assert {int(text.rstrip("x")) for text in await asyncio.gather(*asking)} == {*range(1, MANY + 1)}
        assert await run.result() == MANY


async def _made(client: AsyncClient) -> bool:
    return len([entry for entry in await client.history("c") if entry.type == "ActivityCompleted"]) == MANY
