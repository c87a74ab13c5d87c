"""The host of a remote worker's executor: it receives tasks from the server and sends reports to it.

`ServerLink` is a connection; the host is what connections are for. There may be several, to the nodes of one database. It has three parts, and a task goes through them in
this order. `tasks` starts the code of a workflow task, with live code or a whole history. `reports` turns the result into a
report, and may resume code early (`eager.py`). `sticky` knows where the live code of each run stands between tasks. The host
itself holds the leases.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from msgspec.structs import replace

from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import FailActivity
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.machine import Machine
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.kernel.views import log_ids
from backstay.protocol.native import worker as wire
from backstay.protocol.native.client import Refusal
from backstay.protocol.native.events import unpack
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.report_queue import PendingReport
from backstay.sdk.remote.reports import Reports
from backstay.sdk.remote.sticky import StickyRuns
from backstay.sdk.remote.tasks import FetchHistory, HeldCode, WorkflowTasks
from backstay.sdk.replay.workflow_greenlet import hidden_loop
from backstay.sdk.worker.executor import WorkerExecutor
from backstay.sdk.worker.registry import Registry
from backstay.threads import ThreadPool

log = logging.getLogger("backstay.worker")

REMEMBERED = 1000  # ended runs and withdrawn tasks


class TaskOrigin(NamedTuple):
    """Where a leased task came from. `link` None: the link is gone. `kind`: of the slot that it takes."""

    link: object
    key: int
    kind: str


class LoopClock:
    """The event loop as the clock of a thread pool."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return time.monotonic_ns() // 1000

    def at(self, when: int, call: Callable[[], None]) -> object:
        return self._loop.call_later(max(when - self.now(), 0) / 1_000_000, call)

    def post(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)


