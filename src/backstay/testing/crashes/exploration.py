"""The exploration of a test: a first trial to learn its points, then one for each of them, for other orders, and for pairs.

    for trial in exploration:
        with trial:
            test()

It ends with the first trial that fails. Those with one kill come first, so that is a shortest one.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

from backstay.testing import kept
from backstay.testing.crashes.memory import Memory
from backstay.testing.crashes.progress import TrialProgress
from backstay.testing.crashes.report import TrialFinding, outcomes, report
from backstay.testing.crashes.schedule import CrashSchedule, parse
from backstay.testing.crashes.trial import CrashTrial, Note

BOUND = 50
"""How many other orders, and how many pairs, are tried at most."""

StoreKind = Literal["memory", "sqlite"]


class CrashFailure(AssertionError):
    """A test fails when its process is killed at some point. The message has the timeline and the command that repeats it."""


class Explored(Struct, frozen=True):
    """What was explored: `points` are those at which the process was killed, `trials` all runs of the test but the first."""

    points: int
    trials: int

    def __str__(self) -> str:
        return f"{self.points} of {self.points} points, {self.trials} trials"


class Exploration:
    """`name`: of the test, as a command repeats it. `only`: the text of the one schedule to run. `bound`: how many other orders
    and how many pairs to try; if there are more, some are drawn by `seed`. `failures`: exceptions that are failures of the test."""

    def __init__(
        self,
        name: str,
        *,
        only: str | None = None,
        bound: int = BOUND,
        seed: int | None = None,
        store: StoreKind = "memory",
        failures: tuple[type[BaseException], ...] = (Exception,),
        values: dict[str, Any] | None = None,
        progress: TrialProgress | None = None,
    ) -> None:
        self._name = name
        self._only = only or kept.crash
        self._bound = bound
        self._random = random.Random(kept.seed if seed is None else seed)
        self._store = store
        self._failures = failures
        self._progress = progress or TrialProgress(sys.stderr)
        self.memory = Memory()
        self.memory.keep_values(values or {})
        self.base = CrashTrial(CrashSchedule(), self.memory)
        self.result = Explored(0, 0)

    def __iter__(self) -> Iterator[CrashTrial]:
        __tracebackhide__ = True
        try:
            yield from self._explored()
        finally:
            self.memory.restore()

    def _explored(self) -> Iterator[CrashTrial]:
        __tracebackhide__ = True
        base = self.base = self._trial(CrashSchedule())
        yield base
        self._cleared(base)
        if base.error is not None:
            raise base.error
        self._check(base)
        if self._only is not None:
            yield from self._tried(parse(self._only))
            return
        # What a killed process and its successor log is what the trial is for.
        levels = {known: known.level for known in _loggers()}
        try:
            for known in levels:
                known.setLevel(logging.CRITICAL + 1)
            yield from self._all()
        finally:
            for known, level in levels.items():
                known.setLevel(level)
            self._progress.close()

    def _all(self) -> Iterator[CrashTrial]:
        __tracebackhide__ = True
        kills = [number for number, note in enumerate(self.base.points[0], 1) if not self._is_told_twice(number, note)]
        orders = self._some(CrashSchedule(orders=(order,)) for order in _others(self.base))
        late = [
            CrashSchedule(late=number)
            for number, (one, next) in enumerate(zip(self.base.signals, self.base.signals[1:], strict=False))
            if (one.at, one.turn, one.request.workflow_id) == (next.at, next.turn, next.request.workflow_id)
        ]
        self._progress.expect(len(kills) + len(orders) + len(late))
        after: list[tuple[int, int]] = []
        for point in kills:
            trial = self._trial(CrashSchedule(kills=(point,)))
            yield from self._run(trial)
            self.result = Explored(self.result.points + 1, self.result.trials)
            after += (
                [(point, second) for second in range(1, len(trial.points[-1]) + 1)] if len(trial.points) > 1 else []
            )
            if trial.changed:
                yield from self._forgetting(trial)
        for schedule in (*orders, *late):
            yield from self._tried(schedule)
        pairs = self._some(CrashSchedule(kills=pair) for pair in after)
        self._progress.expect(len(pairs))
        for schedule in pairs:
            yield from self._tried(schedule)

    def _forgetting(self, kept: CrashTrial) -> Iterator[CrashTrial]:
        """Repeat a trial with a process that forgets. Its runs have to end alike: the test itself may look at what is forgotten."""
        __tracebackhide__ = True
        self._progress.expect(1)
        trial = self._trial(CrashSchedule(kills=kept.schedule.kills, forgets=True))
        yield trial
        self._count(trial)
        if outcomes(trial) != outcomes(kept):
            raise self._failure(trial, kept)

    def _tried(self, schedule: CrashSchedule) -> Iterator[CrashTrial]:
        __tracebackhide__ = True
        if schedule.forgets:
            remembers = self._trial(CrashSchedule(kills=schedule.kills))
            yield remembers
            yield from self._forgetting(remembers)
        else:
            yield from self._run(self._trial(schedule))

    def _run(self, trial: CrashTrial) -> Iterator[CrashTrial]:
        __tracebackhide__ = True
        yield trial
        self._count(trial)
        self._check(trial)

    def _trial(self, schedule: CrashSchedule) -> CrashTrial:
        directory = None if self._store == "memory" else tempfile.mkdtemp(prefix="backstay-crash-")
        base = None if not schedule.kills and not schedule.orders and schedule.late is None else self.base
        return CrashTrial(schedule, self.memory, base=base, directory=directory, failures=self._failures)

    def _count(self, trial: CrashTrial) -> None:
        self._cleared(trial)
        self.result = Explored(self.result.points, self.result.trials + 1)
        self._progress.step()

    def _cleared(self, trial: CrashTrial) -> None:
        if trial.directory is not None:
            shutil.rmtree(trial.directory, ignore_errors=True)

    def _check(self, trial: CrashTrial) -> None:
        __tracebackhide__ = True
        if TrialFinding(trial, None).wrong:
            raise self._failure(trial, None)

    def _failure(self, trial: CrashTrial, kept: CrashTrial | None) -> CrashFailure:
        failure = CrashFailure(report(TrialFinding(trial, kept), self._name, self.result.trials + 1))
        failure.__cause__ = trial.error if isinstance(trial.error, Exception) else None
        return failure

    def _some(self, schedules: Iterable[CrashSchedule]) -> list[CrashSchedule]:
        """All of them, or as many as the bound allows."""
        found = list(schedules)
        return found if len(found) <= self._bound else self._random.sample(found, self._bound)

    def _is_told_twice(self, number: int, note: Note) -> bool:
        """Whether the point is the same as the next one: an activity returns right after its effect."""
        points = self.base.points[0]
        return note.kind == "effect" and number < len(points) and points[number].kind == "acted"


def _others(base: CrashTrial) -> Iterator[tuple[int, int]]:
    for choice, options in enumerate(base.choices):
        yield from ((choice, option) for option in range(1, options))


def _loggers() -> list[logging.Logger]:
    return [
        logging.getLogger(name)
        for name in ("backstay", *logging.root.manager.loggerDict)
        if name.startswith("backstay")
    ]


def explore(
    test: Callable[..., Any],
    *,
    register: Iterable[Any] = (),
    only: str | None = None,
    bound: int = BOUND,
    seed: int | None = None,
    store: StoreKind = "memory",
) -> Explored:
    """Run a test again and again, and kill its process at each of its points. Raises `CrashFailure` with the first that breaks it.

    `test` opens a `TestBackstay`, or takes an open one that has registered `register`. It may be `async def`. `only`: the text of
    one schedule, as a report has it. `bound`: how many other orders of what happens at once, and how many pairs of points, are
    tried at most; if there are more, `seed` draws some. `store`: "sqlite" keeps the store in a file.
    """
    import asyncio

    from backstay.testing.app import AsyncTestBackstay
    from backstay.testing.sync_app import TestBackstay

    __tracebackhide__ = True
    takes_app = bool(inspect.signature(test).parameters)
    things = list(register)

    async def run_async() -> None:
        if not takes_app:
            await test()
            return
        async with AsyncTestBackstay(register=things) as app:
            await test(app)

    def run() -> None:
        if inspect.iscoroutinefunction(test):
            asyncio.run(run_async())
        elif takes_app:
            with TestBackstay(register=things) as app:
                test(app)
        else:
            test()

    running = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] if "pytest" in sys.modules else ""
    exploration = Exploration(
        f"pytest {running}" if running else f"explore({getattr(test, '__name__', 'test')}, only=...)",
        only=only,
        bound=bound,
        seed=seed,
        store=store,
    )
    for trial in exploration:
        with trial:
            run()
    return exploration.result
