"""Parked polls: polls of remote workers that wait for one task each.

A poll is parked until a task is reserved for it, or its time is over. It is answered once, after the commit that leased its
task; between the two it is reserved and no longer parked. While a task is fetched for it from another node, it is held back.
So is a poll in *doubt*: the database failed during the commit of its lease, and the lease may be on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from backstay.engine.tasks.leases import Queue
from backstay.engine.tasks.workers import Lane
from backstay.kernel.features.lease import Claimant
from backstay.kernel.task import Lease, Task


class ParkedPoll:
    __slots__ = (
        "call",
        "fetched",
        "future",
        "kind",
        "lease",
        "namespace",
        "owner",
        "queue",
        "session",
        "successor",
        "types",
        "worker",
    )

    def __init__(
        self,
        kind: str,
        namespace: str,
        queue: str,
        types: frozenset[str] | None,
        lease: Callable[[], Lease],
        future: asyncio.Future[Any],
        worker: Claimant,
        owner: str,
        call: str | None = None,
    ) -> None:
        self.owner = owner
        self.call = call  # its id
        self.fetched = False  # whether its task is from another node
        self.successor: ParkedPoll | None = None  # the same poll, repeated by its worker
        self.session: str | None = None  # of the activity that is reserved for it
        self.kind = kind
        self.namespace = namespace
        self.queue = queue
        self.types = types
        self.lease = lease
        self.future = future
        self.worker = worker

    @property
    def place(self) -> Queue:
        return self.kind, self.namespace, self.queue

    def got(self) -> Task | None:
        """The task that it was answered with."""
        future = self.future
        answered = future.done() and not future.cancelled() and future.exception() is None
        return future.result().task if answered and future.result() is not None else None

    def matches(self, lane: Lane) -> bool:
        return (
            lane.kind == self.kind
            and lane.namespace == self.namespace
            and lane.queue == self.queue
            and (self.types is None or lane.type in self.types)
            and self.worker.serves(lane) is None
        )


class ParkedPolls:
    def __init__(self) -> None:
        self.by_queue: dict[Queue, dict[ParkedPoll, None]] = {}  # oldest first; a queue without polls is not in it
        self._reserved: dict[str, ParkedPoll] = {}  # by task
        self._held: set[ParkedPoll] = set()  # a task is being fetched for them, or they are in doubt
        self._doubted: list[ParkedPoll] = []

    def park(self, poll: ParkedPoll) -> None:
        self.by_queue.setdefault(poll.place, {})[poll] = None

    def unpark(self, poll: ParkedPoll) -> bool:
        """Take a poll out; False if it was not parked any more."""
        self._held.discard(poll)
        parked = self.by_queue.get(poll.place)
        if parked is None or poll not in parked:
            return False
        del parked[poll]
        if not parked:
            del self.by_queue[poll.place]
        return True

    def hold(self, poll: ParkedPoll) -> None:
        """Let a poll have no other task while one is fetched for it."""
        self.unpark(poll)
        self._held.add(poll)

    def resume(self, poll: ParkedPoll) -> bool:
        """Park a poll again that was held back; False if it has ended meanwhile."""
        if poll not in self._held:
            return False
        self._held.discard(poll)
        self.park(poll)
        return True

    def doubt(self, poll: ParkedPoll) -> None:
        """Hold a poll back until it is known whether a lease of it is on disk. A poll without an id cannot be looked up."""
        if poll.call is None:
            self.park(poll)
        else:
            self.hold(poll)
            self._doubted.append(poll)

    def take_doubted(self) -> list[ParkedPoll]:
        doubted, self._doubted = self._doubted, []
        return doubted

    def replace(self, before: ParkedPoll, after: ParkedPoll) -> bool:
        """Replace a poll by another one; True if a task had been reserved for the first, or is being fetched."""
        if before in self._held:
            self._held.remove(before)
            self._held.add(after)
            before.successor = after
            return True
        self.unpark(before)
        for task_id, poll in self._reserved.items():
            if poll is before:
                self._reserved[task_id] = after
                after.session = before.session
                return True
        return False

    def is_parked(self, poll: ParkedPoll) -> bool:
        return poll in self.by_queue.get(poll.place, ())

    def all(self) -> list[ParkedPoll]:
        return [*(poll for parked in self.by_queue.values() for poll in parked), *self._held]

    def on(self, queue: Queue) -> list[ParkedPoll]:
        return list(self.by_queue.get(queue, ()))

    def reserve(self, task: Task, poll: ParkedPoll) -> None:
        """Reserve a task for this poll, which gets it when the lease is on disk."""
        self.unpark(poll)
        self._reserved[task.id] = poll
        poll.session = None if task.session is None else task.session.session_id

    def take_reserved(self, task_id: str) -> ParkedPoll | None:
        """End the reservation of a task, and return the poll that it was for."""
        return self._reserved.pop(task_id, None)

    def count_reserved(self, namespace: str, session_id: str) -> int:
        """How many activities of a session are reserved for polls."""
        return sum(poll.session == session_id and poll.namespace == namespace for poll in self._reserved.values())
