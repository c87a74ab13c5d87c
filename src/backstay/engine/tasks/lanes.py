"""Lanes: ready tasks that wait for a worker, grouped by which workers can run them. Memory only; the task rows are the truth.

The most urgent task of all lanes goes first, with fair shares between the fairness keys of a queue (`backlog`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from backstay.engine.tasks.backlog import Backlog, Rank, Shares
from backstay.engine.tasks.leases import Queue, queue_of
from backstay.engine.tasks.workers import Lane, lane_of
from backstay.kernel.decision import TaskChange
from backstay.kernel.task import Task
from backstay.kernel.values import Micros


class Lanes:
    def __init__(self) -> None:
        self._lanes: dict[Lane, Backlog] = {}
        self._shares: dict[Queue, Shares] = {}
        self.waiting: set[str] = set()  # ids of the tasks in all lanes
        self.on_wait: Callable[[Lane], None] | None = None  # called with the lane of each task that begins to wait
        self.on_unmatched: Callable[[Queue], None] | None = None  # the same with its queue, for other nodes
        self.on_tried: Callable[[], None] | None = (
            None  # called when a task begins to wait that only some code may have
        )
        self._closed = 0  # an upper bound of the tasks that closed while they waited and still take up memory

    def add(self, task: Task) -> None:
        if task.id in self.waiting:
            return
        self.waiting.add(task.id)
        lane = lane_of(task)
        backlog = self._lanes.get(lane)
        if backlog is None:
            backlog = self._lanes[lane] = Backlog(self._shares.setdefault(queue_of(task), Shares()), self.waiting)
        backlog.add(task)
        if lane.tried and self.on_tried is not None:
            self.on_tried()
        if self.on_unmatched is not None:
            self.on_unmatched(queue_of(task))
        if self.on_wait is not None:
            self.on_wait(lane)

    def forget(self, is_lost: Callable[[int], bool]) -> None:
        """Drop the tasks of these instances: another process owns them."""
        for backlog in self._lanes.values():
            for _, task_id, workflow in backlog.all():
                if is_lost(workflow):
                    self.waiting.discard(task_id)
                    self._closed += 1
        self._tidy()

    def remove_closed(self, changes: Iterable[TaskChange], left: Container[str]) -> None:
        """Remove committed tasks that are not `left`: they have closed. Memory is freed when half of it is unused."""
        for change in changes:
            task_id = change.task_id
            if task_id in self.waiting and task_id not in left:
                self.waiting.discard(task_id)
                self._closed += 1
        self._tidy()

    def _tidy(self) -> None:
        if self._closed > len(self.waiting):
            self._closed = 0
            self._lanes = {lane: backlog for lane, backlog in self._lanes.items() if backlog.tidy()}

    def take_best(self, wanted: Callable[[Lane], bool]) -> tuple[str, int] | None:
        """Take out the first task of the wanted lanes: its id and its instance."""
        best: tuple[Rank, Lane] | None = None
        for lane, rank in self._ranked():
            if (best is None or rank < best[0]) and wanted(lane):
                best = (rank, lane)
        if best is None:
            return None
        task_id, workflow = self._lanes[best[1]].take()
        self.waiting.discard(task_id)
        return task_id, workflow

    def take_all(self, wanted: Callable[[Lane], bool]) -> list[int]:
        """Take out every task of the wanted lanes: their instances."""
        workflows: dict[int, None] = {}
        for lane, _ in list(self._ranked()):
            if wanted(lane):
                for _, task_id, workflow in self._lanes.pop(lane).all():
                    self.waiting.discard(task_id)
                    workflows[workflow] = None
        return list(workflows)

    @property
    def has_tried(self) -> bool:
        return any(lane.tried for lane, _ in self._ranked())

    def sizes(self) -> list[tuple[Lane, int]]:
        """The lanes, and about how many tasks wait in each."""
        return [(lane, backlog.size()) for lane, backlog in self._lanes.items()]

    def queues(self) -> set[Queue]:
        """The queues that have waiting tasks."""
        return {lane.place for lane in self._lanes}

    def waiting_since(self) -> dict[Queue, list[Micros]]:
        """The times since which the tasks of each queue are ready."""
        times: dict[Queue, list[Micros]] = {}
        for lane, _ in self._ranked():
            times.setdefault(lane.place, []).extend(available for available, _, _ in self._lanes[lane].all())
        return times

    def count_of_session(self, namespace: str, session_id: str) -> int:
        """How many activities of a session wait for its worker."""
        return sum(
            len(self._lanes[lane].all())
            for lane, _ in self._ranked()
            if lane.namespace == namespace and lane.session is not None and lane.session.session_id == session_id
        )

    def _ranked(self) -> Iterator[tuple[Lane, Rank]]:
        """The lanes with waiting tasks, and the rank of the first of each. Empty lanes are removed."""
        for lane, backlog in list(self._lanes.items()):
            rank = backlog.first()
            if rank is not None:
                yield lane, rank
            else:
                self._lanes.pop(lane, None)
