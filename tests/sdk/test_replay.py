"""Replaying what is recorded with new code: which open runs it would block, before it is deployed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    Backstay,
    Signal,
    WorkflowNotFound,
    activity,
    patched,
    signal,
    sleep,
    wait,
    workflow,
)

from .kit import eventually

ran: list[str] = []
go = Signal[int]("go")


@activity(type="check")
def check(item: str) -> str:
    ran.append(item)
    return f"checked {item}"


@activity(type="invoice")
def invoice(item: str) -> str:
    ran.append(f"invoice {item}")
    return f"invoiced {item}"


def first() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        check(item)
        sleep("30d")
        return check(item)

    return order


def with_invoice() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        check(item)
        invoice(item)
        sleep("30d")
        return check(item)

    return order


def with_patch() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        check(item)
        if patched("invoice"):
            invoice(item)
        sleep("30d")
        return check(item)

    return order


def that_ends() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        return check(item)

    return order


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with an order that sleeps, and one that has ended."""
    path = tmp_path / "shop.db"
    done = workflow(type="done")(lambda: 3)
    with Backstay(path, register=[first(), done, check]) as backstay:
        handle = backstay.start(first(), "o-1", "book")
        backstay.execute(done, "d-1")
        while handle.describe().wait_kind != "timer":
            pass
    ran.clear()
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("release", "fits"), [(first, True), (with_invoice, False), (with_patch, True), (that_ends, False)]
)
def test_a_run_that_sleeps_is_held_against_new_code_and_nothing_is_written(
    path: Path, release: Any, fits: bool
) -> None:
    before = digest(path)
    found = Backstay(path, register=[release(), check, invoice]).replay()
    assert found.runs == 1
    assert [run.workflow_id for run in found.blocked] == ([] if fits else ["o-1"])
    assert digest(path) == before
    assert ran == []


def test_a_replay_difference_is_shown_side_by_side(path: Path) -> None:
    (run,) = Backstay(path, register=[with_invoice(), check, invoice]).replay().blocked
    assert run.message == "replay diverged at step 2: history has timer, the code asked for activity invoice"
    assert run.difference == [("1: activity check", "activity check"), ("2: timer", "activity invoice")]
    assert str(run).splitlines()[-2:] == [
        "  1: activity check | activity check",
        "  2: timer          | activity invoice",
    ]


def test_code_that_is_not_there_fits_nothing(path: Path) -> None:
    found = Backstay(path, register=[check]).replay()
    assert [run.message for run in found.blocked] == ["no workflow of type 'order' is registered"]
    assert str(found).startswith("1 runs replayed, 1 would be blocked\nworkflow o-1 (order) would be blocked: no")


def test_runs_can_be_named_also_those_that_have_ended(path: Path) -> None:
    other = workflow(type="done")(lambda: check("x"))
    app = Backstay(path, register=[with_invoice(), other, check, invoice])
    assert app.replay("d-1").runs == 1
    assert [run.workflow_id for run in app.replay("o-1", "d-1").blocked] == ["o-1"]
    with pytest.raises(WorkflowNotFound):
        app.replay("nobody")


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Backstay(tmp_path / "none.db").replay()
    assert not list(tmp_path.iterdir())


async def test_an_app_that_is_open_can_replay_too(path: Path) -> None:
    async with AsyncBackstay(path, register=[with_invoice(), check, invoice], client_only=True) as app:
        assert [run.workflow_id for run in (await app.replay()).blocked] == ["o-1"]
    app = AsyncBackstay(path, register=[first(), check])
    assert not (await app.replay()).blocked


async def test_signals_conditions_and_side_effects_are_met_as_they_were(tmp_path: Path) -> None:
    def release(more: bool) -> Any:
        @workflow(type="talks")
        class Talks:
            def __init__(self) -> None:
                self.total = 0

            def handle(self) -> int:
                wait(lambda: self.total > 2)
                check("x") if more else None
                wait(go)
                return self.total

            @signal
            def add(self, n: int) -> None:
                self.total += n

        return Talks

    path = tmp_path / "t.db"
    async with AsyncBackstay(path, register=[release(False)]) as app:
        handle = await app.start(release(False), "t-1")
        await handle.signal("add", 2)
        await handle.signal("add", 3)

        async def waits() -> bool:
            return (await handle.describe()).wait_kind == "signal"

        await eventually(waits)
    assert not (await AsyncBackstay(path, register=[release(False)]).replay()).blocked
    (run,) = (await AsyncBackstay(path, register=[release(True), check]).replay()).blocked
    assert run.message.endswith("the code asked for activity check")
