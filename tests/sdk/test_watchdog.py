"""Workflow code that runs on and on is interrupted and set aside; everybody else goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from typing import Any

import pytest

from backstay import (
    RequestRefused,
    Signal,
    UpdateFailed,
    activity,
    gather,
    query,
    side_effect,
    signal,
    sleep,
    spawn,
    update,
    wait,
    workflow,
)
from backstay.sdk.errors import WorkflowInterrupted
from backstay.sdk.worker.slow_code import SlowCode
from backstay.sdk.worker.watchdog import Interruption, QueryReplay, ThreadWatch, Watchdog

from .kit import blocked, eventually, evicting, memory

DEADLINE = 0.2


def spin() -> None:
    number = 0
    while number >= 0:
        number += 1


@activity(type="quick")
def quick(n: int) -> int:
    return n


@workflow(type="good")
def good(n: int) -> int:
    sleep("1ms")
    return quick(n)


@workflow(type="plain", unchecked=True)
def plain() -> None:
    spin()


@workflow(type="later", unchecked=True)
def later() -> None:
    quick(1)
    spin()


@workflow(type="main_task", unchecked=True)
async def main_task() -> None:
    await asyncio.sleep(0.001)
    spin()


@workflow(type="other_task", unchecked=True)
async def other_task() -> None:
    async def run() -> None:
        spin()

    task = asyncio.create_task(run())
    await asyncio.sleep(3600)
    await task


@workflow(type="branch", unchecked=True)
def branch() -> None:
    spawn(spin)
    sleep("1h")


@workflow(type="effect", unchecked=True)
def effect() -> None:
    side_effect(spin)


@workflow(type="closure", unchecked=True)
def closure() -> None:
    gather(lambda: (spin(), quick(1)))


@workflow(type="condition", unchecked=True)
def condition() -> None:
    wait(lambda: bool(spin()))


@workflow(type="sleeps", unchecked=True)
def sleeps() -> None:
    while True:
        time.sleep(0.001)


@workflow(type="swallows", unchecked=True)
def swallows() -> None:
    number = 0

    def one() -> None:
        nonlocal number
        number += 1

    while True:
        try:
            for _ in range(1000):
                one()
        except BaseException:
            pass


@workflow(type="asks_on", unchecked=True)
def asks_on() -> None:
    while True:
        try:
            spin()
        except BaseException:
            quick(1)


@workflow(type="InConstructor", unchecked=True)
class InConstructor:
    def __init__(self) -> None:
        spin()

    def handle(self) -> None: ...


HUNG = [
    plain,
    later,
    main_task,
    other_task,
    branch,
    effect,
    closure,
    condition,
    sleeps,
    swallows,
    asks_on,
    InConstructor,
]


@workflow(type="Told", unchecked=True)
class Told:
    end = Signal[None]("end")

    @signal
    def hang(self) -> None:
        spin()

    @update
    def hang_too(self) -> None:
        spin()

    @update
    def refuse(self) -> None: ...

    @refuse.validator
    def check(self) -> None:
        spin()

    @query
    def ask(self) -> int:
        spin()
        return 1

    @query
    def answer(self) -> int:
        return 42

    def handle(self) -> str:
        wait(self.end)
        return "done"


def block_of(description: Any) -> Any:
    (block,) = [view.task.block for view in description.tasks if view.task.block is not None]
    return block


@pytest.mark.parametrize("hangs", HUNG, ids=lambda hangs: getattr(hangs, "__name__", str(hangs)))
async def test_code_that_hangs_is_set_aside_and_the_others_go_on(hangs: Any, caplog: Any) -> None:
    async with memory(good, quick, hangs, workflow_deadline=DEADLINE) as app:
        await app.start(hangs, "bad")
        block = block_of(await blocked(app, "bad"))
        assert (block.reason, block.type, block.replay_blocked) == (
            "workflow_deadline_exceeded",
            "WorkflowInterrupted",
            True,
        )
        assert "test_watchdog.py" in block.stack_trace
        assert await app.execute(good, "g", 7) == 7
        assert (await app.describe("bad")).status == "blocked"
        await app.handle(hangs, "bad").terminate()
    told, *_ = [
        record for record in caplog.records if "without waiting" in record.getMessage() and record.levelno == 40
    ]
    assert (told.name, told.workflow_id) == ("backstay.worker", "bad")
    assert "test_watchdog.py" in told.getMessage()


async def test_code_on_a_thread_of_its_own_is_interrupted_as_well() -> None:
    async with memory(good, quick, later, workflow_deadline=DEADLINE) as app:
        app.executor._slow |= {"later", "good"}
        await app.start(later, "bad")
        assert block_of(await blocked(app, "bad")).reason == "workflow_deadline_exceeded"
        assert await app.execute(good, "g", 7) == 7


async def test_a_signal_handler_that_hangs_sets_the_run_aside() -> None:
    async with memory(good, quick, Told, workflow_deadline=DEADLINE) as app:
        handle = await app.start(Told, "bad")
        await handle.signal(Told.hang)
        assert block_of(await blocked(app, "bad")).reason == "workflow_deadline_exceeded"
        assert await app.execute(good, "g", 7) == 7


async def test_an_update_handler_that_hangs_sets_the_run_aside() -> None:
    async with memory(good, quick, Told, workflow_deadline=DEADLINE) as app:
        handle = await app.start(Told, "bad")
        asked = asyncio.ensure_future(handle.update(Told.hang_too))
        assert block_of(await blocked(app, "bad")).reason == "workflow_deadline_exceeded"
        assert await app.execute(good, "g", 7) == 7
        await handle.terminate()
        with pytest.raises((UpdateFailed, RequestRefused)):
            await asked


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_a_question_that_hangs_is_refused_and_the_run_goes_on(make: Any) -> None:
    async with make(good, quick, Told, workflow_deadline=DEADLINE) as app:
        handle = await app.start(Told, "told")
        with pytest.raises(RequestRefused, match="without waiting") as caught:
            await handle.query(Told.ask)
        assert caught.value.reason == "query_rejected"
        with pytest.raises(RequestRefused):
            await handle.update(Told.refuse)
        assert await handle.query(Told.answer) == 42
        await handle.signal(Told.end, None)
        assert await handle.result() == "done"


@pytest.mark.embedded("opens apps of its own")
async def test_a_repair_and_another_definition_release_the_run(tmp_path: Any) -> None:
    from backstay import AsyncBackstay

    well: list[bool] = []

    @workflow(type="now_and_then", unchecked=True)
    def now_and_then() -> str:
        if not well:
            spin()
        return "well"

    path = tmp_path / "x.db"
    async with AsyncBackstay(path, [now_and_then], workflow_deadline=DEADLINE) as app:
        await app.start(now_and_then, "repaired")
        await app.start(now_and_then, "deployed")
        await blocked(app, "repaired")
        await blocked(app, "deployed")
        well.append(True)
        await app.handle(now_and_then, "repaired").repair()
        assert await app.handle(now_and_then, "repaired").result() == "well"

    @workflow(type="now_and_then", unchecked=True)
    def corrected() -> str:
        return "corrected"

    async with AsyncBackstay(path, [corrected], workflow_deadline=DEADLINE) as app:
        assert await app.handle(corrected, "deployed").result() == "corrected"


async def test_code_that_hangs_while_it_is_given_up_holds_no_other_run_up() -> None:
    @workflow(type="clings", unchecked=True)
    def clings() -> None:
        try:
            sleep("1h")
        finally:
            spin()

    async with memory(good, quick, clings, workflow_deadline=DEADLINE) as app:
        await app.start(clings, "bad")
        await eventually(lambda: app.executor._live_runs)
        await app.handle(clings, "bad").terminate()
        assert await app.execute(good, "g", 7) == 7


async def test_a_long_replay_is_no_hanging_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that meets one event after another gets on."""
    deadline = 0.1

    @workflow(type="many", unchecked=True)
    def many() -> int:
        for _ in range(8):
            quick(1)
            until = time.thread_time() + deadline / 5
            while time.thread_time() < until:
                pass
        return 8

    monkeypatch.setattr(SlowCode, "judge", lambda *_: None)  # it stays on this thread
    async with evicting(many, quick, workflow_deadline=deadline) as app:
        assert await app.execute(many, "many") == 8


