"""Replaying what is recorded with new code: which open runs it would block, before it is deployed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
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
from backstay.kernel.features.activity import ActivityCompleted
from backstay.sdk.replay import replayer

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


def test_a_run_whose_code_is_not_there_cannot_be_judged(path: Path) -> None:
    found = Backstay(path, register=[check]).replay()
    assert not found.blocked
    assert not found.fits
    assert str(found).splitlines() == [
        "1 run replayed, 0 would be blocked, 1 could not be judged",
        "workflow o-1 (order) could not be judged: no workflow of type 'order' is registered",
    ]


def test_the_line_is_shown_at_which_code_and_history_part(path: Path) -> None:
    (added,) = Backstay(path, register=[with_invoice(), check, invoice]).replay().blocked
    assert added.place is not None
    assert (Path(added.place.file).name, added.place.text) == ("test_replay.py", "invoice(item)")
    (ended,) = Backstay(path, register=[that_ends(), check]).replay().blocked
    assert ended.place is not None
    assert ended.place.text.startswith(("@workflow", "def ", "async def "))


def test_code_that_raises_before_the_end_of_history_is_shown_where_it_raises(path: Path) -> None:
    @workflow(type="order")
    def raises(item: str) -> None:
        check(item)
        raise ValueError("no such item")

    @workflow(type="order")
    async def waits(item: str) -> None:
        check(item)
        await wait.step(go)

    (run,) = Backstay(path, register=[raises, check]).replay().blocked
    assert run.message.endswith("the code asked for the end of the workflow: it raised ValueError: no such item")
    assert run.place is not None
    assert run.place.text == 'raise ValueError("no such item")'
    (run,) = Backstay(path, register=[waits, check]).replay().blocked
    assert run.place is not None
    assert run.place.text == "await wait.step(go)"


def test_code_that_does_not_end_cannot_be_judged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow(type="order")
    def hangs(item: str) -> None:
        check(item)
        while True:
            pass

    monkeypatch.setattr(replayer, "WORKFLOW_DEADLINE", 0.1)
    (run,) = Backstay(path, register=[hangs, check]).replay().unjudged
    assert "without waiting for anything and was interrupted" in run.message


def test_what_the_next_task_would_see_is_replayed_too(tmp_path: Path) -> None:
    """Code that takes two steps one after the other fits a run that took them together, once the first has ended."""

    @activity(type="late")
    def late() -> str:
        held.wait(20)
        return "late"

    @workflow(type="pair")
    async def together() -> list[str]:
        both = [asyncio.ensure_future(call) for call in (check.step("x"), late.step())]
        return [await one for one in both]

    @workflow(type="pair")
    async def in_turn() -> list[str]:
        return [await check.step("x"), await late.step()]

    held = threading.Event()
    path = tmp_path / "pair.db"
    with Backstay(path, register=[together, check, late], grace=0) as backstay:
        handle = backstay.start(together, "p-1")
        while not any(isinstance(entry.event, ActivityCompleted) for entry in handle.history()):
            pass
        assert Backstay(path, register=[in_turn, check, late]).replay().fits
        held.set()


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
