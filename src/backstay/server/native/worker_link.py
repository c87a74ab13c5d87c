"""The link of one of our own workers, as its server sees it: what is leased to the worker, and the replies it waits for.

Opened → (exchanges, one of them parked) → out of sight → closed. A link without a parked exchange for two seconds gives the
workflow tasks and the queries of its worker to others, after ten seconds everything. A worker that comes back opens another
link and says what it still holds. A lease is renewed when the worker says that it works on it, and never otherwise.

**What a lost reply costs.** A reply carries leases, so losing one could lose tasks, and a server cannot know what arrived.
There is no protocol for single replies. Any trouble ends the whole link: the worker opens the next one with the list of
what it works on (`open`), and every other lease to it is released, whether it was never sent, never arrived or was dropped.
The worker sends reports without an answer again, marked as such; those are looked up in history before they are decided
(`Reports._slowly`), so an outcome is recorded once. Without the release a task whose reply was lost would wait for its lease
to run out (mutant "a worker keeps what it does not hold"); tests: `tests/remote/test_losses.py`.

**What a lost worker costs.** A worker that died looks like one whose network is slow. Workflow tasks are short, and running
one twice is harmless since only one completion is recorded: they go to others after two seconds. Activities have effects, so
their leases are given up only after ten, the time that a restarted worker or server has to come back (`COME_BACK`). Without
the first step a run stands still with its worker; without the second, every restart would run activities twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from backstay.engine.cache import CachedInstance
from backstay.engine.engine import Engine
from backstay.engine.history_pages import fitting, read_page, size_of
from backstay.engine.recovery import COME_BACK
from backstay.engine.remote_workers import RemoteWorker, StickyRun
from backstay.engine.world import Alarm
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.lease import Claimant, Renew
from backstay.kernel.features.workflow_task import WorkflowAssignment, events_shown
from backstay.kernel.task import Task
from backstay.kernel.values import LEASE, SECOND
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import pack
from backstay.server.native.deliveries import Deliveries, size_of_arguments
from backstay.server.remote_queries import PendingQuery, RemoteQueries
from backstay.server.rollouts import Rollouts
from backstay.server.settings import Settings
from backstay.server.workers import RegisteredWorker
from backstay.store import Unavailable

log = logging.getLogger("backstay.server")

BATCHES = "task_batches"
"""The capability of a worker that opens a link."""
UNSEEN = 2 * SECOND
LOST = COME_BACK


class LinkServer(Protocol):
    """What a link needs of its server."""

    engine: Engine
    settings: Settings
    rollouts: Rollouts
    questions: RemoteQueries
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
    """One worker's connection: its leases (`station`), what its next reply takes along, and its parked exchange."""

    def __init__(
        self, server: LinkServer, worker: RegisteredWorker, opening: wire.OpenLink, close: Callable[[WorkerLink], None]
    ) -> None:
        """`close`: called with the link when its worker has been out of sight for too long."""
        self.server = server
        self.worker = worker
        self._out_of_sight = close
        self.id = server.engine.world.ids.ulid()
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
        )
        self.closed = False
        self._most = server.settings.max_page_bytes  # of history in one reply
        self._quiet = frozenset(opening.quiet)
        self._deliveries = Deliveries(self._most)
        self._parked: OpenExchange | None = None
        self._ready: list[OpenExchange] = []
        self._turning = False
        self._alarm: Alarm | None = None
        self._rings_at = 0
        self._missed_at = 0  # when nobody will have listened for too long
        self._missed = False  # nobody has listened for a while, and its workflow tasks were taken back
        self._draining = False

    # -- its life

    def open(self, holding: list[wire.HeldTask], unheard: frozenset[str] = frozenset()) -> list[str]:
        """Take over what the worker holds; give away what it was leased and does not hold. Returns what it lost.

        `unheard`: tasks that the link before this one had not sent.
        """
        engine = self.server.engine
        engine.matching.remote_workers.add(self.station)
        leased = {task.id: task for task in engine.leases.of(self.worker.namespace, self.worker.worker_id)}
        lost: list[str] = []
        for held in holding:
            task = leased.pop(held.task_id, None)
            if task is None or task.attempt != held.attempt:
                lost.append(held.task_id)
            else:
                engine.matching.remote_workers.hold(self.station, task)
                self._renew(task)
        for task in leased.values():
            self.server.release(task, begun=task.id not in unheard)
        self._watch(LOST)
        return lost

    def close(self) -> None:
        """Nothing more goes to this worker; what it had is offered to others."""
        if self.closed:
            return
        self.closed = True
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
        """The worker takes nothing more. It goes on listening, and what it holds stays its own until it has reported it."""
        if self._draining:
            return
        self._draining = True
        self.station.open = False
        self._take_back_undelivered()
        if self._parked is not None:
            self._answer(self._parked)

    def look_at_rollouts(self) -> None:
        """Where the worker's build drains it takes nothing more; where it does so no longer, it is served again."""
        station, worker = self.station, self.worker
        draining = self.server.rollouts.draining
        resting = frozenset(q for q in station.queues if draining(worker.namespace, q, worker.build_id))
        before, station.resting = station.resting, resting
        if before - resting:
            self.server.engine.dispatcher.serve_worker(station)

    def leave(self) -> None:
        """The server stops: the worker is told, so that it looks for the next one."""
        self.station.open = False
        if self._parked is not None:
            self._answer(self._parked)

    def _leave_parked(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None and not parked.answer.done():
            parked.answer.set_result(wire.encode(wire.Exchanged(leaving=True)))

    def _watch(self, after: int) -> None:
        """Look whether somebody listens, so long after now. One alarm serves any number of exchanges: it is set again when
        it rings too early."""
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
            return  # it listens, or was sent away, and is expected at the next server with what it holds
        if self._missed_at > self.server.engine.world.ticks():
            self._ring()
        else:
            self._unseen()

    def _unseen(self) -> None:
        """Nobody has listened here for a while. Workflow tasks are short and cheap to repeat: they go to others."""
        if self._missed:
            self._out_of_sight(self)
            return
        self._missed = True
        self.station.open = False
        self._take_back_undelivered()
        for task in list(self.station.held.values()):
            if task.kind == "workflow":
                self._release(task)
        self.server.questions.take_back(self.worker.namespace, self.worker.worker_id)
        self._watch(LOST - UNSEEN)

    @property
    def unsent(self) -> list[str]:
        """The ids of the tasks that no reply has taken along yet, in the order in which they came."""
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

    def _renew(self, task: Task) -> None:
        renew = Renew(task_id=task.id, owner=self.station.owner, attempt=task.attempt)
        self.server.engine.submit(task.workflow, renew)

    def claimed(self, holding: list[wire.HeldTask]) -> None:
        """The worker says what it works on. That may take as long as it takes; anything else it has ends with its lease."""
        now = self.server.engine.world.now()
        for held in holding:
            task = self.station.held.get(held.task_id)
            if task is None or task.attempt != held.attempt or task.until is None:
                continue
            if task.until - now < LEASE // 2:
                self._renew(task)

    def take_back(self, task_id: str, attempt: int) -> None:
        """The worker has no use for a lease."""
        task = self.station.held.get(task_id)
        if task is not None and task.attempt == attempt and task.state == "leased":
            self.server.take_back(task)

    # -- what comes for the worker

    def _deliver(self, entry: CachedInstance, assignment: Any) -> None:
        """Its lease is on disk."""
        if self.closed or not self.station.open:
            self.server.release(assignment.task, begun=False)
        elif isinstance(assignment, ActivityAssignment):
            self.put(wire.ActivityLease(assignment), size_of_arguments(assignment))
        else:
            self._show(entry, assignment)

    def _show(self, entry: CachedInstance, assignment: WorkflowAssignment) -> None:
        """Deliver a workflow task with the events that the worker's sticky run has not seen, or else with its whole history.

        A sticky run is live code that its worker keeps between tasks, and `standing` says how far it has seen history. It
        is sent only what follows, so both sides must mean the same history: the worker compares length and checksum, and
        reads from the beginning if they differ. The server leaves out nothing but events that are of no use to code. It
        must not send a suffix across a decision of other code: what code decided itself is never sent to it, so decisions
        of another worker's code would be missing (mutant "live code goes on after what another worker decided";
        `test_live_code_is_not_asked_to_go_on_after_what_another_worker_decided`).
        """
        standing = self.station.live.get(assignment.run_key)
        after = 0 if standing is None else standing.length
        unseen = entry.unseen_after(assignment.run_key, after)
        if unseen is None:
            entry.restart_unseen()
        elif not entry.dead:
            reached = unseen[0].sequence == after + 1 if unseen else assignment.last_sequence <= after
            passed = standing is not None and any(e.context.decided_after is not None for e in unseen)
            size = size_of(unseen)
            if reached and not passed and (size <= self._most or len(unseen) == 1):
                self.put(self._lease(assignment, standing, events_shown(assignment, unseen), False), size)
                return
        self.server.engine.world.spawn(self._show_from_disk(assignment), "backstay-show")

    async def _show_from_disk(self, assignment: WorkflowAssignment) -> None:
        try:
            events, more = await self._history(assignment)
        except Unavailable as error:
            # Its lease would be renewed for as long as the worker is there, which never hears of it: it is let go instead.
            log.error("workflow %s cannot be shown to its worker now: %s", assignment.workflow_id, error)
            self.server.release(assignment.task, begun=False)
            return
        except HistoryDamaged as damage:
            log.error("%s", damage)
            return
        if self.station.held.get(assignment.task.id) is not None and not self.closed:
            self.put(self._lease(assignment, None, events, more), size_of(events))

    async def _history(self, assignment: WorkflowAssignment) -> tuple[list[Recorded], bool]:
        store = self.server.engine.store
        last = assignment.last_sequence
        if assignment.task.history_limit is not None:
            shown = events_shown(assignment, await store.history(assignment.run_key))
            events = fitting(shown, self._most)
            return events, len(events) < len(shown)
        events = await read_page(store, assignment.run_key, 0, last, self._most)
        return events, bool(events) and events[-1].sequence < last

    def _lease(
        self, assignment: WorkflowAssignment, standing: StickyRun | None, events: list[Recorded], more: bool
    ) -> wire.TaskLease:
        task = assignment.task
        quiet = self._quiet
        after = 0 if standing is None else standing.length
        told = events if standing is None else [e for e in events if e.type not in quiet]
        return wire.TaskLease(
            task.id,
            task.attempt,
            task.workflow,
            assignment.run_key,
            assignment.workflow_id,
            assignment.run_id,
            assignment.run_number,
            assignment.run_status,
            assignment.workflow_type,
            assignment.last_sequence,
            assignment.cursor,
            task.history_limit,
            task.resume,
            after,
            0 if standing is None else standing.checksum,
            len(events),
            events[-1].sequence if events else after,
            more,
            pack(told),
        )

    @property
    def listens(self) -> bool:
        return self.station.open and not self.closed

    def ask(self, question: PendingQuery) -> None:
        events = fitting(question.history, self._most)
        more = len(events) < len(question.history)
        self.put(wire.QueryTask(question.id, question.attempt, question.inquiry, pack(events), more), size_of(events))

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

    def stand(self, entry: CachedInstance, run: int, seen: int, reports: int) -> wire.StickyState | None:
        """Where live code of a run stands that has just reported; what it has not seen goes along.

        Unless that is more than its part of a reply to so many reports: then its next task shows everything.
        """
        current = entry.instance.run
        workers = self.server.engine.matching.remote_workers
        unseen = entry.unseen_after(run, seen)
        if entry.dead or current is None or current.key != run or not current.is_open or unseen is None:
            workers.unstick(run, self.station)
            return None
        entry.restart_unseen()
        if current.length - seen != len(unseen) or size_of(unseen) > self._most // reports:
            workers.unstick(run, self.station)
            return None
        workers.stick(run, self.station, StickyRun(current.length, current.checksum))
        told = [e for e in unseen if e.type not in self._quiet]
        return wire.StickyState(current.length, current.checksum, len(unseen), pack(told))

    def away(self, run: int) -> None:
        """The live code of this run is not what history says."""
        self.server.engine.matching.remote_workers.unstick(run, self.station)

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
        if self._deliveries:
            self._turn_soon()

    def unpark(self, reply: OpenExchange) -> None:
        """An exchange has ended, answered or not."""
        if self._parked is reply:
            self._parked = None
        if self._parked is None and not self.closed:
            self._watch(UNSEEN)

    def complete(self, reply: OpenExchange) -> None:
        """Everything reported in an exchange has been dealt with."""
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
        """After a commit: send the completed replies with any new tasks; remaining tasks answer the parked exchange."""
        self._turning = False
        ready, self._ready = self._ready, []
        for reply in ready:
            self._answer(reply)
        if self._parked is not None and self._deliveries:
            self._answer(self._parked)

    def _answer(self, reply: OpenExchange) -> None:
        if reply.answer.done():
            return
        if reply is self._parked:
            self._parked = None
        exchanged = self._deliveries.reply(reply.answers, self.server.draining)
        reply.answer.set_result(wire.encode(exchanged))
