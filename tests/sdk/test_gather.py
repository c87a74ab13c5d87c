"""`gather` and `race`: shapes, failures, bounds, drift. Told by live code and by code that is replayed after every task."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest

from backstay import (
    DurableCallRefused,
    NotInWorkflow,
    Signal,
    WorkflowFailed,
    activity,
    child,
    gather,
    race,
    side_effect,
    signal,
    sleep,
    spawn,
    wait,
    workflow,
)
from backstay.kernel.event import Recorded

from .kit import events, eventually, evicting, memory, names


@activity(type="echo")
def echo(value: Any) -> Any:
    return value


@activity(type="later")
async def later(value: Any, pause: float = 0.0) -> Any:
    await asyncio.sleep(pause)
    return value


@activity(type="fail")
async def fail(text: str, pause: float = 0.0) -> None:
    await asyncio.sleep(pause)
    raise LookupError(text)


@activity(type="broken")
def broken(text: str) -> str:
    raise LookupError(text)


@activity(type="never", queue="nobody serves this")
def never() -> None: ...


@workflow(type="double")
def double(n: int) -> int:
    return echo(n) * 2


@workflow(type="refuse")
def refuse(text: str) -> None:
    raise LookupError(text)


@workflow(type="long")
def long() -> str:
    sleep("1h")
    return "late"


FAMILY = [echo, later, fail, broken, never, double, refuse, long]


async def told(definition: Any, *args: Any) -> tuple[Any, list[Recorded]]:
    """The result and history of a run, which must be the same however often its code is replayed."""
    found: list[tuple[Any, list[Recorded]]] = []
    for app in (memory(definition, *FAMILY), evicting(definition, *FAMILY)):
        async with app:
            result = await app.execute(definition, "run", *args)
            found.append((result, await app.history("run")))
    assert found[0][0] == found[1][0]
    return found[1]


def wakes(history: list[Recorded]) -> int:
    """How many tasks of the code decided something."""
    return len({entry.context.decided_after for entry in history if entry.context.decided_after is not None})


# -- shapes


@pytest.mark.contract("BARRIER-03")
async def test_results_keep_the_shape_in_which_they_were_asked_for() -> None:
    @workflow
    def run() -> list[Any]:
        return [
            gather([echo.step(n) for n in range(3)]),
            gather(echo.step(n) for n in range(2)),
            list(gather(echo.step("a"), echo.step("b"))),
            gather({"x": echo.step(1), "y": double.step(2)}),
            list(gather(echo.step("one"))),
            gather([]),
            list(gather(later.step(1, 0.01), later.step(2, 0.005), echo.step(3))),
        ]

    result, _ = await told(run)
    assert result == [[0, 1, 2], [0, 1], ["a", "b"], {"x": 1, "y": 4}, ["one"], [], [1, 2, 3]]


@pytest.mark.contract("BARRIER-01", "BARRIER-03", "BARRIER-10", "BARRIER-11")
async def test_groups_nest_and_mix_activities_children_and_timers() -> None:
    @workflow
    def run() -> Any:
        return gather(
            echo.step(1),
            gather.step([double.step(2), double.step(3)]),
            gather.step({"t": sleep.step(0.001)}),
            later.step(4),
        )

    result, history = await told(run)
    assert result == [1, [4, 6], {"t": None}, 4]
    paths = {
        entry.event.sequence: [group.parallel_group_id for group in entry.event.parallel_group_path]  # type: ignore[attr-defined]
        for entry in history
        if entry.type in ("ActivityScheduled", "ChildWorkflowScheduled", "TimerScheduled")
    }
    assert paths == {
        1: ["parallel-calls:1:5"],
        2: ["parallel-calls:1:5", "parallel-children:2:2"],
        3: ["parallel-calls:1:5", "parallel-children:2:2"],
        4: ["parallel-calls:1:5", "parallel-timers:4:1"],
        5: ["parallel-calls:1:5"],
    }
    kinds = [group.parallel_group_kind for group in events(history, "TimerScheduled")[0].parallel_group_path]
    assert kinds == ["mixed", "timer"]


@pytest.mark.contract("BARRIER-05")
async def test_the_code_is_woken_once() -> None:
    @workflow
    def run() -> list[int]:
        return gather(echo.step(n) for n in range(20))

    for make in (memory, evicting):
        async with make(run, *FAMILY) as app:
            assert await app.execute(run, "run") == list(range(20))
            assert wakes(await app.history("run")) == 2, "one to ask, one to end"


@pytest.mark.needs_links("which member is the first depends on how soon a task is taken")
async def test_one_step_may_be_a_member_several_times() -> None:
    @workflow
    def run() -> list[Any]:
        one = echo.step(7)
        return [gather([one, one, double.step(2)]), one.run(), list(gather(one, one)), *race(one, one)]

    result, history = await told(run)
    assert result == [[7, 7, 4], 7, [7, 7], 0, 7]
    places = [
        [group.parallel_group_index for group in event.parallel_group_path]
        for event in events(history, "ActivityScheduled")
        if event.sequence != 3
    ]
    assert places[:5] == [[0], [1], [], [0], [1]]


async def test_a_closure_may_compute_with_its_one_call() -> None:
    @workflow
    def run() -> list[Any]:
        factor = 3
        return gather([lambda: echo("a").upper(), lambda: double(2) * factor, lambda: [echo(1)]])

    assert (await told(run))[0] == ["A", 12, [1]]


async def test_a_second_call_in_a_closure_is_refused() -> None:
    @workflow
    def run() -> str:
        try:
            gather([lambda: echo(echo(1))])
        except DurableCallRefused as error:
            return str(error)
        return ""

    assert "spawn" in (await told(run))[0]


async def test_an_error_of_a_closure_before_its_call_is_raised() -> None:
    @workflow
    def run() -> str:
        try:
            gather([lambda: echo(1 // 0)])
        except ZeroDivisionError:
            return "before"
        return ""

    assert (await told(run))[0] == "before"


async def test_an_error_of_a_closure_after_its_call_is_raised_by_gather() -> None:
    @workflow
    def run() -> str:
        try:
            gather([lambda: echo(0), lambda: 1 // echo(0)])
        except ZeroDivisionError:
            return f"after {echo(5)}"
        return ""

    assert (await told(run))[0] == "after 5"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: gather({echo.step(1)}), "a set has no order"),  # type: ignore[arg-type]
        (lambda: gather([3]), "forget .step"),  # type: ignore[list-item]
        (lambda: gather([lambda: 1]), "one durable call"),
        (lambda: gather([lambda: side_effect(lambda: 1)]), "one durable call|side effect"),
        (lambda: gather([wait.step(lambda: True)]), "spawn"),
        (lambda: gather([race.step(echo.step(1))]), "race"),
        (lambda: gather([echo.step(1)], limit=0), "limit"),
        (lambda: race(), "at least one"),
        (lambda: race(gather.step([echo.step(1)])), "single steps"),  # type: ignore[call-overload]
        (lambda: race(lambda: 1), "single steps"),
    ],
)
async def test_gather_refuses_what_cannot_be_a_member(wrong: Any, why: str) -> None:
    @workflow
    def run() -> str:
        try:
            wrong()
        except (TypeError, ValueError) as error:
            return str(error).partition(" at 0x")[0]
        return "nothing said"

    said = (await told(run))[0]
    assert re.search(why, said), said


async def test_forgetting_step_calls_and_says_what_was_forgotten() -> None:
    @workflow
    def run() -> str:
        try:
            gather(echo(1), echo(2))  # type: ignore[call-overload]
        except TypeError as error:
            return str(error)
        return ""

    assert "forget .step" in (await told(run))[0]


def test_outside_a_workflow_gather_runs_activities_in_order_and_race_refuses() -> None:
    assert gather(echo.step(1), echo.step(2)) == (1, 2)
    assert gather({"a": echo.step(1)}) == {"a": 1}
    with pytest.raises(NotInWorkflow):
        race(echo.step(1))


# -- failures


@pytest.mark.contract("BARRIER-04", "BARRIER-08")
async def test_the_first_failure_is_raised_at_once_and_the_others_go_on() -> None:
    @workflow
    def run() -> str:
        try:
            gather(later.step("slow", 0.05), fail.step("no"), never.step())
        except LookupError as error:
            sleep(0.1)
            return f"{error.args[0]} {echo(1)}"
        return ""

    result, history = await told(run)
    assert result == "no 1"
    assert [event.sequence for event in events(history, "ActivityCompleted")] == [1, 5]


fall = Signal[str]("fall")
go_on = Signal[None]("go on")


@workflow(type="climber")
def climber() -> None:
    raise LookupError(wait(fall))


@pytest.mark.contract("BARRIER-08")
@pytest.mark.parametrize("make", [memory, evicting], ids=["memory", "evicting"])
async def test_a_sibling_that_fails_later_is_history_only(make: Any) -> None:
    @workflow(type="catches")
    def catches() -> str:
        try:
            gather(child.step(climber), child.step(climber))
        except LookupError as error:
            wait(go_on)
            return error.args[0]
        return ""

    @workflow(type="fails with it")
    def fails_with_it() -> None:
        gather(child.step(climber), child.step(climber))

    async with make(climber, catches, fails_with_it) as app:
        caught, failed = await app.start(catches, "catches"), await app.start(fails_with_it, "fails")

        async def called(id: str) -> Any:
            found = events(await app.history(id), "ChildRunStarted")
            return [event.child_workflow_instance_id for event in found] if len(found) == 2 else None

        async def seen(id: str, count: int) -> Any:
            return len(events(await app.history(id), "ChildRunFailed")) == count

        for id in ("catches", "fails"):
            early, first = await eventually(partial(called, id), "both children have begun")
            await app.handle(climber, first).signal(fall, "the first to fall")
            await eventually(partial(seen, id, 1), "the parent has heard of it")
            if id == "fails":
                with pytest.raises(WorkflowFailed, match="the first to fall"):
                    await failed.result()
            await app.handle(climber, early).signal(fall, "too late")
            with pytest.raises(WorkflowFailed, match="too late"):
                await app.handle(climber, early).result()
        await eventually(partial(seen, "catches", 2), "it is history of the parent")
        await caught.signal(go_on, None)
        assert await caught.result() == "the first to fall"
        assert names(await app.history("catches")).count("FailureHandled") == 1
        assert (await app.describe("fails")).status == "failed"
        with pytest.raises(WorkflowFailed, match="the first to fall"):
            await failed.result()


@pytest.mark.contract("BARRIER-04")
async def test_the_failure_of_a_child_in_a_nested_group_is_raised_at_once() -> None:
    @workflow
    def run() -> str:
        try:
            gather(never.step(), gather.step([refuse.step("no"), long.step()]))
        except LookupError as error:
            return str(error.args[0])
        return ""

    assert (await told(run))[0] == "no"


async def test_a_closure_does_not_see_the_failure_of_its_own_call() -> None:
    """It is the group that fails; a member that is to survive its own failure is for spawn."""

    @workflow
    def run() -> str:
        def careful() -> str:
            try:
                return broken("no")
            except LookupError:
                return "survived"

        try:
            gather(careful, echo.step(1))
        except LookupError:
            return spawn(careful).join()
        return ""

    assert (await told(run))[0] == "survived"


# -- bounds


@pytest.mark.contract("BARRIER-14")
@pytest.mark.parametrize("limit", [1, 2, 5, 20])
async def test_a_bound_keeps_so_many_in_flight(limit: int) -> None:
    flying: list[int] = []
    most: list[int] = []

    @activity
    async def busy(n: int) -> int:
        flying.append(n)
        most.append(len(flying))
        await eventually(lambda: max(most) >= min(limit, 10), "so many are in flight")
        await asyncio.sleep(0.002)
        flying.remove(n)
        return n

    @workflow
    def run() -> list[int]:
        return gather((busy.step(n) for n in range(10)), limit=limit)

    for make in (memory, evicting):
        most.clear()
        async with make(run, busy, *FAMILY) as app:
            assert await app.execute(run, "run") == list(range(10))
            assert max(most) == min(limit, 10)
            history = await app.history("run")
            assert wakes(history) == 2
            assert {e.parallel_group_path[0].parallel_group_limit for e in events(history, "ActivityScheduled")} == {
                limit
            }


async def test_a_bound_over_children_and_nested_groups() -> None:
    @workflow
    def run() -> Any:
        inner = gather.step([double.step(n) for n in range(4)], limit=2)
        return gather(inner, gather.step(echo.step(n) for n in range(3)), limit=3)

    assert (await told(run))[0] == [[0, 2, 4, 6], [0, 1, 2]]


# -- the first of several


async def test_the_first_to_end_wins_and_the_others_are_cancelled() -> None:
    @workflow
    def run() -> Any:
        first = race(later.step("slow", 5), sleep.step("1h"), echo.step("fast"))
        return [first, echo(1)]

    result, history = await told(run)
    assert result == [[2, "fast"], 1]
    assert {"TimerCancelled", "ActivityCancelled"} <= set(names(history))


async def test_the_winner_of_a_race_is_recorded_with_its_end() -> None:
    @workflow
    def run() -> Any:
        return [race(never.step(), echo.step("fast"), sleep.step("1h")), race(sleep.step(0.001), long.step())]

    result, history = await told(run)
    assert result == [[1, "fast"], [0, None]]
    kinds = names(history)
    first, second = events(history, "SelectionResolved")
    assert (first.member_index, first.operation_kind, first.outcome) == (1, "activity", "completed")
    assert first.selection_group_id == "select-calls:1:3"
    assert (second.member_key, second.operation_kind, second.resolution_event_type) == (0, "timer", "TimerFired")
    assert kinds[kinds.index("SelectionResolved") - 1] == "ActivityCompleted", "right behind what ended the winner"
    assert kinds.count("TimerCancelled") == 1
    for kind in ("ActivityScheduled", "TimerScheduled", "ChildWorkflowScheduled"):
        assert {event.parallel_group_path[0].parallel_group_mode for event in events(history, kind)} == {"select"}


async def test_a_race_with_a_wait_in_it_is_settled_by_the_code() -> None:
    @workflow
    def run() -> Any:
        return list(race(wait.step(lambda: False), echo.step("fast")))

    result, history = await told(run)
    assert result == [1, "fast"]
    assert "SelectionResolved" not in names(history)
    assert "ConditionWaitCancelled" in names(history)


async def test_a_race_between_children_asks_the_loser_to_stop() -> None:
    @workflow
    def run() -> Any:
        found = race(long.step(), double.step(2))
        sleep(0.05)
        return found

    result, history = await told(run)
    assert result == [1, 4]
    assert "ChildRunCancelled" in names(history)


async def test_the_failure_of_the_first_is_raised() -> None:
    @workflow
    def run() -> str:
        try:
            race(never.step(), fail.step("no"))
        except LookupError as error:
            return str(error.args[0])
        return ""

    assert (await told(run))[0] == "no"


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_a_signal_races_a_timer(make: Any) -> None:
    @workflow(type="racing")
    class Racing:
        def __init__(self) -> None:
            self.ready = False

        @signal
        def get_ready(self) -> None:
            self.ready = True

        def handle(self, timeout: float) -> Any:
            first = race(wait.step(lambda: self.ready), sleep.step(timeout))
            return list(first)

    async with make(Racing, *FAMILY) as app:
        quick = await app.start(Racing, "quick", 0.01)
        assert (await quick.result(timeout=10))[0] == 1
        told_in_time = await app.start(Racing, "in-time", 3600.0)
        await told_in_time.signal("get_ready")
        assert await told_in_time.result(timeout=10) == [0, True]
        assert "TimerCancelled" in names(await app.history("in-time"))


async def test_a_condition_that_holds_already_wins() -> None:
    @workflow
    def run() -> Any:
        first = race(wait.step(lambda: True), never.step())
        return [list(first), echo(1)]

    result, history = await told(run)
    assert result == [[0, True], 1]
    assert "ActivityCancelled" in names(history)


async def test_groups_and_races_in_a_coroutine() -> None:
    @workflow
    async def run() -> Any:
        both = await gather.step(echo.step(1), double.step(2))
        first = await race.step(never.step(), echo.step("fast"))
        mixed = await asyncio.gather(gather.step([echo.step(3)]), race.step(echo.step(4), long.step()))
        return [list(both), list(first), mixed[0], list(mixed[1])]

    assert (await told(run))[0] == [[1, 4], [1, "fast"], [3], [0, 4]]


@pytest.mark.needs_links("the children, perhaps at another node, answer within 50 ms")
async def test_a_group_that_is_given_up_cancels_what_is_open() -> None:
    @workflow
    async def run() -> str:
        try:
            async with asyncio.timeout(0.02):
                await gather.step([never.step(), long.step(), sleep.step("1h"), long.step()], limit=3)
        except TimeoutError:
            await sleep.step(0.05)
        return "gave up"

    result, history = await told(run)
    assert result == "gave up"
    assert names(history).count("ChildRunCancelled") == 2, "one of them never started"
    assert {"ActivityCancelled", "TimerCancelled"} <= set(names(history))


async def test_branches_gather_by_themselves() -> None:
    @workflow
    def run() -> Any:
        branches = [spawn(lambda n=n: gather(echo.step(n), double.step(n))) for n in range(3)]
        return [list(branch.join()) for branch in branches]

    assert (await told(run))[0] == [[0, 0], [1, 2], [2, 4]]
