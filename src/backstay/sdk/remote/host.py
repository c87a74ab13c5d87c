"""A server as the worker's executor sees it: tasks come as deliveries, what is done leaves as reports.

Live code of a run (its fiber) stays here between tasks (`standing.py`). A task for code that stands elsewhere is answered by
reading history from its beginning (`tasks.py`). Code may go on ahead of the server (`ahead.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from backstay.kernel.event import Recorded
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.protocol import exchange as wire
from backstay.protocol.calls import Refusal
from backstay.protocol.entries import unpack
from backstay.sdk.registry import Registry
from backstay.sdk.remote.ahead import RemoteExecutor
from backstay.sdk.remote.reports import Pending, Reply, Reports
from backstay.sdk.remote.standing import Standings
from backstay.sdk.remote.tasks import FetchHistory, Held, Tasks
from backstay.sdk.strand import hidden_loop
from backstay.threads import ThreadPool

REMEMBERED = 1000  # runs that have closed


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
        *,
        namespace: str,
        queues: frozenset[str],
        compatibility: str | None,
        threads: int,
        tasks: int,
        live: int,
    ) -> None:
        clock = LoopClock(loop)
        self._loop = loop
        self._pool = ThreadPool(clock, threads, "backstay-activity", hidden_loop)  # results make code go on
        self._workflows = ThreadPool(clock, 1, "backstay-workflow")
        self.executor = RemoteExecutor(
            self,
            machine,
            registry,
            owner,
            namespace=namespace,
            queues=queues,
            threads=threads,
            tasks=tasks,
            compatibility=compatibility,
        )
        self._standings = Standings(self.executor, live)
        self._tasks = Tasks(self, self.executor, self._standings, fetch)
        self._reports = Reports(self.executor, self._standings, self._tasks, send)
        self._over: OrderedDict[str, None] = OrderedDict()  # runs that have closed lately
        self.leases: dict[str, int] = {}  # task id -> attempt, of all that is ours

    # -- what the executor asks of its engine

    def held(self, start: Callable[[BaseException | None], None]) -> object:
        return Held(start)

    def report(self, key: int, message: Message, reply: Reply | None) -> None:
        self._reports.make(key, message, reply)

    def room(self) -> None:
        """The server counts what is out."""

    def done_holding(self, key: int) -> None:
        """Nothing is kept for it here."""

    def look_at(self, key: int) -> None:
        """The server does."""

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
                    case wire.Asked():
                        self.spawn(self._answer(delivery), "backstay-question")

    def _attempt(self, lease: wire.ActivityLease) -> None:
        assignment = lease.assignment
        if assignment.run_id in self._over:
            return  # the news that nobody waits for it were faster
        task = assignment.task
        self.leases[task.id] = task.attempt
        self._reports.attempting(assignment.activity_attempt_id, task.id)
        self.executor.deliver(assignment)

    def closed(self, run_ids: list[str]) -> None:
        """Runs are over: attempts that still run for them are told to stop, those that come late do not begin."""
        for run_id in run_ids:
            self._over[run_id] = None
            # An attempt that came just now must have begun before it can be stopped.
            self._loop.call_soon(self._close, run_id)
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def _close(self, run_id: str) -> None:
        self.executor.closed(run_id)
        for task_id in self._tasks.close(run_id):
            self.leases.pop(task_id, None)

    async def _answer(self, asked: wire.Asked) -> None:
        inquiry = asked.inquiry
        history = unpack(asked.history)
        standing = self._standings.get(inquiry.run_key)
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
        self._reports.tell(told)

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
