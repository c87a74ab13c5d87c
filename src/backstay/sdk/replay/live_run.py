"""A live run: the code of one run in memory, driven by its history. Pure: events in, commands out, no I/O.

**How replay feeds the code.** History is applied one event at a time, and after each the code runs until all of its
greenlets wait. That is also what happened when the code was live, event by event, so a cold replay makes the same calls
in the same order, however many branches there are. Were two events applied before the code runs, a `race` or two
branches could see them in another order than the live code did, and take their next steps in another order. Decisions
of the code are recorded with `decided_after`, the last event it had seen then; `event_order.py` puts it back there,
because other events may have been recorded in between. `tests/sdk/test_replay_laws.py` compares live code with a cold
replay of every prefix of its history.

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
from backstay.kernel.failure import Handled
from backstay.kernel.feature import Outcome
from backstay.kernel.features.start import AdoptDefinition, RecordedDefinition, WorkflowStarted
from backstay.kernel.features.workflow_task import WorkflowAssignment, seen_by_next_task
from backstay.kernel.machine import Machine
from backstay.kernel.state import PartOf, Parts
from backstay.kernel.task import Block
from backstay.kernel.values import Micros
from backstay.runtime_hooks import collector
from backstay.sdk.errors import DurableCallRefused, Evicted
from backstay.sdk.replay import workflow_greenlet as greenlets
from backstay.sdk.replay.event_order import in_order, simultaneous
from backstay.sdk.replay.handled_failures import DeliveredFailures
from backstay.sdk.replay.operation import CANCEL, REQUESTED, LocalActivityPlaceholder, Operation, asked_for, stopped
from backstay.sdk.replay.recorded_steps import RecordedStep, RecordedSteps
from backstay.sdk.replay.workflow_greenlet import Readonly, WorkflowGreenlet, current_greenlet

_CLOSURE = Readonly(
    "a closure in gather(), which makes one durable call and then only computes (use spawn() for more),"
)


class Reactions(NamedTuple):
    """The reactions of live code to events from outside (`by_event`), and after all events of a task (`settle`)."""

    by_event: Mapping[type[Event], Callable[[LiveRun, Recorded], None]]
    settle: Callable[[LiveRun], None]


def _nothing_to_settle(live_run: LiveRun) -> None:
    pass


NO_REACTIONS = Reactions({}, _nothing_to_settle)


class LiveRun:
    """The code of one run in memory: its greenlets, the steps they wait for, and the commands they have made."""

    # -- hot path: what most runs never set is a default of the class, so `__init__` sets 17 attributes and not 44: on
    # CPython 3.11 0.8 µs instead of 3.4, and a dictionary of 296 bytes instead of 1,584 (`bench/hello.py`).
    now: Micros = 0
    clock_read = False  # whether the code has read the time; `EagerResume` clears it
    instance: Any = None  # the object of a workflow class
    main: WorkflowGreenlet | None = None  # the greenlet of a `def` workflow's own code
    main_task: Any = None  # the asyncio task of an `async def` workflow's own code
    owed: WorkflowGreenlet | None = None  # the greenlet that gets a cancellation at its next wait
    looking = False  # only for a query or a check: nothing new is recorded or run
    answer: Sequence[Command] = ()  # the commands that answer the update of this task
    leading: Sequence[Command] = ()  # the commands that its next report begins with
    adopts: RecordedDefinition | None = None  # its own definition, if the run has none of its own yet
    position = 0  # number of the last event applied
    consumed = 0  # how many events were applied; less than `position` while some are left for a later task
    started: WorkflowStarted | None = None
    length = 0  # length of the history that the code has seen
    step: int = 0  # number of the last step that the code has taken
    block: Block | None = None
    parked: WorkflowGreenlet | None = None  # the greenlet that stands at the call which blocked the run
    abandoned = False
    threaded = False  # its code runs on the workflow thread
    replaying = False
    guard = "off"  # the reaction to calls that a replay could not repeat
    closing: Command | None = None
    ended_at: int | None = None  # number of the event that ended the code; later ones were not applied
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
        self.handlers = handlers  # of the workflow class
        self.commands: list[Any] = []
        self.locals: dict[int, Any] = {}
        self.branches: dict[Any, None] = {}  # not joined yet, oldest first
        self.markers: dict[str, int] = {}
        self._main = main
        self._waiting: dict[int, WorkflowGreenlet | Callable[[Outcome], None]] = {}
        self._runnable: deque[tuple[WorkflowGreenlet | None, Any]] = deque()
        self._suspended: set[WorkflowGreenlet] = set()
        self.parts = Parts()  # the state that the SDK's features keep for this run
        self.part: PartOf = self.parts.__getitem__

    # -- driven by the worker

    def resume(self, events: list[Recorded], cursor: int = 0) -> None:
        """Apply the events after `position`, then let the code run as far as it can.

        Up to `cursor` this is repetition: an earlier task has run the same code, and logs stay silent.
        """
        # An event reaches the code in one of three ways: as the answer to a step it waits for (`outcomes`), as something that
        # happens to it (`reactions`), or as its beginning. All others are records of the engine.
        if events:
            last = events[-1].sequence
            if last > self.position:
                self.position = last
            self.consumed += len(events)
        events = in_order(events, self.machine.step_kinds, self.step, self._note)
        outcomes = self.machine.outcomes
        reactions = self.reactions.by_event
        self._ahead = ahead = iter(events)
        for entry in ahead:
            event = entry.event
            kind = type(event)
            rule = outcomes.get(kind)
            outcome = None if rule is None else rule(event)
            if outcome is not None:
                if self.closing is not None and not local_activity(event):
                    continue  # the run is over; only results of its last task's local activities still reach the code
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
            elif rule is None:
                continue  # code ignores this event
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
        """Set the code's time to that of the event that it is about to react to."""
        decided = entry.context.decided_after
        if decided is not None and not seen_by_next_task(entry.event):
            # Live code got there inside its task, before this event was recorded, at the time of an earlier one.
            self.replaying = decided <= cursor
        else:
            self.now = entry.at
            self.length = entry.sequence
            self.replaying = entry.sequence <= cursor

    def settle_local(self, step: int, command: Command, outcome: Outcome) -> None:
        """Put the record of a local activity that ended in the place kept for it, and resume the code."""
        del self.locals[step]
        self.commands[self.commands.index(LocalActivityPlaceholder(step=step))] = command
        self._answering(step)(outcome)
        if self.block is None and not self.looking:
            self.reactions.settle(self)

    def take_commands(self) -> tuple[list[Command], list[Handled]]:
        """Return the commands that the code has made since the last call, in order, and the failures that it handled."""
        commands, self.commands = self.commands, []
        if self.closing is not None:
            commands.append(self.closing)
        if self.leading:
            commands[:0] = self.take_leading()
        return commands, self.delivered.handled(self.fatal, commands) if DeliveredFailures in self.parts else []

    def take_leading(self) -> Sequence[Command]:
        """Return the commands that come before all others in the report of a task."""
        leading, self.leading = self.leading, ()
        return leading

    def adopt(self, definition: RecordedDefinition) -> None:
        """Record the definition of this code as that of the run, which has decided nothing yet, with its first report."""
        self.adopts = definition
        self.leading = [AdoptDefinition(definition=definition)]

    @property
    def delivered(self) -> DeliveredFailures:
        """The failures raised in the code; made with the first one."""
        return self.part(DeliveredFailures)

    def abandon(self) -> None:
        """Drop the live code: unwind it while durable calls, logs and side effects do nothing."""
        self.abandoned = True
        self._waiting.clear()
        self._runnable.clear()
        unwind = greenlets.at_once if self.block is None else greenlets.park
        if self._suspended:
            suspended, self._suspended = self._suspended, set()
            for greenlet in suspended:
                unwind(partial(greenlets.give_up, greenlet))
        if self.loop is not None or self.instance is not None or self.fatal is not None:
            unwind(partial(greenlets.run, self, self._leave_nothing))

    def freeze(self, block: Block) -> None:
        """Keep interrupted code as it is, for ever: unwinding it could hang again."""
        self.block = block
        self.abandoned = True
        greenlets.keep_for_ever(
            (self._suspended, self.loop, self.instance, self.main_task, self.fatal, list(self.branches))
        )
        self._suspended = set()
        self.loop = self.instance = self.main_task = self.fatal = None

    def _leave_nothing(self) -> None:
        """Release the objects of the code, on a greenlet of the dropped run, where their finalizers have no effect."""
        if self.loop is not None:
            self.loop.abandon()
        if self.fatal is not None:
            self.fatal.__traceback__ = None  # its frames refer to this run
        self.loop = self.instance = self.main_task = self.fatal = None
        self.parts.clear()

    # -- called by the author's code, on a greenlet

    def call(self, operation: Operation, greenlet: WorkflowGreenlet) -> Outcome:
        """Make a durable call and wait: take a step, make a command unless history has the step, suspend until the answer."""
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
        """Wait for a step that got a cancel request. If it stops, raise the cancellation here, otherwise at the next
        wait."""
        outcome = self.suspend(greenlet)
        if stopped(outcome):
            raise CancelledError
        self.owed = greenlet
        return outcome

    def ask(self, operation: Operation, answer: Callable[[Outcome], None]) -> int:
        """Make a durable call whose answer goes to a callback, such as a future of the workflow's event loop."""
        step = self._ask(operation, current_greenlet())
        self._waiting[step] = answer
        if operation.hears:
            got = operation.asked(self, step, self._answering(step))
            if got is not None:
                del self._waiting[step]
                answer(got)
        return step

    def _collected(self, greenlet: WorkflowGreenlet, operation: Operation) -> Outcome:
        """Pass the call of a closure to the group that the closure is a member of, and wait for its outcome."""
        collect, greenlet.collect = greenlet.collect, None
        assert collect is not None
        self._check(greenlet)
        greenlet.readonly = _CLOSURE
        collect(operation)
        return self.suspend(greenlet)

    def simultaneous(self) -> Iterator[tuple[int, Outcome | None]]:
        """Return (step, outcome) of the events after the one being applied that were recorded at the same moment."""
        return simultaneous(copy(self._ahead), self.read_clock, self.machine.outcomes)

    @property
    def ahead(self) -> Iterator[Recorded]:
        """The events after the one being applied. The same object while the same events are being applied."""
        return self._ahead

    def read_clock(self) -> Micros:
        """Return the code's time, and note that the code has read it: eager resume is not possible then."""
        self.clock_read = True
        return self.now

    def awaits(self, step: int) -> bool:
        return step in self._waiting

    def awaits_only(self, step: int) -> bool:
        """Return whether the code waits for this step and nothing else."""
        return len(self._waiting) == 1 and step in self._waiting

    def _answering(self, step: int) -> Callable[[Outcome], None]:
        def answer(outcome: Outcome) -> None:
            waiter = self._waiting.pop(step, None)
            if waiter is not None:
                self._resolve(waiter, outcome)

        return answer

    def immediate(self, operation: Operation, decide: Callable[[int], Command]) -> Outcome | None:
        """Make a durable call that does not wait. Return its recorded outcome, or add the command of `decide` and return None."""
        self._check(current_greenlet())
        self.step = step = self.step + 1
        known = self._compared(self._recorded, step, operation) if self._recorded else None
        if known is not None and known.outcome is not None:
            return known.outcome
        if self.looking:
            self._halt()
        try:
            self.commands.append(decide(step))
        except Exception as error:
            # The step was taken and has no record. A replay would take the next step for it, so the run must fail.
            self.broken = error
            raise
        return None

    def peek(self) -> StepEvent | None:
        """Return the recorded event of the next step, if there is one."""
        known = self._recorded.get(self.step + 1) if self._recorded else None
        return None if known is None else known.event

    def emit(self, command: Command) -> None:
        """Add a command without a step, such as a cancellation. In a replay an earlier task has made it already."""
        if not self.abandoned and not self.replaying:
            self.commands.append(command)

    def drop(self, step: int) -> None:
        """Forget a step: the code does not wait for it any more."""
        self._waiting.pop(step, None)

    def spawn(self, job: Callable[[], None]) -> None:
        """Run a job on another greenlet of this run, after the current one."""
        self._check(current_greenlet())
        self._runnable.append((None, job))

    def wake_job(self, job: Callable[[], None]) -> None:
        """Run a job of the SDK like `spawn`; also allowed while code is being unwound."""
        if not self.abandoned:
            self._runnable.append((None, job))

    def suspend(self, greenlet: WorkflowGreenlet) -> Any:
        """Suspend this greenlet and return the value that it is woken with."""
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
        """Block the run: this greenlet never continues, and its code does not notice."""
        self.block, self.parked = block, current_greenlet()
        self._halt()

    def _halt(self) -> None:
        """Suspend this greenlet for good; it is unwound when the live code is dropped."""
        greenlet = current_greenlet()
        assert greenlet is not None
        self._suspended.add(greenlet)
        while True:
            greenlets.suspend(self.running_loop)
            if self.abandoned:
                raise Evicted

    def rng(self) -> random.Random:
        self._random = self._random or random.Random(self.assignment.started.seed or self.assignment.run_id)
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
        """Raise if code on this greenlet may not make durable calls now."""
        if self.abandoned:
            greenlets.refuse()
        if collector.collecting:
            raise GeneratorExit  # a finalizer that the garbage collector runs here by chance; a generator expects this
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
        known = self._compared(self._recorded, step, operation) if self._recorded else None
        if known is None:
            self.commands.append(operation.command(step))
        return step

    def _note(self, entry: Recorded, event: StepEvent) -> None:
        """Note an event of a step that the code has not taken yet."""
        if self._recorded is None:
            self._recorded = RecordedSteps(self.machine, self.fingerprint)
        self._recorded.note(entry, event)

    def _compared(self, recorded: RecordedSteps, step: int, operation: Operation) -> RecordedStep | None:
        """Return what history has of a step. The run is blocked if the code takes another step than history has."""
        known = recorded.asked(step, operation)
        block = recorded.hole(step, operation) if known is None else recorded.compare(step, operation, known)
        if block is not None:
            self.park(block)
        return known

    def _begin(self, started: WorkflowStarted) -> None:
        self.started = started
        self.main = greenlets.run(self, partial(self._main, self, started))
        if self._runnable:
            self.drain()

    def _resolve(self, waiter: WorkflowGreenlet | Callable[[Outcome], None], outcome: Outcome) -> None:
        """Answer a durable call and run the code until all greenlets wait."""
        if isinstance(waiter, WorkflowGreenlet):
            greenlets.enter(waiter, outcome)
        else:
            waiter(outcome)
        if self._runnable:
            self.drain()


def local_activity(event: Any) -> bool:
    return getattr(event, "local_activity", False)
