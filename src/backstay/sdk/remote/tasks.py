"""The workflow tasks of a remote worker: each is run by live code that stands where the task begins, or by a replay.

A task carries the events after those that the live code has seen. If there is no such code, the whole history is fetched and
replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.kernel.event import Recorded
from backstay.kernel.features.start import WorkflowStarted, started_of
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import unpack
from backstay.sdk.remote.sticky import StickyRuns
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.executor import WorkerExecutor

if TYPE_CHECKING:
    from backstay.sdk.remote.host import RemoteHost

log = logging.getLogger("backstay.worker")

FetchHistory = Callable[[str, int, int], Coroutine[Any, Any, list[Recorded]]]


class HeldCode(NamedTuple):
    """Code that goes on under the lease of its task, with local activities."""

    start: Callable[[BaseException | None], None]


class ShownTask(NamedTuple):
    """A task whose code has been given its events: the last event, and how many were left out because code ignores them."""

    assignment: WorkflowAssignment
    skipped: int
    reaches: int


class LeasedTask(NamedTuple):
    """A task that is leased to this worker, and its run."""

    task_id: str
    attempt: int
    key: int
    run: int
    workflow_id: str


def _leased_task(lease: wire.TaskLease) -> LeasedTask:
    return LeasedTask(lease.task_id, lease.attempt, lease.key, lease.run, lease.workflow_id)


class WorkflowTasks:
    def __init__(
        self,
        host: RemoteHost,
        executor: WorkerExecutor,
        sticky: StickyRuns,
        fetch: FetchHistory,
    ) -> None:
        self._host = host
        self._executor = executor
        self._sticky = sticky
        self._fetch = fetch
        self._shown: dict[str, ShownTask] = {}  # by task id, until it is reported
        self._reading: set[tuple[str, int]] = set()  # tasks by id and attempt whose history is being fetched
        self._events: dict[str, list[Recorded]] = {}
        self._deferred: dict[int, list[wire.TaskLease]] = {}

    def begin(self, lease: wire.TaskLease) -> None:
        """Start a task. If a report about its run has no answer yet, the task waits until the position of the code is known."""
        if self._sticky.awaits_answer(lease.run):
            self._deferred.setdefault(lease.run, []).append(lease)
        else:
            self._begin_or_fail(lease)

    def on_report_answered(self, run: int) -> None:
        """Start the tasks that waited for the answer to a report about this run."""
        for lease in self._deferred.pop(run, ()):
            if self._host.leases.get(lease.task_id) == lease.attempt:
                self._begin_or_fail(lease)

    def in_progress(self) -> set[str]:
        """Return the tasks whose code runs, or that wait for their history or for an answer."""
        deferred = (lease.task_id for leases in self._deferred.values() for lease in leases)
        reading = (task_id for task_id, _ in self._reading)
        return {*self._shown, *reading, *deferred}

    def on_given_up(self, task: Task) -> None:
        """Drop a task whose code ended without a report."""
        shown = self._shown.get(task.id)
        if shown is not None and shown.assignment.task.attempt == task.attempt:
            del self._shown[task.id]

    def take_shown(self, task_id: str) -> ShownTask:
        """Remove and return a task that is about to be reported."""
        return self._shown.pop(task_id)

    def take_events(self, task_id: str) -> list[Recorded]:
        """Remove and return the events that were delivered with a task."""
        return self._events.pop(task_id)

    def on_run_closed(self, run_id: str) -> list[str]:
        """Drop the tasks of a closed run and return their ids: they will not be reported."""
        ids = [id for id, shown in self._shown.items() if shown.assignment.run_id == run_id]
        for id in ids:
            self.on_lost(id)
            del self._shown[id]
        return ids

    def on_lost(self, task_id: str) -> None:
        """Drop the live code of a task that this worker no longer holds."""
        shown = self._shown.get(task_id)
        if shown is not None:
            self._sticky.forget(shown.assignment.run_key)

    def _begin_or_fail(self, lease: wire.TaskLease) -> None:
        try:
            self._begin(lease)
        except Exception as error:
            self._fail(_leased_task(lease), error)

    def _fail(self, task: LeasedTask, error: Exception) -> None:
        """Fail a task that cannot start: because of a bug of ours, or of a history that this release cannot read."""
        log.error("workflow %s: task %s cannot be started", task.workflow_id, task.task_id, exc_info=error)
        self._drop(task)
        self._host.reports.cannot_run(task.key, task.task_id, task.attempt, error)

    def _drop(self, task: LeasedTask) -> None:
        self._shown.pop(task.task_id, None)
        self._executor.holding.discard(task.task_id)
        self._sticky.forget(task.run)

    def _begin(self, lease: wire.TaskLease) -> None:
        if not lease.after:
            self._begin_cold(lease, unpack(lease.events), fetch=lease.more)
            return
        code = self._sticky.get(lease.run)
        live_run = self._executor.live(lease.run)
        if live_run is None or code is None or (code.length, code.checksum) != (lease.after, lease.checksum):
            self._begin_cold(lease, [], fetch=True)
            return
        events = code.events + unpack(lease.events)
        count = code.unseen + lease.count
        self._show(self._assignment(lease, live_run.assignment.started), events, count, lease.reaches, live_run)

    def _begin_cold(self, lease: wire.TaskLease, events: list[Recorded], *, fetch: bool) -> None:
        self._sticky.forget(lease.run)
        if fetch:
            after = events[-1].sequence if events else 0
            self._read(_leased_task(lease), after, lambda rest: self._begin_cold(lease, events + rest, fetch=False))
            return
        started = started_of(events)
        assert started is not None, "a history begins with the start of its run"
        self._show(self._assignment(lease, started), events, len(events), events[-1].sequence, None)

    def _read(self, task: LeasedTask, after: int, then: Callable[[list[Recorded]], None]) -> None:
        """Fetch the rest of a task's history and call `then` with it, if the task is still leased to this worker by then."""
        self._reading.add((task.task_id, task.attempt))
        self._host.spawn(self._read_on(task, after, then), "backstay-history")

    async def _read_on(self, task: LeasedTask, after: int, then: Callable[[list[Recorded]], None]) -> None:
        events: list[Recorded] | Exception
        try:
            events = await self._fetch(task.task_id, task.attempt, after)
        except Exception as error:
            events = error
        finally:
            self._reading.discard((task.task_id, task.attempt))
        if self._host.leases.get(task.task_id) != task.attempt:
            return
        if isinstance(events, Refused):
            log.warning("workflow %s: task %s is no longer leased here: %s", task.workflow_id, task.task_id, events)
            self._host.leases.pop(task.task_id)
            self._drop(task)
            return
        if isinstance(events, Exception):
            self._fail(task, events)
            return
        try:
            with self._executor.burst():
                then(events)
        except Exception as error:
            self._fail(task, error)

    def _show(
        self, assignment: WorkflowAssignment, events: list[Recorded], count: int, reaches: int, live_run: LiveRun | None
    ) -> None:
        executor = self._executor
        task = assignment.task
        self._shown[task.id] = ShownTask(assignment, count - len(events), reaches)
        self._sticky.remove(assignment.run_key)
        if not executor.inline(task.kind, task.type):
            self._show_on_thread(assignment, events, live_run)
            return
        executor.holding.add(task.id)
        result = executor.activate(assignment, events, 0 if live_run is None else live_run.consumed)
        if result is self._host.cold:
            self._begin_cold_again(assignment)
        elif isinstance(result, HeldCode):
            result.start(None)
        else:
            executor.holding.discard(task.id)
            self._host.report(task.workflow, result, None)

    def _show_on_thread(self, assignment: WorkflowAssignment, events: list[Recorded], live_run: LiveRun | None) -> None:
        if live_run is not None and (not live_run.threaded or live_run.consumed != live_run.position):
            self._begin_cold_again(assignment)
        else:
            self._events[assignment.task.id] = events
            self._executor.deliver(assignment)

    def _begin_cold_again(self, assignment: WorkflowAssignment) -> None:
        self._sticky.forget(assignment.run_key)
        task = assignment.task
        leased = LeasedTask(task.id, task.attempt, task.workflow, task.run, assignment.workflow_id)
        self._read(leased, 0, lambda events: self._show(assignment, events, len(events), events[-1].sequence, None))

    def _assignment(self, lease: wire.TaskLease, started: WorkflowStarted) -> WorkflowAssignment:
        return WorkflowAssignment(
            task=Task(
                id=lease.task_id,
                workflow=lease.key,
                run=lease.run,
                kind="workflow",
                type=lease.workflow_type,
                routing=started.routing,
                available_at=0,
                created_at=0,
                state="leased",
                attempt=lease.attempt,
                owner=self._executor.owner,
                seen=lease.last,
                history_limit=lease.upto,
                resume=lease.resume,
            ),
            namespace=self._executor.namespace,
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
