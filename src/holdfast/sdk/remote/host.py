"""A server as the worker's executor sees it: tasks come as deliveries, what is done leaves as reports.

Live code of a run (its fiber) stays here between tasks. Its *standing* says how far the server knows it to be: the length
and checksum of the history after the last report, and the events behind that which the code has not been shown. A task for
code that stands elsewhere is answered by reading history from its beginning.

*Eager resume*: when the one step a fiber waits for has ended here, its code goes on at once, and what it did is reported
with the result. If something else reached the run first, the server says so, and the fiber is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.kernel.event import NO_CONTEXT, Recorded
from holdfast.kernel.features.activity import (
    ActivityCompleted,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
)
from holdfast.kernel.features.start import WorkflowStarted
from holdfast.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask, WorkflowAssignment
from holdfast.kernel.message import Message, Refused
from holdfast.kernel.task import START, Task
from holdfast.kernel.values import Micros, Routing, attempt_id, execution_id, workflow_task_id
from holdfast.protocol import exchange as wire
from holdfast.protocol.calls import Refusal
from holdfast.protocol.entries import unpack
from holdfast.sdk.executor import EmbeddedExecutor
from holdfast.sdk.fiber import Fiber
from holdfast.threads import ThreadPool

log = logging.getLogger("holdfast.worker")

REMEMBERED = 1000  # runs that have closed

Reply = Callable[[Any, BaseException | None], None]
FetchHistory = Callable[[str, int, int], Coroutine[Any, Any, list[Recorded]]]


class Heard(NamedTuple):
    """The answer to a heartbeat."""

    can_continue: bool


class Held(NamedTuple):
    """Code that goes on beside its task, under the lease it has."""

    start: Callable[[BaseException | None], None]


class EagerFiber(Fiber):
    """Knows whether code looked at the clock: what a step was recorded at is not known before the server says so."""

    told_time = False

    @property
    def now(self) -> Micros:
        self.told_time = True
        return self._now

    @now.setter
    def now(self, value: Micros) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._now = value


class RemoteExecutor(EmbeddedExecutor):
    fiber = EagerFiber


class Standing(NamedTuple):
    """Where live code is, as the server knows it; `unseen` events of which `events` are told, the others are nothing to it."""

    run_id: str
    length: int
    checksum: int
    unseen: int
    events: list[Recorded]


class Shown(NamedTuple):
    """What a task shows its code: up to where, and how many events on the way are nothing to it."""

    assignment: WorkflowAssignment
    untold: int
    reaches: int


class Pending:
    """A report on its way. `run`: of the live code it speaks for."""

    __slots__ = ("again", "answered", "report", "run", "task_id")

    def __init__(
        self, report: wire.Report, task_id: str | None, run: int | None, answered: Callable[[wire.Answered], None]
    ) -> None:
        self.report = report
        self.task_id = task_id
        self.run = run
        self.answered = answered
        self.again = False


class LoopClock:
    """The loop's own time, for threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return time.monotonic_ns() // 1000

    def at(self, when: int, call: Callable[[], None]) -> object:
        return self._loop.call_later(max(when - self.now(), 0) / 1_000_000, call)

    def post(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)


