"""Assertions about histories, and what they say when they do not hold."""

from __future__ import annotations

import pytest

from backstay import WorkflowFailed, sleep
from backstay.testing import TestBackstay, assert_history

from .shop import ALL, CardDeclined, Door, careful, charge, child, go, order, pack, parent, polls, ship, waits


def test_a_chain_goes_through_a_history() -> None:
    with TestBackstay(register=ALL) as app:
        app.execute(order, "o-1", "a map")
        assert_history(app, "o-1").slept("30d").did(charge, "a map").completed("receipt for a map: 100")
        assert_history(app, "o-1").then(sleep.step("30d")).then(charge.step("a map")).completed()
        assert_history(app, "o-1").did("charge", "a map").never(ship).never(go).never(sleep.step("3d"))
        assert_history(app.history("o-1")).did(charge)
        app.execute(careful, "c-1", "a map")
        assert_history(app, "c-1").did(ship).then(pack, "a map").completed(["a map shipped", "a map packed"])


def test_children_messages_and_ends_have_their_place_in_it() -> None:
    with TestBackstay(register=ALL, max_jumps=10) as app:
        app.execute(parent, "p-1")
        assert_history(app, "p-1").slept("1d").then(child, 3).then("child", 4).completed(7)
        run = app.start(waits, "w-1")
        run.signal(go, "on")
        run.result()
        assert_history(app, "w-1").got(go, "on").completed("on")
        assert_history(app, "w-1").got("go").ended("completed")
        door = app.start(Door, "d-1")
        door.update(Door.paint, "green")
        door.signal(Door.open)
        door.result()
        assert_history(app, "d-1").got(Door.paint, "green").then(Door.open).completed("opened")
        poll = app.start(polls, "p-2")
        poll.cancel()
        assert_history(app, "p-2").ended("cancelled")
        app.fake(charge, raises=CardDeclined("no money"))
        with pytest.raises(WorkflowFailed):
            app.execute(order, "o-1", "a map")
        assert_history(app, "o-1").did(charge).failed()
        assert_history(app, "o-1").failed(CardDeclined)
        assert_history(app, "o-1").failed("no money")


def test_both_columns_are_shown_when_a_link_does_not_hold() -> None:
    with TestBackstay(register=ALL) as app:
        app.execute(order, "o-1", "a map")
        with pytest.raises(AssertionError) as wrong:
            assert_history(app, "o-1").slept("30d").then(charge, "a globe").completed()
        assert str(wrong.value).splitlines() == [
            "the history of 'o-1' is not as expected: then charge('a globe')",
            "  what has happened                    | what the test expects",
            "✓ sleep 30 d                           | sleep 30 d",
            "✗ charge('a map')                      | then charge('a globe')",
            "  completed → 'receipt for a map: 100' |",
        ]


def test_an_end_that_has_not_come_and_a_step_that_is_missing_are_shown() -> None:
    with TestBackstay(register=ALL) as app:
        app.start(order, "o-1", "a map")
        with pytest.raises(AssertionError, match=r"✗ \(nothing more\)\s*\| completed → 'x'"):
            assert_history(app, "o-1").slept("30d").completed("x")
        with pytest.raises(AssertionError, match=r"✗ sleep 30 d \s*\| never sleep 30 d"):
            assert_history(app, "o-1").never(sleep.step("30d"))
        with pytest.raises(AssertionError, match="failed: ValueError"):
            assert_history(app, "o-1").failed(ValueError)


def test_a_history_of_an_async_app_is_read_first() -> None:
    with pytest.raises(TypeError, match=r"assert_history\(await app\.history\(id\)\)"):
        assert_history(object(), "o-1")  # type: ignore[arg-type]
