"""Kills at any time and in a row: under load, among sleepers, in the middle of activities, during many starts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ..selection import rotating
from .trial import Trial
from .workflows import STORIES

MakeTrial = Callable[[str], Trial]

SOON = 8.0  # seconds a restart may take on a busy machine; a lease would take five minutes


@pytest.mark.contract("REPLAY-01", "LEASE-16", "REPLAY-11")
@pytest.mark.parametrize("seed", rotating(range(6), 2))
def test_random_kills_under_load_lose_and_double_nothing(seed: int, trial: MakeTrial) -> None:
    chance = random.Random(seed)
    busy = trial("busy").starting(
        *((story.workflow.type, f"{story.name}-{n}", _apart(story.args, n)) for story in STORIES for n in range(4))
    )
    remains = []
    for _ in range(3):
        busy.live(after_seconds=chance.uniform(0.05, 0.6))
        remains.append(busy.examine())
    results = busy.finish().results
    for story in STORIES:
        first, *others = (results[f"{story.name}-{n}"] for n in range(4))
        assert all(other == first for other in others)
    busy.conclude(remains)


def _apart(args: tuple[Any, ...], number: int) -> list[Any]:
    """Each has a file of its own where the story keeps one."""
    return [arg.replace("{dir}/", f"{{dir}}/{number}-") if isinstance(arg, str) else arg for arg in args]


@pytest.mark.contract("REPLAY-01")
def test_two_hundred_sleepers_all_wake_once_after_a_kill(trial: MakeTrial) -> None:
    dormitory = trial("dormitory").starting(*(("nap", f"nap-{n}", [0.5, n]) for n in range(200)))
    dormitory.die(die_started=True)
    remains = dormitory.examine()
    results = dormitory.finish().results
    assert results == {f"nap-{n}": f"booked breakfast {n}" for n in range(200)}
    found = dormitory.conclude([remains])
    for evidence in found.values():
        assert evidence.types().count("TimerFired") == 1
    # After the kill nobody was disturbed again: whoever had breakfast then, had it exactly once.
    assert set(Counter(line.key for line in dormitory.ledger[remains.lines :]).values()) == {1}
    assert len({line.key for line in dormitory.ledger}) == 200


@pytest.mark.contract("REPLAY-01", "LEASE-15")
def test_five_kills_in_a_row_still_lead_to_the_end(trial: MakeTrial) -> None:
    road = trial("road").starting(("long_way", "road", [14]))
    remains = []
    for kill in range(5):
        road.die(side="after" if kill % 2 else "open", commit=3)
        remains.append(road.examine())
    assert road.finish().results == {"road": sum(len(f"booked leg {leg}") for leg in range(14))}
    road.conclude(remains)


def test_a_kill_right_after_opening_changes_nothing(trial: MakeTrial) -> None:
    door = trial("door").starting(("order", "order", ["a book"]))
    for _ in range(5):
        door.die(side="before", commit=1)
    door.finish()
    door.conclude([])


@pytest.mark.contract("MATCH-05", "REPAIR-18", "REPLAY-11")
def test_after_a_kill_in_an_activity_it_is_delivered_again_at_once(trial: MakeTrial) -> None:
    stop = trial("stop").starting(("gated", "gated", ["{dir}/gate"]))
    stop.die(die_at="held")
    remains = stop.examine()
    (stop.directory / "gate").touch()
    began = time.monotonic()
    assert stop.finish().results == {"gated": ["booked a seat", "let go", "booked a taxi"]}
    assert time.monotonic() - began < SOON
    evidence = stop.conclude([remains])["gated"]
    deliveries = [e for e in evidence.events if e.type == "ActivityStarted" and e.event.activity_type == "held"]  # type: ignore[attr-defined]
    assert [e.event.attempt_number for e in deliveries] == [1, 2]  # type: ignore[attr-defined]
    assert len({e.context.task_id for e in deliveries}) == 1, "the same task, delivered again"
    assert [line.attempt for line in stop.ledger if line.what == "held"] == [1, 2]


@pytest.mark.contract("REPAIR-18", "LEASE-15")
def test_after_a_kill_in_a_local_activity_its_task_is_delivered_again_at_once(trial: MakeTrial) -> None:
    stop = trial("stop").starting(("gated_beside", "gated", ["{dir}/gate"]))
    stop.die(die_at="held_beside")
    stop.examine()
    (stop.directory / "gate").touch()
    began = time.monotonic()
    assert stop.finish().results == {"gated": ["let go", "booked a taxi"]}
    assert time.monotonic() - began < SOON
    stop.conclude([])


def test_lost_leases_do_not_use_up_the_retries(trial: MakeTrial) -> None:
    luckless = trial("luckless").starting(("patient", "patient", ["{dir}/gate"]))
    luckless.die(die_at="stubborn")
    luckless.die(die_at="stubborn")
    (luckless.directory / "gate").touch()
    assert luckless.finish().results == {"patient": "at last"}
    assert [line.attempt for line in luckless.ledger] == [1, 2, 3, 4, 5]


@pytest.mark.contract("START-04")
@pytest.mark.parametrize("seed", rotating(range(4), 2))
def test_a_kill_during_many_starts_leaves_no_half_of_one(seed: int, trial: MakeTrial) -> None:
    chance = random.Random(100 + seed)
    crowd = trial("crowd").starting(*(("nap", f"nap-{n}", [0.0, n]) for n in range(60)))
    crowd.die(side=chance.choice(["before", "open", "after"]), commit=chance.randrange(3, 40))
    remains = crowd.examine()  # every run has its start command, and a task or history that goes on
    assert len(crowd.finish().results) == 60
    crowd.conclude([remains])
