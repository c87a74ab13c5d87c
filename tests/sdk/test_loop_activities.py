"""Activities with `thread=False` run on the thread of the engine or of the worker's link, and go back to threads if they hold it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, Backstay, DefinitionError, WorkflowFailed, activity, activity_info, workflow
from backstay.sdk.worker import activities as runner

from .kit import memory

ran_on: list[int] = []


@activity(thread=False, retries=1, backoff=0.01)
def here(number: int) -> int:
    ran_on.append(threading.get_ident())
    if number < 0 and activity_info().number == 1:
        raise ValueError("only the second time")
    return number


@workflow
def several(*numbers: int) -> list[int]:
    return [here(number) for number in numbers]


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran_on.clear()


async def test_such_an_activity_runs_on_the_thread_of_the_engine_and_is_retried_like_any_other() -> None:
    async with memory(several, here) as app:
        assert await app.execute(several, "s-1", 1, -2, 3) == [1, -2, 3]
    assert ran_on == [threading.get_ident()] * 4


async def test_many_of_them_at_once_all_run() -> None:
    async with memory(several, here) as app:
        results = await asyncio.gather(*(app.execute(several, f"s-{n}", n, n + 1) for n in range(100)))
    assert results == [[n, n + 1] for n in range(100)]


async def test_one_that_holds_the_loop_is_logged_and_runs_on_threads_from_then_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0.0, 0.5])
    async with memory(several, here) as app:
        assert await app.execute(several, "quick", 1) == [1]
        monkeypatch.setattr(runner, "perf_counter", lambda: next(ticks))
        with caplog.at_level(logging.WARNING):
            assert await app.execute(several, "slow", 1, 2) == [1, 2]
    (warning,) = [record for record in caplog.records if "thread=False" in record.getMessage()]
    assert "'here'" in warning.getMessage()
    assert "500 ms" in warning.getMessage()
    assert ran_on[:2] == [threading.get_ident()] * 2
    assert ran_on[2] != threading.get_ident()


async def test_a_context_variable_of_one_attempt_does_not_reach_the_next() -> None:
    from contextvars import ContextVar

    seen: ContextVar[int] = ContextVar("seen", default=0)

    @activity(thread=False)
    def counts() -> int:
        seen.set(seen.get() + 1)
        return seen.get()

    @workflow
    def twice() -> list[int]:
        return [counts(), counts()]

    async with memory(twice, counts) as app:
        assert await app.execute(twice, "t-1") == [1, 1]


def test_a_client_without_await_in_such_an_activity_is_an_error_and_not_a_wait_for_ever(tmp_path: Path) -> None:
    apps: list[Backstay] = []

    @activity(thread=False)
    def starts_another() -> None:
        apps[0].start(several, "s-1", 1)

    @workflow
    def parent() -> None:
        starts_another()

    with Backstay(tmp_path / "app.db", [parent, starts_another, several, here]) as app:
        apps.append(app)
        with pytest.raises(WorkflowFailed, match="this would wait for itself"):
            app.execute(parent, "p-1")


@pytest.mark.parametrize("wrong", ["no", 1, None])
def test_the_option_is_a_flag(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="thread must be"):
        activity(thread=wrong)(time.sleep)


def test_it_is_for_def_functions_and_for_the_decorator() -> None:
    async def fetch() -> None: ...

    with pytest.raises(DefinitionError, match="`async def` and never runs on a thread"):
        activity(thread=False)(fetch)
    with pytest.raises(DefinitionError, match="option of the decorator"):
        here.options(thread=True)


async def test_an_activity_without_the_option_never_runs_there() -> None:
    @activity
    def elsewhere() -> int:
        return threading.get_ident()

    @workflow
    def asks() -> int:
        return elsewhere()

    async with AsyncBackstay(":memory:", [asks, elsewhere]) as app:
        assert await app.execute(asks, "a-1") != threading.get_ident()
