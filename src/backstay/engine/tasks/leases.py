"""Leases of remote workers, as committed. Memory only; the task rows are the truth.

They answer three questions without a scan: the task of an earlier poll with the same id, the tasks of a leaving worker,
and the number of leased tasks of a queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from backstay.kernel.decision import TaskChange
from backstay.kernel.task import Task

Queue = tuple[str, str, str]  # kind, namespace, queue


class Leases:
    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._calls: dict[tuple[str, str, str], str] = {}
        self._counts: dict[Queue, Counter[int | None]] = {}  # by the process that gave them
        self._of_instances: dict[int, set[str]] = {}  # task ids
        self.read = False  # False until the rows were read, and again after a commit whose outcome is unknown

    def committed(self, changes: Iterable[TaskChange]) -> Sequence[Queue]:
        """Apply committed changes of tasks. Returns the queues of leases that ended."""
        freed: Sequence[Queue] = ()
        for change in changes:
            task = change.task
            # A lease without an expiry belongs to a worker in this process, which knows its tasks itself.
            if task is not None and task.until is not None and task.state == "leased":
                self.add(task)
            elif self._tasks and (gone := self._drop(change.task_id)) is not None:
                freed = (*freed, gone)
        return freed

    def add(self, task: Task) -> None:
        self._drop(task.id)
        self._tasks[task.id] = task
        queue = queue_of(task)
        self._counts.setdefault(queue, Counter())[task.node] += 1
        self._of_instances.setdefault(task.workflow, set()).add(task.id)
        if task.call is not None and task.owner is not None:
            self._calls[task.routing.namespace, task.owner, task.call] = task.id

    def reread(self, before: Iterable[Task], tasks: Iterable[Task]) -> None:
        """Replace the leases by those found on disk. `before`: those known when the read began; later ones are newer than it."""
        leased = {task.id: task for task in tasks if task.until is not None}
        for task in before:
            if task.id not in leased and self._tasks.get(task.id) is task:
                self._drop(task.id)
        for task in leased.values():
            self.add(task)
        self.read = True

    def found(self, instance: int, tasks: Mapping[str, Task]) -> Sequence[Task]:
        """An instance was read, with these tasks. Returns the leases that another process has ended."""
        ended: Sequence[Task] = ()
        for task_id in list(self._of_instances.get(instance, ())):
            task, before = tasks.get(task_id), self._tasks[task_id]
            if task is None or task.state != "leased" or (task.owner, task.attempt) != (before.owner, before.attempt):
                self._drop(task_id)
                ended = (*ended, before)
        return ended

    def forget(self, is_lost: Callable[[int], bool]) -> list[Task]:
        """Drop the leases of these instances, and return them: another process owns them."""
        lost = [task for task in self if is_lost(task.workflow)]
        for task in lost:
            self._drop(task.id)
        return lost

    def ended(self, task: Task) -> None:
        """This lease has ended elsewhere."""
        if self._tasks.get(task.id) is task:
            self._drop(task.id)

    def get(self, namespace: str, task_id: str) -> Task | None:
        task = self._tasks.get(task_id)
        return task if task is not None and task.routing.namespace == namespace else None

    def has(self, task_id: str, node: int | None = None) -> bool:
        """Whether a task is leased. `node`: not if another process has given the lease."""
        task = self._tasks.get(task_id)
        return task is not None and (node is None or task.node in (None, node))

    def by_call(self, namespace: str, owner: str, call: str) -> Task | None:
        """The task that this worker got for the poll with the id `call`, if it still holds it."""
        return self._tasks.get(self._calls.get((namespace, owner, call), ""))

    def of(self, namespace: str, owner: str) -> list[Task]:
        return [task for task in self._tasks.values() if task.owner == owner and task.routing.namespace == namespace]

    def of_session(self, namespace: str, session_id: str) -> list[Task]:
        """The activities of a session that are leased."""
        return [
            task
            for task in self._tasks.values()
            if task.session is not None
            and task.session.session_id == session_id
            and task.routing.namespace == namespace
        ]

    def count_in(self, kind: str, namespace: str, node: int | None = None) -> int:
        return sum(self.count(queue, node) for queue in self._counts if queue[:2] == (kind, namespace))

    def count(self, queue: Queue, node: int | None = None) -> int:
        """How many tasks of a queue are leased. `node`: without those that other processes have given."""
        counts = self._counts.get(queue)
        if counts is None:
            return 0
        return counts.total() if node is None else counts[None] + counts[node]

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    def _drop(self, task_id: str) -> Queue | None:
        task = self._tasks.pop(task_id, None)
        if task is None:
            return None
        others = self._of_instances[task.workflow]
        others.discard(task_id)
        if not others:
            del self._of_instances[task.workflow]
        queue = queue_of(task)
        counts = self._counts[queue]
        counts[task.node] -= 1
        if not counts[task.node]:
            del counts[task.node]
            if not counts:
                del self._counts[queue]
        if task.call is not None and task.owner is not None:
            self._calls.pop((task.routing.namespace, task.owner, task.call), None)
        return queue


def queue_of(task: Task) -> Queue:
    return task.kind, task.routing.namespace, task.routing.queue
