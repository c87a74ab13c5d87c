"""Workflow tasks and the code they are for: live code that stands where a task begins, otherwise new code with all of history."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.kernel.event import Recorded
from backstay.kernel.features.start import WorkflowStarted
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
    """Code that goes on beside its task, under the lease it has."""

    start: Callable[[BaseException | None], None]


class Shown(NamedTuple):
    """What a task shows its code: up to where, and how many events on the way are nothing to it."""

    assignment: WorkflowAssignment
    untold: int
    reaches: int


class Ours(NamedTuple):
    """A task that is leased to this worker, and the run it is of."""

    task_id: str
    attempt: int
    key: int
    run: int
    workflow_id: str


def _ours(lease: wire.TaskLease) -> Ours:
    return Ours(lease.task_id, lease.attempt, lease.key, lease.run, lease.workflow_id)


class Tasks:
    def __init__(
        self,
        host: RemoteHost,
        executor: WorkerExecutor,
        standings: StickyRuns,
        fetch: FetchHistory,
    ) -> None:
        self._host = host
        self._executor = executor
        self._standings = standings
        self._fetch = fetch
        self._shown: dict[str, Shown] = {}  # by task id, until it is reported
        self._reading: set[str] = set()  # whose history is being read
        self._stash: dict[str, list[Recorded]] = {}
        self._held_back: dict[int, list[wire.TaskLease]] = {}

    def begin(self, lease: wire.TaskLease) -> None:
        """A task of a run whose code is being reported about waits until it is known where that stands."""
        if self._standings.in_doubt(lease.run):
            self._held_back.setdefault(lease.run, []).append(lease)
        else:
            self._try(lease)

    def settled(self, run: int) -> None:
        """A report about this run was answered."""
        for lease in self._held_back.pop(run, ()):
            if self._host.leases.get(lease.task_id) == lease.attempt:
                self._try(lease)

    def at_work(self) -> set[str]:
        """The tasks whose code runs, or waits for something that is on its way."""
        held_back = (lease.task_id for leases in self._held_back.values() for lease in leases)
        return {*self._shown, *self._reading, *held_back}

    def given_up(self, task: Task) -> None:
        """The code of a task has ended without a report."""
        shown = self._shown.get(task.id)
        if shown is not None and shown.assignment.task.attempt == task.attempt:
            del self._shown[task.id]

    def shown(self, task_id: str) -> Shown:
        """What a task that is about to be reported has shown."""
        return self._shown.pop(task_id)

    def stashed(self, task_id: str) -> list[Recorded]:
        """The events that came with a task."""
        return self._stash.pop(task_id)

    def close(self, run_id: str) -> list[str]:
        """The run is over: its tasks that are under way, which nobody will report."""
        ids = [id for id, shown in self._shown.items() if shown.assignment.run_id == run_id]
        for id in ids:
            self.lose(id)
            del self._shown[id]
        return ids

    def lose(self, task_id: str) -> None:
        shown = self._shown.get(task_id)
        if shown is not None:
            self._standings.forget(shown.assignment.run_key)

    def _try(self, lease: wire.TaskLease) -> None:
        try:
            self._begin(lease)
        except Exception as error:
            self._cannot(_ours(lease), error)

    def _cannot(self, ours: Ours, error: Exception) -> None:
        """What goes wrong here is a bug of ours, or a history that this release cannot read: it fails the task alone."""
        log.error("workflow %s: its task cannot be begun", ours.workflow_id, exc_info=error)
        self._drop(ours)
        self._host.cannot_run(ours.key, ours.task_id, ours.attempt, error)

    def _drop(self, ours: Ours) -> None:
        self._shown.pop(ours.task_id, None)
        self._executor.holding.discard(ours.task_id)
        self._standings.forget(ours.run)

    def _begin(self, lease: wire.TaskLease) -> None:
        if not lease.after:
            self._begin_cold(lease, unpack(lease.events), fetch=lease.more)
            return
        standing = self._standings.get(lease.run)
        live_run = self._executor.live(lease.run)
        if (
            live_run is None
            or standing is None
            or (standing.length, standing.checksum) != (lease.after, lease.checksum)
        ):
            self._begin_cold(lease, [], fetch=True)
            return
        events = standing.events + unpack(lease.events)
        count = standing.unseen + lease.count
        self._show(self._assignment(lease, live_run.assignment.started), events, count, lease.reaches, live_run)

    def _begin_cold(self, lease: wire.TaskLease, events: list[Recorded], *, fetch: bool) -> None:
        self._standings.forget(lease.run)
        if fetch:
            after = events[-1].sequence if events else 0
            self._read(_ours(lease), after, lambda rest: self._begin_cold(lease, events + rest, fetch=False))
            return
        started = next(entry.event for entry in events if isinstance(entry.event, WorkflowStarted))
        self._show(self._assignment(lease, started), events, len(events), events[-1].sequence, None)

    def _read(self, ours: Ours, after: int, then: Callable[[list[Recorded]], None]) -> None:
        """Read on in the history of a task, and go on with it if it is still ours by then."""
        self._reading.add(ours.task_id)
        self._host.spawn(self._read_on(ours, after, then), "backstay-history")

    async def _read_on(self, ours: Ours, after: int, then: Callable[[list[Recorded]], None]) -> None:
        found: list[Recorded] | Exception
        try:
            found = await self._fetch(ours.task_id, ours.attempt, after)
        except Exception as error:
            found = error
        finally:
            self._reading.discard(ours.task_id)
        if self._host.leases.get(ours.task_id) != ours.attempt:
            return
        if isinstance(found, Refused):
            log.warning("workflow %s: its task is not ours any more: %s", ours.workflow_id, found)
            self._host.leases.pop(ours.task_id)
            self._drop(ours)
            return
        if isinstance(found, Exception):
            self._cannot(ours, found)
            return
        try:
            with self._executor.burst():
                then(found)
        except Exception as error:
            self._cannot(ours, error)

    def _show(
        self, assignment: WorkflowAssignment, events: list[Recorded], count: int, reaches: int, live_run: LiveRun | None
    ) -> None:
        executor = self._executor
        task = assignment.task
        self._shown[task.id] = Shown(assignment, count - len(events), reaches)
        self._standings.leave(assignment.run_key)
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
            self._stash[assignment.task.id] = events
            self._executor.deliver(assignment)

    def _begin_cold_again(self, assignment: WorkflowAssignment) -> None:
        self._standings.forget(assignment.run_key)
        task = assignment.task
        ours = Ours(task.id, task.attempt, task.workflow, task.run, assignment.workflow_id)
        self._read(ours, 0, lambda events: self._show(assignment, events, len(events), events[-1].sequence, None))

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
