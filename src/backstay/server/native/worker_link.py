"""The server's side of the link of one of our own workers: its leases, its deliveries and its exchanges.

Opened → (exchanges, one of them parked) → unseen → closed. A link without a parked exchange for two seconds gives the
workflow tasks and the queries of its worker to other workers, after ten seconds everything. A worker that comes back opens
another link and lists the tasks that it still holds. A lease is renewed when the worker lists it, and never otherwise.

**What a lost reply costs.** A reply carries leases, so losing one could lose tasks, and a server cannot know which
replies arrived. There is no protocol for single replies. Any trouble ends the whole link: the worker opens the next one
with the list of its running tasks (`open`), and every other lease to it is released, whether it was never sent, never
arrived or was dropped. The worker sends reports without an answer again, marked as such; those are looked up in history
before they are decided (`ReportBatch._through_api`), so an outcome is recorded once. Without the release a task whose
reply was lost would wait for its lease to run out (mutant "a worker keeps what it does not hold"); tests:
`tests/remote/test_losses.py`.

**What a lost worker costs.** A worker that died looks like one whose network is slow. Workflow tasks are short, and
running one twice is harmless since only one completion is recorded: they go to others after two seconds. Activities
have effects, so their leases are given up only after ten, the time that a restarted worker or server has to come back
(`COME_BACK`). Without the first step a run stalls with its worker; without the second, every restart would run
activities twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.engine import Engine
from backstay.engine.core.world import Alarm
from backstay.engine.recovery import COME_BACK
from backstay.engine.requests.api import Api
from backstay.engine.tasks.remote_workers import RemoteWorker
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.lease import Claimant
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.fleet import definition_id
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.kernel.views import log_ids
from backstay.protocol.native import worker as wire
from backstay.server.native.deliveries import Deliveries, size_of_arguments
from backstay.server.native.held_leases import HeldLeases
from backstay.server.native.shared_slots import SharedSlots
from backstay.server.native.shown_histories import ShownHistories
from backstay.server.settings import Settings
from backstay.server.workers.remote_queries import PendingQuery, RemoteQueries
from backstay.server.workers.rollouts import Rollouts
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.server")

BATCHES = "task_batches"
"""The capability of a worker that opens a link."""
UNSEEN = 2 * SECOND
LOST = COME_BACK


class LinkServer(Protocol):
    """The parts of a server that a link uses."""

    api: Api
    engine: Engine
    settings: Settings
    rollouts: Rollouts
    questions: RemoteQueries
    workers: WorkerRegistry
    draining: bool

    def release(self, task: Task, *, begun: bool = True) -> None: ...
    def take_back(self, task: Task) -> None: ...


class OpenExchange(Protocol):
    """An exchange without a reply: `answer` is the future of its bytes, `answers` those to its reports."""

    @property
    def answer(self) -> asyncio.Future[Any]: ...
    @property
    def answers(self) -> list[wire.Answered]: ...


class WorkerLink:
    """The link of one worker: its leases (`station`), the deliveries for its next reply, and its parked exchange."""

    def __init__(
        self,
        server: LinkServer,
        worker: RegisteredWorker,
        opening: wire.OpenLink,
        close: Callable[[WorkerLink], None],
        *,
        id: str | None = None,
        nodes: list[wire.WorkerNode] | None = None,
    ) -> None:
        """`close`: called with the link when its worker has not been seen for too long. `nodes`: those that are sent to
        the worker."""
        self.server = server
        self.worker = worker
        self._close_unseen = close
        self.id = id or server.engine.world.ids.ulid()
        self.station = RemoteWorker(
            worker.worker_id,
            worker.namespace,
            frozenset(opening.queues),
            frozenset(opening.workflows),
            frozenset(opening.activities),
            frozenset(opening.async_activities),
            Claimant(compatibility=worker.compatibility),
            {"workflow": opening.workflow_slots, "activity": opening.activity_slots, "async": opening.async_slots},
            self._deliver,
            self._run_closed,
            self._task_withdrawn,
            {type: definition_id(one.fingerprint, worker.build_id) for type, one in opening.workflows.items()},
        )
        self.slots = SharedSlots(self.station, server.engine.matching.lanes, opening.total is not None, nodes or [])
        self.held = HeldLeases(server, self.station, self.slots, self._task_withdrawn)
        self.closed = False
        page_bytes = server.settings.max_page_bytes
        self.histories = ShownHistories(server.engine, self.station, page_bytes, frozenset(opening.quiet))
        self._deliveries = Deliveries(page_bytes)
        self._parked: OpenExchange | None = None
        self._ready: list[OpenExchange] = []
        self._turning = False
        self._alarm: Alarm | None = None
        self._rings_at = 0
        self._missed_at = 0  # when the worker counts as missed, unless it parks an exchange before
        self._missed = False  # it has been missed once, and its workflow tasks were released
        self._draining = False

    # -- opening and closing

    def open(
        self,
        holding: list[wire.HeldTask],
        unheard: frozenset[str] = frozenset(),
        elsewhere: Iterable[wire.HeldTask] = (),
        given: Iterable[Task] = (),
    ) -> list[str]:
        """Take over the tasks that the worker holds and release its other leases. Returns the tasks that it has lost.

        `unheard`: tasks that the link before this one had not sent. `elsewhere`: tasks that came from other nodes. `given`: leases
        of the link before this one. Where another node owns their instance by now, it does not count them: they came from here.
        """
        engine = self.server.engine
        engine.matching.remote_workers.add(self.station)
        leased = {task.id: task for task in engine.leases.of(self.worker.namespace, self.worker.worker_id)}
        leased |= {task.id: task for task in given if not engine.owns(task.workflow)}
        lost: list[str] = []
        for held in holding:
            task = leased.pop(held.task_id, None)
            if task is not None and task.attempt == held.attempt:
                engine.matching.remote_workers.hold(self.station, task)
                self.held.renew(task)
            elif engine.store.exclusive or (engine.owns(held.key) and engine.leases.read):
                lost.append(held.task_id)
            elif not self.slots.shared:
                self.held.take([held])
        for held in elsewhere:
            task = leased.get(held.task_id)
            if task is not None and task.attempt == held.attempt:  # of another attempt it may never have heard
                del leased[held.task_id]
        for task in leased.values():
            if task.id in unheard or not self.slots.shared:
                self.server.release(task, begun=task.id not in unheard)
            else:
                self.held.doubt(task)
        self._watch(LOST)
        world = engine.world
        world.at(world.now() + UNSEEN, self._count)  # it may have ended before its first exchange
        return lost

    def close(self) -> None:
        """Deliver nothing more to this worker, and offer its tasks to others."""
        if self.closed:
            return
        self.closed = self.held.closed = True
        unsent = frozenset(self.unsent)
        self._take_back_undelivered()
        for task in self.server.engine.matching.remote_workers.remove(self.station):
            if task.id not in unsent:
                self._release(task)
        self.server.questions.take_back(self.worker.namespace, self.worker.worker_id)
        if self._alarm is not None:
            self._alarm.cancel()
        self._leave_parked()

    def drain(self) -> None:
        """Deliver no new tasks. The worker keeps its link, and its tasks until it has reported them."""
        if self._draining:
            return
        self._draining = True
        self.station.open = False
        self._take_back_undelivered()
        if self._parked is not None:
            self._answer(self._parked)

    def apply_rollouts(self) -> None:
        """Stop serving the queues where the worker's build drains, and serve those again where it no longer does."""
        station, worker = self.station, self.worker
        draining = self.server.rollouts.draining
        resting = frozenset(q for q in station.queues if draining(worker.namespace, q, worker.build_id))
        before, station.resting = station.resting, resting
        if before - resting:
            self.server.engine.dispatcher.serve_worker(station)

    def leave(self) -> None:
        """Notify the worker that the server stops, so that it opens a link to another one."""
        self.station.open = False
        if self._parked is not None:
            self._answer(self._parked)

    def _leave_parked(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None and not parked.answer.done():
            parked.answer.set_result(wire.encode(wire.Exchanged(leaving=True)))

    def _watch(self, after: int) -> None:
        """Check after this time whether the worker has an exchange parked. One alarm serves any number of exchanges: it is
        set again when it rings too early."""
        self._missed_at = self.server.engine.world.ticks() + after
        if self._alarm is None or self._rings_at > self._missed_at:
            self._ring()

    def _ring(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = self._missed_at
        world = self.server.engine.world
        self._alarm = world.at(world.now() + self._rings_at - world.ticks(), self._look)

    def _look(self) -> None:
        self._alarm = None
        if self._parked is not None or self.closed or self.server.draining:
            return  # an exchange is parked, or the worker was sent to another server with its tasks
        if self._missed_at > self.server.engine.world.ticks():
            self._ring()
        else:
            self._unseen()

    @property
    def is_parked(self) -> bool:
        """Whether an exchange of the worker waits here."""
        return self._parked is not None

    def _count(self) -> None:
        """A worker without an exchange has left. It counts again with its next one."""
        if not (self.is_parked or self.closed or self.server.draining):
            worker = self.worker
            left = self.server.workers.left(worker.namespace, worker.worker_id)
            self.server.engine.world.spawn(left, "backstay-worker-left")

    def _unseen(self) -> None:
        """Release the workflow tasks of a worker that has no exchange parked; when it is missed a second time, close."""
        if self._missed:
            self._close_unseen(self)
            return
        self._missed = True
        self._count()
        self.station.open = False
        self._take_back_undelivered()
        for task in list(self.station.held.values()):
            if task.kind == "workflow":
                self._release(task)
        self.server.questions.take_back(self.worker.namespace, self.worker.worker_id)
        self._watch(LOST - UNSEEN)

    @property
    def unsent(self) -> list[str]:
        """The ids of the tasks that no reply has carried yet, in order."""
        return self._deliveries.unsent

    def _take_back_undelivered(self) -> None:
        for id in self.unsent:
            self._release(self.station.held.get(id), begun=False)
        for delivery in self._deliveries.take():
            if isinstance(delivery, wire.QueryTask):
                self.server.questions.return_unasked(self.worker.namespace, delivery.question)

    def _release(self, task: Task | None, *, begun: bool = True) -> None:
        if task is not None and task.state == "leased":
            self.server.release(task, begun=begun)

    def set_slots(self, slots: wire.Slots, turn: int) -> None:
        if self.slots.set(slots, turn):
            self.server.engine.dispatcher.serve_worker(self.station)

    def turn_if_news(self) -> None:
        if self.slots.has_news:
            self._turn_soon()

    def take_back(self, task_id: str, attempt: int) -> None:
        """Release a lease that the worker returns unused."""
        task = self.station.held.get(task_id)
        if task is not None and task.attempt == attempt and task.state == "leased":
            self.server.take_back(task)

    # -- deliveries to the worker

    def _deliver(self, entry: CachedInstance, assignment: Any) -> None:
        """Deliver a task whose lease is on disk."""
        if self.closed or not self.station.open:
            self.server.release(assignment.task, begun=False)
        elif isinstance(assignment, ActivityAssignment):
            self.put(wire.ActivityLease(assignment), size_of_arguments(assignment))
        else:
            shown = self.histories.from_memory(entry, assignment)
            if shown is not None:
                self.put(*shown)
            else:
                self.server.engine.world.spawn(self._deliver_from_disk(assignment), "backstay-show")

    async def _deliver_from_disk(self, assignment: WorkflowAssignment) -> None:
        try:
            lease, size = await self.histories.from_disk(assignment)
        except Unavailable as error:
            # The worker would renew a lease of which it never hears, for as long as it lives: the lease is released.
            log.error(
                "workflow %s: its task %s is released because its history cannot be read: %s",
                assignment.workflow_id,
                assignment.task.id,
                error,
                extra=log_ids.of_task(assignment),
            )
            self.server.release(assignment.task, begun=False)
            return
        except HistoryDamaged as damage:
            log.error("%s", damage, extra=log_ids.of_damage(damage))
            return
        if self.station.held.get(assignment.task.id) is not None and not self.closed:
            self.put(lease, size)

    @property
    def listens(self) -> bool:
        return self.station.open and not self.closed

    def ask(self, question: PendingQuery) -> None:
        self.put(*self.histories.query(question))

    def _run_closed(self, run_id: str) -> None:
        self._deliveries.run_closed(run_id)
        self._turn_soon()

    def _task_withdrawn(self, task_id: str) -> None:
        self._deliveries.task_withdrawn(task_id)
        self._turn_soon()

    def put(self, delivery: wire.Delivery, size: int) -> None:
        """`size`: bytes of its arguments or its history."""
        self._deliveries.put(delivery, size)
        self._turn_soon()

    # -- exchanges

    def park(self, reply: OpenExchange) -> None:
        before, self._parked = self._parked, reply
        if before is not None and not before.answer.done():
            before.answer.set_result(wire.encode(wire.Exchanged()))
        self._missed = False
        if not (self.station.open or self._draining or self.server.draining):
            self.station.open = True
            self.server.engine.dispatcher.serve_worker(self.station)
            self.server.questions.serve(self)
        if self._deliveries or self.slots.has_news:
            self._turn_soon()

    def unpark(self, reply: OpenExchange) -> None:
        """Called when an exchange has ended, answered or not."""
        if self._parked is reply:
            self._parked = None
        if self._parked is None and not self.closed:
            self._watch(UNSEEN)

    def complete(self, reply: OpenExchange) -> None:
        """Answer an exchange soon: all of its reports have been decided."""
        self._ready.append(reply)
        self._turn_soon()

    def expire(self, reply: OpenExchange) -> None:
        if not reply.answer.done():
            self._answer(reply)

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self.server.engine.world.soon(self._turn)

    def _turn(self) -> None:
        """After a commit: send the completed replies with any new tasks; further tasks answer the parked exchange."""
        self._turning = False
        ready, self._ready = self._ready, []
        for reply in ready:
            self._answer(reply)
        if self._parked is not None and (self._deliveries or self.slots.has_news):
            self._answer(self._parked)

    def _answer(self, reply: OpenExchange) -> None:
        if reply.answer.done():
            return
        if reply is self._parked:
            self._parked = None
        exchanged = self.slots.tell(self._deliveries.reply(reply.answers, self.server.draining))
        reply.answer.set_result(wire.encode(exchanged))
