"""A server as the worker's executor sees it: tasks come as deliveries, what is done leaves as reports.

The live code of a run stays here between tasks (`sticky.py`). A task for code that is elsewhere, or that has moved on, is run
from the beginning of its history (`tasks.py`). Code may go on ahead of the server (`eager.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import FailActivity, HeartbeatActivity
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Task
from backstay.protocol.native import worker as wire
from backstay.protocol.native.client import Refusal
from backstay.protocol.native.events import unpack
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.outgoing import Pending
from backstay.sdk.remote.reports import Reports
from backstay.sdk.remote.sticky import StickyRuns
from backstay.sdk.remote.tasks import FetchHistory, HeldCode, Tasks
from backstay.sdk.replay.workflow_greenlet import hidden_loop
from backstay.sdk.worker.executor import WorkerExecutor
from backstay.sdk.worker.host import HeartbeatAnswer, Reply
from backstay.sdk.worker.registry import Registry
from backstay.threads import ThreadPool

log = logging.getLogger("backstay.worker")

REMEMBERED = 1000  # runs and attempts that are over


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
        machine: Machine,
        registry: Registry,
        owner: str,
        send: Callable[[Pending], None],
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
        self._pool = ThreadPool(clock, threads, "backstay-activity", hidden_loop)  # results make code go on
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
        self._standings = StickyRuns(self.executor, live)
        self._fetch = fetch
        self._tasks = Tasks(self, self.executor, self._standings, fetch)
        self._reports = Reports(self.executor, self._standings, self._tasks, bounds, send)
        self._over: OrderedDict[str, None] = OrderedDict()  # runs that have closed, and tasks that were withdrawn
        self._declined: OrderedDict[str, None] = OrderedDict()  # tasks of these that came all the same
        self.leases: dict[str, int] = {}  # task id -> attempt, of all that is ours

    # -- what the executor asks of its engine

    def held(self, start: Callable[[BaseException | None], None]) -> object:
        return HeldCode(start)

    def report(self, key: int, message: Message, reply: Reply | None) -> None:
        self._reports.make(key, message, reply)

    def beat(self, key: int, message: HeartbeatActivity, heard: Callable[[HeartbeatAnswer], None]) -> None:
        self._reports.beat(key, message, heard)

    def room(self) -> None:
        """The server counts what is out."""

    def done_holding(self, key: int) -> None:
        """Nothing is kept for it here."""

    def given_up(self, task: Task) -> None:
        if self.leases.get(task.id) == task.attempt:
            self._tasks.given_up(task)
            self._give_back(task.id)

    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        then(self._tasks.stashed(assignment.task.id))  # they came with the task

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit(call, done)

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
        """Whether anything of what was leased is still being worked on or reported."""
        return bool(self.leases)

    def claims(self, owed: set[str]) -> list[wire.HeldTask]:
        """The leases that something is being done for. Any other is given back: nobody would ever report it.

        `owed`: the tasks whose outcome is on its way to the server.
        """
        at_work = {*owed, *self._tasks.at_work(), *self.executor.activities.at_work()}
        for task_id in [id for id in self.leases if id not in at_work]:
            log.error("task %s is not being worked on; it is given back to the server", task_id)
            self._give_back(task_id)
        return [wire.HeldTask(task_id, attempt) for task_id, attempt in self.leases.items()]

    def spent(self, pending: Pending) -> None:
        """A report was answered: the lease it speaks for is over. The next attempt of its task may have come already."""
        task_id = pending.task_id
        if task_id is not None and self.leases.get(task_id) == pending.report.attempt:
            del self.leases[task_id]

    def _give_back(self, task_id: str) -> None:
        self._reports.give_back(task_id, self.leases.pop(task_id))

    def cannot_run(self, key: int, task_id: str, attempt: int, error: Exception) -> None:
        """A task could not be begun."""
        self._reports.cannot_run(key, task_id, attempt, error)

    def forget(self, run: int) -> None:
        """Give up the live code of a run."""
        self._standings.forget(run)

    # -- what comes from the server

    def deliver(self, deliveries: list[wire.Delivery]) -> None:
        with self.executor.burst():
            for delivery in deliveries:
                match delivery:
                    case wire.TaskLease(task_id=id, attempt=attempt):
                        self.leases[id] = attempt
                        self._tasks.begin(delivery)
                    case wire.ActivityLease():
                        self._attempt(delivery)
                    case wire.QueryTask():
                        self.spawn(self._answer(delivery), "backstay-question")

    def _attempt(self, lease: wire.ActivityLease) -> None:
        assignment = lease.assignment
        task = assignment.task
        if (assignment.run_id in self._over or task.id in self._over) and task.id not in self._declined:
            # The news that nobody waits for it were faster. A server that offers it once more means it: what it said
            # before is not true any more, because its database was restored from a backup.
            self._declined[task.id] = None
            self._reports.give_back(task.id, task.attempt)
            return
        self.leases[task.id] = task.attempt
        self._reports.attempting(assignment.activity_attempt_id, task.id)
        try:
            self.executor.deliver(assignment)
        except Exception as error:  # a bug of ours: it fails this attempt alone
            log.error("activity %r cannot be begun", assignment.activity_type, exc_info=error)
            failed = FailActivity(
                step=assignment.step,
                attempt=assignment.attempt_number,
                owner=self.executor.owner,
                run_id=assignment.run_id,
                failure=Failure(message=f"the worker failed: {error!r}", exception_type=type(error).__name__),
            )
            self._reports.make(task.workflow, failed, None)

    def closed(self, run_ids: list[str]) -> None:
        """Runs are over: attempts that still run for them are told to stop, those that come late do not begin."""
        for run_id in run_ids:
            self._over[run_id] = None
            # An attempt that came just now must have begun before it can be stopped.
            self._loop.call_soon(self._close, run_id)
        self._forget_oldest()

    def withdrawn(self, task_ids: list[str]) -> None:
        """Attempts are over that the server has had no word of: they took too long, or the workflow has cancelled them."""
        for task_id in task_ids:
            self._over[task_id] = None
            self.leases.pop(task_id, None)
            self.executor.withdrawn(task_id)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        for known in (self._over, self._declined):
            while len(known) > REMEMBERED:
                known.popitem(last=False)

    def _close(self, run_id: str) -> None:
        for task_id in self._tasks.close(run_id):
            self.leases.pop(task_id, None)
        self.executor.closed(run_id)

    async def _answer(self, asked: wire.QueryTask) -> None:
        inquiry = asked.inquiry
        told = wire.QueryAnswer(asked.question, asked.attempt)
        try:
            history = unpack(asked.history)
            if asked.more:
                history += await self._fetch(asked.question, asked.attempt, history[-1].sequence)
            found = await self.executor.inquire(inquiry, history, self._at_rest(inquiry.run_key, history[-1]))
        except Refused as refusal:
            told = replace(told, refused=Refusal(refusal.reason, refusal.message, refusal.fields))
        except Exception as error:
            told = replace(told, refused=Refusal("query_rejected", f"the worker failed: {error!r}"))
        else:
            told = replace(told, value=found) if inquiry.kind == "query" else replace(told, objection=found)
        self._reports.tell(told)

    def _at_rest(self, run: int, last: Recorded) -> bool:
        """Whether the live code of a run stands behind this event, and has seen it all."""
        standing = self._standings.get(run)
        return (
            standing is not None
            and not standing.events
            and (standing.length, standing.checksum) == (last.sequence, last.checksum)
        )

    # -- when a connection is lost

    def doubt(self, pending: Pending) -> Pending:
        """A report may have arrived, or not."""
        return self._reports.doubt(pending)

    def give_up_live(self) -> None:
        """Another server, or the same after a restart: what it knew of our live code is gone."""
        self._standings.forget_all()

    def lose(self, task_ids: list[str]) -> None:
        """Tasks that were given to others while we could not be heard."""
        for task_id in task_ids:
            self.leases.pop(task_id, None)
            self.executor.withdrawn(task_id)
            self._tasks.lose(task_id)
