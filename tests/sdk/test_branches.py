"""Several things at once inside one run: spawned branches in plain code, asyncio's own tools in coroutines.

Every story is told twice: by live code that stays, and by code that is given up and replayed after each of its tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backstay import (
    ActivityCancelled,
    DurableCallRefused,
    WorkflowFailed,
    activity,
    continue_as_new,
    sleep,
    spawn,
    workflow,
)
from backstay.kernel.event import Recorded
from backstay.kernel.limits import Limits

from .kit import events, evicting, memory, names


@activity(type="echo")
def echo(value: Any) -> Any:
    return value


@activity(type="later")
async def later(value: Any, pause: float = 0.0) -> Any:
    await asyncio.sleep(pause)
    return value


@activity(type="fail")
def fail(text: str) -> None:
    raise LookupError(text)


@activity(type="never", queue="nobody serves this")
def never() -> None: ...


async def told(definition: Any, *args: Any) -> tuple[Any, list[Recorded]]:
    """The result and history of a run, which must be the same however often its code is replayed."""
    found: list[tuple[Any, list[Recorded]]] = []
    for app in (memory(definition, echo, later, fail, never), evicting(definition, echo, later, fail, never)):
        async with app:
            result = await app.execute(definition, "run", *args)
            found.append((result, await app.history("run")))
    assert found[0][0] == found[1][0]
    return found[1]


async def failure(definition: Any) -> BaseException | None:
    causes: list[BaseException | None] = []
    for app in (memory(definition, echo, later, fail, never), evicting(definition, echo, later, fail, never)):
        async with app:
            with pytest.raises(WorkflowFailed) as caught:
                await app.execute(definition, "run")
            causes.append(caught.value.__cause__)
    assert type(causes[0]) is type(causes[1])
    return causes[1]


# -- spawn


async def test_branches_run_at_once_and_join_gives_their_values() -> None:
    def pipeline(n: int) -> int:
        sleep(0.002 * (3 - n))
        return echo(n) + echo(10)

    @workflow
    def run() -> list[int]:
        branches = [spawn(pipeline, n) for n in range(3)]
        assert not any(branch.done for branch in branches)
        values = [branch.join() for branch in branches]
        assert all(branch.done for branch in branches)
        return [*values, branches[0].join()]

    result, history = await told(run)
    assert result == [10, 11, 12, 10]
    assert names(history)[2:5] == ["TimerScheduled"] * 3, "all of them wait before any goes on"


async def test_the_exception_of_a_branch_is_raised_at_its_join() -> None:
    @workflow
    def run() -> str:
        branch = spawn(fail, "no")
        echo(1)
        try:
            branch.join()
        except LookupError as error:
            return str(error.args[0])
        return ""

    assert (await told(run))[0] == "no"


async def test_a_failed_branch_that_is_never_joined_fails_the_run() -> None:
    @workflow
    def run() -> str:
        spawn(fail, "unheard")
        sleep(0.03)
        return "fine"

    cause = await failure(run)
    assert isinstance(cause, LookupError)
    assert cause.args == ("unheard",)


async def test_a_branch_may_spawn_and_join_others() -> None:
    def tree(depth: int) -> int:
        if depth == 0:
            return echo(1)
        left, right = spawn(tree, depth - 1), spawn(tree, depth - 1)
        return left.join() + right.join()

    @workflow
    def run() -> int:
        return tree(3)

    assert (await told(run))[0] == 8


async def test_two_may_wait_for_one_branch() -> None:
    @workflow
    def run() -> list[int]:
        shared = spawn(echo, 5)
        waiters = [spawn(lambda: shared.join() + 1) for _ in range(2)]
        return [waiter.join() for waiter in waiters]

    assert (await told(run))[0] == [6, 6]


async def test_a_branch_cannot_continue_the_run_as_new() -> None:
    @workflow
    def run() -> None:
        spawn(lambda: continue_as_new(run)).join()

    cause = await failure(run)
    assert isinstance(cause, DurableCallRefused)


# -- asyncio


async def test_gather_runs_steps_and_coroutines_together() -> None:
    async def twice(n: int) -> int:
        return (await later(n, 0.003)) + (await later(n))

    @workflow
    async def run() -> list[Any]:
        return list(
            await asyncio.gather(
                later("a", 0.002), echo.step("b"), twice(4), sleep.step(0.001), asyncio.sleep(0.001, 7)
            )
        )

    result, history = await told(run)
    assert result == ["a", "b", 8, None, 7]
    assert names(history)[2:7] == ["ActivityScheduled"] * 3 + ["TimerScheduled"] * 2


async def test_gather_can_return_exceptions() -> None:
    @workflow
    async def run() -> list[str]:
        found = await asyncio.gather(fail.step("x"), echo.step(1), return_exceptions=True)
        return [repr(value) for value in found]

    assert (await told(run))[0] == ["LookupError('x')", "1"]


async def test_a_task_group_cancels_the_siblings_of_what_failed() -> None:
    @workflow
    async def run() -> list[str]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail.step("down"))
                group.create_task(never.step())
                group.create_task(sleep.step("1h"))
        except* LookupError as errors:
            text = str(errors.exceptions[0].args[0])
        return [text, await later("on")]

    result, history = await told(run)
    assert result == ["down", "on"]
    assert [e.activity_type for e in events(history, "ActivityCancelled")] == ["never"]
    assert len(events(history, "TimerCancelled")) == 1


async def test_a_timeout_cancels_the_step_it_surrounds() -> None:
    @workflow
    async def run() -> str:
        try:
            async with asyncio.timeout(0.01):
                await never.step()
        except TimeoutError:
            return await later("late")
        return "in time"

    result, history = await told(run)
    assert result == "late"
    (cancelled,) = events(history, "ActivityCancelled")
    assert (cancelled.activity_type, cancelled.sequence) == ("never", 2)
    assert "TimerCancelled" not in names(history)


async def test_a_timeout_that_was_not_needed_is_cancelled() -> None:
    @workflow
    async def run() -> str:
        async with asyncio.timeout(3600):
            value = await later("in time")
        await sleep.step(0.001)
        return value

    result, history = await told(run)
    assert result == "in time"
    assert [e.sequence for e in events(history, "TimerCancelled")] == [1]


async def test_wait_for_and_shield() -> None:
    @workflow
    async def run() -> list[Any]:
        kept = asyncio.ensure_future(later("kept", 0.02))
        try:
            await asyncio.wait_for(asyncio.shield(kept), 0.001)
        except TimeoutError:
            found = "timed out"
        return [found, await kept]

    assert (await told(run))[0] == ["timed out", "kept"]


async def test_wait_returns_what_is_done_first() -> None:
    @workflow
    async def run() -> list[Any]:
        slow, quick = asyncio.create_task(sleep.step("1h")), asyncio.create_task(later("quick"))
        done, pending = await asyncio.wait({slow, quick}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [task.result() for task in done]

    assert (await told(run))[0] == ["quick"]


async def test_sets_of_tasks_iterate_the_same_way_in_every_replay() -> None:
    @workflow
    async def run() -> list[int]:
        tasks = {asyncio.create_task(later(n)) for n in range(20)}
        done, _ = await asyncio.wait(tasks)
        return [task.result() for task in done]

    assert (await told(run))[0] == list(range(20))


async def test_queues_locks_events_and_semaphores() -> None:
    @workflow
    async def run() -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        lock, ready, two = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(2)
        log: list[Any] = []
        inside = 0

        async def produce() -> None:
            for n in range(3):
                await queue.put(await later(n))
            ready.set()

        async def consume() -> None:
            log.extend([await queue.get() for _ in range(3)])

        async def guarded(name: str) -> None:
            nonlocal inside
            await ready.wait()
            async with two:
                inside += 1
                assert inside <= 2
                async with lock:
                    log.append([name, await later(name)])
                inside -= 1

        await asyncio.gather(consume(), produce(), *(guarded(name) for name in "abc"))
        return log

    assert (await told(run))[0] == [0, 1, 2, ["a", "a"], ["b", "b"], ["c", "c"]]


async def test_a_plain_activity_call_in_async_code_blocks_this_run_only() -> None:
    def helper(n: int) -> int:
        sleep(0.001)
        return echo(n) * 2

    @workflow
    async def run() -> list[int]:
        ticking = asyncio.create_task(sleep.step(0.001))
        values = [helper(1), echo(5)]
        await ticking
        return [*values, await later(3)]

    assert (await told(run))[0] == [2, 5, 3]


async def test_async_generators_and_current_task() -> None:
    async def numbers() -> AsyncIterator[Any]:
        for n in range(3):
            yield await later(n)

    @workflow
    async def run() -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        return [task.get_name(), *[n async for n in numbers()]]

    assert (await told(run))[0] == ["main", 0, 1, 2]


async def test_many_tasks_in_one_run() -> None:
    @workflow
    async def run() -> int:
        async def both(n: int) -> int:
            return await later(n) + await later(n)

        return sum(await asyncio.gather(*(both(n) for n in range(60))))

    assert (await told(run))[0] == 2 * sum(range(60))


async def test_cancelling_a_task_is_seen_in_its_code_and_ends_with_it() -> None:
    @workflow
    async def run() -> list[str]:
        log: list[str] = []

        async def work() -> None:
            try:
                await never.step()
            except asyncio.CancelledError:
                log.append(await later("tidied up"))
                raise
            finally:
                log.append("left")

        task = asyncio.create_task(work())
        await sleep.step(0.001)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            log.append("cancelled")
        return log

    result, history = await told(run)
    assert result == ["tidied up", "left", "cancelled"]
    assert len(events(history, "ActivityCancelled")) == 1


async def test_a_cancelled_step_is_cancelled_in_history_once_however_often_it_is_replayed() -> None:
    @workflow
    async def run() -> int:
        for n in range(5):
            async with asyncio.timeout(3600):
                await later(n)
        return n

    _, history = await told(run)
    assert [e.sequence for e in events(history, "TimerCancelled")] == [1, 3, 5, 7, 9]


async def test_more_cancelled_timers_than_a_task_may_have_commands_do_not_break_a_replay() -> None:
    @workflow
    async def run() -> int:
        for n in range(30):
            async with asyncio.timeout(3600):
                await later(n)
        return n

    async with evicting(run, later, limits=Limits(command_batch_size=10)) as app:
        assert await app.execute(run, "run") == 29


@pytest.mark.parametrize(
    "wrong",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.create_connection(None),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.call_soon_threadsafe(print),
        lambda loop: loop.run_forever(),
    ],
)
async def test_the_event_loop_of_a_workflow_refuses_calls_that_have_no_place_in_it(wrong: Any) -> None:
    @workflow(type="run", unchecked=True)
    async def run() -> None:
        await wrong(asyncio.get_running_loop())

    async with memory(run) as app:
        with pytest.raises(WorkflowFailed, match="has no place in a workflow"):
            await app.execute(run, "r")


@pytest.mark.parametrize("nap", [float("nan"), 1e12])
async def test_a_sleep_without_end_is_the_codes_own_error(nap: float) -> None:
    @workflow
    async def run() -> str:
        try:
            await asyncio.sleep(nap)
        except ValueError:
            return "refused"
        return ""

    async with memory(run) as app:
        assert await app.execute(run, "r") == "refused"


async def test_an_activity_cancelled_by_the_run_is_no_failure_of_it() -> None:
    assert issubclass(ActivityCancelled, Exception)

    @workflow
    async def run() -> str:
        task = asyncio.create_task(never.step())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "went on"

    result, history = await told(run)
    assert result == "went on"
    assert "WorkflowFailed" not in names(history)
