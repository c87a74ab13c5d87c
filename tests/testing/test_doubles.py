"""Fakes of activities and children, and attempts that a test makes fail."""

from __future__ import annotations

import pytest

from backstay import WorkflowFailed, activity, workflow
from backstay.sdk.errors import DefinitionError
from backstay.testing import FakeCall, MadeToFail, TestBackstay

from .shop import (
    ALL,
    CardDeclined,
    Desk,
    careful,
    charge,
    child,
    local,
    look_up,
    order,
    pack,
    parent,
    ship,
    sleepy,
    stamped,
)


def test_a_fake_returns_a_value_and_records_its_calls() -> None:
    with TestBackstay(register=ALL) as app:
        fake = app.fake(charge, returns="fake receipt")
        assert app.execute(order, "o-1", "a map") == "fake receipt"
        assert fake.calls == [FakeCall(("a map",), {}, "o-1", 1)]
        assert fake.arguments == [("a map",)]
        assert fake.count == 1


def test_a_fake_raises_an_error_which_is_retried_like_any_other() -> None:
    with TestBackstay(register=ALL) as app:
        fake = app.fake("charge", raises=CardDeclined("no money"))
        with pytest.raises(WorkflowFailed) as failed:
            app.execute(order, "o-1", "a map")
        assert isinstance(failed.value.__cause__, CardDeclined)
        assert [call.attempt for call in fake.calls] == [1, 2, 3, 4]


def test_a_fake_calls_a_function_with_the_arguments() -> None:
    async def packed(order: str) -> str:
        return f"{order} in paper"

    with TestBackstay(register=ALL) as app:
        app.fake(ship, calls=lambda order: order.upper())
        app.fake(pack, calls=packed)
        assert app.execute(careful, "c-1", "a map") == ["A MAP", "a map in paper"]
        app.fake(ship, calls=packed)
        app.fake(pack, calls=lambda order: "sync")
        assert app.execute(careful, "c-2", "a map") == ["a map in paper", "sync"]


def test_a_fake_stands_in_for_a_method_of_an_object_and_for_a_local_activity() -> None:
    with TestBackstay(register=ALL) as app:
        stamp = app.fake(Desk.stamp, returns="no stamp")
        assert app.execute(stamped, "s-1", "a map") == "no stamp"
        assert stamp.arguments == [("a map",)]
        app.fake(look_up, returns=7)
        assert app.execute(local, "l-1", "map") == 7
        stamp.restore()
        assert app.execute(stamped, "s-2", "a map") == "a map stamped by ann"


def test_a_fake_stands_in_for_code_that_is_not_registered() -> None:
    with TestBackstay(register=[order]) as app:
        run = app.start(order, "o-1", "a map")
        app.advance("40d")  # nobody runs the activity yet
        app.fake(charge, returns="at last")
        assert run.result() == "at last"


def test_a_fake_stands_in_for_an_activity_of_another_worker() -> None:
    @activity(type="elsewhere", extern=True)
    def elsewhere(n: int) -> int:
        raise AssertionError("never called")

    @workflow(type="asks")
    def asks(n: int) -> int:
        return elsewhere(n)

    with TestBackstay(register=[asks]) as app:
        app.fake(elsewhere, calls=lambda n: n + 1)
        assert app.execute(asks, "a-1", 1) == 2


def test_a_fake_stands_in_for_a_child() -> None:
    async def slowly(number: int) -> int:
        return number * 100

    with TestBackstay(register=ALL) as app:
        fake = app.fake(child, calls=lambda number: number * 10)
        assert app.execute(parent, "p-1") == 70
        assert fake.arguments == [(3,), (4,)]
        app.fake("child", calls=slowly)
        assert app.execute(parent, "p-2") == 700
        with app.fake(child, raises=CardDeclined("no")), pytest.raises(WorkflowFailed, match="CardDeclined: no"):
            app.execute(parent, "p-3")
        app.fake(child, returns=1).restore()
        assert app.execute(parent, "p-4") == 7


def test_a_fake_of_a_child_may_hang() -> None:
    with TestBackstay(register=ALL) as app:
        app.fake(child, hangs=True)
        run = app.start(parent, "p-1")
        app.advance("365d")
        assert run.describe().status == "waiting"


def test_a_fake_stays_in_its_place_when_more_is_registered() -> None:
    with TestBackstay(register=[order, charge]) as app:
        app.fake(charge, returns="fake")
        app.register(charge, sleepy, pack)
        assert app.execute(order, "o-1", "a map") == "fake"
        assert app.execute(sleepy, "s-1", "a map") == "a map packed"


def test_a_fake_may_be_set_before_the_app_is_open() -> None:
    app = TestBackstay(register=ALL)
    fake = app.fake(charge, returns="fake")
    with app:
        assert app.execute(order, "o-1", "a map") == "fake"
    assert fake.count == 1


def test_the_next_attempts_fail_and_those_after_them_do_what_they_did() -> None:
    with TestBackstay(register=ALL) as app:
        app.fail_next(charge, times=2, error=ConnectionError("offline"))
        assert app.execute(order, "o-1", "a map") == "receipt for a map: 100"
        fake = app.fake(charge, returns="fake")
        app.fail_next(charge)
        assert app.execute(order, "o-2", "a map") == "fake"
        assert [call.attempt for call in fake.calls] == [1, 2]
        app.fail_next(charge, times=4)
        with pytest.raises(WorkflowFailed) as failed:
            app.execute(order, "o-3", "a map")
        assert isinstance(failed.value.__cause__, MadeToFail)


def test_an_unknown_type_is_refused_with_those_that_are_known() -> None:
    with TestBackstay(register=[order, charge, child]) as app:
        with pytest.raises(DefinitionError, match=r"'chrage' is neither.*known are: 'charge', 'child', 'order'"):
            app.fake("chrage", returns=1)
        with pytest.raises(DefinitionError, match="is neither"):
            app.fail_next(print)
    with TestBackstay() as app, pytest.raises(DefinitionError, match="none yet"):
        app.fake("charge")


def test_a_fake_does_one_thing() -> None:
    with TestBackstay(register=ALL) as app:
        with pytest.raises(TypeError, match="give one of returns and raises"):
            app.fake(charge, returns=1, raises=ValueError)
        with pytest.raises(TypeError, match=r"write returns=3"):
            app.fake(charge, calls=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes an exception"):
            app.fake(charge, raises="no")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"write app\.fake"):
            app.fail_next(child)
