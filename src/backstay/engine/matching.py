"""Matching: which live worker gets the next ready task. Memory only; the task rows are the truth.

A worker is an *executor* inside this process (it takes tasks as it has room), a *station* (the same, elsewhere) or a
*waiter* (a parked poll).
What nobody can take now waits in a lane: the most urgent first, with fair shares between fairness keys.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

from backstay.engine.backlog import Backlog, Rank, Shares
from backstay.engine.leases import Queue, queue_of
from backstay.engine.stations import Station, Stations
from backstay.engine.workers import Admission, Executor, Inquirer, Lane, Sessions, Waiter, lane_of
from backstay.kernel.decision import TaskChange
from backstay.kernel.state import Run
from backstay.kernel.task import Lease, Task
from backstay.kernel.values import Micros, Routing


class Matching:
    """`admission` limits what queues hand out, `sessions` says who may run the activities of which session, and `remote` asks
    workflow code that runs elsewhere: a server has them."""

    def __init__(
        self,
        now: Callable[[], Micros],
        *,
        admission: Admission | None = None,
        sessions: Sessions | None = None,
        remote: Inquirer | None = None,
    ) -> None:
        self.executors: list[Executor] = []
        self.stations = Stations(now)
        self.admission = admission
        self.sessions = sessions
        self.remote = remote
        self.manual: Executor | None = None  # runs tasks only when asked to by name
        self._waiters: dict[tuple[str, str, str], dict[Waiter, None]] = {}  # by kind, namespace, queue; oldest first
        self._lanes: dict[Lane, Backlog] = {}
        self._shares: dict[Queue, Shares] = {}
        self.known: set[str] = set()  # waits in a lane
        self._gone = 0  # so many of them closed at most, and still take up room
        self._promised: dict[str, Waiter] = {}

    def join(self, executor: Executor, *, takes_tasks: bool) -> None:
        """A worker of this process joins. One that takes no tasks runs those that it is asked to run by name."""
        self.manual = executor
        if takes_tasks:
            self.executors.append(executor)

    def inline_executor(self, run: Run) -> Executor | None:
        """The executor that runs the code of this run on the engine's own thread, before the next commit."""
        type = run.workflow_type
        routing = run.routing
        for executor in self.executors:
            if executor.runs("workflow", type, routing.namespace, routing.queue, routing.compatibility):
                return executor if executor.inline("workflow", type) else None
        return None

    def offer(self, task: Task) -> Lease | Executor | None:
        """Offer a ready task to the workers: a lease if one takes it, for which a slot is reserved from now on.

        An executor is the answer if it runs the task on the engine's own thread, which needs no lease.
        """
        for executor in self.executors:
            if executor.serves(task):
                if executor.inline(task.kind, task.type):
                    return executor
                if executor.take(task):
                    return Lease(owner=executor.owner)
        queue = queue_of(task)
        if self.stations.by_queue:
            station = self._station(task, queue)
            if station is not None:
                return self.stations.promise(station, task)
        waiting = self._waiters.get(queue) if self._waiters else None
        if waiting and self.admits(queue):
            lane = lane_of(task)
            for waiter in waiting:
                if self.fits(waiter, lane) and not waiter.future.done():
                    return self._promise(task, waiter, queue)
        return None

    def _promise(self, task: Task, waiter: Waiter, queue: Queue) -> Lease:
        self.unpark(waiter)
        self._promised[task.id] = waiter
        if self.admission is not None:
            self.admission.promised(task.id, queue)
        waiter.session = None if task.session is None else task.session.session_id
        if task.session is not None and self.sessions is not None:
            self.sessions.took(waiter.namespace, task.session, waiter.owner)
        return waiter.lease()

    def fits(self, waiter: Waiter, lane: Lane) -> bool:
        """Whether this poll may have a task of this lane."""
        if not waiter.matches(lane):
            return False
        asked = lane.session
        return asked is None or self.sessions is None or self.sessions.admits(waiter.namespace, asked, waiter.owner)

    def _station(self, task: Task, queue: Queue) -> Station | None:
        if not self.admits(queue):
            return None
        station = self.stations.choose(task, lane_of(task))
        if station is not None and self.admission is not None:
            self.admission.promised(task.id, queue)
        return station

    def admits(self, queue: Queue) -> bool:
        return self.admission is None or self.admission.admits(queue)

    def takes(self, lane: Lane) -> bool:
        """Whether somebody outside this process waits for a task of this lane, and may be given one now."""
        queue = lane.place
        stations = self.stations.by_queue.get((lane.namespace, lane.queue), ())
        return (
            any(station.takes(lane) for station in stations)
            or any(self.fits(waiter, lane) and not waiter.future.done() for waiter in self._waiters.get(queue, ()))
        ) and self.admits(queue)

    def relieved(self, freed: Iterable[Queue]) -> set[Queue]:
        """The queues that may hand out more when leases of these have ended."""
        admission = self.admission
        return set(freed) if admission is None else {wide for one in freed for wide in admission.relieved(one)}

    def executor_of(self, owner: str) -> Executor | None:
        for executor in self.executors:
            if executor.owner == owner:
                return executor
        return None

    def burst(self) -> AbstractContextManager[None]:
        """Around a series of activations on the engine's own thread."""
        return self.executors[0].burst() if self.executors else nullcontext()

    def park(self, waiter: Waiter) -> None:
        self._waiters.setdefault((waiter.kind, waiter.namespace, waiter.queue), {})[waiter] = None

    def unpark(self, waiter: Waiter) -> bool:
        """Take a waiter out; False if it was no longer waiting."""
        place = (waiter.kind, waiter.namespace, waiter.queue)
        waiting = self._waiters.get(place)
        if waiting is None or waiter not in waiting:
            return False
        del waiting[waiter]
        if not waiting:
            del self._waiters[place]
        return True

    def succeed(self, before: Waiter, after: Waiter) -> bool:
        """Another poll takes the place of this one; whether that had been promised a task."""
        self.unpark(before)
        for task_id, waiter in self._promised.items():
            if waiter is before:
                self._promised[task_id] = after
                after.session = before.session
                return True
        return False

    def waits(self, waiter: Waiter) -> bool:
        return waiter in self._waiters.get((waiter.kind, waiter.namespace, waiter.queue), ())

    @property
    def polled(self) -> bool:
        """Whether any poll is parked."""
        return bool(self._waiters)

    def waiting(self, queue: Queue | None = None) -> list[Waiter]:
        """Every parked poll, or those of one queue."""
        chosen = self._waiters.values() if queue is None else [self._waiters.get(queue, {})]
        return [waiter for waiting in chosen for waiter in waiting]

    def parked(self) -> list[Queue]:
        """Queues where somebody polls."""
        return list(self._waiters)

    def queues(self) -> set[Queue]:
        """Queues with tasks that wait."""
        return {lane.place for lane in self._lanes}

    def promised_of(self, namespace: str, session_id: str) -> int:
        """How many activities of a session are on their way to its worker."""
        return sum(w.session == session_id and w.namespace == namespace for w in self._promised.values())

    def backlog(self) -> dict[Queue, list[Micros]]:
        """Since when the ready tasks of each queue have been waiting."""
        found: dict[Queue, list[Micros]] = {}
        for lane in self._live():
            waiting = [available for available, _, _ in self._lanes[lane].all()]
            found.setdefault(lane.place, []).extend(waiting)
        return found

    def waiting_of(self, namespace: str, session_id: str) -> int:
        """How many activities of a session wait for its worker."""
        return sum(
            len(self._lanes[lane].all())
            for lane in self._live()
            if lane.namespace == namespace and lane.session is not None and lane.session.session_id == session_id
        )

    def wanted(self, task: Task) -> bool:
        """Whether a worker of this process runs such tasks."""
        return any(executor.serves(task) for executor in self.executors)

    def take_wanted(self) -> list[int]:
        """Instances with waiting tasks that a worker of this process could run; their entries leave the lanes."""
        found: dict[int, None] = {}
        for lane in list(self._live()):
            if any(
                executor.runs(lane.kind, lane.type, lane.namespace, lane.queue, lane.compatibility)
                for executor in self.executors
            ):
                for _, task_id, workflow in self._lanes.pop(lane).all():
                    self.known.discard(task_id)
                    found[workflow] = None
        return list(found)

    def served(self, namespace: str, queue: str) -> bool:
        """Whether some worker is alive on this queue, whatever it runs."""
        if self.remote is not None and self.remote.alive_on(namespace, queue):
            return True
        return any(executor.alive_on(namespace, queue) for executor in self.executors) or any(
            (kind, namespace, queue) in self._waiters for kind in ("workflow", "activity")
        )

    def answering(self, type: str, namespace: str, queue: str, compatibility: str | None) -> Executor | Inquirer | None:
        """A worker, here or elsewhere, that can be asked about workflows of this type."""
        for executor in (*self.executors, self.manual, self.remote):
            if executor is not None and executor.runs("workflow", type, namespace, queue, compatibility):
                return executor
        return None

    def undefined(self, type: str, routing: Routing) -> str | None:
        """Why nobody here can answer for this type of workflow; None if somebody can."""
        if self.answering(type, routing.namespace, routing.queue, routing.compatibility) is not None:
            return None
        served = self.served(routing.namespace, routing.queue)
        return "workflow_definition_unavailable" if served else "query_worker_unavailable"

    def promised(self, task_id: str) -> Waiter | None:
        """The waiter a born-leased task was promised to."""
        return self._promised.pop(task_id, None)

    def enqueue(self, task: Task) -> None:
        if task.id in self.known:
            return
        self.known.add(task.id)
        lane = lane_of(task)
        backlog = self._lanes.get(lane)
        if backlog is None:
            backlog = self._lanes[lane] = Backlog(self._shares.setdefault(queue_of(task), Shares()), self.known)
        backlog.add(task)

    def forget_tasks(self) -> None:
        """Tasks are for another process to hand out now; who waits for one goes on waiting."""
        self._lanes.clear()
        self.known.clear()
        self._gone = 0

    def closed(self, changes: Iterable[TaskChange], left: Container[str]) -> None:
        """What has closed waits no longer. Lanes that nobody polls are tidied, too: when as much is gone as waits."""
        for change in changes:
            task_id = change.task_id
            if task_id in self.known and task_id not in left:
                self.known.discard(task_id)
                self._gone += 1
        if self._gone > len(self.known):
            self._gone = 0
            self._lanes = {lane: backlog for lane, backlog in self._lanes.items() if backlog.tidy()}

    def knows(self, task_id: str) -> bool:
        """Whether the task waits in a lane."""
        return task_id in self.known

    def next_for(self, wants: Callable[[Lane], bool]) -> tuple[str, int] | None:
        """(task id, instance) of the best waiting task, taken out of its lane."""
        best: tuple[Rank, Lane] | None = None
        for lane, rank in self._ranked():
            if (best is None or rank < best[0]) and wants(lane):
                best = (rank, lane)
        if best is None:
            return None
        task_id, workflow = self._lanes[best[1]].take()
        self.known.discard(task_id)
        return task_id, workflow

    def _live(self) -> Iterator[Lane]:
        """Lanes where something waits."""
        return (lane for lane, _ in self._ranked())

    def _ranked(self) -> Iterator[tuple[Lane, Rank]]:
        for lane, backlog in list(self._lanes.items()):
            rank = backlog.first()
            if rank is not None:
                yield lane, rank
            else:
                self._lanes.pop(lane, None)
