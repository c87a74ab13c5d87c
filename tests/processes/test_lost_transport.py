"""Task rows and wakes are transport: history says what must happen. Whatever of them is lost is found again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import pytest

from backstay import Backstay
from backstay.engine.core import sweep
from backstay.kernel.values import SECOND

from . import flows
from .conftest import Place
from .program import eventually


@pytest.fixture(autouse=True)
def _keen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SWEEP", SECOND // 10)
    monkeypatch.setattr(sweep, "SWEEP_IDLE", SECOND // 10)


def opened(place: Place, *, client_only: bool = False) -> Backstay:
    return Backstay(place.database, flows.REGISTER, guard="off", client_only=client_only)


@contextmanager
def surgery(place: Place) -> Iterator[sqlite3.Connection]:
    """The file, open to be cut."""
    with closing(sqlite3.connect(place.database, isolation_level=None, timeout=10)) as file:
        yield file


def task_ids(place: Place) -> list[str]:
    with surgery(place) as file:
        return [id for (id,) in file.execute("select id from task order by id")]


def lose_tasks(place: Place) -> list[str]:
    lost = task_ids(place)
    with surgery(place) as file:
        file.execute("delete from task")
    assert lost
    return lost


@pytest.mark.contract("REPAIR-04", "REPAIR-19")
def test_a_lost_workflow_task_is_found_by_the_sweep(place: Place) -> None:
    with opened(place, client_only=True) as app:
        app.start(flows.visit, "v", place.ledger, "tea")
    lose_tasks(place)
    with opened(place) as app:
        assert app.handle(flows.visit, "v").result(timeout=20) == "tea done"
    assert len(place.signed("tea")) == 1


@pytest.mark.contract("REPAIR-04", "REPAIR-15")
def test_a_lost_workflow_task_is_restored_by_a_repair_as_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SWEEP", 600 * SECOND)
    with opened(place, client_only=True) as app:
        app.start(flows.visit, "v", place.ledger, "tea")
    with opened(place, client_only=True) as app:
        before = app.describe("v").tasks[0].task
    lost = lose_tasks(place)
    with opened(place, client_only=True) as app:
        assert app.describe("v").liveness_state == "repair_needed"
        assert app.handle(flows.visit, "v").repair().restored == lost
        after = app.describe("v").tasks[0].task
    assert msgspec.structs.replace(after, repair_count=before.repair_count) == before


@pytest.mark.contract("REPAIR-08", "REPAIR-19", "REPAIR-21")
def test_a_lost_activity_task_is_found_by_the_sweep(place: Place) -> None:
    with opened(place) as app:
        app.start(flows.gated, "g", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
    lose_tasks(place)
    place.open_gate("gate")
    with opened(place) as app:
        assert app.handle(flows.gated, "g").result(timeout=20) == ["before done", "passed gate", "behind done"]
    assert [line.attempt for line in place.signed("gate")] == [1, 2]
    assert len({line.key for line in place.signed("gate")}) == 1, "the same execution"
    assert len(place.signed("before")) == 1


@pytest.mark.contract("REPAIR-08")
def test_a_lost_activity_task_that_no_worker_had_started_is_restored(place: Place) -> None:
    with Backstay(place.database, [flows.visit], guard="off") as app:  # runs workflows, but not this activity
        app.start(flows.visit, "v", place.ledger, "tea")
        eventually("it is scheduled", lambda: app.describe("v").wait_kind == "activity")
    lost = lose_tasks(place)
    with opened(place, client_only=True) as app:
        restored = app.handle(flows.visit, "v").repair().restored
        found = eventually("it is there again", lambda: [view.task.id for view in app.describe("v").tasks])
        assert found == lost
        assert restored in (lost, []), "by the repair, or by a sweep that came before it"
    with opened(place) as app:
        assert app.handle(flows.visit, "v").result(timeout=20) == "tea done"


@pytest.mark.contract("REPAIR-09")
def test_a_lost_wake_is_restored_by_a_repair_with_its_deadline(place: Place) -> None:
    deadline = lose_the_wake(place)
    with opened(place) as app:
        app.handle(flows.nap, "n").repair()
        assert app.describe("n").next_wake in (deadline, None), "None: it has fired already"
        assert app.handle(flows.nap, "n").result(timeout=20) == "n done"
        fired = next(entry for entry in app.history("n") if entry.type == "TimerFired")
        assert fired.at >= deadline


def test_a_lost_wake_is_found_by_the_sweep(place: Place) -> None:
    lose_the_wake(place)
    with opened(place) as app:
        assert app.handle(flows.nap, "n").result(timeout=5) == "n done"


def lose_the_wake(place: Place) -> int:
    with opened(place) as app:
        app.start(flows.nap, "n", place.ledger, 1.0)
        deadline = app.describe("n").next_wake
        assert deadline is not None
    with surgery(place) as file:
        assert file.execute("update workflow set next_wake = null").rowcount == 1
    return deadline


@pytest.mark.contract("REPLAY-11", "REPAIR-18", "REPAIR-19", "MATCH-01")
def test_runs_go_on_from_history_when_all_their_tasks_are_lost_at_once(place: Place) -> None:
    with opened(place) as app:
        for n in range(5):
            app.start(flows.gated, f"g-{n}", place.ledger, place.gate("gate"))
        eventually("the gate is reached by all", lambda: len(place.signed("gate")) == 5)
    with opened(place, client_only=True) as app:
        for n in range(5):
            app.start(flows.visit, f"v-{n}", place.ledger, "tea")
    lose_tasks(place)
    place.open_gate("gate")
    with opened(place) as app:
        for n in range(5):
            assert app.handle(flows.gated, f"g-{n}").result(timeout=20)[-1] == "behind done"
            assert app.handle(flows.visit, f"v-{n}").result(timeout=20) == "tea done"
    for name, times in (("before", 5), ("behind", 5), ("tea", 5), ("gate", 10)):
        assert len(place.signed(name)) == times
    assert task_ids(place) == []


@pytest.mark.contract("REPAIR-13", "REPAIR-20")
def test_a_running_activity_whose_row_is_lost_runs_once(place: Place) -> None:
    with opened(place, client_only=True) as app:
        app.start(flows.visit, "v", place.ledger, "tea")
    with Backstay(place.database, [flows.gated, flows.stamp, flows.pass_gate], guard="off") as app:
        app.start(flows.gated, "g", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
        lost = lose_tasks(place)
        assert len(lost) == 2
        # The other lost row comes back: the sweep has been here.
        eventually("the sweep has passed", lambda: app.describe("v").tasks)
        assert app.describe("g").liveness_state == "activity_running_without_task"
        assert app.handle(flows.gated, "g").repair().changed is False
        place.open_gate("gate")
        assert app.handle(flows.gated, "g").result(timeout=20)[-1] == "behind done"
    assert [line.attempt for line in place.signed("gate")] == [1]


@pytest.mark.contract("ACT-28", "ACT-29")
def test_a_row_marked_completed_is_no_result(place: Place) -> None:
    with opened(place) as app:
        app.start(flows.gated, "g", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
    with surgery(place) as file:
        file.execute("update task set state = 'completed'")
    with opened(place) as app:
        handle = app.handle(flows.gated, "g")
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.3)
        assert handle.history()[-1].type == "ActivityStarted"
        assert handle.describe().wait_kind == "activity"
        place.open_gate("gate")
        handle.repair()
        assert handle.result(timeout=20) == ["before done", "passed gate", "behind done"]


@pytest.mark.contract("ACT-31")
def test_a_stray_row_is_no_result(place: Place) -> None:
    with opened(place) as app:
        app.start(flows.gated, "g", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
    with surgery(place) as file:
        workflow, id, body = file.execute("select workflow, id, body from task").fetchone()
        stray = msgspec.json.decode(body) | {"id": f"{id}9", "step": 3}
        file.execute(
            "insert into task (workflow, id, state, available_at, body) values (?, ?, 'completed', 0, ?)",
            (workflow, stray["id"], msgspec.json.encode(stray)),
        )
    with opened(place) as app:
        handle = app.handle(flows.gated, "g")
        eventually("the stray row is gone", lambda: len(task_ids(place)) == 1)
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.3)
        assert handle.describe().wait_kind == "activity"
        place.open_gate("gate")
        assert handle.result(timeout=20) == ["before done", "passed gate", "behind done"]
    assert len(place.signed("behind")) == 1
