"""The pool of threads: every call is made and its result comes back, whatever the calls before it are waiting for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest

from backstay.engine.core.world import AsyncioWorld
from backstay.threads import ThreadPool

PATIENT = 30


def with_pool(story: Callable[[ThreadPool], Awaitable[None]], size: int = 8) -> None:
    async def told() -> None:
        pool = ThreadPool(AsyncioWorld(asyncio.get_running_loop()), size, "test-pool")
        async with asyncio.timeout(PATIENT):
            await story(pool)
        pool.close()

    asyncio.run(told())


def called(pool: ThreadPool, call: Callable[[], Any]) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pool.submit(call, future.set_result)
    return future


async def burst(pool: ThreadPool, size: int) -> None:
    assert await asyncio.gather(*(called(pool, lambda n=n: n) for n in range(size))) == list(range(size))


def test_one_call_after_another() -> None:
    async def story(pool: ThreadPool) -> None:
        assert [await called(pool, lambda n=n: n) for n in range(2_000)] == list(range(2_000))

    with_pool(story)


def test_calls_in_bursts_of_any_size_are_all_made() -> None:
    """A thread that falls asleep just as a call comes must not leave it lying."""

    async def story(pool: ThreadPool) -> None:
        random = Random(7)
        for _ in range(300):
            await burst(pool, random.randint(1, 12))
        await burst(pool, 2_000)

    with_pool(story)


def test_the_pool_grows_to_its_size_while_calls_are_blocked() -> None:
    together = threading.Barrier(8)

    async def story(pool: ThreadPool) -> None:
        for _ in range(5):  # grown once, it wakes as many as are needed
            await asyncio.gather(*(called(pool, lambda: together.wait(PATIENT)) for _ in range(8)))
            await burst(pool, 20)

    with_pool(story)


def test_a_blocked_call_keeps_no_other_call_waiting() -> None:
    go_on = threading.Event()

    async def story(pool: ThreadPool) -> None:
        blocked = [called(pool, lambda: go_on.wait(PATIENT)) for _ in range(7)]
        for n in range(50):
            assert await called(pool, lambda n=n: n) == n
        go_on.set()
        assert await asyncio.gather(*blocked) == [True] * 7

    with_pool(story)


def test_a_call_that_raises_is_answered_with_what_it_raised_and_its_thread_goes_on() -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def story(pool: ThreadPool) -> None:
        before = await called(pool, threading.get_ident)
        assert isinstance(await called(pool, leave), SystemExit)
        assert await called(pool, threading.get_ident) == before

    with_pool(story, size=1)


def test_a_result_that_is_not_taken_keeps_no_other_result_back(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: Any) -> None:
        raise LookupError("no, thanks")

    async def story(pool: ThreadPool) -> None:
        pool.submit(lambda: 0, refuse)
        later = called(pool, lambda: 1)
        patient_until = monotonic() + PATIENT
        while (
            len(pool._results) < 2 and monotonic() < patient_until
        ):  # without the loop: they are brought back together
            sleep(0)
        assert await later == 1
        assert "could not be handed over" in caplog.text

    with_pool(story, size=1)


def test_a_thread_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def sometimes(thread: threading.Thread) -> None:
        if len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def story(pool: ThreadPool) -> None:
        monkeypatch.setattr(threading.Thread, "start", sometimes)
        assert await called(pool, lambda: 1) == 1
        assert len(refused) == 3

    with_pool(story, size=1)


def test_closing_a_pool_ends_every_thread_after_its_last_calls() -> None:
    together = threading.Barrier(8)
    threads: list[threading.Thread] = []

    async def story(pool: ThreadPool) -> None:
        await asyncio.gather(*(called(pool, lambda: together.wait(PATIENT)) for _ in range(8)))
        threads.extend(thread for thread in threading.enumerate() if thread.name.startswith("test-pool"))
        last = burst(pool, 20)
        asked = asyncio.ensure_future(last)
        await asyncio.sleep(0)
        pool.close()
        await asked

    with_pool(story)
    assert len(threads) >= 8
    for thread in threads:
        thread.join(PATIENT)
        assert not thread.is_alive()
