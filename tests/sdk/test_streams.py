"""Output streams in our own SDK: `emit()` writes once per step, `handle.stream()` follows until the run has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    Backstay,
    NotInWorkflow,
    RequestRefused,
    Signal,
    activity,
    continue_as_new,
    emit,
    wait,
    workflow,
)
from backstay.engine.core.waiters import ENDED, Waiter, Waiters
from backstay.engine.core.world import AsyncioWorld
from backstay.protocol.streams import CloseStream
from backstay.store import Ready

from ..server.kit import TOKEN, serving
from .kit import PATIENCE, StillWorld, eventually, evicting, memory

go = Signal[int]("go")


@activity(type="double")
def double(n: int) -> int:
    return 2 * n


@workflow(type="counts")
def counts(upto: int) -> int:
    for n in range(upto):
        emit("out", {"n": n}, double(n))
    emit("other", "done")
    return upto


@workflow(type="listens")
def listens() -> None:
    while (n := wait(go)) >= 0:
        emit("out", n)


@workflow(type="goes-on")
def goes_on(n: int, last: int) -> int:
    if n % 2:
        emit("out", f"run {n}", n)
    if wait(go) < 0:
        raise LookupError("enough")
    if n < last:
        continue_as_new(goes_on, n + 1, last)
    return n


@workflow(type="slips")
def slips(name: str, count: int) -> str:
    try:
        emit(name, *range(count))
    except ValueError as error:
        return str(error)
    return "taken"


SAID = [{"n": 0}, 0, {"n": 1}, 2, {"n": 2}, 4]


@pytest.mark.parametrize("app", [memory, evicting])
async def test_emitted_items_are_read_once_in_order(app: Any) -> None:
    async with app(counts, double) as backstay:
        handle = await backstay.start(counts, "c-1", 3)
        assert [item async for item in handle.stream("out")] == SAID
        assert await handle.result() == 3
        assert [item async for item in handle.stream("out", 4)] == SAID[4:]
        assert [item async for item in backstay.handle(counts, "c-1").stream("other")] == ["done"]
        assert [item async for item in handle.stream("silent")] == []


async def test_a_reader_gets_items_while_the_run_goes_on() -> None:
    async with memory(listens) as app:
        handle = await app.start(listens, "l-1")
        reading = handle.stream("out")
        for n in (7, 8):
            await handle.signal(go, n)
            assert await anext(reading) == n
        await handle.signal(go, -1)
        assert [item async for item in reading] == []


async def test_a_second_reader_of_a_stream_hears_of_its_end() -> None:
    async with memory(listens, world=StillWorld) as app:  # where no reader looks again by itself
        handle = await app.start(listens, "l-1")

        def watchers() -> int:
            return sum(topic == ENDED for _, topic, _ in app.engine.waiters)

        async def read() -> list[Any]:
            return [item async for item in handle.stream("out")]

        waiting: list[asyncio.Task[Any]] = []
        for wait_for_it in (read, handle.result, read, handle.result):
            waiting.append(asyncio.create_task(wait_for_it()))
            await eventually(lambda: watchers() == len(waiting))
        await handle.signal(go, -1)
        assert await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE) == [[], None, [], None]


async def test_a_watcher_that_fails_keeps_no_other_watcher_from_the_news() -> None:
    def fails(news: str) -> None:
        raise ValueError(news)

    async def look() -> None: ...

    waiters = Waiters(AsyncioWorld(asyncio.get_running_loop()), lambda seen: Ready({}))
    futures: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for answer, future in zip((str.upper, fails, str.title), futures, strict=True):
        waiters.add(1, ENDED, Waiter(answer, look, future))
    waiters.notify(1, ENDED, "it ended")
    assert [futures[0].result(), futures[2].result()] == ["IT ENDED", "It Ended"]
    with pytest.raises(ValueError, match="it ended"):
        futures[1].result()


CHAIN = ["run 1", 1, "run 3", 3]


async def reads_the_chain(client: Any) -> None:
    """A reader of a workflow that goes on in new runs, some of which say nothing."""
    handle = await client.start(goes_on, "chain", 1, 3)
    got: list[Any] = []

    async def follow() -> None:
        async for item in handle.stream("out"):
            got.append(item)  # noqa: PERF401 - as they come

    reading = asyncio.create_task(follow())
    await eventually(lambda: len(got) == 2, "the first run was read")
    for _ in range(3):
        await handle.signal(go, 0)
    assert await handle.result() == 3
    await asyncio.wait_for(reading, PATIENCE)
    assert got == CHAIN
    assert [item async for item in handle.stream("out")] == CHAIN
    for start in range(len(CHAIN) + 2):
        assert [item async for item in handle.stream("out", start)] == CHAIN[start:]
    again = await client.options(if_exists="return_existing").start(goes_on, "chain", 1, 3)
    for known in (client.handle(goes_on, "chain"), again):
        for start in (0, 1, 3):
            assert [item async for item in known.stream("out", start)] == CHAIN[start:]
    assert [item async for item in handle.of_run(again.run_id).stream("out")] == CHAIN[2:]
    assert [item async for item in handle.of_run(handle.run_id).stream("out")] == CHAIN[:2]
    assert [item async for item in handle.stream("silence")] == []


@pytest.mark.parametrize("app", [memory, evicting])
async def test_a_reader_follows_a_workflow_into_the_runs_it_continues_in(app: Any) -> None:
    async with app(goes_on) as backstay:
        await reads_the_chain(backstay)


async def test_a_stream_that_ended_badly_raises_after_its_last_item() -> None:
    async with memory(listens) as app:
        handle = await app.start(listens, "l-1")
        await handle.signal(go, 1)
        reading = handle.stream("out")
        assert await anext(reading) == 1
        await app.call(CloseStream(workflow_id="l-1", stream_name="out", error_reason="no more"))
        with pytest.raises(RequestRefused, match="no more"):
            await anext(reading)


async def test_an_item_that_cannot_be_emitted_takes_no_step() -> None:
    async with memory(slips) as app:
        assert "1 to 128 characters" in await app.execute(slips, None, "a b", 1)
        assert "1 to 500 items" in await app.execute(slips, None, "out", 0)
        assert "1 to 500 items" in await app.execute(slips, None, "out", 501)
        assert await app.execute(slips, None, "out", 500) == "taken"
    with pytest.raises(NotInWorkflow):
        emit("out", 1)


def test_items_survive_the_process_and_are_read_without_await(tmp_path: Path) -> None:
    with Backstay(tmp_path / "s.db", [counts, double]) as app:
        app.execute(counts, "c-1", 3)
    with Backstay(tmp_path / "s.db") as app:
        assert list(app.handle(counts, "c-1").stream("out")) == SAID


def test_a_reader_without_await_follows_the_chain(tmp_path: Path) -> None:
    with Backstay(tmp_path / "shop.db", register=[goes_on]) as backstay:
        handle = backstay.start(goes_on, "chain", 1, 3)
        for _ in range(3):
            handle.signal(go, 0)
        assert list(handle.stream("out")) == CHAIN


async def test_the_same_over_http() -> None:
    async with (
        serving(still=False) as api,
        AsyncClient(str(api.http.base_url), token=TOKEN) as client,
        AsyncWorker(str(api.http.base_url), [counts, double, goes_on], token=TOKEN),
    ):
        handle = await client.start(counts, "c-1", 3)
        assert [item async for item in handle.stream("out")] == SAID
        await reads_the_chain(client)
