"""A `gather` of any size, and one whose failures are results. Told by live code and by code that is replayed after every task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay import ActivityTimedOut, WorkflowFailed, activity, gather, sleep, spawn, wait, workflow
from backstay.kernel.event import Recorded
from backstay.kernel.limits import Limits
from backstay.sdk.author import group

from .kit import blocked, events, evicting, memory, names

NARROW = Limits(pending_activity_count=20, pending_child_count=20, pending_timer_count=20, command_batch_size=20)


@activity(type="wide.echo")
def echo(n: int) -> int:
    return n


@activity(type="wide.odd")
def odd(n: int) -> int:
    if n % 2 == 0:
        raise LookupError(f"{n} is even")
    return n


@activity(type="wide.slow", timeout=0.02)
async def slow() -> None:
    await asyncio.Event().wait()


@workflow(type="wide.double")
def double(n: int) -> int:
    return 2 * echo(n)


FAMILY = [echo, odd, slow, double]


def most_open(history: list[Recorded]) -> int:
    """How many activities were scheduled and not ended at a time."""
    opened = most = 0
    for entry in history:
        if entry.type == "ActivityScheduled":
            opened += 1
        elif entry.type in ("ActivityCompleted", "ActivityFailed"):
            opened -= 1
        most = max(most, opened)
    return most


@pytest.mark.parametrize("limit", [None, 50])
@pytest.mark.one_server("three servers and a balancer in one process take too long for it")
async def test_five_thousand_members_are_no_more_than_a_run_may_have_open(limit: int | None) -> None:
    @workflow
    def fan_out() -> int:
        return sum(gather((echo.step(n) for n in range(5_000)), limit=limit))

    async with memory(fan_out, *FAMILY) as app:
        assert await app.execute(fan_out, "wide") == sum(range(5_000))
        history = await app.history("wide")
    assert len(events(history, "ActivityCompleted")) == 5_000
    assert most_open(history) <= 500


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
@pytest.mark.parametrize("limit", [None, 3, 15])
async def test_a_window_goes_on_whatever_its_members_are(make: Any, limit: int | None) -> None:
    @workflow
    def fan_out() -> list[Any]:
        return [
            gather([echo.step(n) for n in range(70)], limit=limit),
            gather([double.step(n) for n in range(25)], limit=limit),
            gather([sleep.step(0.001) for _ in range(25)], limit=limit),
            gather({str(n): (lambda n=n: echo(n) + 1) for n in range(30)}, limit=limit),
            gather((gather.step(echo.step(n) for n in range(m, m + 7)) for m in range(0, 70, 7)), limit=limit),
        ]

    async with make(fan_out, *FAMILY, limits=NARROW) as app:
        assert await app.execute(fan_out, "wide") == [
            list(range(70)),
            [2 * n for n in range(25)],
            [None] * 25,
            {str(n): n + 1 for n in range(30)},
            [list(range(m, m + 7)) for m in range(0, 70, 7)],
        ]
        assert most_open(await app.history("wide")) <= 10


async def test_a_bounded_group_has_no_more_in_flight_than_its_limit_however_large_it_is() -> None:
    flying: set[int] = set()
    most = 0

    @activity
    async def busy(n: int) -> int:
        nonlocal most
        flying.add(n)
        most = max(most, len(flying))
        await asyncio.sleep(0)
        flying.discard(n)
        return n

    @workflow
    def fan_out() -> int:
        return len(gather([busy.step(n) for n in range(300)], limit=4))

    async with memory(fan_out, busy) as app:
        assert await app.execute(fan_out, "wide") == 300
        assert most_open(await app.history("wide")) <= group.FEW
    assert most == 4


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_the_steps_of_other_strands_stand_between_those_of_a_window(make: Any) -> None:
    @workflow(signals=["go"])
    async def fan_out() -> list[Any]:
        async def beside() -> int:
            return sum([await gather.step(echo.step(n), echo.step(n)) == (n, n) for n in range(20)])

        task = asyncio.get_running_loop().create_task(beside())
        wide = await gather.step([echo.step(n) for n in range(100)], limit=2)
        heard = await wait.step("go")
        return [wide, await task, heard]

    async with make(fan_out, *FAMILY, limits=NARROW) as app:
        handle = await app.start(fan_out, "wide")
        await handle.signal("go", "on")
        assert await handle.result() == [list(range(100)), 20, "on"]


async def test_two_wide_groups_of_one_run_do_not_get_in_each_others_way() -> None:
    @workflow
    def fan_out() -> int:
        half = spawn(lambda: sum(gather([echo.step(n) for n in range(60)])))
        return sum(gather([echo.step(n) for n in range(60)])) + half.join()

    for make in (memory, evicting):
        async with make(fan_out, *FAMILY, limits=NARROW) as app:
            assert await app.execute(fan_out, "wide") == 2 * sum(range(60))


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_the_first_failure_ends_a_wide_group_and_nothing_more_is_asked_for(make: Any) -> None:
    @workflow
    def fan_out() -> str:
        try:
            gather([odd.step(2 * n + 1) for n in range(12)] + [odd.step(0)] + [echo.step(n) for n in range(60)])
        except LookupError as error:
            sleep(0.01)
            return str(error)
        return "nothing failed"

    async with make(fan_out, *FAMILY, limits=NARROW) as app:
        assert await app.execute(fan_out, "wide") == "0 is even"
        told = names(await app.history("wide"))
        assert "ActivityScheduled" not in told[told.index("TimerScheduled") :]
        assert told.count("ActivityScheduled") < 73


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
@pytest.mark.parametrize("count", [5, 60])
async def test_failures_are_results_if_they_are_asked_for(make: Any, count: int) -> None:
    @workflow
    def fan_out() -> list[Any]:
        found = gather((odd.step(n) for n in range(count)), limit=3, return_exceptions=True)
        return [str(one) if isinstance(one, LookupError) else one for one in found]

    async with make(fan_out, *FAMILY, limits=NARROW) as app:
        assert await app.execute(fan_out, "wide") == [n if n % 2 else f"{n} is even" for n in range(count)]
        history = await app.history("wide")
    assert len(events(history, "FailureHandled")) == len(events(history, "ActivityFailed")) == (count + 1) // 2
    if count == 5:
        wakes = {entry.context.decided_after for entry in history if entry.context.decided_after is not None}
        assert len(wakes) == 2  # at the beginning and at the end, not for each failure


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_every_kind_of_failure_is_a_result(make: Any) -> None:
    @workflow
    def broken() -> None:
        raise KeyError("child")

    @workflow
    def fan_out() -> list[str]:
        def misread() -> int:
            return echo(1) // 0

        found = gather(slow.step(), broken.step(), misread, sleep.step(0), return_exceptions=True)
        assert isinstance(found[0], ActivityTimedOut)
        return [type(one).__name__ for one in found]

    async with make(fan_out, broken, *FAMILY) as app:
        assert await app.execute(fan_out, "run") == ["ActivityTimedOut", "KeyError", "ZeroDivisionError", "NoneType"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_a_group_inside_takes_its_own_failures_or_hands_them_on(make: Any) -> None:
    @workflow
    def fan_out() -> list[Any]:
        inside = gather.step(odd.step(1), odd.step(2), return_exceptions=True)
        kept = gather(inside, odd.step(3))
        handed_on = gather(gather.step(odd.step(1), odd.step(2)), odd.step(3), return_exceptions=True)
        try:
            gather(gather.step(odd.step(0), odd.step(1), return_exceptions=True), odd.step(4))
        except LookupError as error:
            return [kept[0][0], str(kept[0][1]), kept[1], str(handed_on[0]), handed_on[1], str(error)]
        return []

    async with make(fan_out, *FAMILY) as app:
        assert await app.execute(fan_out, "run") == [1, "2 is even", 3, "2 is even", 3, "4 is even"]


async def test_a_failure_beside_a_group_that_keeps_its_own_ends_the_whole_at_once() -> None:
    @workflow(signals=["go"])
    def fan_out() -> str:
        inside = gather.step(odd.step(0), sleep.step("1h"), return_exceptions=True)
        branch = spawn(lambda: wait("go"))
        try:
            gather(inside, gather.step(sleep.step(0.02), odd.step(1)), gather.step(double.step(1), odd.step(2)))
        except LookupError as error:
            return f"{error} {branch.done}"
        return ""

    async with memory(fan_out, *FAMILY) as app:
        assert await app.execute(fan_out, "run") == "2 is even False"


async def test_a_history_that_has_all_members_at_once_is_replayed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow(signals=["go"])
    def fan_out() -> list[int]:
        found = gather([echo.step(n) for n in range(400)], limit=2)
        wait("go")
        return found

    monkeypatch.setattr(group, "FEW", 1_000)
    async with evicting(fan_out, *FAMILY) as app:
        handle = await app.start(fan_out, "wide")
        while (await app.describe("wide")).status != "waiting" or len(await app.history("wide")) < 1_202:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(group, "FEW", 100)  # less than that history has at once
        await handle.signal("go", None)
        assert await handle.result() == list(range(400))


@pytest.mark.embedded("the limits are the server's own")
async def test_code_that_asks_for_another_group_than_history_has_is_blocked_in_a_later_window() -> None:
    last: dict[str, Any] = {"echo": echo}

    @workflow(signals=["go"])
    def fan_out() -> int:
        found = gather([echo.step(n) for n in range(39)] + [last["echo"].step(39)])
        wait("go")
        return len(found)

    async with evicting(fan_out, *FAMILY, limits=NARROW) as app:
        handle = await app.start(fan_out, "wide")
        while "SignalWaitOpened" not in names(await app.history("wide")):
            await asyncio.sleep(0.005)
        last["echo"] = odd
        await handle.signal("go", None)
        block = (await blocked(app, "wide")).tasks[0].task.block
        assert block is not None
        assert "history has activity wide.echo, the code asked for activity wide.odd" in block.message


@pytest.mark.embedded("the limits are the server's own")
async def test_a_run_with_too_many_open_steps_says_what_to_do() -> None:
    @workflow
    def fan_out() -> None:
        for branch in [spawn(lambda: echo(1)) for _ in range(21)]:
            branch.join()

    async with memory(fan_out, *FAMILY, limits=NARROW) as app:
        with pytest.raises(WorkflowFailed, match="the limit is 20; wait for some of them before the code starts"):
            await app.execute(fan_out, "wide")


async def test_failures_are_results_outside_workflows_too() -> None:
    found = gather(lambda: echo(1), odd.step(2), return_exceptions=True)
    assert found[0] == 1
    assert isinstance(found[1], LookupError)
