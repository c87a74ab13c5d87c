"""The executor: runs workflow code on the thread of the engine, or of the worker's link, and activities beside it.

**Sticky runs.** A live run stays here between tasks and needs only new events. Without one, a task is answered `COLD`
and comes back with the whole history. A live run has already applied its last completion, so it may be ahead of
history, but it must never contradict it. Therefore it is dropped (`forget`) whenever that completion may not have been
recorded or no longer counts: it was refused, an update's handler raised half-way, the code has a new definition, the
run is over, another process has moved the run (`consumed` differs), or its memory is needed. Kept in such a case, it
would answer the next task from a state that no replay arrives at. Dropping is always safe and costs one replay:
`test_evicted_code_ends_the_same_and_has_its_effects_once`.

A workflow type whose code keeps the thread busy for more than a few milliseconds moves to the workflow thread (`slow_code.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from socket import gethostname
from time import perf_counter, thread_time
from typing import Any

from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.start import WorkflowDefinitionAdopted, differs
from backstay.kernel.features.update import FailUpdate, UpdateCompleted
from backstay.kernel.features.workflow_task import (
    DEADLINE_EXCEEDED,
    CompleteWorkflowTask,
    FailWorkflowTask,
    WorkflowAssignment,
)
from backstay.kernel.fleet import WorkerIdentity
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Block, Lease, Task
from backstay.kernel.views import log_ids
from backstay.protocol.commands import Inquiry
from backstay.sdk.errors import WorkflowInterrupted
from backstay.sdk.replay.guard import guard_of
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.queries import answer_from, answer_on
from backstay.sdk.replay.reactions import REACTIONS
from backstay.sdk.replay.workflow_greenlet import hidden_loop
from backstay.sdk.tracing import task_span
from backstay.sdk.worker import slow_code
from backstay.sdk.worker.activities import ActivityRunner
from backstay.sdk.worker.host import Host
from backstay.sdk.worker.local_activities import LocalRunner
from backstay.sdk.worker.registry import Registry
from backstay.sdk.worker.slow_code import SlowCode
from backstay.sdk.worker.watchdog import Interruption, QueryReplay, ThreadWatch, Watchdog

log = logging.getLogger("backstay.worker")

LIVE_RUN_BYTES = 20_000  # with the stack of its greenlet; as measured with 2,000 runs


class WorkerExecutor:
    def __init__(
        self,
        host: Host,
        machine: Machine,
        registry: Registry,
        owner: str,
        *,
        namespace: str,
        queues: frozenset[str],
        threads: int,
        tasks: int,
        compatibility: str | None,
        workflow_deadline: float | None = None,
    ) -> None:
        self._watchdog = None if workflow_deadline is None else Watchdog(workflow_deadline)
        self._watch: ThreadWatch | None = None  # the watch of the thread that inline code runs on
        self.host = host
        self.machine = machine
        self.registry = registry
        self._workflows = registry.workflows
        self._activities = registry.activities
        self.owner = owner
        self.namespace = namespace
        self.queues = queues
        self.compatibility = compatibility
        self._host_name = gethostname()[:255]
        self.holding: set[str] = set()
        self.activities = ActivityRunner(host, registry, owner, self.holding, threads=threads, tasks=tasks)
        self._live_runs: dict[int, LiveRun] = {}
        self._slow_code = SlowCode()
        self._slow = self._slow_code.types  # hot path: looked at for every task
        self._suspects = self._slow_code.suspects
        self._missing: set[tuple[str, str]] = set()
        self._lease = Lease(owner=owner)
        self._locals = LocalRunner(self)
        self._threaded: dict[str, int] = {}  # run id -> run key, of runs whose code is busy on the workflow thread

    # -- called by the engine

    def serves(self, task: Task) -> bool:
        routing = task.routing
        if self.runs(task.kind, task.type, routing.namespace, routing.queue, routing.compatibility):
            return True
        known = self._workflows if task.kind == "workflow" else self._activities
        if self.alive_on(routing.namespace, routing.queue) and task.type not in known:
            self._say_missing(task)
        return False

    def _say_missing(self, task: Task) -> None:
        """Log once for each type that its tasks cannot run here."""
        if (task.kind, task.type) not in self._missing:
            self._missing.add((task.kind, task.type))
            log.warning(
                "%s %r is not registered in this process, so its tasks keep waiting; pass it to"
                " Backstay(register=[...]) or to register()",
                task.kind,
                task.type,
            )

    def runs(self, kind: str, type: str, namespace: str, queue: str, compatibility: str | None) -> bool:
        return (
            type in (self._workflows if kind == "workflow" else self._activities)
            and queue in self.queues
            and namespace == self.namespace
            and (compatibility is None or compatibility == self.compatibility)
        )

    def identity(self, type: str) -> WorkerIdentity:
        known = self._workflows.get(type)
        return WorkerIdentity(self._host_name, self.compatibility, None if known is None else known.fingerprint)

    def inline(self, kind: str, type: str) -> bool:
        return kind == "workflow" and type not in self._slow

    def has_room(self, kind: str, type: str) -> bool:
        return type in self._slow if kind == "workflow" else self.activities.has_room(type)

    def take(self, task: Task) -> bool:
        return task.kind == "workflow" or self.activities.take(task.type)

    def give_back(self, task: Task) -> None:
        if task.kind == "activity":
            self.activities.give_back(task.type)

    def deliver(self, assignment: Any) -> None:
        self.holding.add(assignment.task.id)
        if isinstance(assignment, ActivityAssignment):
            self.activities.run(assignment)
        elif not self._locals.is_claiming(assignment.task.id):
            self._run_on_thread(assignment)

    def forget(self, run: int) -> None:
        live_run = self._live_runs.pop(run, None)
        if live_run is None:
            return
        if live_run.locals:
            self._locals.given_up(live_run)
        if live_run.threaded:
            self.host.workflow_thread(lambda: self.watch_here().run(live_run, live_run.abandon), lambda _: None)
        else:
            (self._watch or self.watch()).run(live_run, live_run.abandon)

    def redefined(self, types: set[str]) -> None:
        """Drop the live code of these workflow types: they have new definitions, and the next task replays with them."""
        for run, live_run in list(self._live_runs.items()):
            if live_run.assignment.workflow_type in types:
                self.forget(run)

    def live(self, run: int) -> LiveRun | None:
        """Return the live code of a run, if there is any."""
        return self._live_runs.get(run)

    def weight(self, run: int) -> int:
        return LIVE_RUN_BYTES if run in self._live_runs else 0

    def closed(self, run_id: str) -> None:
        """Stop the attempts of a run that is over."""
        self.activities.cancel(run_id)
        self._locals.closed(run_id)
        if run_id in self._threaded:
            self.forget(self._threaded[run_id])

    def withdrawn(self, task_id: str) -> None:
        """Stop the attempt of a task that has ended or belongs to another worker, if it still runs here."""
        self.activities.withdraw(task_id)

    def stop(self) -> None:
        """Drop all live code and stop the async activities; their leases end with the engine of this process."""
        for run in list(self._live_runs):
            self.forget(run)
        self.activities.stop()
        if self._watchdog is not None:
            self._watchdog.stop()

    # -- workflow code

    def burst(self) -> AbstractContextManager[None]:
        return hidden_loop()

    def activate(self, assignment: WorkflowAssignment, events: list[Recorded], consumed: int) -> Any:
        live_run = self._live_runs.get(assignment.run_key)
        if live_run is not None and live_run.consumed != consumed:
            self.forget(assignment.run_key)
            live_run = None
        if live_run is None:
            if consumed or not events:
                return self.host.cold
            live_run = self._new_live_run(assignment, events)
        self.drive(live_run, events, assignment)
        if live_run.locals and _goes_on(live_run):
            return self.host.hold(self._locals.hold(live_run, assignment))
        return self.report(live_run, assignment, self._lease)

    def drive(self, live_run: LiveRun, events: list[Recorded], assignment: WorkflowAssignment) -> None:
        """Run the code of a task on this thread, and measure how long that takes."""
        live_run.assignment = assignment
        suspected = self._suspects.get(assignment.workflow_type) if self._suspects else None
        clock = perf_counter if suspected is None else thread_time
        watch = self._watch or self.watch()
        span = None if assignment.started.traceparent is None else task_span(assignment)
        began = clock()
        # Hot path, for every task: `ThreadWatch.run` written out.
        watch.turn += 1
        watch.running = live_run
        try:
            live_run.resume(events, assignment.cursor)
        except WorkflowInterrupted:
            pass
        except Exception as error:
            self.broke(live_run, error)
        watch.running = None
        while watch.striking or watch.hit is not None:
            try:
                hit = watch.settle()
                if hit is not None:
                    live_run.freeze(hit.block(live_run.fingerprint))
            except WorkflowInterrupted:
                continue
        spent = clock() - began
        if span is not None:
            span.end()
        if suspected is not None or spent > slow_code.SLOW:
            self._slow_code.judge(assignment.workflow_type, suspected, spent, len(events))

    def watch(self) -> ThreadWatch:
        """Return the watch of the thread that inline code runs on; made with its first code."""
        self._watch = self.watch_here()
        return self._watch

    def watch_here(self) -> ThreadWatch:
        return ThreadWatch() if self._watchdog is None else self._watchdog.here()

    def under_watch(self, live_run: LiveRun, call: Callable[[], None]) -> None:
        """Run code of a live run on this thread under the watchdog; freeze the run if its code is interrupted."""
        hit = self.watch_here().run(live_run, call)
        if isinstance(hit, Interruption):
            live_run.freeze(hit.block(live_run.fingerprint))

    def broke(self, live_run: LiveRun, error: BaseException) -> None:
        """Block a run after an error of the SDK, which fails the task and not the engine."""
        log.error(
            "running the code of workflow %s failed",
            live_run.assignment.workflow_id,
            exc_info=error,
            extra=log_ids.of_task(live_run.assignment),
        )
        live_run.block = Block(message=f"the worker failed: {error!r}", type=type(error).__name__)

    def report(self, live_run: LiveRun, assignment: WorkflowAssignment, lease: Lease | None) -> Message:
        """Return the message that completes or fails a task. With `lease` it claims the task at the same time."""
        task = assignment.task
        # A task that runs inline is claimed after its assignment was made: with its completion, or when it is held.
        attempt = task.attempt + 1 if task.state == "ready" else task.attempt
        if live_run.block is not None:
            self.forget(assignment.run_key)
            _log_block(assignment, live_run.block)
            return FailWorkflowTask(
                task_id=task.id, owner=self.owner, attempt=attempt, block=live_run.block, lease=lease
            )
        if live_run.answer:
            return self._answered(live_run, assignment, attempt, lease)
        commands, handled = live_run.take_commands()
        if live_run.closing is not None:
            self.forget(assignment.run_key)
        return CompleteWorkflowTask(
            task_id=task.id,
            owner=self.owner,
            attempt=attempt,
            commands=commands,
            handled_failures=handled,
            lease=lease,
            seen_until=live_run.ended_at,
        )

    def _answered(
        self, live_run: LiveRun, assignment: WorkflowAssignment, attempt: int, lease: Lease | None
    ) -> CompleteWorkflowTask:
        """Return the completion of an update's task. Other commands of the code are reported by the next task."""
        answer, live_run.answer = [*live_run.take_leading(), *live_run.answer], ()
        if isinstance(answer[-1], FailUpdate):
            self.forget(assignment.run_key)  # the handler may have changed its state half-way
        return CompleteWorkflowTask(
            task_id=assignment.task.id, owner=self.owner, attempt=attempt, commands=answer, lease=lease
        )

    # -- queries and validators

    def alive_on(self, namespace: str, queue: str) -> bool:
        return namespace == self.namespace and queue in self.queues

    def validates(self, type: str, update: str) -> bool:
        member = self.registry.workflows[type].handlers.updates.get(update)
        return member is not None and member.check is not None

    def inquire(self, inquiry: Inquiry, history: list[Recorded], at_rest: bool) -> Awaitable[Any]:
        """Run a query or validator on live code if that is at the end of history, else on a replay on the workflow thread."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        live_run = self._live_runs.get(inquiry.run_key)

        def done(outcome: Any) -> None:
            if answered.done():
                return
            if isinstance(outcome, BaseException):
                answered.set_exception(outcome)
            else:
                answered.set_result(outcome)

        if at_rest and live_run is not None and not live_run.threaded and live_run.block is None:
            told = (self._watch or self.watch()).run(live_run, lambda: answer_on(live_run, inquiry, history))
            if isinstance(told, Interruption):
                self.forget(inquiry.run_key)  # it may have changed the state half-way
            done(_not_answered(told) if isinstance(told, Interruption) else told)
        else:
            definition = self.registry.workflows[inquiry.workflow_type]

            def ask() -> Any:
                question = QueryReplay(inquiry)
                call = partial(answer_from, self.machine, self.registry, definition, inquiry, history)
                told = self.watch_here().run(question, call)
                return _not_answered(told) if isinstance(told, Interruption) else told

            self.host.workflow_thread(ask, done)
        return answered

    def _new_live_run(self, assignment: WorkflowAssignment, events: list[Recorded]) -> LiveRun:
        definition = self.registry.workflows[assignment.workflow_type]
        live_run = self._live_runs[assignment.run_key] = LiveRun(
            self.machine,
            assignment,
            definition.main,
            self.registry.exceptions,
            definition.fingerprint,
            self.compatibility,
            REACTIONS,
            definition.handlers,
        )
        live_run.guard = guard_of(definition, self.registry.guard)
        if assignment.workflow_type in self._slow:
            live_run.threaded = True
        if assignment.cursor == 0 and differs(assignment.started, definition.snapshot) and _is_open(events):
            live_run.adopt(definition.snapshot)
        return live_run

    def _run_on_thread(self, assignment: WorkflowAssignment) -> None:
        live_run = self._live_runs.get(assignment.run_key)
        if live_run is not None and (not live_run.threaded or live_run.consumed != live_run.position):
            self.forget(assignment.run_key)  # greenlets cannot change threads, and left-out events would be lost
            live_run = None

        def resume(live: LiveRun, events: list[Recorded]) -> None:
            span = task_span(assignment)
            try:
                self.under_watch(live, lambda: live.resume(events, assignment.cursor))
            except BaseException as error:  # an exception on this thread must not end the process
                self.broke(live, error)
            if span is not None:
                span.end()

        def go(events: list[Recorded] | Exception) -> None:
            if isinstance(events, Exception):
                self._cannot_run(assignment, events)
            elif self._live_runs.get(assignment.run_key) is not live_run:
                self._run_on_thread(assignment)  # its live code was dropped while its history was fetched
            else:
                live = live_run or self._new_live_run(assignment, events)
                live.assignment = assignment
                self._threaded[assignment.run_id] = assignment.run_key
                self.host.workflow_thread(lambda: resume(live, events), lambda _: self._ran_on_thread(live, assignment))

        self.host.events(0 if live_run is None else live_run.position, assignment, go)

    def _cannot_run(self, assignment: WorkflowAssignment, error: Exception) -> None:
        """Release a task whose history cannot be read now, so that it is offered again."""
        log.error(
            "workflow %s cannot be replayed now: %s", assignment.workflow_id, error, extra=log_ids.of_task(assignment)
        )
        self.holding.discard(assignment.task.id)
        self.host.release_hold(assignment.task.workflow)
        self.host.on_given_up(assignment.task)

    def _ran_on_thread(self, live_run: LiveRun, assignment: WorkflowAssignment) -> None:
        self._threaded.pop(assignment.run_id, None)
        if _goes_on(live_run) and self._live_runs.get(assignment.run_key) is live_run:
            self._locals.start(live_run, assignment, None)
            return
        self.finish_held(live_run, assignment)

    def finish_held(self, live_run: LiveRun, assignment: WorkflowAssignment) -> None:
        """Report a task that ran under its own lease."""
        key = assignment.task.workflow
        self.holding.discard(assignment.task.id)
        self.host.release_hold(key)
        if self._live_runs.get(assignment.run_key) is not live_run:
            self.host.on_given_up(
                assignment.task
            )  # it was given up half-way: no worker has the task any more, and it is offered again
            return
        message = self.report(live_run, assignment, None)

        def reported(value: object, error: BaseException | None) -> None:
            if error is not None:
                log.warning(
                    "workflow %s: completion refused: %s",
                    assignment.workflow_id,
                    error,
                    extra=log_ids.of_task(assignment),
                )
                self.forget(assignment.run_key)
                self.host.on_given_up(assignment.task)

        self.host.report(key, message, reported)


def _is_open(events: list[Recorded]) -> bool:
    """Return whether the definition of a run is not settled by its history. An update may be handled before the first task."""
    return not any(isinstance(entry.event, WorkflowDefinitionAdopted | UpdateCompleted) for entry in events)


def _not_answered(hit: Interruption) -> Refused:
    return Refused("query_rejected", f"the run did not answer: {hit.message}", query_blocked_reason=DEADLINE_EXCEEDED)


def _goes_on(live_run: LiveRun) -> bool:
    """Return whether the task has local activities to run. After an update they wait for the ordinary task that records them."""
    return bool(live_run.locals) and live_run.block is None and not live_run.answer


def _log_block(assignment: WorkflowAssignment, block: Block) -> None:
    lines = [f"workflow {assignment.workflow_id} ({assignment.workflow_type}) is blocked: {block.message}"]
    if block.difference:
        width = max(len(left) for left, _ in block.difference)
        lines.append(f"  {'history':<{width}} | code")
        lines += [f"  {left:<{width}} | {right}" for left, right in block.difference]
    log.warning("\n".join(lines))
