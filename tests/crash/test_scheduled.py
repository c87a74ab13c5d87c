"""A schedule killed at every commit boundary: no fire is lost, none happens twice, and every close is heard of.

Between the commit that fires, the commit that starts, the commit that closes and the commit that hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstay.kernel.event import Recorded
from backstay.kernel.features.schedule import Schedule, of
from backstay.kernel.machine import Machine
from backstay.kernel.values import SCHEDULES
from backstay.store import RunFilter
from backstay.store.sqlite import SqliteStore

from ..selection import rotating
from .evidence import Evidence, fold, on_their_way
from .trial import KILLED, Trial
from .victim import RUNS, Side

MakeTrial = Callable[[str], Trial]
AtOnce = Callable[[Callable[[int], None], list[int]], None]

MACHINE = Machine()
MOST = 5  # boundaries per policy and side


def begun(trial: MakeTrial, name: str) -> Trial:
    one = trial(name).starting()
    (one.directory / "began").touch()
    return one


def schedule_on_disk(path: Path) -> tuple[Schedule, list[Recorded]] | None:
    """The schedule as an engine that comes up now would find it; consistent, whatever the moment."""
    store = SqliteStore(str(path), MACHINE.kinds)
    try:
        rows = store.runs(RunFilter(namespace=f"default{SCHEDULES}", limit=100)).value  # type: ignore[attr-defined]
        if not rows:
            return None
        (row,) = rows
        loaded = store.load(row.workflow).value  # type: ignore[attr-defined]
    finally:
        store.close()
    assert loaded is not None
    flow = fold(loaded)
    schedule = of(flow.current)
    assert schedule is not None
    expected = MACHINE.expect(flow)
    assert (expected.tasks, loaded.tasks) == ({}, [])
    assert loaded.row.next_wake == expected.next_wake
    assert loaded.row.unanswered == len(schedule.running) + len(schedule.owed)
    assert row.status == schedule.status
    return schedule, loaded.history


def concluded(one: Trial, remains: list[Any]) -> None:
    found: dict[str, Evidence] = one.conclude(remains)
    on_disk = schedule_on_disk(one.directory / "app.db")
    assert on_disk is not None
    schedule, history = on_disk
    fired: list[Any] = [entry.event for entry in history if entry.type == "ScheduleTriggered"]
    assert (schedule.status, schedule.fires_count, schedule.failures_count) == ("ended", RUNS, 0)
    assert [event.trigger_number for event in fired] == list(range(1, RUNS + 1))
    assert {event.workflow_instance_id for event in fired} == set(found), "each fire has its workflow, and only it"
    occurrences = [event.occurrence_time for event in fired]
    assert occurrences == sorted(set(occurrences))
    for event in fired:
        began: Any = found[event.workflow_instance_id].histories[0][2].event
        assert (began.trigger_number, began.occurrence_time) == (event.trigger_number, event.occurrence_time)


@pytest.mark.parametrize(
    ("policy", "side"),
    rotating([(p, s) for p in ("allow_all", "buffer_all") for s in ("before", "open", "after")], 2),
)
def test_a_kill_at_any_commit_loses_no_fire_and_repeats_none(
    policy: str, side: Side, trial: MakeTrial, at_once: AtOnce
) -> None:
    died: list[int] = []

    def kill_at(commit: int) -> None:
        one = begun(trial, f"{commit}")
        ended = one.live(schedule=policy, side=side, commit=commit, settle=True)
        if ended == KILLED:
            died.append(commit)
        else:
            assert ended == 0, one.log
        remains = one.examine()
        if (one.directory / "app.db").exists():
            schedule_on_disk(one.directory / "app.db")
        one.finish(schedule=policy, settle=True)
        concluded(one, [remains])

    at_once(kill_at, list(range(1, 2 * MOST, 2)))
    assert len(died) > MOST // 2


@pytest.mark.parametrize(("kind", "times"), [("StartFromSchedule", 3), ("ChildReport", 2)])
def test_a_send_of_a_schedule_on_disk_is_taken_once_after_its_process_is_killed(
    kind: str, times: int, trial: MakeTrial, at_once: AtOnce
) -> None:
    def kill_at(count: int) -> None:
        one = begun(trial, f"{count}")
        one.die(schedule="buffer_all", die_sending=(kind, count), settle=True)
        remains = one.examine()
        assert kind in {send.kind for send in on_their_way(one.directory / "app.db")}
        one.finish(schedule="buffer_all", settle=True)
        concluded(one, [remains])

    at_once(kill_at, list(range(1, times + 1)))
