"""Local activities: run beside the workflow's own task, recorded with it, with no task and no queue of their own."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from backstay import (
    ActivityCancelled,
    ActivityTimedOut,
    AsyncBackstay,
    WorkflowFailed,
    activity,
    activity_info,
    heartbeat,
    sleep,
    spawn,
    workflow,
)

from .kit import StillWorld, events, eventually, evicting, memory, names, settle

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    calls.clear()


@activity(type="tax", local=True)
def tax(cents: int, *, rate: int = 20) -> int:
    calls.append(cents)
    return cents * rate // 100


@activity(type="tax later", local=True)
async def tax_later(cents: int) -> int:
    await asyncio.sleep(0)
    return cents // 5


@activity(type="flaky", local=True, retries=2, backoff=0.001)
def flaky(fails: int) -> int:
    calls.append(1)
    if len(calls) <= fails:
        raise LookupError(f"try {len(calls)}")
    return len(calls)


async def told(definition: Any, *things: Any) -> Any:
    """The result and history, which must be the same however often the code is replayed."""
    found: list[Any] = []
    for app in (
        memory(definition, tax, tax_later, flaky, *things),
        evicting(definition, tax, tax_later, flaky, *things),
    ):
        calls.clear()
        async with app:
            result = await app.execute(definition, "r")
            found.append((result, await app.history("r")))
    assert found[0][0] == found[1][0]
    return found[0]


async def test_a_local_activity_is_recorded_with_its_task_and_has_none_of_its_own() -> None:
    @workflow(type="run")
    def run() -> int:
        return tax(100) + tax(50, rate=10)

    result, history = await told(run)
    assert result == 25
    assert names(history) == [
        "StartAccepted",
        "WorkflowStarted",
        *["ActivityScheduled", "ActivityStarted", "ActivityCompleted"] * 2,
        "WorkflowCompleted",
    ]
    assert {(e.local_activity, e.execution_mode) for e in events(history, "ActivityScheduled")} == {(True, "local")}
    assert [e.sequence for e in events(history, "ActivityCompleted")] == [1, 2]


async def test_any_activity_can_be_called_locally() -> None:
    @activity(type="plain")
    def plain(n: int) -> int:
        return n

    @workflow(type="run")
    def run() -> int:
        return plain.options(local=True)(1) + plain(2) + tax.options(local=False)(10)

    result, history = await told(run, plain)
    assert result == 5
    assert [e.local_activity for e in events(history, "ActivityScheduled")] == [True, False, False]


async def test_async_ones_run_at_once_and_are_answered_in_step_order() -> None:
    order: list[str] = []
    slow_may_end = threading.Event()

    @activity(type="slow", local=True)
    def slow() -> str:
        slow_may_end.wait(5)
        return "slow"

    @activity(type="quick", local=True)
    def quick() -> str:
        slow_may_end.set()
        return "quick"

    @workflow(type="run", unchecked=True)
    async def run() -> list[str]:
        order.clear()

        async def told(step: Any) -> str:
            value = await step
            order.append(value)
            return value

        found = await asyncio.gather(told(slow.step()), told(quick.step()), tax_later(5))
        return [*order, str(found[2])]

    result, _ = await told(run, slow, quick)
    assert result == ["slow", "quick", "1"]


async def test_a_failing_one_is_tried_again_within_its_task() -> None:
    @workflow(type="run")
    def run() -> int:
        return flaky(2)

    result, history = await told(run)
    assert result == 3
    assert [name for name in names(history) if name.startswith("Activity")] == [
        "ActivityScheduled",
        *["ActivityStarted", "ActivityRetryScheduled"] * 2,
        "ActivityStarted",
        "ActivityCompleted",
    ]
    again = events(history, "ActivityRetryScheduled")
    assert [(e.retry_backoff_seconds, e.message) for e in again] == [(0.001, "try 1"), (0.001, "try 2")]


async def test_an_exhausted_one_raises_what_it_raised() -> None:
    @workflow(type="run")
    def run() -> str:
        try:
            flaky(9)
        except LookupError as error:
            caught = str(error.args[0])
        sleep(0.001)
        return caught

    result, history = await told(run)
    assert result == "try 3"
    assert len(events(history, "ActivityFailed")) == 1


async def test_an_uncaught_failure_fails_the_run_with_its_cause() -> None:
    @workflow(type="run")
    def run() -> None:
        flaky.options(fatal=(LookupError,))(9)

    async with memory(run, flaky) as app:
        with pytest.raises(WorkflowFailed, match="try 1") as caught:
            await app.execute(run, "r")
    assert isinstance(caught.value.__cause__, LookupError)
    assert len(calls) == 1


async def test_local_activities_mix_with_branches_timers_and_other_activities() -> None:
    @activity(type="plain")
    def plain(n: int) -> int:
        return n

    def pipeline(n: int) -> list[int]:
        first = tax(n)
        sleep(0)
        second = plain(n)
        third = tax(n + second)
        return [first, second, third]

    @workflow(type="run")
    def run() -> list[list[int]]:
        branches = [spawn(pipeline, n) for n in (100, 200, 300)]
        tax(5)
        return [branch.join() for branch in branches]

    result, _ = await told(run, plain)
    assert result == [[20, 100, 40], [40, 200, 80], [60, 300, 120]]


@pytest.mark.embedded("opens apps of its own")
async def test_one_that_was_not_recorded_runs_again_after_a_restart(tmp_path: Any) -> None:
    began = threading.Event()
    over = threading.Event()

    @activity(type="slow", local=True)
    def slow() -> int:
        calls.append(1)
        began.set()
        if len(calls) == 1:
            over.wait(5)
        return len(calls)

    @workflow(type="run")
    def run() -> int:
        return slow()

    async with AsyncBackstay(tmp_path / "a.db", [run, slow], grace=0) as app:
        await app.start(run, "r")
        await asyncio.to_thread(began.wait, 5)
        assert names(await app.history("r")) == ["StartAccepted", "WorkflowStarted"]
    async with AsyncBackstay(tmp_path / "a.db", [run, slow]) as app:
        assert await app.handle(run, "r").result() == 2
    over.set()


async def test_arguments_are_those_of_the_call() -> None:
    @activity(type="late", local=True, retries=1, backoff=0)
    def late(items: list[int]) -> list[int]:
        calls.append(items)
        if len(calls) == 1:
            raise LookupError
        return items

    @workflow(type="run", unchecked=True)
    async def run() -> list[int]:
        items = [1]
        task = asyncio.ensure_future(late.step(items))
        await asyncio.sleep(0)
        items.append(2)
        return await task

    async with memory(run, late) as app:
        assert await app.execute(run, "r") == [1]
    assert calls == [[1], [1]]


async def test_a_local_activity_knows_its_attempt_and_idempotency_key() -> None:
    @activity(type="asks", local=True)
    def asks() -> str:
        return activity_info().idempotency_key

    @workflow(type="run")
    def run() -> str:
        return asks()

    async with memory(run, asks) as app:
        handle = await app.start(run, "r")
        assert await handle.result() == f"{handle.run_id}-1"


async def test_a_local_activity_that_takes_too_long_times_out() -> None:
    over = threading.Event()

    @activity(type="slow", local=True, timeout=0.02)
    def slow() -> str:
        over.wait(30)
        return "too late"

    @workflow(type="run")
    def run() -> str:
        try:
            return slow()
        except ActivityTimedOut as error:
            return error.timeout_kind

    async with memory(run, slow) as app:
        try:
            assert await app.execute(run, "r") == "start_to_close"
        finally:
            over.set()


@pytest.mark.contract("FAIL-04")
async def test_a_caught_failure_is_recorded_as_handled_by_live_code_too() -> None:
    @workflow(type="run")
    def run() -> str:
        try:
            flaky.options(retries=0)(9)
        except LookupError:
            sleep(0.001)
        return "went on"

    async with memory(run, flaky) as app:
        assert await app.execute(run, "r") == "went on"
        assert len(events(await app.history("r"), "FailureHandled")) == 1


class Uncountable(int):
    def __int__(self) -> int:
        raise LookupError("no number")


class Unrecordable(Exception):
    """Even the attempt to record it fails."""

    code = Uncountable(1)


@pytest.mark.parametrize("slow", [False, True])
async def test_code_that_breaks_the_worker_after_a_local_activity_fails_its_task_alone(
    slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow(type="run")
    def run(breaks: bool) -> int:
        found = tax(100)
        if breaks:
            raise Unrecordable
        return found

    async with memory(run, tax) as app:
        if slow:
            app.executor._slow.add("run")
        await app.start(run, "bad", True)
        await eventually(lambda: "workflow bad (run) is blocked" in caplog.text, "its task failed")
        await eventually(lambda: not app.executor.holding, "the task was let go")
        assert await asyncio.wait_for(app.execute(run, "good", False), 10) == 20


@activity(type="never", local=True, retries=9, backoff=60)
def never() -> None:
    calls.append(1)
    raise LookupError("still nothing")


@workflow(type="never done")
def never_done() -> None:
    never()


@pytest.mark.embedded("its clock is the test's")
async def test_a_local_activity_is_not_tried_again_once_the_app_is_closed() -> None:
    async with memory(never_done, never, world=StillWorld) as app:
        world: Any = app.engine.world
        await app.start(never_done, "r")
        await eventually(lambda: calls, "the first try")
        await settle()
    for _ in range(3):
        await world.advance(3600)
    assert len(calls) == 1


@pytest.mark.embedded("the clock is not the worker's")
async def test_a_pause_may_be_longer_than_a_day() -> None:
    @activity(type="rare", local=True, retries=1, backoff="3d")
    def rare() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise LookupError
        return len(calls)

    @workflow(type="run")
    def run() -> int:
        return rare()

    async with memory(run, rare, world=StillWorld) as app:
        world: Any = app.engine.world
        handle = await app.start(run, "r")
        await eventually(lambda: app.executor.activities._running == {} and calls, "the first try")
        for _ in range(2):
            await world.advance(86_400)
            assert len(calls) == 1
        await world.advance(86_400)
        assert await handle.result() == 2


@pytest.mark.embedded("looks into the engine")
async def test_the_state_of_a_local_activity_is_freed_with_it_and_not_with_its_timeout() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @activity(type="waits", local=True, timeout="1h")
    async def waits() -> int:
        begun.set()
        await go_on.wait()
        return 1

    @workflow(type="run")
    def run() -> int:
        return waits.step().run()

    async with memory(run, waits) as app:
        handle = await app.start(run, "r")
        await begun.wait()
        (entry,) = app.engine.cache
        live_run = weakref.ref(app.executor.live(entry.instance.current.key))
        go_on.set()
        assert await handle.result() == 1
        del entry
        await app.execute(run, "another")  # the loop may still have its hands on the last one
        gc.collect()
        assert live_run() is None


@pytest.mark.embedded("a worker hears of the end of a run when it reports its task")
async def test_a_local_activity_is_not_tried_again_for_a_terminated_run() -> None:
    async with memory(never_done, never, world=StillWorld) as app:
        world: Any = app.engine.world
        handle = await app.start(never_done, "r")
        await eventually(lambda: calls, "the first try")
        await settle()
        await handle.terminate()
        await world.advance(3600)
        assert (len(calls), list(app.engine.cache), app.executor.holding) == (1, [], set())


@pytest.mark.embedded("a worker hears of the end of a run when it reports its task")
async def test_a_local_activity_of_a_closed_run_hears_so_at_its_heartbeat() -> None:
    begun, told = threading.Event(), threading.Event()

    @activity(type="beats", local=True)
    def beats() -> None:
        begun.set()
        while True:
            try:
                heartbeat()
            except ActivityCancelled:
                told.set()
                raise
            told.wait(0.002)

    @workflow(type="run")
    def run() -> None:
        beats()

    async with memory(run, beats) as app:
        handle = await app.start(run, "r")
        await eventually(begun.is_set)
        await handle.terminate()
        await eventually(told.is_set, "the news")
        assert (list(app.engine.cache), app.executor.holding) == ([], set())


@pytest.mark.embedded("a worker hears of the end of a run when it reports its task")
async def test_code_that_is_busy_on_its_thread_when_its_run_is_closed_begins_no_local_activity() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @workflow(type="run", unchecked=True)
    def run() -> int:
        begun.set()
        go_on.wait(10)
        return tax(100)

    async with memory(run, tax, guard="off") as app:
        app.executor._slow.add("run")
        handle = await app.start(run, "r")
        await eventually(begun.is_set)
        await handle.terminate()
        go_on.set()
        await eventually(lambda: not app.executor.holding, "its task was let go")
        assert not any(entry.code_is_busy for entry in app.engine.cache)
        assert calls == []


@pytest.mark.embedded("code elsewhere is not the engine's to give up")
async def test_code_that_was_given_up_while_its_local_activity_ran_reports_nothing() -> None:
    """Another process got in between: the task is run again, and what half of the code had done is not its outcome."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @activity(type="slow tax", local=True)
    async def slow_tax(cents: int) -> int:
        calls.append(cents)
        begun.set()
        await go_on.wait()
        return cents // 5

    @workflow(type="run")
    def run() -> list[int]:
        return [slow_tax.step(500).run(), tax(100)]

    async with memory(run, tax, slow_tax) as app:
        handle = await app.start(run, "r")
        await asyncio.wait_for(begun.wait(), 10)
        (entry,) = app.engine.cache
        app.engine.discard(entry)
        go_on.set()
        assert await asyncio.wait_for(handle.result(), 10) == [100, 20]
        assert calls[:2] == [500, 500]
