"""Which workers outside this process hold which tasks, as committed. Memory only; the task rows are the truth.

Answers three questions without a scan: which task a repeated poll had been given, what a worker that leaves was
holding, and how many leases a queue has out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from backstay.kernel.decision import TaskChange
from backstay.kernel.task import Task

Queue = tuple[str, str, str]  # kind, namespace, queue


class Leases:
    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._calls: dict[tuple[str, str, str], str] = {}
        self._counts: dict[Queue, int] = {}
        self.read = False  # whether what is on disk is known: not at first, and not after a commit that may be there

    def committed(self, changes: Iterable[TaskChange]) -> Sequence[Queue]:
        """Take note of what was committed; the queues that have a lease less are told."""
        freed: Sequence[Queue] = ()
        for change in changes:
            task = change.task
            # A lease without an end belongs to a worker in this process, which knows what it holds.
            if task is not None and task.until is not None and task.state == "leased":
                self.add(task)
            elif self._tasks and (gone := self._drop(change.task_id)) is not None:
                freed = (*freed, gone)
        return freed

    def add(self, task: Task) -> None:
        self._drop(task.id)
        self._tasks[task.id] = task
        queue = queue_of(task)
        self._counts[queue] = self._counts.get(queue, 0) + 1
        if task.call is not None and task.owner is not None:
            self._calls[task.routing.namespace, task.owner, task.call] = task.id

    def reread(self, before: Iterable[Task], found: Iterable[Task]) -> None:
        """Take over what is on disk. `before`: what was known when it was asked for; what came since is newer than the answer."""
        leased = {task.id: task for task in found if task.until is not None}
        for task in before:
            if task.id not in leased and self._tasks.get(task.id) is task:
                self._drop(task.id)
        for task in leased.values():
            self.add(task)
        self.read = True

    def forget(self) -> None:
        self.read = False
        self._tasks.clear()
        self._calls.clear()
        self._counts.clear()

    def get(self, namespace: str, task_id: str) -> Task | None:
        task = self._tasks.get(task_id)
        return task if task is not None and task.routing.namespace == namespace else None

    def has(self, task_id: str) -> bool:
        return task_id in self._tasks

    def by_call(self, namespace: str, owner: str, call: str) -> Task | None:
        """The task that this worker's poll had been given, if it still holds it."""
        return self._tasks.get(self._calls.get((namespace, owner, call), ""))

    def of(self, namespace: str, owner: str) -> list[Task]:
        return [task for task in self._tasks.values() if task.owner == owner and task.routing.namespace == namespace]

    def of_session(self, namespace: str, session_id: str) -> int:
        """How many activities of a session are being worked on."""
        return sum(
            task.session is not None and task.session.session_id == session_id and task.routing.namespace == namespace
            for task in self._tasks.values()
        )

    def count_in(self, kind: str, namespace: str) -> int:
        return sum(count for place, count in self._counts.items() if place[:2] == (kind, namespace))

    def count(self, queue: Queue) -> int:
        return self._counts.get(queue, 0)

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    def _drop(self, task_id: str) -> Queue | None:
        task = self._tasks.pop(task_id, None)
        if task is None:
            return None
        queue = queue_of(task)
        left = self._counts.get(queue, 0) - 1
        if left > 0:
            self._counts[queue] = left
        else:
            self._counts.pop(queue, None)
        if task.call is not None and task.owner is not None:
            self._calls.pop((task.routing.namespace, task.owner, task.call), None)
        return queue


def queue_of(task: Task) -> Queue:
    return task.kind, task.routing.namespace, task.routing.queue
