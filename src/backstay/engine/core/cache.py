"""The cache of workflow states, bounded by (estimated) bytes, least recently used first out.

An entry with uncommitted decisions, or with code in the middle of a task, is never evicted: it is ahead of the database.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from backstay.kernel.event import Recorded
from backstay.kernel.message import Message
from backstay.kernel.state import Instance

if TYPE_CHECKING:
    from backstay.engine.core.batch import BatchEntry

Reply = Callable[[Any, BaseException | None], None]

_BASE = 4096
_PER_TASK = 1536
_PER_EVENT = 700
_PER_DEADLINE = 64


class CachedInstance:
    """An instance in memory. `unseen_events` are those that its live code has not seen; None: the list has a gap."""

    __slots__ = (
        "answers",
        "code_is_busy",
        "cost",
        "dead",
        "inflight",
        "instance",
        "on_disk",
        "open_batch_entry",
        "sends_unread",
        "unseen_events",
    )

    def __init__(self, instance: Instance, unseen_events: list[Recorded] | None) -> None:
        self.instance = instance
        self.on_disk = instance.exists  # if not, another process may still be first to create it
        self.unseen_events = unseen_events
        self.open_batch_entry: BatchEntry | None = None  # the turn that takes its messages until the next commit
        self.inflight = 0
        # Answers that need no write of their own and wait for the commits they are based on.
        self.answers: list[tuple[Message, Reply | None, Any, BaseException | None]] = []
        self.code_is_busy = False  # code of this run is in the middle of a task
        self.dead = False
        # Read from a database that others write to: sends of theirs may be there that this process has not heard of.
        self.sends_unread = False
        self.cost = 0

    def unseen_after(self, run: int, sequence: int) -> list[Recorded] | None:
        """The events of a run after `sequence` that live code has not seen; None: the list has a gap."""
        return (
            None
            if self.unseen_events is None
            else [e for e in self.unseen_events if e.run == run and e.sequence > sequence]
        )

    def restart_unseen(self) -> None:
        """Begin the list without a gap: the worker that runs the code has all events so far, or reads them from disk."""
        self.unseen_events = []


class Cache:
    def __init__(self, limit: int, evicted: Callable[[CachedInstance], None]) -> None:
        self.limit = limit
        self.size = 0
        self._evicted = evicted
        self._entries: OrderedDict[int, CachedInstance] = OrderedDict()
        self._names: dict[tuple[str, str], int] = {}
        self.get: Callable[[int], CachedInstance | None] = (
            self._entries.get
        )  # called for every message, so it is the dict's own method

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CachedInstance]:
        return iter(list(self._entries.values()))

    def named(self, namespace: str, workflow_id: str) -> int | None:
        return self._names.get((namespace, workflow_id))

    def add(self, entry: CachedInstance) -> CachedInstance:
        instance = entry.instance
        self._entries[instance.key] = entry
        self._names[instance.namespace, instance.workflow_id] = instance.key
        return entry

    def used(self, entry: CachedInstance, code: int) -> None:
        """Mark an entry as the most recently used, and estimate its size again. `code`: bytes of live code."""
        instance = entry.instance
        run = instance.run
        self._entries.move_to_end(instance.key)
        cost = _BASE + len(instance.tasks) * _PER_TASK + code
        if entry.unseen_events:
            cost += len(entry.unseen_events) * _PER_EVENT
        if run is not None and run.agenda:
            cost += len(run.agenda) * _PER_DEADLINE
        if cost != entry.cost:
            self.size += cost - entry.cost
            entry.cost = cost

    def drop(self, entry: CachedInstance) -> None:
        if entry.dead:
            return
        entry.dead = True
        instance = entry.instance
        self._entries.pop(instance.key, None)
        self._names.pop((instance.namespace, instance.workflow_id), None)
        self.size -= entry.cost

    def trim(self) -> None:
        if self.size <= self.limit:
            return
        for entry in list(self._entries.values()):
            if self.size <= self.limit:
                return
            if entry.inflight == 0 and not entry.code_is_busy:
                self.drop(entry)
                self._evicted(entry)
