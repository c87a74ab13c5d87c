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
from backstay.protocol import exchange as wire
from backstay.protocol.entries import unpack
from backstay.sdk.fiber import Fiber
from backstay.sdk.remote.ahead import RemoteExecutor
from backstay.sdk.remote.standing import Standings

if TYPE_CHECKING:
    from backstay.sdk.remote.host import RemoteHost

log = logging.getLogger("backstay.worker")

FetchHistory = Callable[[str, int, int], Coroutine[Any, Any, list[Recorded]]]


class Held(NamedTuple):
    """Code that goes on beside its task, under the lease it has."""

    start: Callable[[BaseException | None], None]


class Shown(NamedTuple):
    """What a task shows its code: up to where, and how many events on the way are nothing to it."""

    assignment: WorkflowAssignment
    untold: int
    reaches: int


class Tasks:
    def __init__(
        self,
        host: RemoteHost,
        executor: RemoteExecutor,
        standings: Standings,
        fetch: FetchHistory,
    ) -> None:
        self._host = host
        self._executor = executor
        self._standings = standings
        self._fetch = fetch
        self._shown: dict[str, Shown] = {}  # by task id, until it is reported
        self._stash: dict[str, list[Recorded]] = {}
        self._held_back: dict[int, list[wire.TaskLease]] = {}

    def begin(self, lease: wire.TaskLease) -> None:
        """A task of a run whose code is being reported about waits until it is known where that stands."""
        if self._standings.in_doubt(lease.run):
            self._held_back.setdefault(lease.run, []).append(lease)
        else:
            self._begin(lease)

    def settled(self, run: int) -> None:
        """A report about this run was answered."""
        for lease in self._held_back.pop(run, ()):
            self._begin(lease)

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

    def _begin(self, lease: wire.TaskLease) -> None:
        if not lease.after:
            self._begin_cold(lease, unpack(lease.events), fetch=lease.more)
            return
        standing = self._standings.get(lease.run)
        fiber = self._executor.live(lease.run)
        if fiber is None or standing is None or (standing.length, standing.checksum) != (lease.after, lease.checksum):
            self._begin_cold(lease, [], fetch=True)
            return
        events = standing.events + unpack(lease.events)
        count = standing.unseen + lease.count
        self._show(self._assignment(lease, fiber.assignment.started), events, count, lease.reaches, fiber)

    def _begin_cold(self, lease: wire.TaskLease, events: list[Recorded], *, fetch: bool) -> None:
        self._standings.forget(lease.run)
        if fetch:
            self._host.spawn(self._read_on(lease, events), "backstay-history")
            return
        started = next(entry.event for entry in events if isinstance(entry.event, WorkflowStarted))
        self._show(self._assignment(lease, started), events, len(events), events[-1].sequence, None)

    async def _read_on(self, lease: wire.TaskLease, events: list[Recorded]) -> None:
        after = events[-1].sequence if events else 0
        rest = await self._history(lease.task_id, lease.attempt, after, lease.workflow_id)
        if rest is not None:
            with self._executor.burst():
                self._begin_cold(lease, events + rest, fetch=False)

    async def _history(self, task_id: str, attempt: int, after: int, workflow_id: str) -> list[Recorded] | None:
        try:
            return await self._fetch(task_id, attempt, after)
        except Refused as refusal:
            log.warning("workflow %s: its task is not ours any more: %s", workflow_id, refusal)
            self._host.leases.pop(task_id, None)
            return None

    def _show(
        self, assignment: WorkflowAssignment, events: list[Recorded], count: int, reaches: int, fiber: Fiber | None
    ) -> None:
        executor = self._executor
        task = assignment.task
        self._shown[task.id] = Shown(assignment, count - len(events), reaches)
        self._standings.leave(assignment.run_key)
        if not executor.inline(task.kind, task.type):
            self._show_on_thread(assignment, events, fiber)
            return
        executor.holding.add(task.id)
        result = executor.activate(assignment, events, 0 if fiber is None else fiber.consumed)
        if result is self._host.cold:
            self._begin_cold_again(assignment)
        elif isinstance(result, Held):
            result.start(None)
        else:
            executor.holding.discard(task.id)
            self._host.report(task.workflow, result, None)

    def _show_on_thread(self, assignment: WorkflowAssignment, events: list[Recorded], fiber: Fiber | None) -> None:
        if fiber is not None and (not fiber.threaded or fiber.consumed != fiber.position):
            self._begin_cold_again(assignment)
        else:
            self._stash[assignment.task.id] = events
            self._executor.deliver(assignment)

    def _begin_cold_again(self, assignment: WorkflowAssignment) -> None:
        self._standings.forget(assignment.run_key)
        self._host.spawn(self._show_whole(assignment), "backstay-history")

    async def _show_whole(self, assignment: WorkflowAssignment) -> None:
        task = assignment.task
        events = await self._history(task.id, task.attempt, 0, assignment.workflow_id)
        if events is not None:
            with self._executor.burst():
                self._show(assignment, events, len(events), events[-1].sequence, None)

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
                upto=lease.upto,
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
