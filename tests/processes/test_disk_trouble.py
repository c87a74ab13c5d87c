"""The disk says no for a while. Callers hear it, nothing is half written, and work goes on by itself afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, WorkflowNotFound
from backstay.engine import recovery
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable
from backstay.store.sqlite import writer

from . import flows
from .conftest import Place, whole
from .program import Remote, Told, eventually


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PATIENT", 100)
    monkeypatch.setattr(recovery, "PROBE", SECOND // 20)


MANY = 200


class Blocker:
    """Another program that holds the write lock of the file."""

    def __init__(self, place: Place) -> None:
        self._connection = sqlite3.connect(place.database, isolation_level=None, timeout=10)

    def block(self) -> None:
        self._connection.execute("begin immediate")

    def let_go(self) -> None:
        self._connection.execute("rollback")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def app(place: Place) -> Iterator[Backstay]:
    with Backstay(place.database, flows.REGISTER, guard="off") as app:
        yield app


@pytest.fixture
def blocker(app: Backstay, place: Place) -> Iterator[Blocker]:
    blocker = Blocker(place)
    yield blocker
    blocker.close()


def test_a_start_is_refused_and_leaves_no_trace(app: Backstay, place: Place, blocker: Blocker) -> None:
    blocker.block()
    for _ in range(3):
        with pytest.raises(Unavailable, match="write lock"):
            app.start(flows.visit, "v", place.ledger, "tea")
    assert app.list() == []
    with pytest.raises(WorkflowNotFound):
        app.describe("v")
    blocker.let_go()
    assert eventually("starts are accepted again", lambda: started(app, place, "v"))
    assert app.handle(flows.visit, "v").result(timeout=20) == "tea done"
    assert len(place.signed("tea")) == 1


def started(app: Backstay, place: Place, id: str) -> bool:
    try:
        app.start(flows.visit, id, place.ledger, "tea")
    except Unavailable:
        return False
    return True


def test_a_result_that_came_meanwhile_is_not_lost(app: Backstay, place: Place, blocker: Blocker) -> None:
    handle = app.start(flows.gated, "g", place.ledger, place.gate("gate"))
    eventually("the gate is reached", lambda: place.signed("gate"))
    blocker.block()
    with pytest.raises(Unavailable):
        app.start(flows.visit, "v", place.ledger, "tea")
    place.open_gate("gate")
    assert handle.describe().wait_kind == "activity", "reading goes on"
    with pytest.raises(Unavailable):
        app.start(flows.visit, "v", place.ledger, "tea")
    blocker.let_go()
    assert handle.result(timeout=20) == ["before done", "passed gate", "behind done"]
    assert [line.attempt for line in place.signed("gate")] == [1], "its result was kept, so it need not run again"


def test_a_local_activity_survives_it(app: Backstay, place: Place, blocker: Blocker) -> None:
    handle = app.start(flows.gated_beside, "g", place.ledger, place.gate("gate"))
    eventually("the gate is reached", lambda: place.signed("gate"))
    blocker.block()
    with pytest.raises(Unavailable):
        app.start(flows.visit, "v", place.ledger, "tea")
    place.open_gate("gate")
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.3)  # long enough for its completion to be refused
    blocker.let_go()
    assert handle.result(timeout=20) == ["passed gate", "behind done"]
    assert len(place.signed("behind")) == 1


def test_timers_that_fell_due_meanwhile_fire(app: Backstay, place: Place, blocker: Blocker) -> None:
    naps = [app.start(flows.nap, f"n-{n}", place.ledger, 0.05 + 0.01 * n) for n in range(10)]
    blocker.block()
    with pytest.raises(Unavailable):
        app.start(flows.visit, "v", place.ledger, "tea")
    with pytest.raises(TimeoutError):
        naps[-1].result(timeout=0.3)
    blocker.let_go()
    for nap in naps:
        assert nap.result(timeout=20) == f"{nap.id} done"
    assert len(place.signed()) == 10


def test_an_app_whose_database_is_locked_again_and_again_loses_nothing(
    app: Backstay, place: Place, blocker: Blocker
) -> None:
    handles = [app.start(flows.gated, f"g-{n}", place.ledger, place.gate(f"gate-{n}")) for n in range(6)]
    for n, handle in enumerate(handles):
        eventually("the gate is reached", lambda n=n: place.signed(f"gate-{n}"))
        blocker.block()
        with pytest.raises(Unavailable):
            app.start(flows.visit, f"v-{n}", place.ledger, "tea")
        place.open_gate(f"gate-{n}")
        blocker.let_go()
        assert handle.result(timeout=20)[-1] == "behind done"
    assert len(place.signed()) == len({line.key for line in place.signed()})


def test_a_short_wait_for_another_writer_is_no_trouble(
    app: Backstay, place: Place, blocker: Blocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENT", 20_000)
    with ThreadPoolExecutor(1) as pool:
        blocker.block()
        waiting = pool.submit(app.execute, flows.visit, "v", place.ledger, "tea")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        blocker.let_go()
        assert waiting.result(timeout=20) == "tea done"


def test_a_full_disk(remote: Callable[..., Remote], place: Place) -> None:
    app = remote().opened()
    app.ask("start", workflow="gated", id="g", args=[place.ledger, place.gate("gate")])
    eventually("the gate is reached", lambda: place.signed("gate"))
    app.ask("limit_files", size=Path(f"{place.database}-wal").stat().st_size)
    accepted = fill(app, place)
    assert accepted < MANY, "the log cannot grow, so it must be full some time"
    for _ in range(3):
        with pytest.raises(Told, match="Unavailable"):
            app.ask("start", workflow="visit", id="one-more", args=[place.ledger, "x"])
    place.open_gate("gate")
    assert app.ask("list")["g"] == "waiting"
    app.ask("limit_files", size=None)
    assert app.ask("result", workflow="gated", id="g") == ["before done", "passed gate", "behind done"]
    assert [line.attempt for line in place.signed("gate")] == [1]
    for n in range(accepted):
        assert app.ask("result", workflow="visit", id=f"v-{n}") == "x done", "what was accepted is done"
    assert len(app.ask("list")) == accepted + 1, "what was refused left no trace"
    assert whole(place)


def fill(app: Remote, place: Place) -> int:
    """Start workflows until one is refused. Returns how many were accepted."""
    for n in range(MANY):
        try:
            app.ask("start", workflow="visit", id=f"v-{n}", args=[place.ledger, "x"])
        except Told:
            return n
    return MANY


def test_a_result_is_kept_while_the_file_cannot_be_read(place: Place) -> None:
    with Backstay(place.database, flows.REGISTER, guard="off", cache_bytes=0) as app:  # nothing stays in memory
        handle = app.start(flows.gated, "g", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
        store: Any = app._app.store
        reader = store._reader
        reader.set_progress_handler(lambda: 1, 1)  # every read fails
        with pytest.raises(Unavailable):
            handle.describe()
        place.open_gate("gate")
        eventually("the activity has ended", lambda: not app._app.executor.holding)
        reader.set_progress_handler(None, 0)
        assert handle.result(timeout=20) == ["before done", "passed gate", "behind done"]
        assert [line.attempt for line in place.signed("gate")] == [1]
