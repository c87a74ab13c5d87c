"""Crash exploration: it finds what is wrong with fifteen kinds of wrong workflows, and nothing in right ones."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backstay import (
    Saga,
    WorkflowFailed,
    activity,
    activity_info,
    gather,
    query,
    signal,
    sleep,
    update,
    wait,
    workflow,
)
from backstay.testing import AsyncTestBackstay, CrashFailure, TestBackstay, effects, explore
from backstay.testing.crashes.exploration import StoreKind
from backstay.testing.crashes.schedule import CrashSchedule, parse

from .wrong_workflows import WRONG

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", WRONG)
def test_it_finds_what_is_wrong(name: str) -> None:
    test, register, says = WRONG[name]
    with pytest.raises(CrashFailure) as found:
        explore(test, register=register)
    said = " ".join(str(found.value).split())
    assert [words for words in says if words not in said] == [], said
    # The schedule that it names shows the same again.
    schedule = re.search(r"--backstay-crash=(\S+)", said)
    assert schedule is not None, said
    with pytest.raises(CrashFailure) as again:
        explore(test, register=register, only=schedule[1])
    assert [words for words in says if words not in " ".join(str(again.value).split())] == [], str(again.value)


def test_the_table_has_more_than_fifteen() -> None:
    assert len(WRONG) >= 15


# -- right ones


@activity
def charge(order: str) -> str:
    effects.once(f"charge {order}", activity_info().idempotency_key)
    return f"receipt for {order}"


@activity
async def ship(order: str) -> str:
    return f"{order} shipped"


@activity(local=True)
def look_up(order: str) -> int:
    return len(order)


@activity
def release(order: str) -> None: ...


@activity(retries=2, backoff="1m")
def flaky() -> str:
    raise ConnectionError("offline")


@workflow
def child(order: str) -> str:
    sleep("1h")
    return charge(order)


@workflow
def order(name: str) -> list[Any]:
    with Saga() as saga:
        saga.undo(release, name)
        parcels = gather(ship.step("a"), ship.step("b"), child.step(name))
        sleep("30d")
        return [look_up(name), parcels, patient()]


@workflow
def patient() -> str:
    return flaky()


@workflow
class Door:
    def __init__(self) -> None:
        self.opened: list[str] = []

    @signal
    def open(self, by: str) -> None:
        self.opened.append(by)

    @update
    def paint(self, color: str) -> str:
        return f"{color} now"

    @query
    def state(self) -> int:
        return len(self.opened)

    def handle(self) -> list[str]:
        wait(lambda: len(self.opened) == 2)
        return sorted(self.opened)


def an_order(app: TestBackstay) -> None:
    app.fake(flaky, returns="well")
    app.fail_next(flaky, times=1)
    began = app.now
    assert app.execute(order, "o-1", "map") == [3, ["a shipped", "b shipped", "receipt for map"], "well"]
    assert app.now - began >= timedelta(days=30)
    assert effects.count("charge map") == 1


def a_door(app: TestBackstay) -> None:
    run = app.start(Door, "d-1")
    run.signal(Door.open, "ann")
    assert run.update(Door.paint, "red") == "red now"
    assert run.query(Door.state) == 1
    app.advance("1h")
    run.signal(Door.open, "ben")
    assert run.result() == ["ann", "ben"]


async def an_async_door(app: AsyncTestBackstay) -> None:
    run = await app.start(Door, "d-1")
    await asyncio.gather(run.signal(Door.open, "ann"), run.signal(Door.open, "ben"))
    assert await run.result() == ["ann", "ben"]


def a_schedule(app: TestBackstay) -> None:
    app.fake(flaky, returns="well")
    app.schedules.options(every="1h").create(patient, "hourly")
    app.advance("3h 30m")
    assert len(app.list(type=patient.type)) == 3


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("test", [an_order, a_door, an_async_door, a_schedule])
def test_right_workflows_pass(test: Any, store: StoreKind) -> None:
    explored = explore(
        test, register=[order, child, patient, Door, charge, ship, look_up, flaky, release], store=store, bound=3
    )
    assert explored.points >= 3
    assert explored.trials >= explored.points
    assert str(explored).startswith(f"{explored.points} of {explored.points} points, ")


def test_a_test_may_open_its_own_app() -> None:
    def test() -> None:
        with TestBackstay(register=[Door]) as app:
            a_door(app)

    assert explore(test).points > 3


def test_a_test_that_fails_without_a_crash_fails_with_its_own_error() -> None:
    def test(app: TestBackstay) -> None:
        assert app.execute(patient, "p-1") == "well"

    with pytest.raises(WorkflowFailed, match="offline"):
        explore(test, register=[patient, flaky])


def test_state_that_a_test_changes_is_put_back() -> None:
    def test(app: TestBackstay) -> None:
        STARTED.append("o-1")
        assert app.execute(child, "o-1", "map") == "receipt for map"
        assert STARTED == ["o-1"]

    explore(test, register=[child, charge])
    assert STARTED == []


STARTED: list[str] = []


# -- schedules


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("5", CrashSchedule(kills=(5,))),
        ("5.2", CrashSchedule(kills=(5, 2))),
        ("5f", CrashSchedule(kills=(5,), forgets=True)),
        ("o3-1", CrashSchedule(orders=((3, 1),))),
        ("o3-1+s0+4", CrashSchedule(kills=(4,), orders=((3, 1),), late=0)),
        ("0", CrashSchedule()),
    ],
)
def test_a_schedule_is_read_as_it_is_written(text: str, schedule: CrashSchedule) -> None:
    assert parse(text) == schedule
    assert str(schedule) == text


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="is no schedule of a crash exploration"):
        parse("point five")


# -- the examples


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def of_orders(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.order, "o-1", of.Order("o-1", "book"))[2] == "parcel with a book"
    assert app.execute(of.order, "o-2", of.Order("o-2", "unicorn")) == ["sorry: no unicorn left"]


def of_approvals(app: TestBackstay, of: Any) -> None:
    run = app.start(of.Approval, "e-1", of.Expense("ann", 4200))
    app.settle()
    assert run.update(of.Approval.amend, 3900) == "4200 -> 3900"
    run.signal(of.Approval.approve, "bob")
    assert run.result() == "ann gets 39.00, approved by bob"


def of_heartbeats(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.nightly_import, "i-1", 1).startswith("1 rows imported")


def of_invoices(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.settle, "s-1", [("EUR", 1000), ("USD", 2000)]) == "paid 28.40 EUR"


def of_pages(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.pipeline, "p-1", ["a", "b"]) == {"a": 3, "b": 3, "check": 3}


def of_parcels(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.track, "p-1", "p-1") == "p-1 arrived after 8 looks"


def of_shipments(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.order, "o-1", ["book", "lamp"])[-1] == "signed by Robin"


def of_greetings(app: TestBackstay, of: Any) -> None:
    assert app.execute(of.greet_after, "g-1", "Ada") == "Hello Professor Ada"


def of_nights(app: TestBackstay, of: Any) -> None:
    app.schedules.options(cron="30 2 * * *").create(of.report, "nightly", "corner shop")
    app.advance("2d")
    assert len(app.list(type=of.report.type)) == 2


EXAMPLES = [
    ("order", "order reserve charge ship SoldOutError", of_orders),
    ("approval", "Approval book unbook pay NotApprovedError", of_approvals),
    ("heartbeat", "nightly_import import_rows", of_heartbeats),
    ("local_activity", "settle rate pay", of_invoices),
    ("pipeline", "pipeline fetch count", of_pages),
    ("poller", "track look", of_parcels),
    ("shipments", "order parcel Signature pick hand_over", of_shipments),
    ("versions", "greet_after say look_up_title", of_greetings),
    ("nightly", "report count_sales", of_nights),
]


@pytest.mark.parametrize(("name", "register", "test"), EXAMPLES)
def test_the_examples_pass(name: str, register: str, test: Any) -> None:
    module = example(name)
    explored = explore(
        lambda app: test(app, module), register=[getattr(module, one) for one in register.split()], bound=3
    )
    assert explored.points >= 3
