"""A live run: the code of one run in memory, driven by its history. Pure: events in, commands out, no I/O.

**How replay feeds the code.** History is applied one event at a time, and after each the code runs until all of its greenlets
wait. That is also what happened when the code was live, event by event, so a cold replay makes the same calls in the same
order, however many branches there are. Were two events applied before the code runs, a `race` or two branches could see them
in another order than the live code did, and take their next steps in another order. What the code decided is recorded with
`decided_after`, the last event it had seen then; `_in_order` puts it back there, because other events may have been recorded
in between. `tests/sdk/test_replay_laws.py` compares live code with a cold replay of every prefix of its history.

**Steps.** A durable call takes the next step number. If history has that step, its shape must match, and a mismatch *blocks*:
the greenlet is parked, nothing is thrown into the author's code, and the run stays open for code that fits. If history has
nothing of it, the call becomes a command, and the greenlet waits for the event that answers it.
"""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from backstay.codec.exceptions import Exceptions
from backstay.kernel.command import Command
from backstay.kernel.event import Event, Recorded, StepEvent
from backstay.kernel.feature import Outcome
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.features.workflow_task import (
    SEEN_BY_NEXT_TASK,
    WorkflowAssignment,
    replay_position,
    seen_by_next_task,
)
from backstay.kernel.machine import Machine
from backstay.kernel.state import PartOf, Parts
from backstay.kernel.task import Block
from backstay.kernel.values import Micros
from backstay.runtime_hooks import collector
from backstay.sdk.errors import DurableCallRefused, Evicted
from backstay.sdk.replay import workflow_greenlet as greenlets
from backstay.sdk.replay.handled_failures import DeliveredFailures
from backstay.sdk.replay.operation import CANCEL, REQUESTED, LocalActivityPlaceholder, Operation, asked_for, stopped
from backstay.sdk.replay.recorded_steps import RecordedStep, RecordedSteps
from backstay.sdk.replay.workflow_greenlet import Readonly, WorkflowGreenlet, current_greenlet

_CLOSURE = Readonly(
    "a closure in gather(), which makes one durable call and then only computes (use spawn() for more),"
)


class Reactions(NamedTuple):
    """How live code meets what comes from outside: by event, and once a task has been shown everything it may see."""

    by_event: Mapping[type[Event], Callable[[LiveRun, Recorded], None]]
    settle: Callable[[LiveRun], None]


def _nothing_to_settle(live_run: LiveRun) -> None:
    pass


NO_REACTIONS = Reactions({}, _nothing_to_settle)


