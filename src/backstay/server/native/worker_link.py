"""Stations of our own workers: one desk each, where what comes for the worker is put and what it reports is taken in.

Opened → (exchanges, one of them parked) → lost sight of → closed. A desk without a parked exchange for two seconds gives
the workflow tasks and the questions of its worker to others, after ten seconds everything. A worker that comes back opens
another desk and says what it still holds. A lease is renewed when the worker says that it works on it, and never otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from backstay.engine.cache import Entry
from backstay.engine.history_pages import fitting, read_page, size_of
from backstay.engine.recovery import COME_BACK
from backstay.engine.stations import Standing, Station
from backstay.engine.world import Alarm
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.lease import Claimant, Renew
from backstay.kernel.features.workflow_task import WorkflowAssignment, shown_to
from backstay.kernel.task import Task
from backstay.kernel.values import LEASE, SECOND
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import pack
from backstay.server.remote_queries import Question
from backstay.server.workers import Worker
from backstay.store import Unavailable

if TYPE_CHECKING:
    from backstay.server.server import Server

log = logging.getLogger("backstay.server")

BATCHES = "task_batches"
"""What a worker can that opens a desk."""
UNSEEN = 2 * SECOND
LOST = COME_BACK
LEASE_BYTES = 1024  # of a delivery, besides its history or arguments


class Waiting:
    """An exchange whose reply is not complete yet."""

    __slots__ = ("answers", "future", "left")

    def __init__(self, future: asyncio.Future[bytes], reports: int) -> None:
        self.future = future
        self.answers: list[wire.Answered] = [wire.Answered()] * reports
        self.left = reports


class Desk:
    def __init__(self, server: Server, worker: Worker, opening: wire.OpenLink) -> None:
        self.server = server
        self.worker = worker
        self.id = server.engine.world.ids.ulid()
        self.station = Station(
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
        self._outbox: list[wire.Delivery] = []
        self._outbox_size = 0
        self._over: list[str] = []  # runs that the worker is to be told have closed
        self._withdrawn: list[str] = []  # activity tasks whose attempts are over, as the worker is to be told
        self._parked: Waiting | None = None
        self._ready: list[Waiting] = []
        self._turning = False
        self._alarm: Alarm | None = None
        self._rings_at = 0
        self._missed_at = 0  # when nobody will have listened for too long
        self._missed = False  # nobody has listened for a while, and its workflow tasks were taken back
        self._draining = False

    # -- its life

    def open(self, holding: list[wire.HeldTask], unheard: frozenset[str] = frozenset()) -> list[str]:
        """Take over what the worker holds; give away what it was leased and does not hold. Returns what it lost.

        `unheard`: what the desk before this one had not sent.
        """
        engine = self.server.engine
        engine.matching.stations.add(self.station)
        leased = {task.id: task for task in engine.leases.of(self.worker.namespace, self.worker.worker_id)}
        lost: list[str] = []
        for held in holding:
            task = leased.pop(held.task_id, None)
            if task is None or task.attempt != held.attempt:
                lost.append(held.task_id)
            else:
                engine.matching.stations.keep(self.station, task)
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
        for task in self.server.engine.matching.stations.remove(self.station):
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
            self.server.engine.serving.station(station)

    def leave(self) -> None:
        """The server stops: the worker is told, so that it looks for the next one."""
        self.station.open = False
        if self._parked is not None:
            self._answer(self._parked)

    def _leave_parked(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None and not parked.future.done():
            parked.future.set_result(wire.encode(wire.Exchanged(leaving=True)))

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
            self.server.stations.close(self)
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
        """The tasks that no reply has taken along yet, in the order in which they came."""
        tasks = [delivery for delivery in self._outbox if not isinstance(delivery, wire.QueryTask)]
        return [one.task_id if isinstance(one, wire.TaskLease) else one.assignment.task.id for one in tasks]

    def _take_back_undelivered(self) -> None:
        for id in self.unsent:
            self._release(self.station.held.get(id), begun=False)
        for delivery in self._take_outbox():
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

    def _deliver(self, entry: Entry, assignment: Any) -> None:
        """Its lease is on disk."""
        if self.closed or not self.station.open:
            self.server.release(assignment.task, begun=False)
        elif isinstance(assignment, ActivityAssignment):
            self.put(wire.ActivityLease(assignment), _size_of_arguments(assignment))
        else:
            self._show(entry, assignment)

    def _show(self, entry: Entry, assignment: WorkflowAssignment) -> None:
        """With the events that live code at the station has not seen, or else with history from its beginning."""
        fresh = entry.fresh
        if fresh is None:
            entry.fresh = []  # from here on nothing is missed
        elif not entry.dead:
            standing = self.station.live.get(assignment.run_key)
            after = 0 if standing is None else standing.length
            behind = [e for e in fresh if e.run == assignment.run_key and e.sequence > after]
            reached = behind[0].sequence == after + 1 if behind else assignment.last_sequence <= after
            # Live code that stands somewhere has decided everything up to there. If anything was decided after that, other
            # code did it, at another worker: this one would miss what it is not told about its own decisions.
            passed = standing is not None and any(e.context.decided_after is not None for e in behind)
            size = size_of(behind)
            if reached and not passed and (size <= self._most or len(behind) == 1):
                self.put(self._lease(assignment, standing, shown_to(assignment, behind), False), size)
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
        if assignment.task.upto is not None:
            shown = shown_to(assignment, await store.history(assignment.run_key))
            events = fitting(shown, self._most)
            return events, len(events) < len(shown)
        events = await read_page(store, assignment.run_key, 0, last, self._most)
        return events, bool(events) and events[-1].sequence < last

    def _lease(
        self, assignment: WorkflowAssignment, standing: Standing | None, events: list[Recorded], more: bool
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
            task.upto,
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

    def ask(self, question: Question) -> None:
        events = fitting(question.history, self._most)
        more = len(events) < len(question.history)
        self.put(wire.QueryTask(question.id, question.attempt, question.inquiry, pack(events), more), size_of(events))

    def _run_closed(self, run_id: str) -> None:
        self._over.append(run_id)
        self._turn_soon()

    def _task_withdrawn(self, task_id: str) -> None:
        self._withdrawn.append(task_id)
        self._turn_soon()

    def put(self, delivery: wire.Delivery, size: int) -> None:
        """`size`: bytes of its arguments or its history."""
        self._outbox.append(delivery)
        self._outbox_size += LEASE_BYTES + size
        self._turn_soon()

    def stand(self, entry: Entry, run: int, seen: int, reports: int) -> wire.StickyState | None:
        """Where live code of a run stands that has just reported; what it has not seen goes along.

        Unless that is more than its part of a reply to so many reports: then its next task shows everything.
        """
        current = entry.flow.run
        fresh = entry.fresh
        stations = self.server.engine.matching.stations
        if entry.dead or current is None or current.key != run or not current.open or fresh is None:
            stations.leave_home(run, self.station)
            return None
        behind = [e for e in fresh if e.run == run and e.sequence > seen]
        entry.fresh = []
        if current.length - seen != len(behind) or size_of(behind) > self._most // reports:
            stations.leave_home(run, self.station)
            return None
        stations.settle(run, self.station, Standing(current.length, current.checksum))
        told = [e for e in behind if e.type not in self._quiet]
        return wire.StickyState(current.length, current.checksum, len(behind), pack(told))

    def away(self, run: int) -> None:
        """The live code of this run is not what history says."""
        self.server.engine.matching.stations.leave_home(run, self.station)

    # -- exchanges

    def park(self, waiting: Waiting) -> None:
        before, self._parked = self._parked, waiting
        if before is not None and not before.future.done():
            before.future.set_result(wire.encode(wire.Exchanged()))
        self._missed = False
        if not (self.station.open or self._draining or self.server.draining):
            self.station.open = True
            self.server.engine.serving.station(self.station)
            self.server.questions.serve(self)
        if self._outbox or self._over or self._withdrawn:
            self._turn_soon()

    def unpark(self, waiting: Waiting) -> None:
        """An exchange has ended, answered or not."""
        if self._parked is waiting:
            self._parked = None
        if self._parked is None and not self.closed:
            self._watch(UNSEEN)

    def complete(self, waiting: Waiting) -> None:
        """Everything reported in an exchange has been dealt with."""
        self._ready.append(waiting)
        self._turn_soon()

    def expire(self, waiting: Waiting) -> None:
        if not waiting.future.done():
            self._answer(waiting)

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self.server.engine.world.soon(self._turn)

    def _turn(self) -> None:
        """After a commit: replies that are complete take along what came of it; the rest goes to who is parked."""
        self._turning = False
        ready, self._ready = self._ready, []
        for waiting in ready:
            self._answer(waiting)
        if self._parked is not None and (self._outbox or self._over or self._withdrawn):
            self._answer(self._parked)

    def _answer(self, waiting: Waiting) -> None:
        if waiting.future.done():
            return
        outbox = self._fitting()
        over, self._over = self._over, []
        withdrawn, self._withdrawn = self._withdrawn, []
        reply = wire.Exchanged(
            answers=waiting.answers,
            deliveries=outbox,
            closed=over,
            withdrawn=withdrawn,
            leaving=self.server.draining,
        )
        if waiting is self._parked:
            self._parked = None
        waiting.future.set_result(wire.encode(reply))

    def _fitting(self) -> list[wire.Delivery]:
        """What goes with the next reply. The rest of it waits for the one after that."""
        crowded = self._outbox_size > self._most
        outbox = self._take_outbox()
        if crowded:
            size = 0
            for at, delivery in enumerate(outbox):
                size += LEASE_BYTES + _size(delivery)
                if at and size > self._most:
                    for waiting in outbox[at:]:
                        self.put(waiting, _size(waiting))
                    return outbox[:at]
        return outbox

    def _take_outbox(self) -> list[wire.Delivery]:
        outbox, self._outbox = self._outbox, []
        self._outbox_size = 0
        return outbox


def _size(delivery: wire.Delivery) -> int:
    """Bytes of the arguments or the history in a delivery."""
    match delivery:
        case wire.TaskLease(events=events) | wire.QueryTask(history=events):
            return sum(len(entry.body) + len(entry.context) for entry in events)
        case wire.ActivityLease(assignment=assignment):
            return _size_of_arguments(assignment)


def _size_of_arguments(assignment: ActivityAssignment) -> int:
    """As they are sent, which is in base64."""
    arguments = assignment.arguments
    return 0 if arguments is None else len(arguments) * 4 // 3


class Desks:
    """Every open desk, by worker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._desks: dict[tuple[str, str], Desk] = {}
        self._expecting: Alarm | None = None

    def expect(self) -> None:
        """The engine has come up. Workers that live open a desk here and say what they hold; what is leased to one that has
        not come in time is for others. Workers of the published package say nothing of the kind: their leases run out."""
        self._agree_with_disk()
        world = self._server.engine.world
        if self._expecting is not None:
            self._expecting.cancel()
        self._expecting = world.at(world.now() + LOST, self._give_up_missing)

    def _agree_with_disk(self) -> None:
        """A commit that reported an error may be on disk. What it leased to the worker of an open desk never came there; what
        it ended takes no room there any more."""
        engine = self._server.engine
        for task in engine.leases:
            desk = self._desks.get((task.routing.namespace, task.owner or ""))
            held = None if desk is None else desk.station.held.get(task.id)
            if desk is not None and (held is None or held.attempt != task.attempt):
                self._server.release(task, begun=False)
        for desk in self:
            for task in list(desk.station.held.values()):
                if task.state == "leased" and engine.leases.get(desk.worker.namespace, task.id) is None:
                    engine.matching.stations.give_back(task.id)
            engine.serving.station(desk.station)

    def _give_up_missing(self) -> None:
        server = self._server
        if not server.recovery.up or server.draining:
            return
        for task in server.engine.leases:
            key = (task.routing.namespace, task.owner or "")
            worker = server.workers.get(*key)
            if key not in self._desks and worker is not None and BATCHES in worker.capabilities:
                server.release(task)

    def __iter__(self) -> Iterator[Desk]:
        return iter(list(self._desks.values()))

    def open(self, desk: Desk, holding: list[wire.HeldTask]) -> list[str]:
        key = (desk.worker.namespace, desk.worker.worker_id)
        before = self._desks.get(key)
        unheard: frozenset[str] = frozenset()
        if before is not None:
            unheard = frozenset(before.unsent)
            self._replace(before)
        self._desks[key] = desk
        return desk.open(holding, unheard)

    def send_away(self) -> None:
        """This server has no more work to hand out. Its workers keep what they have, and look for another server."""
        for desk in self:
            self._replace(desk)
        self._desks.clear()

    def _replace(self, desk: Desk) -> None:
        """The worker says itself what it holds, here or elsewhere, so nothing of it is taken away."""
        for task in list(desk.station.held.values()):
            if task.state == "leased":  # what is still on its way to disk comes here, and goes back
                desk.server.engine.matching.stations.give_back(task.id)
        desk.close()

    def look_at_rollouts(self) -> None:
        for desk in self:
            desk.look_at_rollouts()

    def get(self, namespace: str, worker_id: str, id: str) -> Desk | None:
        desk = self._desks.get((namespace, worker_id))
        return desk if desk is not None and desk.id == id and not desk.closed else None

    def close(self, desk: Desk) -> None:
        key = (desk.worker.namespace, desk.worker.worker_id)
        if self._desks.get(key) is desk:
            del self._desks[key]
        desk.close()
