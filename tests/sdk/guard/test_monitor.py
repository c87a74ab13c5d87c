"""Calls that workflow code makes under another name. Python 3.12 and newer."""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from backstay import NonDeterminismError, NonDeterminismWarning, activity, rng, side_effect, sleep, workflow
from backstay.sdk.replay.guard import monitor

from ..kit import evicting, memory

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")

judged: list[str] = []


@pytest.fixture(autouse=True)
def _judged(monkeypatch: pytest.MonkeyPatch) -> None:
    judged.clear()
    judge = monitor._judge

    def noted(target: object, bare: bool) -> Any:
        judged.append(getattr(target, "__name__", repr(target)))
        return judge(target, bare)

    monkeypatch.setattr(monitor, "_judge", noted)


class Tools:
    """Attributes of an instance: the source check cannot know what they are."""

    def __init__(self) -> None:
        self.calendar = datetime
        self.clock = time.time
        self.choose = random.choice
        self.draw = random.random
        self.thrown = random.Random(3).random
        self.calm = str.upper


tools = Tools()


@workflow(type="named")
def named(name: str) -> str:
    calendar, clock, choose, calm = tools.calendar, tools.clock, tools.choose, tools.calm
    draw, thrown = tools.draw, tools.thrown
    try:
        match name:
            case "datetime.datetime.now":
                calendar.now(UTC)
            case "time.time":
                clock()
            case "random.choice":
                choose([1])
            case "random.random":
                draw()
            case "random.Random.random":
                thrown()
            case _:
                return calm("clean")
    except NonDeterminismError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("datetime.datetime.now", "use backstay.now()"),
        ("time.time", "use backstay.now()"),
        ("random.choice", "use backstay.rng()"),
        ("random.random", "use backstay.rng()"),
        ("random.Random.random", "use backstay.rng()"),
    ],
)
async def test_an_alias_is_seen_through(call: str, advice: str) -> None:
    async with memory(named, guard="error") as app:
        message = await app.execute(named, "w", call)
    assert message.startswith(__file__)
    assert message.endswith(f": {call}() inside a workflow; {advice}")


async def test_a_clean_call_is_left_alone() -> None:
    async with memory(named, guard="error") as app:
        assert await app.execute(named, "w", "other") == "CLEAN"


@workflow(type="dice")
def dice() -> bool:
    mine = random.Random(6)
    return rng().randint(1, 6) in range(1, 7) and mine.choice([6]) == 6 and mine.random() < 1


async def test_a_generator_of_the_runs_own_is_left_alone() -> None:
    async with memory(dice, guard="error") as app:
        assert await app.execute(dice, "w")


def helper() -> float:
    clock = tools.clock
    return clock()


@activity(type="measure")
def measure() -> float:
    return helper()


@workflow(type="helped")
def helped() -> str:
    measure()
    side_effect(lambda: tools.clock())
    try:
        return str(helper())
    except NonDeterminismError as error:
        return str(error)


async def test_a_helper_is_watched_where_a_workflow_calls_it_and_nowhere_else() -> None:
    async with memory(helped, measure, guard="error") as app:
        for n in range(2):
            assert "time.time() inside a workflow" in await app.execute(helped, f"w{n}")
        assert helper() > 0


@workflow(type="looping")
def looping() -> int:
    total = 0
    for n in range(1000):
        total += max(n, 0)
    return total


async def test_a_clean_call_site_is_looked_at_once() -> None:
    async with memory(looping, guard="error") as app:
        for n in range(3):
            assert await app.execute(looping, f"w{n}") == 499_500
    assert judged.count("max") == 1


@workflow(type="warned")
def warned() -> str:
    for _ in range(3):
        clock = tools.clock
        clock()
        sleep(0)
    return "done"


async def test_a_warning_comes_once() -> None:
    async with evicting(warned) as app:
        with pytest.warns(
            NonDeterminismWarning, match=r"time.time\(\) inside a workflow; use backstay.now\(\)"
        ) as seen:
            assert await app.execute(warned, "w") == "done"
    assert len(seen) == 1