class LiveRun:
    """The code of one run in memory: its greenlets, the steps they wait for, and the commands they have asked for."""

    # -- hot path: a `LiveRun` is made for every run. What most runs never set is a default of the class, so `__init__` sets
    # 17 attributes instead of 44. On CPython 3.11 that takes 0.8 µs instead of 3.4, and 296 bytes of dictionary instead of
    # 1,584, because more than 30 attributes lose the compact form. `bench/hello.py` shows both: CPU for a workflow, memory of runs that wait.
    now: Micros = 0
    clock_read = False  # whether the code has asked for the time; `Ahead` clears it
    instance: Any = None  # of a workflow class
    main: WorkflowGreenlet | None = None  # the greenlet of a `def` workflow's own code
    main_task: Any = None  # the same of an `async def` one
    owed: WorkflowGreenlet | None = None  # meets a cancellation at its next wait
    looking = False  # this code only answers a question: nothing new is recorded or run
    answer: Sequence[Command] = ()  # to the one update that this task is for
    position = 0  # the last history sequence applied
    consumed = 0  # how many events that were; less than `position` while some are left for a later task
    started: WorkflowStarted | None = None
    length = 0  # the history as long as the code has seen it
    step = 0  # the last step number the code has asked for
    block: Block | None = None
    abandoned = False
    threaded = False  # lives on the workflow thread
    replaying = False
    guard = "off"  # what becomes of calls that a replay could not repeat
    closing: Command | None = None
    ended_at: int | None = None  # the event that brought the end; those after it were not met
    fatal: BaseException | None = None
    broken: Exception | None = None  # a side effect failed: the run can only fail
    loop: Any = None  # the event loop of an `async def` workflow
    running_loop: greenlets.Loop | None = None  # set while that loop is pumping
    _recorded: RecordedSteps | None = None  # made when history is ahead of the code
    _random: random.Random | None = None
    _ahead: Iterator[Recorded] = iter(())  # the events after the one being applied

    def __init__(
        self,
        machine: Machine,
        assignment: WorkflowAssignment,
        main: Callable[[LiveRun, WorkflowStarted], None],
        exceptions: Exceptions,
        fingerprint: str | None,
        compatibility: str | None = None,
        reactions: Reactions = NO_REACTIONS,
        handlers: Any = None,
    ) -> None:
        self.machine = machine
        self.assignment = assignment
        self.exceptions = exceptions
        self.fingerprint = fingerprint
        self.compatibility = compatibility
        self.reactions = reactions
        self.handlers = handlers  # what others may say to this workflow
        self.commands: list[Any] = []
        self.locals: dict[int, Any] = {}
        self.branches: dict[Any, None] = {}  # not joined yet, oldest first
        self.markers: dict[str, int] = {}
        self._main = main
        self._waiting: dict[int, WorkflowGreenlet | Callable[[Outcome], None]] = {}
        self._runnable: deque[tuple[WorkflowGreenlet | None, Any]] = deque()
        self._suspended: set[WorkflowGreenlet] = set()
        self.parts = Parts()  # what the SDK's features keep of this run
        self.part: PartOf = self.parts.__getitem__

    # -- driven by the worker

    def resume(self, events: list[Recorded], cursor: int = 0) -> None:
        """Apply the events after `position`, then let the code run as far as it can.

        Up to `cursor` this is repetition: an earlier task has run the same code, and logs stay silent.
        """
        # An event reaches the code in one of three ways: as the answer to a step it waits for (`outcomes`), as something that
        # happens to it (`reactions`), or as its beginning. All others are records of what the engine did.
        if events:
            last = events[-1].sequence
            if last > self.position:
                self.position = last
            self.consumed += len(events)
        events = self._in_order(events)
        outcomes = self.machine.outcomes
        reactions = self.reactions.by_event
        self._ahead = ahead = iter(events)
        for entry in ahead:
            event = entry.event
            kind = type(event)
            if kind in outcomes:
                outcome = outcomes[kind](event)
            elif kind in reactions or kind is WorkflowStarted:
                outcome = None
            else:
                continue  # it is nothing to the code
            if outcome is not None:
                if self.closing is not None and not local_activity(event):
                    continue  # the run is over; only what its last task ran beside itself still reaches the code
                waiter = self._waiting.pop(event.sequence, None)  # type: ignore[attr-defined]
                if waiter is None:
                    if DeliveredFailures in self.parts:
                        self.delivered.recorded(event.sequence, outcome)  # type: ignore[attr-defined]
                    continue
                self._meet(entry, cursor)
                self._resolve(waiter, outcome)
            elif kind in reactions:
                self._meet(entry, cursor)
                reactions[kind](self, entry)
            elif kind is WorkflowStarted:
                self._meet(entry, cursor)
                self._begin(event)  # type: ignore[arg-type]
            if self.block is not None:
                return
            if self.closing is not None and self.ended_at is None:
                self.ended_at = entry.sequence
        self.replaying = False
        if self._recorded and self.block is None:
            self.block = self._recorded.unreached(self.closing is not None)
        if self.block is None and not self.looking:
            self.reactions.settle(self)

    def _meet(self, entry: Recorded, cursor: int) -> None:
        """The code is about to react to this event: that is what time it is for it."""
        decided = entry.context.decided_after
        if decided is not None and not seen_by_next_task(entry.event):
            # Live code got there inside its task, before it was recorded: at the time of what it had seen.
            self.replaying = decided <= cursor
        else:
            self.now = entry.at
            self.length = entry.sequence
            self.replaying = entry.sequence <= cursor

    def settle_local(self, step: int, command: Command, outcome: Outcome) -> None:
        """A local activity has ended: its record takes the place that was kept for it, and the code goes on."""
        del self.locals[step]
        self.commands[self.commands.index(LocalActivityPlaceholder(step=step))] = command
        waiter = self._waiting.pop(step, None)
        if waiter is not None:
            self._resolve(waiter, outcome)
        if self.block is None and not self.looking:
            self.reactions.settle(self)

    def take_commands(self) -> tuple[list[Command], list[str]]:
        """What the code has asked for since the last time, in order."""
        commands, self.commands = self.commands, []
        if self.closing is not None:
            commands.append(self.closing)
        return commands, self.delivered.handled(self.fatal, commands) if DeliveredFailures in self.parts else []

    @property
    def delivered(self) -> DeliveredFailures:
        """Made when the first failure is given to the code."""
        return self.part(DeliveredFailures)

    def abandon(self) -> None:
        """Give the live code up. It is unwound with every durable call, log and side effect inert."""
        self.abandoned = True
        self._waiting.clear()
        self._runnable.clear()
        if self._suspended:
            suspended, self._suspended = self._suspended, set()
            for greenlet in suspended:
                if self.block is not None:
                    greenlets.park(partial(greenlets.give_up, greenlet))
                else:
                    greenlets.give_up(greenlet)
        if self.loop is not None or self.instance is not None or self.fatal is not None:
            if self.block is not None:
                greenlets.park(partial(greenlets.run, self, self._leave_nothing))
            else:
                greenlets.run(self, self._leave_nothing)

    def freeze(self, block: Block) -> None:
        """Leave code that was interrupted as it stands, for ever: unwinding it could hang again."""
        self.block = block
        self.abandoned = True
        greenlets.keep_for_ever(
            (self._suspended, self.loop, self.instance, self.main_task, self.fatal, list(self.branches))
        )
        self._suspended = set()
        self.loop = self.instance = self.main_task = self.fatal = None

    def _leave_nothing(self) -> None:
        """Let go of what the code has kept, here, where whatever its objects do at their end has no effect."""
        if self.loop is not None:
            self.loop.abandon()
        if self.fatal is not None:
            self.fatal.__traceback__ = None  # its frames have this run among their locals
        self.loop = self.instance = self.main_task = self.fatal = None
        self.parts.clear()

    # -- called by the author's code, on a greenlet

    def call(self, operation: Operation, greenlet: WorkflowGreenlet) -> Outcome:
        """A durable call that waits: take a step, ask for it unless history has it, suspend until it is answered."""
        if greenlet.collect is not None:
            return self._collected(greenlet, operation)
        step = self._ask(operation, greenlet)
        self._waiting[step] = greenlet
        if operation.hears:
            got = operation.asked(self, step, self._answering(step))
            if got is not None:
                del self._waiting[step]
                return got
        try:
            return self.suspend(greenlet)
        except CancelledError as error:
            if asked_for(error) and operation.spared(self, step):
                return self._last_word(greenlet)
            self.drop(step)
            operation.cancel(self, step)
            raise

    def _last_word(self, greenlet: WorkflowGreenlet) -> Outcome:
        """A step was told to end. If that is how it ends, the cancellation is met here; otherwise at the next wait."""
        outcome = self.suspend(greenlet)
        if stopped(outcome):
            raise CancelledError
        self.owed = greenlet
        return outcome

    def ask(self, operation: Operation, answer: Callable[[Outcome], None]) -> int:
        """A durable call whose answer goes to a callback (futures of the workflow's event loop)."""
        step = self._ask(operation, current_greenlet())
        self._waiting[step] = answer
        if operation.hears:
            got = operation.asked(self, step, self._answering(step))
            if got is not None:
                del self._waiting[step]
                answer(got)
        return step

    def _collected(self, greenlet: WorkflowGreenlet, operation: Operation) -> Outcome:
        """A closure's one call is made by the group it is a member of."""
        collect, greenlet.collect = greenlet.collect, None
        assert collect is not None
        self._check(greenlet)
        greenlet.readonly = _CLOSURE
        collect(operation)
        return self.suspend(greenlet)

    def simultaneous(self) -> Iterator[tuple[int, Outcome | None]]:
        """(step, outcome) of the events after the one being applied that were recorded at the same moment.

        Only those that the code had before it when it reacted: a decision in between was made without the later ones.
        """
        for entry in copy(self._ahead):
            if entry.at != self.read_clock() or (
                entry.context.decided_after is not None and not seen_by_next_task(entry.event)
            ):
                return
            rule = self.machine.outcomes.get(type(entry.event))
            if rule is not None:
                yield entry.event.sequence, rule(entry.event)  # type: ignore[attr-defined]

    def read_clock(self) -> Micros:
        """What time it is for the code. Whoever lets code go on before its last event is recorded must know that it asked."""
        self.clock_read = True
        return self.now

    def awaits(self, step: int) -> bool:
        return step in self._waiting

    def awaits_only(self, step: int) -> bool:
        """Whether nothing but this step can make the code go on."""
        return len(self._waiting) == 1 and step in self._waiting

    def _answering(self, step: int) -> Callable[[Outcome], None]:
        def answer(outcome: Outcome) -> None:
            waiter = self._waiting.pop(step, None)
            if waiter is not None:
                self._resolve(waiter, outcome)

        return answer

    def immediate(self, operation: Operation, decide: Callable[[int], Command]) -> Outcome | None:
        """A durable call that does not wait. Returns what history has, or records what `decide` says and returns None."""
        self._check(current_greenlet())
        self.step = step = self.step + 1
        known = self._recorded.asked(step, operation) if self._recorded else None
        if known is not None:
            self._guard(step, operation, known)
            if known.outcome is not None:
                return known.outcome
        elif self._recorded:
            self._guard_hole(step, operation)
        if self.looking:
            self._halt()
        try:
            self.commands.append(decide(step))
        except Exception as error:
            # A step was taken and has no record. Nothing may come after it, or replay would mistake it for this one.
            self.broken = error
            raise
        return None

    def peek(self) -> StepEvent | None:
        """The event that history has for the next step, if any."""
        known = self._recorded.get(self.step + 1) if self._recorded else None
        return None if known is None else known.event

    def emit(self, command: Command) -> None:
        """A command without a step, such as a cancellation. What an earlier task asked for is not asked again."""
        if not self.abandoned and not self.replaying:
            self.commands.append(command)

    def drop(self, step: int) -> None:
        """Nobody waits for this step any more."""
        self._waiting.pop(step, None)

    def spawn(self, job: Callable[[], None]) -> None:
        """Run a job as another greenlet of this run, after what is running now."""
        self._check(current_greenlet())
        self._runnable.append((None, job))

    def wake_job(self, job: Callable[[], None]) -> None:
        """Like `spawn`, for the run's own machinery: also allowed while code is being unwound."""
        if not self.abandoned:
            self._runnable.append((None, job))

    def suspend(self, greenlet: WorkflowGreenlet) -> Any:
        """Wait on this greenlet; whoever makes it runnable again passes a value."""
        if self.owed is greenlet and self.closing is None:
            self.owed = None
            raise CancelledError
        self._suspended.add(greenlet)
        # What `greenlets.suspend` does, without asking which greenlet this is.
        hub = greenlet.parent
        assert hub is not None
        value = hub.switch() if self.running_loop is None else greenlets.suspend(self.running_loop)
        self._suspended.discard(greenlet)
        if self.abandoned:
            raise Evicted
        if value is CANCEL:
            raise CancelledError(REQUESTED)
        return value

    def wake(self, greenlet: WorkflowGreenlet, value: Any) -> None:
        self._runnable.append((greenlet, value))

    def park(self, block: Block) -> None:
        """Replay cannot go on. This greenlet never continues; the code does not notice."""
        self.block = block
        self._halt()

    def _halt(self) -> None:
        """This greenlet goes no further; it is unwound when its code is given up."""
        greenlet = current_greenlet()
        assert greenlet is not None
        self._suspended.add(greenlet)
        while True:
            greenlets.suspend(self.running_loop)
            if self.abandoned:
                raise Evicted

    def rng(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self.assignment.run_id)
        return self._random

    def drain(self) -> None:
        """Let every runnable greenlet run until all of them wait."""
        runnable = self._runnable
        while runnable and self.block is None:
            greenlet, value = runnable.popleft()
            if greenlet is None:
                greenlets.run(self, value)
            else:
                greenlets.enter(greenlet, value)

    # -- inside

    def _check(self, greenlet: WorkflowGreenlet | None) -> None:
        """Whether code on this greenlet may make durable calls now."""
        if self.abandoned:
            greenlets.refuse()
        if collector.collecting:
            raise GeneratorExit  # the end of something that was left behind, met here by chance; a generator takes this
        if self.broken is not None:
            raise self.broken
        if greenlet is not None and greenlet.readonly is not None:
            raise DurableCallRefused(
                f"{greenlet.readonly.code} cannot make durable calls; do it in the workflow's body"
            )

    def _ask(self, operation: Operation, greenlet: WorkflowGreenlet | None) -> int:
        if operation.hears:
            operation.check(self)
        self._check(greenlet)
        self.step = step = self.step + 1
        known = self._recorded.asked(step, operation) if self._recorded else None
        if known is not None:
            self._guard(step, operation, known)
        else:
            if self._recorded:
                self._guard_hole(step, operation)
            self.commands.append(operation.command(step))
        return step

    def _guard(self, step: int, operation: Operation, known: RecordedStep) -> None:
        assert self._recorded is not None, "something is known of this step"
        block = self._recorded.compare(step, operation, known)
        if block is not None:
            self.park(block)

    def _guard_hole(self, step: int, operation: Operation) -> None:
        assert self._recorded is not None, "something is known of other steps"
        block = self._recorded.hole(step, operation)
        if block is not None:
            self.park(block)

    def _begin(self, started: WorkflowStarted) -> None:
        self.started = started
        self.main = greenlets.run(self, partial(self._main, self, started))
        if self._runnable:
            self.drain()

    def _resolve(self, waiter: WorkflowGreenlet | Callable[[Outcome], None], outcome: Outcome) -> None:
        """Answer a durable call and let everything that follows from it run."""
        if isinstance(waiter, WorkflowGreenlet):
            greenlets.enter(waiter, outcome)
        else:
            waiter(outcome)
        if self._runnable:
            self.drain()

    def _in_order(self, events: list[Recorded]) -> list[Recorded]:
        """The events in the order the code meets them, with the steps noted that it has not asked for yet.

        Unknown steps mean a cold replay, or a completion whose answer was lost.
        """
        steps = self.machine.step_kinds
        step = self.step
        last = 0
        ordered = True
        for entry in events:
            event = entry.event
            kind = type(event)
            if kind in steps and event.sequence > step:  # type: ignore[attr-defined]
                if self._recorded is None:
                    self._recorded = RecordedSteps(self.machine, self.fingerprint)
                self._recorded.note(entry, event)  # type: ignore[arg-type]
            after = entry.context.decided_after
            if after is None or (kind in SEEN_BY_NEXT_TASK and seen_by_next_task(event)):
                last = entry.sequence  # never less: history comes in its own order
            elif after < last:
                ordered = False
            else:
                last = after
        return events if ordered else sorted(events, key=replay_position)


def local_activity(event: Any) -> bool:
    return getattr(event, "local_activity", False)
