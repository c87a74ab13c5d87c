"""Remote workers: workers in other processes that take several tasks at once. Memory only; the task rows are the truth.

A remote worker is *open* while it is connected. A task that is reserved for it or leased to it takes one of its slots until the
lease ends. A worker is the *home* of the sticky runs whose live code it keeps: their next tasks go there first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.engine.tasks.isolation import Isolation
from backstay.engine.tasks.workers import Lane
from backstay.kernel.decision import TaskChange
from backstay.kernel.features.lease import Claimant
from backstay.kernel.task import Lease, Task
from backstay.kernel.values import LEASE, Micros, run_of

if TYPE_CHECKING:
    from backstay.engine.core.cache import CachedInstance

LIVE = 50_000  # sticky runs of one worker


class StickyRun(NamedTuple):
    """A run whose live code a worker keeps: how far that code has seen the history, and the checksum there."""

    length: int
    checksum: int


class RemoteWorker:
    def __init__(
        self,
        owner: str,
        namespace: str,
        queues: frozenset[str],
        workflow_types: frozenset[str],
        activity_types: frozenset[str],
        async_types: frozenset[str],
        claimant: Claimant,
        slots: dict[str, int],
        deliver: Callable[[CachedInstance, Any], None],
        closed: Callable[[str], None],
        withdrawn: Callable[[str], None],
        definitions: Mapping[str, str] | None = None,
    ) -> None:
        """`definitions`: of its workflow types, by type."""
        self.owner = owner
        self.namespace = namespace
        self.queues = queues
        self.resting: frozenset[str] = frozenset()  # queues of which it takes nothing for now
        self.types = {"workflow": workflow_types, "activity": activity_types}
        self.async_types = async_types
        self.claimant = claimant
        self.slots = slots
        self.deliver = deliver
        self.closed = closed
        self.withdrawn = withdrawn
        self.definitions = definitions or {}
        self.isolation: Isolation | None = None
        self.open = False
        self.held: dict[str, Task] = {}  # reserved or leased
        self.used = dict.fromkeys(slots, 0)
        self.live: OrderedDict[int, StickyRun] = OrderedDict()

    def takes(self, lane: Lane) -> bool:
        """Whether this worker could take one more task of this lane now."""
        slot = self.slot(lane.kind, lane.type)
        isolation = self.isolation
        return (
            self.used[slot] < self.slots[slot]
            and self.suits(lane)
            and (
                isolation is None
                or not (isolation.by_worker or lane.suspect)
                or isolation.lets((self.namespace, self.owner), lane.suspect)
            )
        )

    def suits(self, lane: Lane) -> bool:
        """Whether this worker could take a task of this lane if it had a slot."""
        return (
            self.open
            and lane.queue in self.queues
            and lane.queue not in self.resting
            and lane.namespace == self.namespace
            and lane.type in self.types[lane.kind]
            and lane.session is None  # activities of sessions go to workers that poll
            and self.claimant.serves(lane) is None
            and not (lane.tried and self.definitions.get(lane.type) in lane.tried)
        )

    def slot(self, kind: str, type: str) -> str:
        """The kind of slot that a task takes: async activities need no thread."""
        return "async" if kind == "activity" and type in self.async_types else kind


class RemoteWorkers:
    def __init__(self, now: Callable[[], Micros], isolation: Isolation) -> None:
        self._now = now
        self._isolation = isolation
        self.by_queue: dict[tuple[str, str], dict[RemoteWorker, None]] = {}  # empty on most engines
        self.by_task: dict[str, RemoteWorker] = {}  # by task id
        self._homes: dict[int, RemoteWorker] = {}
        self.unsent: list[Task] = []  # tasks whose leases may be on disk, and whose workers have not heard of them

    def add(self, worker: RemoteWorker) -> None:
        worker.isolation = self._isolation
        for queue in worker.queues:
            self.by_queue.setdefault((worker.namespace, queue), {})[worker] = None

    def remove(self, worker: RemoteWorker) -> list[Task]:
        """Remove a worker, and return the tasks that were reserved for it or leased to it."""
        for queue in worker.queues:
            key = (worker.namespace, queue)
            there = self.by_queue.get(key, {})
            there.pop(worker, None)
            if not there:
                self.by_queue.pop(key, None)
        worker.open = False
        for run in list(worker.live):
            self.unstick(run, worker)
        return list(worker.held.values())

    def choose(self, task: Task, lane: Lane) -> RemoteWorker | None:
        """The worker that gets a task: the home of its run, else the one with the fewest tasks."""
        there = self.by_queue.get((lane.namespace, lane.queue))
        if there is None:
            return None
        home = self._homes.get(task.run)
        if home is not None and home in there and home.takes(lane):
            return home
        able = [worker for worker in there if worker.takes(lane)]
        return min(able, key=lambda worker: len(worker.held)) if able else None

    def reserve(self, worker: RemoteWorker, task: Task) -> Lease:
        self.hold(worker, task)
        return Lease(owner=worker.owner, until=self._now() + LEASE)

    def release_unleased(self, granted: Iterable[Task], tasks: Mapping[str, Task]) -> list[Task]:
        """Free the slots of tasks whose lease began and ended in the same turn, and return those tasks."""
        broken: list[Task] = []
        for task in granted:
            now = tasks.get(task.id)
            if (now is None or now.state != "leased") and self.release(task.id) is not None:
                broken.append(task)
        return broken

    def hold(self, worker: RemoteWorker, task: Task) -> None:
        before = self.by_task.get(task.id)
        if before is not None and before is not worker:
            self.release(task.id)
        self.by_task[task.id] = worker
        if task.id not in worker.held:
            worker.used[worker.slot(task.kind, task.type)] += 1
        worker.held[task.id] = task

    def holder_of(self, task_id: str) -> RemoteWorker | None:
        return self.by_task.get(task_id)

    def release(self, task_id: str) -> RemoteWorker | None:
        """Free the slot of a task whose lease has ended or was not committed."""
        worker = self.by_task.pop(task_id, None)
        task = None if worker is None else worker.held.pop(task_id, None)
        if worker is not None and task is not None:
            worker.used[worker.slot(task.kind, task.type)] -= 1
        return worker

    def on_commit(self, changes: Iterable[TaskChange], closing: bool) -> Collection[RemoteWorker]:
        """Free the slots of leases that ended with these committed changes, and return the workers of those slots.

        `closing`: the run has closed, so workers of its activities may stop.
        """
        freed: dict[RemoteWorker, None] = {}
        at = self.by_task
        for change in changes:
            worker = at.get(change.task_id)
            if worker is None:
                continue
            task = change.task
            if task is not None and task.state == "leased" and task.owner == worker.owner:
                worker.held[task.id] = task
            elif worker.held[change.task_id].state == "leased":
                # In another state the slot is reserved by a later decision, and stays.
                if closing and worker.held[change.task_id].kind == "activity":
                    worker.closed(run_of(change.task_id))
                self.release(change.task_id)
                freed[worker] = None
        return freed

    def ended_elsewhere(self, leases: Iterable[Task], tasks: Mapping[str, Task]) -> Collection[RemoteWorker]:
        """Free the slots of leases that another process has ended, and return the workers of those slots. `tasks`: the
        current tasks.

        A worker may report to another node than the one that counts its task: when the node that gave it is gone. A
        worker that has not reported gets notice that its attempt is over, unless it has the next attempt from another
        node.
        """
        freed: dict[RemoteWorker, None] = {}
        for task in leases:
            worker = self.by_task.get(task.id)
            if worker is None:
                continue
            held, now = worker.held[task.id], tasks.get(task.id)
            if (held.state, held.attempt) == ("leased", task.attempt):
                self.release(task.id)
                freed[worker] = None
                if task.kind == "activity" and (now is None or now.owner != worker.owner):
                    worker.withdrawn(task.id)
        return freed

    # -- where live code is

    def stick(self, run: int, worker: RemoteWorker, sticky: StickyRun) -> None:
        """The live code of a run is at this worker, and has seen this much of its history."""
        before = self._homes.get(run)
        if before is not worker:
            if before is not None:
                before.live.pop(run, None)
            self._homes[run] = worker
        worker.live[run] = sticky
        worker.live.move_to_end(run)
        if len(worker.live) > LIVE:
            oldest, _ = worker.live.popitem(last=False)
            self._homes.pop(oldest, None)

    def forget(self, is_lost: Callable[[int], bool]) -> None:
        """Forget where the live code of these runs is: another process owns them, and moves them on."""
        for run, worker in list(self._homes.items()):
            if is_lost(run):
                self.unstick(run, worker)

    def unstick(self, run: int, worker: RemoteWorker) -> None:
        if worker.live.pop(run, None) is not None and self._homes.get(run) is worker:
            del self._homes[run]
