"""History that was changed in the file: its run is unreadable and says so, and every other run goes on."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from backstay import Backstay
from backstay.kernel.event import HistoryDamaged

from . import flows
from .conftest import Place
from .program import eventually


def damage(place: Place, id: str, sequence: int = 2) -> int:
    """Change one event of a run behind the engine's back. Returns the key of the run."""
    with closing(sqlite3.connect(place.database, isolation_level=None, timeout=10)) as file:
        run = file.execute("select key from run where workflow_id = ?", (id,)).fetchone()[0]
        changed = file.execute(
            "update event set body = cast(body || ' ' as blob) where run = ? and sequence = ?",
            (run, sequence),
        )
        assert changed.rowcount == 1
    return run


def opened(place: Place) -> Backstay:
    return Backstay(place.database, flows.REGISTER, guard="off")


@pytest.fixture
def damaged(place: Place) -> Iterator[tuple[Backstay, int]]:
    """A run whose history was changed while nobody looked, and another one beside it."""
    with opened(place) as app:
        app.start(flows.gated, "broken", place.ledger, place.gate("gate"))
        app.start(flows.gated, "sound", place.ledger, place.gate("other"))
        eventually("the gates are reached", lambda: place.signed("gate") and place.signed("other"))
    run = damage(place, "broken")
    with opened(place) as app:
        yield app, run


def test_a_damaged_run_is_unreadable_and_named(damaged: tuple[Backstay, int]) -> None:
    app, run = damaged
    for look in (
        lambda: app.describe("broken"),
        lambda: app.history("broken"),
        lambda: app.handle(flows.gated, "broken").result(timeout=5),
        lambda: app.handle(flows.gated, "broken").repair(),
    ):
        with pytest.raises(HistoryDamaged, match=r"workflow 'broken', run \w{26}, is damaged at event 2") as caught:
            look()
        assert (caught.value.run, caught.value.sequence, caught.value.workflow_id) == (run, 2, "broken")


def test_other_runs_go_on_beside_a_damaged_one(damaged: tuple[Backstay, int], place: Place) -> None:
    app, _ = damaged
    place.open_gate("gate")
    place.open_gate("other")
    assert app.handle(flows.gated, "sound").result(timeout=20)[-1] == "behind done"
    assert app.execute(flows.visit, "new", place.ledger, "tea") == "tea done"
    assert {row.workflow_id: row.status for row in app.list()} == {
        "broken": "waiting",
        "sound": "completed",
        "new": "completed",
    }
    assert len(place.signed("gate")) == 1, "nothing is replayed or run from damaged history"


def test_a_run_that_is_damaged_while_its_activity_runs_stops_alone(place: Place) -> None:
    with opened(place) as app:
        app.start(flows.gated, "broken", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
    with opened(place) as app:  # this engine has read the history, and will read it again to replay it
        eventually("the gate is reached again", lambda: len(place.signed("gate")) == 2)
        damage(place, "broken")
        place.open_gate("gate")
        with pytest.raises(HistoryDamaged):
            eventually("the damage is noticed", lambda: app.describe("broken") and False, 5)
        for n in range(20):
            assert app.execute(flows.visit, f"v-{n}", place.ledger, "tea") == "tea done"
        assert place.signed("behind") == []


def test_a_missing_event_is_damage_too(place: Place) -> None:
    with opened(place) as app:
        app.start(flows.gated, "broken", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
    with closing(sqlite3.connect(place.database, isolation_level=None)) as file:
        file.execute("delete from event where sequence = (select max(sequence) from event)")
    with opened(place) as app, pytest.raises(HistoryDamaged, match="missing"):
        app.describe("broken")


@pytest.mark.parametrize("body", [{"routing": {"queue": 5}}, {"type": 5}, {"id": 5}, None])
def test_a_task_that_cannot_be_read_is_a_lost_one_and_stops_no_other_run(
    place: Place, body: dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(place) as app:
        app.start(flows.gated, "broken", place.ledger, place.gate("gate"))
        app.start(flows.gated, "sound", place.ledger, place.gate("other"))
        eventually("the gates are reached", lambda: place.signed("gate") and place.signed("other"))
    with closing(sqlite3.connect(place.database, isolation_level=None)) as file:
        whose = "workflow = (select workflow from run where workflow_id = 'broken')"
        (task,) = file.execute(f"select body from task where {whose}").fetchone()
        changed = b"no task" if body is None else json.dumps(json.loads(task) | body).encode()
        file.execute(f"update task set body = ? where {whose}", (changed,))
    place.open_gate("gate")
    place.open_gate("other")
    with caplog.at_level(logging.ERROR, "backstay"), opened(place) as app:
        assert app.handle(flows.gated, "sound").result(timeout=20)[-1] == "behind done"
        broken = app.handle(flows.gated, "broken")
        if body is None or "id" in body:  # else the engine that opens the file finds it by itself
            assert broken.history()[-1].type == "ActivityStarted", "its history is whole"
            broken.repair()
        assert broken.result(timeout=20)[-1] == "behind done", "a row that cannot be read is written again"
        assert len(place.signed("behind")) == 2
    assert any("cannot be read" in line for line in caplog.messages)


def test_damage_found_in_a_flush_does_not_hold_up_what_else_is_in_it(place: Place) -> None:
    """The result that arrives is recorded; only the replay that it calls for is refused."""
    with opened(place) as app:
        app.start(flows.gated, "broken", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
    with opened(place):
        eventually("the gate is reached again", lambda: len(place.signed("gate")) == 2)
        damage(place, "broken")
        with closing(sqlite3.connect(place.database, isolation_level=None, timeout=10)) as file:
            count = "select count(*) from event where type = 'ActivityCompleted'"
            place.open_gate("gate")
            eventually("it is on disk", lambda: file.execute(count).fetchone()[0] == 2, 3)
