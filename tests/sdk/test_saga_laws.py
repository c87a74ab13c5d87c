"""The law of sagas: whenever a cancel request comes, what history says was booked is given back, or the trip is complete.

Every order in which a trip can be cancelled, its activities begun and ended and its code run is gone through, one by one, on the
bare kernel. A cold replay of every task does what the live code did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from backstay import Saga, activity, wait, workflow
from backstay.codec.exceptions import Exceptions
from backstay.codec.values import loads
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.task import Task
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.reactions import REACTIONS

from ..selection import rotating
from .test_replay_laws import MACHINE, Drive


@activity
def book(what: str) -> int:
    return 1


@activity(retries=1, backoff=0)
def bad(what: str) -> int:
    return 1


@activity
def unbook(what: str) -> int:
    return 1


@workflow(type="program", unchecked=True, handles_cancel="1000d", signals=["paid"])
def trip(program: Any) -> str:
    with Saga() as saga:
        for what in program:
            if what == "wait":
                wait("paid", timeout=5)
            elif what == "fail":
                bad("x")
            else:
                book(what)
                saga.undo(unbook, what)
    return "on the way"


@workflow(type="program", unchecked=True, handles_cancel="1000d", signals=["paid"])
async def trip_later(program: Any) -> str:
    async with Saga() as saga:
        for what in program:
            if what == "wait":
                await wait.step("paid", timeout=5)
            elif what == "fail":
                await bad.step("x")
            else:
                await book.step(what)
                saga.undo(unbook.step(what))
    return "on the way"


@workflow(type="program", unchecked=True, handles_cancel="1000d", signals=["paid"])
async def trip_in_time(program: Any) -> str:
    """A timeout of asyncio's is no request to cancel."""
    with_time: list[str] = []
    async with Saga() as saga:
        for what in program:
            try:
                async with asyncio.timeout(1000):
                    await book.step(what)
                    saga.undo(unbook.step(what))
            except TimeoutError:
                with_time.append(what)
    return "on the way"


class Ways:
    """Which of several things happens next: every answer once, as in an odometer."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.at = 0

    def choose(self, width: int) -> int:
        if self.at == len(self.taken):
            self.taken.append(0)
            self.widths.append(width)
        assert self.widths[self.at] == width, "the same beginning goes on in the same way"
        self.at += 1
        return self.taken[self.at - 1]

    def all(self) -> Iterator[None]:
        while True:
            self.at = 0
            yield
            while self.taken and self.taken[-1] + 1 == self.widths[-1]:
                self.taken.pop()
                self.widths.pop()
            if not self.taken:
                return
            self.taken[-1] += 1


class Cancelling(Drive):
    """A drive that is cancelled once, somewhere."""

    def __init__(self, definition: Any, program: Any, ways: Ways) -> None:
        self.ways = ways
        self.cancelled = False
        super().__init__(definition, program, [0])
        self.tape = repeat(0)

    def play(self) -> None:
        for _ in range(200):
            if not self.flow.current.is_open:
                return
            choices: list[Any] = [task for task in self.flow.tasks.values() if task.available_at <= self.now]
            if not choices and MACHINE.agenda.next_wake(self.flow) is not None:
                choices.append(None)
            if not self.cancelled:
                choices.append("cancel")
            choice: Task | str | None = choices[self.ways.choose(len(choices))]
            if choice == "cancel":
                self.cancelled = True
                self.now += 1
                self.message(Cancel())
            else:
                self.act(choice)  # type: ignore[arg-type]
        raise AssertionError("this never ends")

    def run_code(self, task: Task) -> None:
        if self.live is not None and self.ways.choose(2):
            self.live.abandon()  # the next process has it
            self.live = None
        super().run_code(task)

    def live_run(self, task: Task) -> LiveRun:
        return LiveRun(
            MACHINE,
            MACHINE.assign(self.flow, task),
            self.definition.main,
            Exceptions(),
            self.definition.fingerprint,
            None,
            REACTIONS,
            self.definition.handlers,
        )

    def done(self, type: str) -> list[str]:
        """The arguments of those activities of a type that history says were completed."""
        asked: dict[int, str] = {}
        done: list[str] = []
        for entry in self.history:
            event: Any = entry.event
            if entry.type == "ActivityScheduled" and event.activity_type == type:
                asked[event.sequence] = loads(event.activity.arguments, Any)[0]
            elif entry.type == "ActivityCompleted" and event.activity_type == type:
                done.append(asked[event.sequence])
        return done


TRIPS = [["hotel"], ["hotel", "flight"], ["hotel", "wait"], ["hotel", "fail"]]


DEFINITIONS = {"def": trip, "async def": trip_later, "with timeouts": trip_in_time}


@pytest.mark.parametrize(
    ("definition", "program"),
    rotating(
        [
            pytest.param(definition, program, id=f"{name}-{' '.join(program)}")
            for name, definition in DEFINITIONS.items()
            for program in TRIPS
        ],
        4,
    ),
)
def test_whenever_a_trip_is_cancelled_what_was_booked_is_given_back(definition: Any, program: list[str]) -> None:
    if definition is trip_in_time and set(program) & {"wait", "fail"}:
        program = ["hotel", "flight"]
    ways = Ways()
    ends: set[str] = set()
    for count, _ in enumerate(ways.all()):
        drive = Cancelling(definition, program, ways)
        drive.play()
        end = drive.history[-1].type
        ends.add(end)
        booked, given_back = drive.done("book"), drive.done("unbook")
        expected = [] if end == "WorkflowCompleted" else booked[::-1]
        assert given_back == expected, (end, [entry.type for entry in drive.history])
        assert count < 20_000
    assert ends == {"WorkflowCancelled", "WorkflowFailed" if "fail" in program else "WorkflowCompleted"}
