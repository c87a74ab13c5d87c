"""The workflows that are killed. Each result is the same however often its activities had to be delivered.

`stamps` is the sharpest question: it carries time, randomness and ids of the run through activities and compares them with
what the code computes when it is replayed. Any drift between live code and replay shows in the result.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, NamedTuple

from backstay import (
    activity,
    activity_info,
    child,
    continue_as_new,
    gather,
    info,
    now,
    patched,
    race,
    rng,
    side_effect,
    signal,
    sleep,
    spawn,
    upsert_memo,
    uuid4,
    version,
    wait,
    workflow,
)

from . import ledger


def note(what: str) -> None:
    running = activity_info()
    ledger.write(running.idempotency_key, running.number, what)


class Declined(Exception):
    pass


@activity
def book(what: str) -> str:
    note("book")
    return f"booked {what}"


@activity(retries=3, backoff="20ms")
def charge(what: str) -> str:
    note("charge")
    if activity_info().number == 1:
        raise ConnectionError("the terminal is offline")
    return f"charged {what}"


@activity
async def fetch(page: str) -> str:
    note("fetch")
    await asyncio.sleep(0.003)
    return f"page {page}"


@activity(fatal=[Declined])
def decline(what: str) -> str:
    note("decline")
    raise Declined(f"no {what} today")


@activity
def echo(value: str) -> str:
    note("echo")
    return value


@activity(local=True)
def beside(key: str) -> str:
    """Local activities have no attempt of their own to ask; the caller names the key."""
    ledger.write(key, 1, "beside")
    return f"beside {key.partition('/')[2]}"


@activity(local=True, retries=2, backoff="5ms")
def beside_twice(key: str, tries: str) -> str:
    ledger.write(key, 1, "beside_twice")
    with open(tries, "a+") as file:
        file.seek(0)
        if not file.read():
            file.write("tried")
            raise ConnectionError("not the first time")
    return "beside, the second time"


@activity
def held(gate: str) -> str:
    """Runs until its gate is open, so that a test decides what happens meanwhile."""
    note("held")
    wait_for(gate)
    return "let go"


@activity(local=True)
def held_beside(key: str, gate: str) -> str:
    ledger.write(key, 1, "held_beside")
    wait_for(gate)
    return "let go"


@activity(retries=2, backoff="10ms")
def stubborn(gate: str) -> str:
    """Is lost twice with its process, then fails twice by itself: two retries are still enough."""
    note("stubborn")
    reported = Path(f"{gate}.failures")
    if not Path(gate).exists():
        wait_for(gate)
    failures = len(reported.read_text()) if reported.exists() else 0
    if failures < 2:
        reported.write_text("x" * (failures + 1))
        raise ConnectionError(f"failure {failures + 1}")
    return "at last"


def made_aside(run: str) -> int:
    ledger.write(f"{run}/side effect", 1, "side effect")
    return time.time_ns()


def wait_for(gate: str) -> None:
    deadline = time.monotonic() + 30
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.003)


@workflow
def order(name: str) -> list[str]:
    """Sequential: an activity, a retried one, a timer, another activity."""
    booked = book(name)
    charged = charge(name)
    sleep(0.02)
    return [booked, charged, book("the parcel")]


@workflow
async def pages(name: str) -> list[str]:
    """`async def`: a group of two-step tasks under a timeout whose timer is cancelled, then a timer that fires."""

    async def one(page: str) -> str:
        return await echo.step(await fetch(page))

    async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(f"{name}-{letter}")) for letter in "abc"]
    await sleep.step(0.01)
    return [task.result() for task in tasks]


@workflow
def branches(name: str) -> list[str]:
    """Spawned strands of several steps each, with timers of different length between them."""

    def strand(number: int) -> str:
        first = echo(f"{name}-{number}")
        sleep(0.005 * number)
        return book(first)

    strands = [spawn(strand, number) for number in range(3)]
    return [strand.join() for strand in strands]


@workflow
def locals_(name: str, tries: str) -> list[str]:
    """Local activities between ordinary ones; one of them fails once."""
    run = info().run_id
    first = beside(f"{run}/one")
    booked = book(name)
    second = beside(f"{run}/two")
    third = beside_twice(f"{run}/three", tries)
    return [first, booked, second, third]


@workflow
def chain(left: int, so_far: list[str]) -> list[str]:
    """Three runs, each with one activity."""
    so_far = [*so_far, book(f"leg {left}")]
    if left > 1:
        continue_as_new(chain, left - 1, so_far)
    return so_far


@workflow
def stamps(name: str) -> list[Any]:
    """Side effect, version, memo, and every source of time and chance that a workflow may use."""
    run = info().run_id
    stamp = [str(side_effect(lambda: made_aside(run))), str(now()), str(uuid4()), str(rng().random())]
    changed = version("second edition", max=2)
    upsert_memo(name=name, edition=changed)
    echoed = [echo(value) for value in stamp]
    sleep(0.005)
    later = [str(now()), str(uuid4())]
    echoed_later = [echo(value) for value in later]
    if patched("thanks"):
        echo("thanks")
    return [echoed == stamp, echoed_later == later, changed]


@workflow
def clocked(name: str) -> bool:
    """The run's time after a local activity, which no event but its own stands for."""
    beside(f"{info().run_id}/{name}")
    stamp = str(now())
    echoed = echo(stamp)
    return book(name) == f"booked {name}" and echoed == stamp