class RemoteHost:
    cold = object()

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Pending], None],
        fetch: FetchHistory,
        *,
        namespace: str,
        queue: str,
        threads: int,
        live: int,
    ) -> None:
        clock = LoopClock(loop)
        self._loop = loop
        self._clock = clock
        self._send = send
        self._fetch = fetch
        self._routing = Routing(namespace=namespace, queue=queue)
        self._pool = ThreadPool(clock, threads, "holdfast-activity")
        self._workflows = ThreadPool(clock, 1, "holdfast-workflow")
        self._limit = live
        self._standing: OrderedDict[int, Standing] = OrderedDict()
        self._runs: dict[str, int] = {}  # run id -> run, of what has a standing
        self._shown: dict[str, Shown] = {}  # by task id, until it is reported
        self._stash: dict[str, list[Recorded]] = {}
        self._reporting: dict[int, int] = {}  # run -> reports without an answer
        self._held_back: dict[int, list[wire.TaskLease]] = {}
        self._attempts: dict[str, str] = {}  # attempt -> its task
        self._over: OrderedDict[str, None] = OrderedDict()  # runs that have closed lately
        self._patient: set[str] = set()  # workflow types whose code does not run ahead
        self.leases: dict[str, int] = {}  # task id -> attempt, of all that is ours
        self.executor: RemoteExecutor = None  # type: ignore[assignment]

    # -- what the executor asks of its engine

    def held(self, start: Callable[[BaseException | None], None]) -> object:
        return Held(start)

    def room(self) -> None:
        """The server counts what is out."""

    def done_holding(self, key: int) -> None:
        """Nothing is kept for it here."""

    def look_at(self, key: int) -> None:
        """The server does."""

    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        then(self._stash.pop(assignment.task.id))  # they came with the task

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit(call, done)

    def workflow_thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._workflows.submit(call, done)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(work, name=name)

    def post(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    def close(self) -> None:
        self._pool.close()
        self._workflows.close()

    @property
    def busy(self) -> bool:
        """Whether anything of what was leased is still being worked on or reported."""
        return bool(self.leases)

    # -- tasks

    def deliver(self, deliveries: list[wire.Delivery]) -> None:
        with self.executor.burst():
            for delivery in deliveries:
                match delivery:
                    case wire.TaskLease(task_id=id, attempt=attempt, run=run):
                        self.leases[id] = attempt
                        if run in self._reporting:
                            self._held_back.setdefault(run, []).append(delivery)
                        else:
                            self._begin(delivery)
                    case wire.ActivityLease(assignment=assignment):
                        if assignment.run_id in self._over:
                            continue  # the news that nobody waits for it were faster
                        self.leases[assignment.task.id] = assignment.task.attempt
                        self._attempts[assignment.activity_attempt_id] = assignment.task.id
                        self.executor.deliver(assignment)
                    case wire.Asked():
                        self.spawn(self._answer(delivery), "holdfast-question")

    def closed(self, run_ids: list[str]) -> None:
        """Runs are over: attempts that still run for them are told to stop, those that come late do not begin."""
        for run_id in run_ids:
            self._over[run_id] = None
            # An attempt that came just now must have begun before it can be stopped.
            self._loop.call_soon(self.executor.closed, run_id)
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def _begin(self, lease: wire.TaskLease) -> None:
        """Show a task to live code that stands where it begins, otherwise to new code, with all of history."""
        standing = self._standing.get(lease.run)
        fiber = self.executor.live(lease.run)
        if lease.after:
            if (
                fiber is None
                or standing is None
                or (standing.length, standing.checksum) != (lease.after, lease.checksum)
            ):
                self._begin_cold(lease, [], fetch=True)
                return
            events = standing.events + unpack(lease.events)
            count = standing.unseen + lease.count
            self._show(self._assignment(lease, fiber.assignment.started), events, count, lease.reaches, fiber)
        else:
            self._begin_cold(lease, unpack(lease.events), fetch=lease.more)

    def _begin_cold(self, lease: wire.TaskLease, events: list[Recorded], *, fetch: bool) -> None:
        self.forget(lease.run)
        if fetch:
            self.spawn(self._read_on(lease, events), "holdfast-history")
            return
        started = next(entry.event for entry in events if isinstance(entry.event, WorkflowStarted))
        self._show(self._assignment(lease, started), events, len(events), events[-1].sequence, None)

    async def _read_on(self, lease: wire.TaskLease, events: list[Recorded]) -> None:
        after = events[-1].sequence if events else 0
        try:
            events = events + await self._fetch(lease.task_id, lease.attempt, after)
        except Refused as refusal:
            log.warning("workflow %s: its task is not ours any more: %s", lease.workflow_id, refusal)
            self.leases.pop(lease.task_id, None)
            return
        with self.executor.burst():
            self._begin_cold(lease, events, fetch=False)

    def _show(
        self, assignment: WorkflowAssignment, events: list[Recorded], count: int, reaches: int, fiber: Fiber | None
    ) -> None:
        executor = self.executor
        task = assignment.task
        self._shown[task.id] = Shown(assignment, count - len(events), reaches)
        self._drop_standing(assignment.run_key)
        if not executor.inline(task.kind, task.type):
            if fiber is not None and (not fiber.threaded or fiber.consumed != fiber.position):
                self._begin_cold_again(assignment)
                return
            self._stash[task.id] = events
            executor.deliver(assignment)
            return
        executor.holding.add(task.id)
        result = executor.activate(assignment, events, 0 if fiber is None else fiber.consumed)
        if result is self.cold:
            self._begin_cold_again(assignment)
        elif isinstance(result, Held):
            result.start(None)
        else:
            executor.holding.discard(task.id)
            self.report(task.workflow, result, None)

    def _begin_cold_again(self, assignment: WorkflowAssignment) -> None:
        self.forget(assignment.run_key)
        self.spawn(self._show_whole(assignment), "holdfast-history")

    async def _show_whole(self, assignment: WorkflowAssignment) -> None:
        task = assignment.task
        try:
            events = await self._fetch(task.id, task.attempt, 0)
        except Refused as refusal:
            log.warning("workflow %s: its task is not ours any more: %s", assignment.workflow_id, refusal)
            self.leases.pop(task.id, None)
            return
        with self.executor.burst():
            self._show(assignment, events, len(events), events[-1].sequence, None)

    def _assignment(self, lease: wire.TaskLease, started: WorkflowStarted) -> WorkflowAssignment:
        return WorkflowAssignment(
            task=Task(
                id=lease.task_id,
                workflow=lease.key,
                run=lease.run,
                kind="workflow",
                type=lease.workflow_type,
                routing=self._routing,
                available_at=0,
                created_at=0,
                state="leased",
                attempt=lease.attempt,
                owner=self.executor.owner,
                seen=lease.last,
                upto=lease.upto,
                resume=lease.resume,
            ),
            namespace=self._routing.namespace,
            workflow_id=lease.workflow_id,
            run_id=lease.run_id,
            run_key=lease.run,
            run_number=lease.run_number,
            run_status=lease.run_status,
            workflow_type=lease.workflow_type,
            started=started,
            last_sequence=lease.last,
            cursor=lease.cursor,
        )

    # -- reports

    def report(self, key: int, message: Message, reply: Reply | None) -> None:
        match message:
            case CompleteWorkflowTask():
                self._task_done(key, message, reply)
            case FailWorkflowTask():
                shown = self._shown.pop(message.task_id)
                self.forget(shown.assignment.run_key)
                failed = wire.TaskFailed(key, message.task_id, message.attempt, message.block)
                self._queue(Pending(failed, message.task_id, None, lambda answer: self._told(answer, reply)))
            case CompleteActivity():
                self._activity_done(key, message)
            case FailActivity():
                ended = wire.ActivityFailed(key, message.run_id, message.step, message.attempt, message.failure)
                self._queue(Pending(ended, self._task_of(message), None, self._ended))
            case HeartbeatActivity():
                beat = wire.Beat(key, message.run_id, message.step, message.attempt, message.progress)
                self._send(Pending(beat, None, None, lambda answer: _heard(answer, reply)))
            case _:
                raise TypeError(f"a worker does not report {type(message).__name__}")

    def _task_of(self, message: CompleteActivity | FailActivity) -> str | None:
        return self._attempts.pop(attempt_id(message.run_id, message.step, message.attempt), None)

    def _queue(self, pending: Pending) -> None:
        if pending.run is not None:
            self._reporting[pending.run] = self._reporting.get(pending.run, 0) + 1
        self._send(pending)

    def _task_done(self, key: int, message: CompleteWorkflowTask, reply: Reply | None) -> None:
        shown = self._shown.pop(message.task_id)
        run = shown.assignment.run_key
        fiber = self.executor.live(run)
        if fiber is not None:
            _advance(fiber, shown.untold, shown.reaches)
            if fiber.consumed != fiber.position:
                self.forget(run)  # something was left out, and nobody keeps it
        done = wire.TaskDone(
            key, message.task_id, message.attempt, message.commands, message.handled_failures, message.met
        )

        def answered(answer: wire.Answered) -> None:
            self._stands(run, shown.assignment.run_id, answer)
            self._told(answer, reply)
            if answer.refused is not None:
                log.warning("workflow %s: completion refused: %s", shown.assignment.workflow_id, answer.refused.message)

        self._queue(Pending(done, message.task_id, run, answered))

    def _told(self, answer: wire.Answered, reply: Reply | None) -> None:
        if reply is not None:
            reply(None, None if answer.refused is None else _refused(answer.refused))

    def _ended(self, answer: wire.Answered) -> None:
        if answer.refused is not None:
            log.info("the outcome of an activity was not taken: %s", answer.refused.message)

    def _stands(self, run: int, run_id: str, answer: wire.Answered) -> None:
        """A report about a run was answered: its live code is where the server says, or is given up."""
        left = self._reporting.get(run, 0) - 1
        if left > 0:
            self._reporting[run] = left
        else:
            self._reporting.pop(run, None)
        stand = answer.stand
        if stand is None or self.executor.live(run) is None:
            self.forget(run)
        else:
            self._standing[run] = Standing(run_id, stand.length, stand.checksum, stand.count, unpack(stand.events))
            self._runs[run_id] = run
            while len(self._standing) > self._limit:
                self.forget(next(iter(self._standing)))
        for lease in self._held_back.pop(run, ()):
            self._begin(lease)

    def forget(self, run: int) -> None:
        """Give up the live code of a run."""
        self._drop_standing(run)
        self.executor.forget(run)

    def _drop_standing(self, run: int) -> None:
        standing = self._standing.pop(run, None)
        if standing is not None:
            self._runs.pop(standing.run_id, None)

    # -- running ahead

    def _activity_done(self, key: int, message: CompleteActivity) -> None:
        run = self._runs.get(message.run_id)
        resumed = None if run is None else self._resume(run, message)
        done = wire.ActivityDone(key, message.run_id, message.step, message.attempt, message.result, resumed)
        if resumed is None or run is None:
            self._queue(Pending(done, self._task_of(message), None, self._ended))
            return
        ahead = run

        def answered(answer: wire.Answered) -> None:
            self._stands(ahead, message.run_id, answer)
            self._ended(answer)

        self._queue(Pending(done, self._task_of(message), ahead, answered))

    def _resume(self, run: int, message: CompleteActivity) -> wire.Resumed | None:
        """Let code that waits for this result alone go on with it; None if it does not, or must not."""
        fiber = self.executor.live(run)
        standing = self._standing.get(run)
        if (
            standing is None
            or not isinstance(fiber, EagerFiber)
            or fiber.threaded
            or run in self._reporting
            or not fiber.awaits_only(message.step)
            or fiber.assignment.workflow_type in self._patient
            or not self.executor.inline("workflow", fiber.assignment.workflow_type)
        ):
            return None
        self._drop_standing(run)
        after = standing.length
        fiber.told_time = False
        events = [*standing.events, _completed(run, after + 1, message)]
        with self.executor.burst():
            self.executor.drive(fiber, events, _ahead(fiber.assignment, after))
        if fiber.block is not None or fiber.locals or fiber.told_time or fiber.answer:
            # It cannot be said here and now what it would do. The next task runs it again, from its history.
            self._patient.add(fiber.assignment.workflow_type)
            self.forget(run)
            return None
        _advance(fiber, standing.unseen - len(standing.events), after + 1)
        commands, handled = fiber.take_commands()
        met = fiber.ended_at
        if fiber.closing is not None:
            self.forget(run)
        return wire.Resumed(after, standing.checksum, commands, handled, met)

    # -- questions

    async def _answer(self, asked: wire.Asked) -> None:
        inquiry = asked.inquiry
        history = unpack(asked.history)
        standing = self._standing.get(inquiry.run_key)
        at_rest = (
            standing is not None
            and not standing.events
            and (standing.length, standing.checksum) == (history[-1].sequence, history[-1].checksum)
        )
        told = wire.Told(asked.question, asked.attempt)
        try:
            found = await self.executor.inquire(inquiry, history, at_rest)
        except Refused as refusal:
            told = replace(told, refused=Refusal(refusal.reason, refusal.message, refusal.fields))
        except Exception as error:
            told = replace(told, refused=Refusal("query_rejected", f"the worker failed: {error!r}"))
        else:
            told = replace(told, value=found) if inquiry.kind == "query" else replace(told, objection=found)
        self._send(Pending(told, None, None, lambda answer: None))

    # -- when a connection is lost

    def doubt(self, pending: Pending) -> Pending:
        """A report may have arrived, or not. It is sent again, without what code did ahead, and that code is given up."""
        pending.again = True
        if pending.run is not None:
            self.forget(pending.run)
        if isinstance(pending.report, wire.ActivityDone) and pending.report.resumed is not None:
            pending.report = replace(pending.report, resumed=None)
        return pending

    def give_up_live(self) -> None:
        """Another server, or the same after a restart: what it knew of our live code is gone."""
        for run in list(self._standing):
            self.forget(run)

    def lose(self, task_ids: list[str]) -> None:
        """Tasks that were given to others while we could not be heard."""
        for task_id in task_ids:
            self.leases.pop(task_id, None)
            self.executor.withdrawn(task_id)
            shown = self._shown.get(task_id)
            if shown is not None:
                self.forget(shown.assignment.run_key)


def _ahead(assignment: WorkflowAssignment, after: int) -> WorkflowAssignment:
    """The task that this result will turn out to have caused."""
    task = replace(
        assignment.task, id=workflow_task_id(assignment.run_id, after + 1), attempt=1, upto=None, resume=START
    )
    return replace(assignment, task=task, last_sequence=after + 1, cursor=after)


def _completed(run: int, sequence: int, message: CompleteActivity) -> Recorded:
    """The event that the server is about to record, as far as code can see it."""
    event = ActivityCompleted(
        sequence=message.step,
        activity_execution_id=execution_id(message.run_id, message.step),
        activity_type="",
        activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
        attempt_number=message.attempt,
        result=message.result,
    )
    return Recorded(run, sequence, 0, event, NO_CONTEXT, b"", b"", 0)


def _advance(fiber: Fiber, untold: int, reaches: int) -> None:
    """Count the events that the code was not shown because they are nothing to it."""
    fiber.consumed += untold
    if reaches > fiber.position:
        fiber.position = reaches


def _heard(answer: wire.Answered, reply: Reply | None) -> None:
    if reply is not None:
        reply(Heard(answer.goes_on and answer.refused is None), None)


def _refused(refusal: Refusal) -> Refused:
    return Refused(refusal.reason, refusal.message, **refusal.fields)
