"""`wait(predicate)`: opened, satisfied and timed out only through history; what the wait is must stay what it was."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    NotInWorkflow,
    WorkflowFailed,
    activity,
    now,
    query,
    signal,
    sleep,
    spawn,
    update,
    wait,
    workflow,
)
from backstay.sdk.author.workflow import definition_of

from .kit import StillWorld, blocked, events, eventually, evicting, memory, names, settle

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]


@activity(type="echo")
def echo(text: str) -> str:
    return text


@activity(type="near", local=True)
def near(n: int) -> int:
    return n + 1


class Box:
    def __init__(self) -> None:
        self.value = 0

    @signal
    def put(self, value: int) -> None:
        self.value = value

    @update
    def swap(self, value: int) -> int:
        before, self.value = self.value, value
        return before

    @query
    def look(self) -> int:
        return self.value


@workflow(type="gate")
class Gate(Box):
    def handle(self) -> list[Any]:
        passed = wait(lambda: self.value >= 3, key="three", timeout="1h")
        return [passed, self.value]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("COND-01", "COND-03", "COND-09")
@pytest.mark.parametrize("make", APPS)
async def test_a_wait_ends_when_its_condition_holds_and_its_clock_stops(make: Any) -> None:
    async with make(Gate) as app:
        run = await app.start(Gate, "g")
        await run.signal(Gate.put, 2)
        await settle()
        found = await run.describe()
        assert (found.wait_kind, found.resume_source_kind) == ("condition", "timer")
        assert found.liveness_state == "waiting_for_condition"
        await run.signal(Gate.put, 3)
        assert await run.result() == [True, 3]
        history = await run.history()
        (opened,) = events(history, "ConditionWaitOpened")
        (satisfied,) = events(history, "ConditionWaitSatisfied")
        assert opened.condition_key == satisfied.condition_key == "three"
        assert opened.condition_definition_fingerprint.startswith("sha256:")
        assert names(history).count("TimerCancelled") == 1
        assert "TimerFired" not in names(history)


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("COND-08")
@pytest.mark.parametrize("make", APPS)
async def test_an_update_makes_a_condition_hold(make: Any) -> None:
    async with make(Gate) as app:
        run = await app.start(Gate, "g")
        assert await run.update(Gate.swap, 4) == 0
        assert await run.result() == [True, 4]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("COND-12", "COND-13", "COND-07")
@pytest.mark.parametrize("make", APPS)
async def test_a_wait_times_out_only_after_its_timer_fired(make: Any) -> None:
    world = StillWorld()
    async with make(Gate, world=lambda: world) as app:
        run = await app.start(Gate, "g")
        await settle()
        await world.advance(3599)
        assert (await run.describe()).wait_kind == "condition"
        await world.advance(1)
        assert await run.result() == [False, 0]
        history = names(await run.history())
        assert history.index("TimerFired") < history.index("ConditionWaitTimedOut")


async def test_a_condition_that_holds_when_it_is_reached_starts_no_clock() -> None:
    @workflow(type="ready")
    def ready() -> bool:
        return wait(lambda: True, timeout=60)

    async with memory(ready) as app:
        assert await app.execute(ready, "r") is True
        history = names(await app.history("r"))
        assert "ConditionWaitSatisfied" in history
        assert "TimerScheduled" not in history


async def test_a_deadline_that_has_passed_is_due_at_once() -> None:
    @workflow(type="late")
    def late() -> list[bool]:
        sleep(now() - timedelta(hours=1) - now())
        sleep.step(-1).run()
        passed = timedelta(seconds=-1)
        return [wait(lambda: False, timeout=passed), wait(lambda: True, timeout=passed)]

    @workflow(type="never")
    def never() -> None:
        sleep(float("nan"))

    async with memory(late, never) as app:
        assert await app.execute(late, "l") == [False, True]
        with pytest.raises(WorkflowFailed, match="not nan"):
            await app.execute(never, "n")


async def test_no_time_at_all_is_a_look() -> None:
    @workflow(type="look")
    def look() -> list[bool]:
        return [wait(lambda: False, timeout=0), wait(lambda: True, timeout=0)]

    async with memory(look) as app:
        assert await app.execute(look, "l") == [False, True]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_conditions_are_looked_at_again_until_nothing_moves(make: Any) -> None:
    """Each strand's end makes the next one's condition hold; all of that is one task."""

    @workflow(type="domino", unchecked=True)
    class Domino(Box):
        def handle(self, count: int) -> list[int]:
            fallen: list[int] = []

            def stone(n: int) -> None:
                wait(lambda: self.value == n)
                fallen.append(n)
                self.value = n + 1

            branches = [spawn(stone, n) for n in reversed(range(1, count + 1))]
            for branch in branches:
                branch.join()
            return fallen

    async with make(Domino) as app:
        run = await app.start(Domino, "d", 5)
        await run.signal(Domino.put, 1)
        assert await run.result() == [1, 2, 3, 4, 5]
        tasks = {e.context.task_id for e in await run.history() if e.type == "ConditionWaitSatisfied"}
        assert len(tasks) == 1


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_a_condition_holds_after_a_local_activity(make: Any) -> None:
    @workflow(type="near first", unchecked=True)
    def near_first() -> list[int]:
        got: list[int] = []

        def other() -> None:
            wait(lambda: bool(got))
            got.append(near(got[-1]))

        branch = spawn(other)
        got.append(near(1))
        wait(lambda: len(got) == 2)
        branch.join()
        return got

    async with make(near_first, near) as app:
        assert await app.execute(near_first, "n") == [2, 3]
        tasks = {entry.context.task_id for entry in await app.history("n") if entry.type.startswith("ConditionWait")}
        assert len(tasks) == 1, "nothing but this task could have moved it"


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_async_code_waits_for_conditions_beside_other_things(make: Any) -> None:
    @workflow(type="later", unchecked=True)
    class Later(Box):
        async def handle(self) -> list[Any]:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(wait.step(lambda: self.value > 0))
                second = group.create_task(wait.step(lambda: self.value > 1, timeout="1h"))
            try:
                async with asyncio.timeout(0.01):
                    await wait.step(lambda: self.value > 2)
            except TimeoutError:
                return [first.result(), second.result(), await wait.step(lambda: self.value < 0, timeout=0.01)]
            return []

    async with make(Later) as app:
        run = await app.start(Later, "l")
        await run.signal(Later.put, 1)
        await run.signal(Later.put, 2)
        assert await run.result() == [True, True, False]


# -- replay never looks by itself


looked: list[int] = []


@workflow(type="watched", unchecked=True)
class Watched(Box):
    def handle(self) -> int:
        wait(lambda: looked.append(1) or self.value)
        sleep(0.005)
        wait(lambda: looked.append(2) or self.value > 1)
        return self.value


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("COND-02")
async def test_replay_goes_by_history_and_looks_only_at_what_is_open(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [Watched]) as app:
        run = await app.start(Watched, "w")
        await run.signal(Watched.put, 1)
        await eventually(lambda: _waits(app, "w", 2))
    looked.clear()
    async with AsyncBackstay(tmp_path / "app.db", [Watched]) as app:
        run = app.handle(Watched, "w")
        assert await run.query(Watched.look) == 1
        assert looked == []
        await run.signal(Watched.put, 2)
        assert await run.result() == 2
        assert set(looked) == {2}


async def _waits(app: AsyncBackstay, id: str, count: int) -> bool:
    return len(events(await app.history(id), "ConditionWaitOpened")) == count


# -- drift


@workflow(type="drift")
class First(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 1, timeout="1h")
        return self.value


@workflow(type="drift")
class OtherPredicate(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 100, timeout="1h")
        return self.value


@workflow(type="drift")
class AddedKey(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 1, key="new", timeout="1h")
        return self.value


@workflow(type="drift")
class NoWait(Box):
    def handle(self) -> int:
        sleep("1h")
        return self.value


# fmt: off
@workflow(type="drift")
class OnlyFormatted(Box):
    def handle(self) -> int:
        """Other words, other lines: the same wait."""
        wait(
            lambda: (self.value >   1),  # of three
            timeout = "60m"
        )
        return self.value
# fmt: on


@workflow(type="keyed drift")
class Keyed(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 1, key="one")
        return self.value


@workflow(type="keyed drift")
class OtherKey(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 1, key="two")
        return self.value


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("COND-04", "COND-05", "COND-06")
@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (First, OtherPredicate, "its predicate has changed"),
        (First, AddedKey, "its key was None and is 'new'"),
        (Keyed, OtherKey, "its key was 'one' and is 'two'"),
        (First, NoWait, "history has condition wait, the code asked for timer"),
    ],
)
async def test_a_wait_that_is_not_the_recorded_one_blocks_replay_and_the_old_code_goes_on(
    first: Any, second: Any, says: str, tmp_path: Path
) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [first]) as app:
        await app.start(first, "d")
        await eventually(lambda: _waits(app, "d", 1))
    async with AsyncBackstay(tmp_path / "app.db", [second]) as app:
        await app.handle(None, "d").signal("put", 2)
        found = await blocked(app, "d")
        assert says in found.tasks[0].task.block.message
        with pytest.raises(Exception, match="cannot be replayed with this code"):
            await app.handle(None, "d").query("look")
    async with AsyncBackstay(tmp_path / "app.db", [first]) as app:
        assert await app.handle(first, "d").result() == 2


@pytest.mark.embedded("opens apps of its own")
async def test_a_formatter_changes_no_wait(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [First]) as app:
        await app.start(First, "d")
        await eventually(lambda: _waits(app, "d", 1))
    async with AsyncBackstay(tmp_path / "app.db", [OnlyFormatted]) as app:
        run = app.handle(OnlyFormatted, "d")
        await run.signal(OnlyFormatted.put, 2)
        assert await run.result() == 2


# -- what a condition may not do


@pytest.mark.parametrize("call", [lambda: echo("x"), lambda: sleep(1), lambda: wait(lambda: True)])
async def test_a_condition_makes_no_durable_calls(call: Any) -> None:
    @workflow(type="greedy", unchecked=True)
    def greedy() -> bool:
        return wait(call)

    async with memory(greedy, echo) as app:
        run = await app.start(greedy, "g")
        block = await eventually(lambda: _block(app, "g"))
        assert "a condition cannot make durable calls" in block.message
        assert (await run.describe()).status in ("pending", "waiting")
        assert "ActivityScheduled" not in names(await run.history())


async def test_a_raising_condition_fails_the_task_not_the_run() -> None:
    broken = [True]

    @workflow(type="raising", unchecked=True)
    def raising() -> bool:
        return wait(lambda: 1 // (not broken[0]) == 1)

    async with memory(raising) as app:
        run = await app.start(raising, "r")
        block = await eventually(lambda: _block(app, "r"))
        assert block.message == "a condition raised ZeroDivisionError: integer division or modulo by zero"
        broken.clear()
        broken.append(False)
        await run.repair()
        assert await run.result() is True


async def _block(app: AsyncBackstay, id: str) -> Any:
    return next((view.task.block for view in (await app.describe(id)).tasks if view.task.block is not None), None)


def test_waits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(NotInWorkflow):
        wait(lambda: True)
    with pytest.raises(NotInWorkflow, match="'name'"):
        wait("name")
    with pytest.raises(ValueError, match="condition key"):
        wait(lambda: True, key="with spaces")
    with pytest.raises(TypeError, match="key= belongs to a condition"):
        wait("name", key="k")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="takes a function, a Signal or the name"):
        wait(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="waited for by what the method changes"):
        wait(Gate.put)  # type: ignore[call-overload]
    with pytest.raises(ValueError):
        wait(lambda: True, timeout="soon")


async def test_awaiting_the_blocking_form_is_found_before_it_runs() -> None:
    @workflow(type="wrong form")
    async def wrong_form() -> None:
        await wait("x")

    with pytest.raises(Exception, match="wait"):
        async with memory(wrong_form, guard="error"):
            pass


async def test_a_failed_run_says_so_when_code_does_not_take_the_timeout() -> None:
    @workflow(type="strict")
    def strict() -> None:
        if not wait(lambda: False, timeout=0.001):
            raise TimeoutError("nobody came")

    async with memory(strict) as app:
        with pytest.raises(WorkflowFailed, match="nobody came") as failed:
            await app.execute(strict, "s")
        assert isinstance(failed.value.__cause__, TimeoutError)


def test_two_waits_on_one_line_are_two() -> None:
    from backstay.sdk.replay.source import predicate_fingerprint

    first, second = (lambda: 1, lambda: 2)
    assert predicate_fingerprint(first) != predicate_fingerprint(second)
    assert definition_of(Gate).fingerprint is not None
