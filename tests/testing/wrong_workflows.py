"""Workflows that work until their process is killed, or until two things come in the other order. Crash exploration finds each.

Each has a test that passes, and the words that the exploration has to find for what is wrong.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from backstay import (
    Saga,
    Signal,
    activity,
    activity_info,
    side_effect,
    signal,
    sleep,
    wait,
    workflow,
)
from backstay.testing import AsyncTestBackstay, TestBackstay, effects

WRONG: dict[str, tuple[Callable[..., Any], list[Any], list[str]]] = {}
"""By name: the test, what it registers, and what the report says."""


def wrong(*register: Any, says: list[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def known(test: Callable[..., Any]) -> Callable[..., Any]:
        WRONG[test.__name__] = test, list(register), says
        return test

    return known


# -- an effect done twice


@activity
def charge(order: str) -> str:
    effects.once(f"charge {order}")
    return "receipt"


@workflow
def charging(order: str) -> str:
    return charge(order)


@wrong(charging, charge, says=["'charge a map' was done 2 times", "Activity 'charge' needs its idempotency key"])
def an_activity_without_its_idempotency_key(app: TestBackstay) -> None:
    assert app.execute(charging, "o-1", "a map") == "receipt"


@activity
def mail(to: str) -> None:
    effects.once(f"mail {to}", uuid4().hex)


@workflow
def mailing(to: str) -> None:
    mail(to)


@wrong(mailing, mail, says=["Activity 'mail' passes another idempotency key with each attempt"])
def a_new_idempotency_key_with_each_attempt(app: TestBackstay) -> None:
    app.execute(mailing, "m-1", "ann")


@activity
def transfer() -> None:
    effects.once("debit", activity_info().idempotency_key)
    effects.once("credit")


@workflow
def transferring() -> None:
    transfer()


@wrong(transferring, transfer, says=["'credit' was done 2 times"])
def one_of_two_effects_without_a_key(app: TestBackstay) -> None:
    app.execute(transferring, "t-1")


@activity(local=True)
def notify() -> None:
    effects.once("notify")


@workflow
def notifying() -> None:
    notify()
    sleep("1h")


@wrong(notifying, notify, says=["'notify' was done 2 times", "Activity 'notify' needs its idempotency key"])
def a_local_activity_without_its_idempotency_key(app: TestBackstay) -> None:
    app.execute(notifying, "n-1")


@workflow
def impure() -> None:
    effects.once("print the label")
    sleep("1h")


@wrong(impure, says=["Workflow code does 'print the label' itself", "Let an activity do it"])
def workflow_code_with_an_effect(app: TestBackstay) -> None:
    app.execute(impure, "i-1")


@workflow
def aside() -> bool:
    return side_effect(lambda: effects.once("call the bank"))


@wrong(aside, says=["'call the bank' was done 2 times"])
def a_side_effect_that_acts(app: TestBackstay) -> None:
    assert app.execute(aside, "s-1")


ACCOUNT = {"cents": 100}  # a database outside


@activity
def withdraw() -> None:
    ACCOUNT["cents"] -= 10


@workflow
def withdrawing() -> None:
    withdraw()


@wrong(withdrawing, withdraw, says=["the test fails: AssertionError"])
def a_read_and_a_write_outside(app: TestBackstay) -> None:
    app.execute(withdrawing, "w-1")
    assert ACCOUNT["cents"] == 90


@activity
def reserve() -> str:
    return "room 7"


@activity
def release(room: str) -> None:
    effects.once(f"release {room}")


@activity(retries=0)
def pay() -> None:
    raise ValueError("declined")


@workflow
def booking() -> str:
    try:
        with Saga() as saga:
            saga.undo(release, reserve())
            pay()
    except ValueError:
        return "undone"
    return "paid"


@wrong(booking, reserve, release, pay, says=["Activity 'release' needs its idempotency key"])
def a_compensation_without_its_idempotency_key(app: TestBackstay) -> None:
    assert app.execute(booking, "b-1") == "undone"


@activity
def once_only() -> None:
    if activity_info().number == 1:  # "a repetition means that it was done"
        effects.once("done")


@workflow
def skipping() -> None:
    once_only()


@wrong(skipping, once_only, says=["the test fails: AssertionError"])
def an_attempt_that_trusts_in_its_number(app: TestBackstay) -> None:
    app.execute(skipping, "s-1")
    assert effects.keys == ["done"]


@activity
def twice_killed() -> None:
    if activity_info().number != 2:  # the second attempt finds what the first has left, and the third does not
        effects.once("rent")


@workflow
def renting() -> None:
    twice_killed()


@wrong(renting, twice_killed, says=["'rent' was done 2 times", "and its successor at its point"])
def an_attempt_that_is_killed_twice(app: TestBackstay) -> None:
    app.execute(renting, "r-1")


# -- state kept in a process

TOKENS: dict[str, str] = {}


@activity
def log_in(user: str) -> None:
    TOKENS[user] = "token"


@activity(retries=0)
def fetch(user: str) -> str:
    return f"mails of {user} by {TOKENS[user]}"


@workflow
def reading(user: str) -> str:
    log_in(user)
    return fetch(user)


@wrong(reading, log_in, fetch, says=["State is kept in", "TOKENS", "it was completed (result 'mails of ann by token')"])
def a_session_in_a_global(app: TestBackstay) -> None:
    assert app.execute(reading, "r-1", "ann") == "mails of ann by token"


class Pager:
    def __init__(self) -> None:
        self.page = 0

    @activity
    def next_page(self) -> int:
        self.page += 1
        return self.page


@workflow
def paging() -> list[int]:
    return [Pager.next_page(), Pager.next_page()]


@wrong(paging, Pager(), says=["State is kept in Pager.page"])
def a_cursor_in_an_object(app: TestBackstay) -> None:
    app.execute(paging, "p-1")


# -- nondeterminism

STARTS = itertools.count()


@activity
def left() -> str:
    return "left"


@activity
def right() -> str:
    return "right"


@workflow
def turning() -> str:
    return (left if next(STARTS) % 2 else right)() + (left if next(STARTS) % 2 else right)()


@wrong(turning, left, right, says=["the test fails", "turning"])
def code_that_depends_on_how_often_it_runs(app: TestBackstay) -> None:
    assert app.execute(turning, "t-1") in ("leftright", "rightleft", "leftleft", "rightright")


FLAGS: set[str] = set()


@activity
def switch_on() -> None:
    FLAGS.add("new")


@workflow
def switching() -> str:
    said = "old" if "new" in FLAGS else left()
    switch_on()
    sleep("1h")
    return said


@wrong(switching, left, switch_on, says=["the test fails", "switching"])
def code_that_reads_what_an_activity_changes(app: TestBackstay) -> None:
    assert app.execute(switching, "s-1") == "left"


# -- a wait that is never satisfied after a restart

ready = Signal[str]("ready")
BACKGROUND: set[asyncio.Task[None]] = set()
APPS: list[AsyncTestBackstay] = []


@activity
async def ask_for_a_call() -> None:
    id = activity_info().workflow_id

    async def call_back() -> None:
        await APPS[-1].handle(called, id).signal(ready, "now")

    task = asyncio.create_task(call_back())
    BACKGROUND.add(task)
    task.add_done_callback(BACKGROUND.discard)


@workflow(signals=[ready])
def called() -> str:
    ask_for_a_call.step().run()
    return wait(ready)


@wrong(called, ask_for_a_call, says=["Stuck", "Waits for signal ready"])
async def a_wait_for_a_task_of_the_process(app: AsyncTestBackstay) -> None:
    APPS.append(app)
    assert await app.execute(called, "c-1") == "now"


DOORS = {"open": False}


@activity
def open_door() -> None:
    DOORS["open"] = True


@workflow
def entering() -> str:
    open_door()
    sleep("1m")
    wait(lambda: DOORS["open"])
    return "inside"


@wrong(entering, open_door, says=["State is kept in", "DOORS", "e-1"])
def a_wait_for_a_global(app: TestBackstay) -> None:
    assert app.execute(entering, "e-1") == "inside"


# -- orders


@workflow
class Approval:
    def __init__(self) -> None:
        self.approved = False

    @signal
    def approve(self) -> None:
        self.approved = True

    def handle(self) -> str:
        left()
        self.approved = False  # begins afresh, and loses what has come meanwhile
        return "approved" if wait(lambda: self.approved, timeout="1d") else "forgotten"


@wrong(Approval, left, says=["the test fails: AssertionError", "comes before"])
def a_signal_that_loses_a_race(app: TestBackstay) -> None:
    run = app.start(Approval, "a-1")
    run.signal(Approval.approve)
    assert run.result() == "approved"


@workflow
class Light:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @signal
    def turn(self, to: str) -> None:
        self.seen.append(to)

    def handle(self) -> str:
        wait(lambda: len(self.seen) == 2)
        return self.seen[-1]


@wrong(Light, says=["the test fails: AssertionError", "on its way"])
def signals_that_come_in_the_other_order(app: TestBackstay) -> None:
    run = app.start(Light, "l-1")
    run.signal(Light.turn, "on")
    run.signal(Light.turn, "off")
    assert run.result() == "off"


@workflow
async def collecting() -> list[str]:
    got: list[str] = []

    async def add(step: Any) -> None:
        got.append(await step)

    await asyncio.gather(add(left.step()), add(right.step()))
    return got


@wrong(collecting, left, right, says=["the test fails: AssertionError", "comes before"])
def results_in_the_order_in_which_they_came(app: TestBackstay) -> None:
    assert app.execute(collecting, "c-1") == ["left", "right"]