@pytest.mark.parametrize("wrong", [0, -1, "5s", True, float("nan")])
def test_a_deadline_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(TypeError, match="workflow_deadline"):
        memory(workflow_deadline=wrong)


class Run:
    workflow_id = "w"
    run_id = "r"
    workflow_type = "t"


def test_the_exception_never_arrives_outside_what_is_watched(caplog: Any) -> None:
    """Turns that end just when they are struck: each ends by itself or as interrupted, and nothing else ever sees it."""
    caplog.set_level(logging.CRITICAL, "backstay.worker")
    deadline = 0.004
    dog = Watchdog(deadline)
    ended: list[Any] = []

    def turn(seconds: float) -> str:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return "done"

    def work() -> None:
        watch = dog.here()
        try:
            for number in range(150):
                found = watch.run(QueryReplay(Run()), partial(turn, deadline * (0.5 + number % 20 / 10)))
                ended.append(found)
                for _ in range(200):
                    len([])  # a place where it could arrive
            ended.append(
                watch.run(QueryReplay(Run()), partial(turn, 60))
            )  # on a machine that is busy this may be the first
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    dog.stop()
    assert not thread.is_alive()
    assert len(ended) == 151
    assert all(found == "done" or isinstance(found, Interruption) for found in ended)
    assert isinstance(ended[-1], Interruption)


def test_a_strike_that_is_late_is_taken_back() -> None:
    """The code has ended, the strike is on its way: it must not meet the next function that is called."""
    from backstay.sdk.worker import watchdog

    watch = ThreadWatch()
    hit = Interruption(1.0, "here", "")

    def struck_at_the_end() -> str:
        watch.hit = hit
        watchdog._strike(watch.thread, WorkflowInterrupted)
        return "done"

    for _ in range(100):
        assert watch.run(QueryReplay(Run()), struck_at_the_end) is hit
        assert watch.hit is None


def test_an_error_that_watched_code_raises_by_itself_comes_out() -> None:
    def wrong() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        ThreadWatch().run(QueryReplay(Run()), wrong)
