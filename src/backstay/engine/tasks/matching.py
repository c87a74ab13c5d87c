"""Matching decides which worker gets a ready task. Memory only; the task rows are the truth.

A worker is an *executor* in this process, a *remote worker* that takes several tasks at once, or a *parked poll* that takes
one. A task that no worker can take now waits in its lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from msgspec.structs import replace

from backstay.engine.tasks.isolation import Isolation
from backstay.engine.tasks.lanes import Lanes
from backstay.engine.tasks.leases import Queue, queue_of
from backstay.engine.tasks.parked_polls import ParkedPoll, ParkedPolls
from backstay.engine.tasks.remote_workers import RemoteWorker, RemoteWorkers
from backstay.engine.tasks.workers import Admission, Executor, FleetTakers, Inquirer, Lane, SessionGate, lane_of
from backstay.kernel.fleet import Definitions, WorkerIdentity
from backstay.kernel.state import Run
from backstay.kernel.task import SUSPECT, Lease, Task
from backstay.kernel.values import Micros, Routing
from backstay.kernel.views.facts import Takers

NOBODY = Takers()


class Matching:
    """`admission` limits the leases of a queue, `sessions` says which worker may run the activities of a session, and `remote`
    sends queries to remote workers, `fleet` knows which of them are alive. Only a server has these four."""

    def __init__(
        self,
        now: Callable[[], Micros],
        *,
        admission: Admission | None = None,
        sessions: SessionGate | None = None,
        remote: Inquirer | None = None,
        fleet: FleetTakers | None = None,
    ) -> None:
        self.executors: list[Executor] = []
        self.manual: Executor | None = None  # the executor that runs tasks by name (`InlineCode.execute`)
        self.isolation = Isolation(now)
        self.remote_workers = RemoteWorkers(now, self.isolation)
        self.polls = ParkedPolls()
        self.lanes = Lanes()
        self.admission = admission
        self.sessions = sessions
        self.remote = remote
        self.fleet = fleet
        # Ids of the code of other processes that run tasks themselves, and are in no registry.
        self.code_elsewhere: Callable[[], frozenset[str]] = frozenset

    def join(self, executor: Executor, *, takes_tasks: bool) -> None:
        """Add a worker of this process. If it takes no tasks, it only runs tasks that name it."""
        self.manual = executor
        if takes_tasks:
            self.executors.append(executor)

    # -- a task that is ready

    def inline_executor(self, run: Run) -> Executor | None:
        """The executor that runs the code of this run on the engine's own thread, before the next commit."""
        type = run.workflow_type
        routing = run.routing
        for executor in self.executors:
            if executor.runs("workflow", type, routing.namespace, routing.queue, routing.compatibility):
                return executor if executor.inline("workflow", type) else None
        return None

    def offer(self, task: Task) -> Lease | Executor | None:
        """Offer a ready task to the workers. Returns a lease if a worker takes it; its slot is reserved from then on.

        Returns an executor if that runs the task on the engine's own thread, which needs no lease.
        """
        trials = self.isolation.by_worker
        for executor in self.executors:
            if executor.serves(task) and not (task.tried and _was_tried(executor, task)):
                if executor.inline(task.kind, task.type):
                    return executor
                if (not trials or self._may_have(executor.owner, task)) and executor.take(task):
                    lease = Lease(owner=executor.owner)
                    return lease if task.crashes < SUSPECT else self._isolated(task, lease)
        queue = queue_of(task)
        if self.remote_workers.by_queue:
            worker = self._choose_worker(task, queue)
            if worker is not None:
                lease = self._counted(self.remote_workers.reserve(worker, task))
                return lease if task.crashes < SUSPECT else self._isolated(task, lease)
        parked = self.polls.by_queue.get(queue) if self.polls.by_queue else None
        if parked:
            lane = lane_of(task)
            for poll in parked:
                if self.fits(poll, lane) and not poll.future.done():
                    if not self.admits(queue):
                        return None
                    lease = self._counted(self._reserve_for_poll(task, poll, queue))
                    return lease if task.crashes < SUSPECT else self._isolated(task, lease)
        return None

    def _choose_worker(self, task: Task, queue: Queue) -> RemoteWorker | None:
        worker = self.remote_workers.choose(task, lane_of(task))
        if worker is None or not self.admits(queue):
            return None
        if self.admission is not None:
            self.admission.promised(task.id, queue)
        return worker

    def _may_have(self, owner: str, task: Task) -> bool:
        return self.isolation.admits((task.routing.namespace, owner), task.is_suspect)

    def _isolated(self, task: Task, lease: Lease) -> Lease:
        """The lease of a suspect: its worker gets no other task for a while."""
        self.isolation.begin(task, lease.owner, task.attempt + 1)
        return lease

    def _counted(self, lease: Lease) -> Lease:
        """The lease, with the process against whose share of a limit it counts."""
        admission = self.admission
        return lease if admission is None or admission.node is None else replace(lease, node=admission.node)

    def _reserve_for_poll(self, task: Task, poll: ParkedPoll, queue: Queue) -> Lease:
        self.polls.reserve(task, poll)
        if self.admission is not None:
            self.admission.promised(task.id, queue)
        if task.session is not None and self.sessions is not None:
            self.sessions.took(poll.namespace, task.session, poll.owner)
        return poll.lease()

    # -- which worker may have which task

    def fits(self, poll: ParkedPoll, lane: Lane) -> bool:
        """Whether this poll may have a task of this lane."""
        if not poll.matches(lane) or (lane.tried and self._was_tried_by(poll, lane)):
            return False
        asked = lane.session
        if (
            asked is not None
            and self.sessions is not None
            and not self.sessions.admits(poll.namespace, asked, poll.owner)
        ):
            return False
        isolation = self.isolation
        return not (isolation.by_worker or lane.suspect) or isolation.lets((poll.namespace, poll.owner), lane.suspect)

    def _was_tried_by(self, poll: ParkedPoll, lane: Lane) -> bool:
        """Whether the worker of a poll has a definition with which the tasks of a lane were tried already."""
        worker = None if self.fleet is None else self.fleet.identity(poll.namespace, poll.owner, lane.type)
        return worker is not None and worker.definition in lane.tried

    def admits(self, queue: Queue) -> bool:
        return self.admission is None or self.admission.admits(queue)

    def has_taker(self, lane: Lane) -> bool:
        """Whether a remote worker or a poll can take a task of this lane now."""
        queue = lane.place
        workers = self.remote_workers.by_queue.get((lane.namespace, lane.queue), ())
        return (
            any(worker.takes(lane) for worker in workers)
            or any(self.fits(poll, lane) and not poll.future.done() for poll in self.polls.by_queue.get(queue, ()))
        ) and self.admits(queue)

    def relieved(self, freed: Iterable[Queue]) -> set[Queue]:
        """The queues that may lease more tasks when leases of these have ended."""
        admission = self.admission
        return set(freed) if admission is None else {wide for one in freed for wide in admission.relieved(one)}

    # -- the workers of this process

    def executor_of(self, owner: str) -> Executor | None:
        for executor in self.executors:
            if executor.owner == owner:
                return executor
        return None

    def burst(self) -> AbstractContextManager[None]:
        """A context around a series of activations on the engine's own thread."""
        return self.executors[0].burst() if self.executors else nullcontext()

    def serves(self, task: Task) -> bool:
        """Whether a worker of this process may have this task."""
        return any(executor.serves(task) and not _was_tried(executor, task) for executor in self.executors)

    def take_served(self) -> list[int]:
        """Take the tasks that a worker of this process could run out of their lanes, and return their instances."""
        return self.lanes.take_all(lambda lane: any(runs_lane(executor, lane) for executor in self.executors))

    # -- the fleet of a decision (`kernel/fleet.py`)

    def definitions(self, task: Task) -> Definitions:
        """The definitions of live workers that could take this workflow task."""
        type, routing = task.type, task.routing
        lane = type, routing.namespace, routing.queue, routing.compatibility
        known = {one.identity(type).definition for one in self.executors if one.runs("workflow", *lane)}
        if self.fleet is not None:
            known.update(self.fleet.definitions(*lane))
        return Definitions(frozenset(known), self.code_elsewhere())

    def worker(self, task: Task) -> WorkerIdentity | None:
        executor = self.executor_of(task.owner or "")
        if executor is not None:
            return executor.identity(task.type)
        fleet = self.fleet
        return None if fleet is None else fleet.identity(task.routing.namespace, task.owner or "", task.type)

    # -- workers that are alive, whether or not they have room

    def takers(self, kind: str, type: str, namespace: str, queue: str, build: str | None) -> Takers:
        """The live workers that could take a task of this type and build from this queue, here and elsewhere."""
        elsewhere = NOBODY if self.fleet is None else self.fleet.takers(kind, type, namespace, queue, build)
        here = [executor for executor in self.executors if executor.alive_on(namespace, queue)]
        able = sum(one.runs(kind, type, namespace, queue, build) for one in here)
        connections = elsewhere.connections
        if connections is not None:
            connections = None if able else self._polled(connections, kind, type, namespace, queue)
        return Takers(
            on_queue=elsewhere.on_queue + len(here),
            of_type=elsewhere.of_type + sum(one.runs(kind, type, namespace, queue, None) for one in here),
            able=elsewhere.able + able,
            builds=elsewhere.builds,
            connections=connections,
        )

    def _polled(self, known: frozenset[str], kind: str, type: str, namespace: str, queue: str) -> frozenset[str] | None:
        """These connections, and those that polls name which are parked here: a poll may name another one than its worker."""
        polls = self.polls.by_queue.get((kind, namespace, queue), ())
        named = {poll.worker.connection for poll in polls if poll.types is None or type in poll.types}
        return None if None in named else known.union(one for one in named if one is not None)

    def is_stranded(self, task: Task) -> bool:
        """Whether no live worker could take this task."""
        routing = task.routing
        found = self.takers(task.kind, task.type, routing.namespace, routing.queue, routing.compatibility)
        return found.of_connection(routing.connection).missing is not None

    # -- workers that answer queries

    def is_served(self, namespace: str, queue: str) -> bool:
        """Whether some worker is alive on this queue, whatever it runs."""
        if self.remote is not None and self.remote.alive_on(namespace, queue):
            return True
        return any(executor.alive_on(namespace, queue) for executor in self.executors) or any(
            (kind, namespace, queue) in self.polls.by_queue for kind in ("workflow", "activity")
        )

    def answerer(self, type: str, namespace: str, queue: str, compatibility: str | None) -> Executor | Inquirer | None:
        """A worker, in this process or another, that can answer queries to workflows of this type."""
        for executor in (*self.executors, self.manual, self.remote):
            if executor is not None and executor.runs("workflow", type, namespace, queue, compatibility):
                return executor
        return None

    def why_unanswered(self, type: str, routing: Routing) -> str | None:
        """Why no worker can answer for this type of workflow; None if one can."""
        if self.answerer(type, routing.namespace, routing.queue, routing.compatibility) is not None:
            return None
        served = self.is_served(routing.namespace, routing.queue)
        return "workflow_definition_unavailable" if served else "query_worker_unavailable"


def runs_lane(executor: Executor, lane: Lane) -> bool:
    """Whether an executor may have the tasks of a lane."""
    return executor.runs(lane.kind, lane.type, lane.namespace, lane.queue, lane.compatibility) and not (
        lane.tried and executor.identity(lane.type).definition in lane.tried
    )


def _was_tried(executor: Executor, task: Task) -> bool:
    """Whether a task was blocked with the definition of this executor already."""
    return bool(task.tried) and executor.identity(task.type).definition in task.tried