class RemoteHost:
    cold = object()

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        machine: Machine,
        registry: Registry,
        owner: str,
        send: Callable[[PendingReport], None],
        fetch: FetchHistory,
        bounds: Bounds,
        *,
        namespace: str,
        queues: frozenset[str],
        compatibility: str | None,
        threads: int,
        tasks: int,
        live: int,
        workflow_deadline: float | None = None,
    ) -> None:
        clock = LoopClock(loop)
        self._loop = loop
        self._pool = ThreadPool(clock, threads, "backstay-activity", hidden_loop)  # a result resumes workflow code
        self._workflows = ThreadPool(clock, 1, "backstay-workflow")
        self.executor = WorkerExecutor(
            self,
            machine,
            registry,
            owner,
            namespace=namespace,
            queues=queues,
            threads=threads,
            tasks=tasks,
            compatibility=compatibility,
            workflow_deadline=workflow_deadline,
        )
        self.sticky = StickyRuns(self.executor, live)
        self._fetch = fetch
        self.tasks = WorkflowTasks(self, self.executor, self.sticky, fetch)
        self.reports = Reports(self.executor, self.sticky, self.tasks, bounds, send, self.link_of)
        self.report = self.reports.report
        self.heartbeat = self.reports.heartbeat
        self._ended: OrderedDict[str, None] = OrderedDict()  # ids of closed runs and of withdrawn tasks
        self._declined: OrderedDict[str, None] = OrderedDict()  # tasks of these that were given back once
        self.leases: dict[str, int] = {}  # task id -> attempt, of every task that this worker holds
        self._origins: dict[str, TaskOrigin] = {}  # by task id; also those of some tasks that it no longer holds
        self._questions: dict[str, object] = {}  # the links of queries that are being answered

    # -- called by the executor

    def hold(self, start: Callable[[BaseException | None], None]) -> object:
        return HeldCode(start)

    def on_slot_free(self) -> None:
        """Do nothing: the server counts the slots of this worker."""

    def release_hold(self, key: int) -> None:
        """Do nothing: the lease of a held task ends with its report."""

    def on_given_up(self, task: Task) -> None:
        if self.leases.get(task.id) == task.attempt:
            self.tasks.on_given_up(task)
            self._give_back(task.id)

    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        then(self.tasks.take_events(assignment.task.id))  # they were delivered with the task

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit(call, done)

    def here(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit_here(call, done)

    def workflow_thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._workflows.submit(call, done)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(work, name=name)

    def post(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, call)

    def close(self) -> None:
        self._pool.close()
        self._workflows.close()

    @property
    def busy(self) -> bool:
        """Whether any leased task is still running or not yet reported."""
        return bool(self.leases)

    # -- links

    def link_of(self, task_id: str | None) -> object:
        """The link that a task or a query came from; None: it is gone, or not known."""
        if task_id in self._questions:
            return self._questions[task_id]
        found = self._origins.get(task_id or "")
        return None if found is None else found.link

    def count(self, link: object) -> wire.Slots:
        """How many of the tasks that it holds came from a link."""
        kinds = Counter(
            origin.kind for id in self.leases if (origin := self._origins.get(id)) is not None and origin.link is link
        )
        return wire.Slots(kinds["workflow"], kinds["activity"], kinds["awaiting"])

    def orphan(self, link: object) -> None:
        """Report the tasks that came from a link by any other: it is gone."""
        for id, origin in self._origins.items():
            if origin.link is link:
                self._origins[id] = origin._replace(link=None)
        self.sticky.forget_of(link)

    def _came(self, task_id: str, link: object, key: int, kind: str) -> None:
        self._origins[task_id] = TaskOrigin(link, key, kind)
        if len(self._origins) > 2 * len(self.leases) + REMEMBERED:
            self._origins = {id: origin for id, origin in self._origins.items() if id in self.leases}

    def held_tasks(self, unanswered: set[str]) -> list[wire.HeldTask]:
        """Return the leases that this worker works on. Any other lease is given back, because no report would end it.

        `unanswered`: the tasks whose report is on its way to the server.
        """
        at_work = {*unanswered, *self.tasks.in_progress(), *self.executor.activities.at_work()}
        for task_id in [id for id in self.leases if id not in at_work]:
            log.error("task %s is not running here; it is returned to the server", task_id)
            self._give_back(task_id)
        keys = {id: origin.key for id, origin in self._origins.items()}
        return [wire.HeldTask(task_id, attempt, keys.get(task_id, 0)) for task_id, attempt in self.leases.items()]

    def on_answered(self, pending: PendingReport) -> None:
        """End the lease of a report that was answered, unless the next attempt of its task has been delivered already."""
        task_id = pending.task_id
        if task_id is not None and self.leases.get(task_id) == pending.report.attempt:
            del self.leases[task_id]

    def _give_back(self, task_id: str) -> None:
        self.reports.give_back(task_id, self.leases.pop(task_id), self.link_of(task_id))

    # -- called by the link, with messages of the server

    def deliver(self, deliveries: list[wire.Delivery], link: object = None) -> None:
        with self.executor.burst():
            for delivery in deliveries:
                match delivery:
                    case wire.TaskLease(task_id=id, attempt=attempt):
                        self._came(id, link, delivery.key, "workflow")
                        self.leases[id] = attempt
                        self.tasks.begin(delivery)
                    case wire.ActivityLease(assignment=assignment):
                        activity = self.executor.registry.activities.get(assignment.activity_type)
                        kind = "awaiting" if activity is not None and activity.is_async else "activity"
                        self._came(assignment.task.id, link, assignment.task.workflow, kind)
                        self._start_attempt(delivery)
                    case wire.QueryTask():
                        self._questions[delivery.question] = link
                        self.spawn(self._answer_query(delivery, link), "backstay-question")

    def _start_attempt(self, lease: wire.ActivityLease) -> None:
        assignment = lease.assignment
        task = assignment.task
        if (assignment.run_id in self._ended or task.id in self._ended) and task.id not in self._declined:
            # The server withdrew this attempt before it delivered it. If the server
            # delivers it again, it is wanted: the database was restored from a backup taken before its end.
            self._declined[task.id] = None
            self.reports.give_back(task.id, task.attempt, self.link_of(task.id))
            return
        if self.leases.get(task.id, task.attempt) != task.attempt:
            # A node has ended the attempt that this worker still makes, and its notice has not come. From now on the worker lists
            # the new attempt only, so no node would look for the old one.
            self.executor.withdrawn(task.id)
        self.leases[task.id] = task.attempt
        self.reports.on_attempt(assignment.activity_attempt_id, task.id)
        try:
            self.executor.deliver(assignment)
        except Exception as error:  # a bug of ours: only this attempt fails
            log.error(
                "activity %r cannot be started (task %s)",
                assignment.activity_type,
                task.id,
                exc_info=error,
                extra=log_ids.of_attempt(assignment),
            )
            failed = FailActivity(
                step=assignment.step,
                attempt=assignment.attempt_number,
                owner=self.executor.owner,
                run_id=assignment.run_id,
                failure=Failure(message=f"the worker failed: {error!r}", exception_type=type(error).__name__),
            )
            self.reports.report(task.workflow, failed, None)

    def on_runs_closed(self, run_ids: list[str]) -> None:
        """Stop the attempts of closed runs, and do not start those that are delivered later."""
        for run_id in run_ids:
            self._ended[run_id] = None
            # Later, because an attempt that was delivered just now must start before it can be stopped.
            self._loop.call_soon(self._on_run_closed, run_id)
        self._forget_oldest()

    def on_withdrawn(self, task_ids: list[str]) -> None:
        """Stop attempts that the server ended without a report: they timed out, or the workflow cancelled them."""
        for task_id in task_ids:
            self._ended[task_id] = None
            self.leases.pop(task_id, None)
            self.executor.withdrawn(task_id)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        for ids in (self._ended, self._declined):
            while len(ids) > REMEMBERED:
                ids.popitem(last=False)

    def _on_run_closed(self, run_id: str) -> None:
        for task_id in self.tasks.on_run_closed(run_id):
            self.leases.pop(task_id, None)
        self.executor.closed(run_id)

    async def _answer_query(self, task: wire.QueryTask, link: object) -> None:
        inquiry = task.inquiry
        answer = wire.QueryAnswer(task.question, task.attempt)
        try:
            history = unpack(task.history)
            if task.more:
                history += await self._fetch(task.question, task.attempt, history[-1].sequence)
            result = await self.executor.inquire(inquiry, history, self._is_current(inquiry.run_key, history[-1]))
        except Refused as refusal:
            answer = replace(answer, refused=Refusal(refusal.reason, refusal.message, refusal.fields))
        except Exception as error:
            answer = replace(answer, refused=Refusal("query_rejected", f"the worker failed: {error!r}"))
        else:
            answer = replace(answer, value=result) if inquiry.kind == "query" else replace(answer, objection=result)
        self._questions.pop(task.question, None)
        self.reports.answer_query(answer, link)

    def _is_current(self, run: int, last: Recorded) -> bool:
        """Return whether the live code of a run has seen its history up to this event, its last one."""
        code = self.sticky.get(run)
        return code is not None and not code.events and (code.length, code.checksum) == (last.sequence, last.checksum)

    def on_lost(self, task_ids: list[str]) -> None:
        """Drop tasks that the server gave to other workers while this one had no link."""
        for task_id in task_ids:
            self.leases.pop(task_id, None)
            self.executor.withdrawn(task_id)
            self.tasks.on_lost(task_id)
