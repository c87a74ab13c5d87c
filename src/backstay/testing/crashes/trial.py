"""A trial: one run of the test under one schedule, and what is learned in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec import Struct

from backstay.kernel.decision import Decision
from backstay.kernel.values import Micros
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.sdk.author.attempt import Attempt
from backstay.testing import kept
from backstay.testing.crashes.calls import with_request_id
from backstay.testing.crashes.effects import Effect, effects
from backstay.testing.crashes.memory import Memory
from backstay.testing.crashes.schedule import CrashSchedule
from backstay.testing.timelines import RunHistory


class KillableProcess(Protocol):
    """The process of an app, as its trial sees it."""

    def now(self) -> Micros: ...
    def runs_attempt(self, id: str) -> bool: ...
    def effect(self, attempt: Attempt | None, told: str) -> bool: ...


class Killed(BaseException):
    """Ends the code of a process that is dead. No `except Exception` holds it up."""


class Move(Struct):
    """Something that waits to enter the engine."""

    ticket: int
    told: str
    call: Callable[[], None]


class Note(Struct, frozen=True):
    """A line of the timeline of a trial. `what`: words, or the decisions of a commit."""

    at: Micros
    kind: str
    what: Any


class Signalled(Struct, frozen=True):
    """A signal of the test and its answer. `turn`: how many other calls the test had made."""

    request: tell.SignalWorkflow
    answer: Any
    at: Micros
    turn: int


class CrashTrial:
    """`base`: the trial without a kill, if this is another one. `failures`: exceptions that are failures of the test."""

    def __init__(
        self,
        schedule: CrashSchedule,
        memory: Memory,
        *,
        base: CrashTrial | None = None,
        directory: str | None = None,
        failures: tuple[type[BaseException], ...] = (Exception,),
    ) -> None:
        self.schedule = schedule
        self._memory = memory
        self._base = base
        self._failures = failures
        self.directory = directory
        self.error: BaseException | None = None
        self.points: list[list[Note]] = [[]]  # of each life
        self.choices: list[int] = []  # how many options each had
        self.notes: list[Note] = []
        self.signals: list[Signalled] = []
        self.runs: list[RunHistory] = []
        self.changed: list[str] = []
        """What had changed outside the store when the first process was killed."""
        self.repeated: list[list[Effect]] = []
        self._processes: list[KillableProcess] = []
        self._turns = 0
        self._requests = 0
        self._kept_back: tell.SignalWorkflow | None = None

    def next_path(self) -> str:
        """Return the database of the next app."""
        return ":memory:" if self.directory is None else f"{self.directory}/{len(self._processes)}.db"

    # -- running the test

    def __enter__(self) -> Self:
        kept.trial = self
        if kept.histories is not None:
            kept.histories.clear()  # a report shows the runs of the last trial
        effects.clear()
        effects.watch, effects.after = self._watch, self._after_effect
        self._memory.restore()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        kept.trial = None
        effects.watch = effects.after = None
        self.repeated = effects.repeated()
        self.error = error
        return isinstance(error, self._failures)

    # -- the processes of the trial

    def joined(self, process: KillableProcess) -> None:
        self._processes.append(process)

    def keep(self, things: Sequence[Any]) -> None:
        """Take down what this code remembers."""
        self._memory.keep(things)

    def forget(self) -> None:
        """A process was killed: if the schedule says so, what it has remembered is gone."""
        if not self.changed:
            self.changed = self._memory.changed()
        if self.schedule.forgets:
            self._memory.forget()

    # -- points and orders

    def note(self, at: Micros, kind: str, what: Any) -> None:
        self.notes.append(Note(at, kind, what))

    def point(self, at: Micros, kind: str, what: Sequence[Decision] | str) -> bool:
        """Count a point. Returns whether the process is killed here."""
        note = Note(at, kind, what)
        life = self.points[-1]
        life.append(note)
        kills = self.schedule.kills
        lives = len(self.points)
        dies = lives <= len(kills) and kills[lives - 1] == len(life)
        if kind != "before" or not dies:
            self.notes.append(note)
        if dies:
            self.note(at, "killed", f"killed at point {len(life)}")
            self.points.append([])
        return dies

    def choose(self, moves: Sequence[Move]) -> int:
        """Return which of several comes next."""
        if len(moves) == 1:
            return 0
        number = len(self.choices)
        self.choices.append(len(moves))
        option = min(dict(self.schedule.orders).get(number, 0), len(moves) - 1)
        if option:
            self.note(self._processes[-1].now(), "order", f"{moves[option].told} comes before {moves[0].told}")
        return option

    # -- effects

    def _watch(self, effect: Effect) -> None:
        attempt = effect.attempt
        if attempt is not None and not any(one.runs_attempt(attempt.attempt_id) for one in self._processes):
            raise Killed

    def _after_effect(self, effect: Effect) -> None:
        for process in self._processes:
            if effect.attempt is None or process.runs_attempt(effect.attempt.attempt_id):
                self.note(process.now(), "done", f"{effect.key!r} by {effect.told}")
                if (
                    process.effect(effect.attempt, f"{effect.key!r} was done by {effect.told}, which goes on")
                    and effect.attempt
                ):
                    raise Killed
                return

    # -- calls of the test

    def named(self, request: ask.Request[Any]) -> ask.Request[Any]:
        """Give a call an id by which its repetition is known."""
        self._memory.mark()
        self._requests += 1
        return with_request_id(request, f"crash-{self._requests}")

    def comes_late(self, request: tell.SignalWorkflow) -> Any:
        """Keep a signal back if the schedule says so, and return the answer that it got in the first trial."""
        if self._base is None or self.schedule.late != len(self.signals) or self._kept_back is not None:
            return None
        self._kept_back = request
        known = self._base.signals[len(self.signals)]
        self.signals.append(known)
        self.note(self._processes[-1].now(), "order", f"signal {request.signal_name!r} is on its way")
        return known.answer

    def take_late(self) -> tell.SignalWorkflow | None:
        late, self._kept_back = self._kept_back, None
        return late

    def signalled(self, request: tell.SignalWorkflow, answer: Any, at: Micros) -> None:
        self.signals.append(Signalled(request, answer, at, self._turns))

    def asked(self, request: ask.Request[Any]) -> None:
        self._turns += 1

    def passed(self) -> None:
        """The test has let time pass."""
        self._turns += 1