@workflow
def forgiving(name: str) -> list[str]:
    """A failure that is caught, and what is done about it."""
    booked = book(name)
    try:
        decline(name)
    except Declined as declined:
        return [booked, str(declined), book("a refund")]
    raise AssertionError("it must be declined")


@workflow
def nap(seconds: float, number: int) -> str:
    sleep(seconds)
    return book(f"breakfast {number}")


@workflow
def gated(gate: str) -> list[str]:
    return [book("a seat"), held(gate), book("a taxi")]


@workflow
def gated_beside(gate: str) -> list[str]:
    return [held_beside(f"{info().run_id}/held", gate), book("a taxi")]


@workflow
def patient(gate: str) -> str:
    return stubborn(gate)


@workflow
def long_way(legs: int) -> int:
    """Many small steps."""
    return sum(len(book(f"leg {leg}")) for leg in range(legs))


# -- families


@workflow
def parcel(name: str) -> str:
    return book(name)


@workflow
def snooze() -> str:
    sleep("1h")
    return "awake"


@workflow
def clumsy(name: str) -> str:
    """Drops it the first time, then takes a second run."""
    if info().run_number == 1:
        book(f"{name} dropped")
        raise ConnectionError("dropped")
    if info().run_number == 2:
        continue_as_new(clumsy, name)
    return book(name)


@workflow
class Permit:
    """Wants to hear from two others."""

    def __init__(self) -> None:
        self.by: list[str] = []

    @signal
    def granted(self, name: str) -> None:
        self.by.append(name)

    def handle(self) -> list[str]:
        wait(lambda: len(self.by) >= 2)
        return [*self.by, book("the permit")]


@workflow
def shipments(name: str) -> list[Any]:
    """Start and close: a group of children under a bound, with an activity and a timer beside them."""
    boxes = gather([parcel.step(f"{name}-{number}") for number in range(3)], limit=2)
    return [boxes, *gather(parcel.step("a label"), echo.step("a stamp"), sleep.step(0.005))]


@workflow
def permits(name: str) -> list[Any]:
    """Signals: from the code to a child that was started and goes on beside it."""
    permit = child.start(Permit)
    permit.granted(f"{name} senior")
    booked = book(name)
    permit.granted(f"{name} junior")
    return [booked, permit.join()]


@workflow
def drops(name: str) -> str:
    """A child that is tried again, and then continues as new."""
    return child.options(retries=1, backoff="5ms")(clumsy, name)


@workflow
def leaves(name: str) -> list[Any]:
    """Stop and answer: one child is given up, two are stopped when their parent closes."""
    child.options(parent_close="request_cancel").start(snooze)
    child.options(parent_close="terminate").start(snooze)
    first = race(snooze.step(), parcel.step(name))
    return [list(first), book("the rest")]


@workflow
def tree(depth: int, width: int) -> int:
    """Counts its leaves."""
    if depth == 0:
        return 1
    return sum(gather(tree.step(depth - 1, width) for _ in range(width)))


@workflow(type="errand")
def errand(what: str) -> str:
    """What a schedule starts."""
    return book(what)


class Story(NamedTuple):
    """One workflow to kill, with its arguments; `{dir}` in them is the directory of the trial."""

    name: str
    workflow: Any
    args: tuple[Any, ...]


STORIES = [
    Story("order", order, ("a book",)),
    Story("pages", pages, ("p",)),
    Story("branches", branches, ("b",)),
    Story("locals", locals_, ("a seat", "{dir}/tries")),
    Story("chain", chain, (3, [])),
    Story("stamps", stamps, ("ann",)),
    Story("clocked", clocked, ("a watch",)),
    Story("forgiving", forgiving, ("credit",)),
]

FAMILIES = [
    Story("shipments", shipments, ("a box",)),
    Story("permits", permits, ("Kim",)),
    Story("drops", drops, ("a vase",)),
    Story("leaves", leaves, ("a bag",)),
]

REGISTER = [
    *(story.workflow for story in [*STORIES, *FAMILIES]),
    errand,
    parcel,
    snooze,
    clumsy,
    tree,
    Permit,
    nap,
    gated,
    gated_beside,
    patient,
    long_way,
    book,
    charge,
    fetch,
    decline,
    echo,
    beside,
    beside_twice,
    held,
    held_beside,
    stubborn,
    Declined,
]

BY_NAME = {thing.type: thing for thing in REGISTER if hasattr(thing, "definition")}
