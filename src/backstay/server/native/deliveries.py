"""Deliveries to a worker: leased tasks and queries that wait for the next reply, with closed runs and withdrawn tasks."""

from __future__ import annotations

from backstay.kernel.features.activity import ActivityAssignment
from backstay.protocol.native import worker as wire

LEASE_BYTES = 1024  # estimate of a delivery without its history or arguments


class Deliveries:
    """The deliveries of one worker, at most `most` bytes of history and arguments in each reply."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[wire.Delivery] = []
        self._size = 0
        self._closed: list[str] = []  # runs that have closed
        self._withdrawn: list[str] = []  # activity tasks whose attempts are over

    def __bool__(self) -> bool:
        return bool(self._waiting or self._closed or self._withdrawn)

    def put(self, delivery: wire.Delivery, size: int) -> None:
        """`size`: bytes of its arguments or its history."""
        self._waiting.append(delivery)
        self._size += LEASE_BYTES + size

    def run_closed(self, run_id: str) -> None:
        self._closed.append(run_id)

    def task_withdrawn(self, task_id: str) -> None:
        self._withdrawn.append(task_id)

    @property
    def unsent(self) -> list[str]:
        """The ids of the tasks that no reply has carried yet, in order."""
        tasks = [delivery for delivery in self._waiting if not isinstance(delivery, wire.QueryTask)]
        return [one.task_id if isinstance(one, wire.TaskLease) else one.assignment.task.id for one in tasks]

    def take(self) -> list[wire.Delivery]:
        waiting, self._waiting = self._waiting, []
        self._size = 0
        return waiting

    def reply(self, answers: list[wire.Answered], leaving: bool) -> wire.Exchanged:
        """The next reply, with as many deliveries as fit. The others wait for the reply after it."""
        closed, self._closed = self._closed, []
        withdrawn, self._withdrawn = self._withdrawn, []
        return wire.Exchanged(
            answers=answers, deliveries=self._fitting(), closed=closed, withdrawn=withdrawn, leaving=leaving
        )

    def _fitting(self) -> list[wire.Delivery]:
        crowded = self._size > self._most
        waiting = self.take()
        if crowded:
            size = 0
            for at, delivery in enumerate(waiting):
                size += LEASE_BYTES + _size(delivery)
                if at and size > self._most:
                    for later in waiting[at:]:
                        self.put(later, _size(later))
                    return waiting[:at]
        return waiting


def _size(delivery: wire.Delivery) -> int:
    """Bytes of the arguments or the history in a delivery."""
    match delivery:
        case wire.TaskLease(events=events) | wire.QueryTask(history=events):
            return sum(len(entry.body) + len(entry.context) for entry in events)
        case wire.ActivityLease(assignment=assignment):
            return size_of_arguments(assignment)


def size_of_arguments(assignment: ActivityAssignment) -> int:
    """Bytes of an activity's arguments in base64, as they are sent."""
    arguments = assignment.arguments
    return 0 if arguments is None else len(arguments) * 4 // 3
