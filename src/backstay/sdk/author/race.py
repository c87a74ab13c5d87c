"""`race`: wait for the first of several durable calls; the others are cancelled.

Activities, children and timers race as a *selection*: the engine records the winner in the commit that ends it. If waits for
signals or conditions take part, the code itself finds the winner, and each contender is an ordinary step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Literal, TypeVar, cast, overload

from backstay.kernel.feature import Outcome
from backstay.kernel.groups import GroupEntry
from backstay.sdk.author.composite import Composite
from backstay.sdk.author.group import KINDS
from backstay.sdk.author.step import Call, Step
from backstay.sdk.errors import NotInWorkflow
from backstay.sdk.replay.live_run import LiveRun

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Thunk = Callable[[], T]


class Contest:
    """A running race: the first call to end wins, and the others are cancelled."""

    def __init__(self, live_run: LiveRun, calls: list[Call[Any]], done: Callable[[], None]) -> None:
        self._live_run = live_run
        self._done = done
        self._calls = calls = _selection(calls, live_run.step + 1)
        self._steps: dict[int, int] = {}  # place -> step
        self.winner: int | None = None
        self.outcome: Outcome | None = None
        for place, call in enumerate(calls):
            if self.winner is None:
                self._steps[place] = live_run.ask(call, lambda outcome, place=place: self._answered(place, outcome))

    def _answered(self, place: int, outcome: Outcome) -> None:
        if self.winner is None:
            self.winner = place
            self.outcome = outcome
            self.cancel()
            self._done()

    @property
    def over(self) -> bool:
        return self.winner is not None

    def cancel(self) -> None:
        """Cancel all calls but the winner."""
        for place, step in list(self._steps.items()):
            if place != self.winner:
                del self._steps[place]
                self._live_run.drop(step)
                self._calls[place].cancel(self._live_run, step)

    def value(self) -> tuple[int, Any]:
        assert self.winner is not None
        assert self.outcome is not None
        return self.winner, self._calls[self.winner].finish(self._live_run, self.outcome)


def _selection(calls: list[Call[Any]], base: int) -> list[Call[Any]]:
    """Return the calls with their places in a selection whose first step is `base`, or unchanged if they cannot form one."""
    size = len(calls)
    if size < 2 or any(call.shape not in KINDS for call in calls):
        return calls
    kinds = [KINDS[call.shape] for call in calls]
    placed: list[Call[Any]] = []
    for place, (call, kind) in enumerate(zip(calls, kinds, strict=True)):
        call = copy(call)  # one step may be a contender several times, each with its own place
        call.group = [
            GroupEntry(
                parallel_group_id=f"select-calls:{base}:{size}",
                parallel_group_kind=kind if len(set(kinds)) == 1 else "mixed",
                parallel_group_base_sequence=base,
                parallel_group_size=size,
                parallel_group_index=place,
                parallel_group_mode="select",
                selection_member_key=place,
                selection_member_index=place,
                selection_member_base_sequence=base + place,
                selection_member_size=1,
                selection_member_kind=kind,
            )
        ]
        placed.append(call)
    return placed


class RaceStep(Composite):
    __slots__ = ("_calls",)

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        self._calls = [_contender(step) for step in steps]
        if not self._calls:
            raise TypeError("race() needs at least one step")

    def begin(self, live_run: LiveRun, done: Callable[[], None]) -> Contest:
        return Contest(live_run, self._calls, done)

    def outside(self) -> Any:
        raise NotInWorkflow("race()")

    def __repr__(self) -> str:
        return f"<step race of {len(self._calls)}>"


def _contender(step: Any) -> Call[Any]:
    if not isinstance(step, Step) or step.composite:
        raise TypeError(f"race() takes single steps (charge.step(...), sleep.step(...), wait.step(...)), not {step!r}")
    return step._call  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]


class Race:
    """The type of `race`: `race(a, b)` returns (0, value of a) or (1, value of b); `race.step(a, b)` describes the race."""

    @overload
    def __call__(self, a: Thunk[A], b: Thunk[B], /) -> tuple[Literal[0], A] | tuple[Literal[1], B]: ...
    @overload
    def __call__(
        self, a: Thunk[A], b: Thunk[B], c: Thunk[C], /
    ) -> tuple[Literal[0], A] | tuple[Literal[1], B] | tuple[Literal[2], C]: ...
    @overload
    def __call__(self, steps: Iterable[Thunk[T]], /) -> tuple[int, T]: ...
    @overload
    def __call__(self, *steps: Thunk[T]) -> tuple[int, T]: ...
    def __call__(self, *steps: Any) -> Any:
        return RaceStep(_contenders(steps)).run()

    @overload
    def step(self, a: Thunk[A], b: Thunk[B], /) -> Step[tuple[Literal[0], A] | tuple[Literal[1], B]]: ...
    @overload
    def step(self, steps: Iterable[Thunk[T]], /) -> Step[tuple[int, T]]: ...
    @overload
    def step(self, *steps: Thunk[T]) -> Step[tuple[int, T]]: ...
    def step(self, *steps: Any) -> Step[Any]:
        return RaceStep(_contenders(steps))


def _contenders(steps: tuple[Any, ...]) -> list[Any]:
    if len(steps) == 1 and isinstance(steps[0], Iterable):
        return list(cast(Iterable[Any], steps[0]))
    return list(steps)


race = Race()
"""Wait for the first of several durable calls: `race(a, b)` returns `(0, value)` or `(1, value)`. The others are cancelled.

If the first call to end failed, its exception is raised.
"""
