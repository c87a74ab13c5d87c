"""Rates of task queues: tasks added, dispatched and completed in the last minute, and for how long they waited for a worker.

Counted in memory after commits, by the process that makes them. Minutes and spans are kept in pairs, the present one and the
one before it, so that nothing grows and old figures fade. What several processes have counted adds up (`rates`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from backstay.engine.core.batch import BatchEntry
from backstay.engine.tasks.leases import Queue, queue_of
from backstay.kernel.decision import Decision
from backstay.kernel.values import SECOND, Micros, partition_in
from backstay.kernel.views.percentiles import percentile
from backstay.protocol.native.nodes import QueueCounts

MINUTE = 60 * SECOND
SPAN = 5 * MINUTE  # waits are those of this span and the one before it

ADDED, DISPATCHED, COMPLETED = range(3)


class Rates(NamedTuple):
    """Tasks a minute, and the waits from the time a task was due until it was leased."""

    added: float
    dispatched: float
    completed: float
    waits: int  # how many were measured
    p50: Micros | None
    p95: Micros | None


class _Counts:
    """The counts of one queue and kind of task."""

    __slots__ = ("before", "minute", "now", "span", "waits", "waits_before")

    def __init__(self) -> None:
        self.minute = 0
        self.now = [0, 0, 0]
        self.before = [0, 0, 0]
        self.span = 0
        self.waits: dict[int, int] = {}
        self.waits_before: dict[int, int] = {}

    def turn(self, now: Micros) -> None:
        """Begin a new minute, and a new span where its time has come."""
        minute, span = now // MINUTE, now // SPAN
        self.before = self.now if minute == self.minute + 1 else [0, 0, 0]
        self.now = [0, 0, 0]
        self.minute = minute
        if span != self.span:
            self.waits_before = self.waits if span == self.span + 1 else {}
            self.waits = {}
            self.span = span


class QueueRates:
    """`committed` is called for every batch on disk; it only counts. `owns`: whether this process owns a partition."""

    def __init__(self, now: Callable[[], Micros], owns: Callable[[int], bool] = lambda partition: True) -> None:
        self._now = now
        self._owns = owns
        self._began = now()
        self._minute = 0
        self._counts: dict[Queue, _Counts] = {}
        self._leased: dict[str, tuple[Queue, int]] = {}  # the queue and attempt of leased tasks

    def committed(self, batch: Sequence[BatchEntry]) -> None:
        now = self._now()
        if now // MINUTE != self._minute:
            self._minute = now // MINUTE
            # The ends of leases that other processes have taken over are not seen here.
            self._leased = {id: lease for id, lease in self._leased.items() if self._owns(partition_in(id))}
            # Callers choose the names of queues, so queues without recent counts are dropped.
            self._counts = {queue: counts for queue, counts in self._counts.items() if counts.span >= now // SPAN - 1}
        for item in batch:
            if item.decision is not None and item.decision.tasks:
                self._count(item.decision, now)

    def _count(self, decision: Decision, now: Micros) -> None:
        leased = self._leased
        for change in decision.tasks:
            task = change.task
            known = leased.get(change.task_id) if change.stored else None
            if task is None:
                if known is not None:
                    del leased[change.task_id]
                    self._at(known[0], now).now[COMPLETED] += 1
            elif task.state == "leased":
                if known is not None and known[1] == task.attempt:
                    continue  # the lease was renewed
                queue = queue_of(task)
                leased[change.task_id] = (queue, task.attempt)
                counts = self._at(queue, now)
                if not change.stored:
                    counts.now[ADDED] += 1
                counts.now[DISPATCHED] += 1
                began = task.leased_at
                if began is not None and began >= self._began:  # else it is an old lease that was renewed
                    bucket = max(began - task.available_at, 0).bit_length()
                    counts.waits[bucket] = counts.waits.get(bucket, 0) + 1
            elif known is not None:
                del leased[change.task_id]
            elif not change.stored and task.state == "ready":
                self._at(queue_of(task), now).now[ADDED] += 1

    def forget(self) -> None:
        """Another process is the engine now: it knows the leases from here on."""
        self._leased.clear()

    def of(self, namespace: str) -> list[QueueCounts]:
        """The counts of the queues of a namespace."""
        return [self._shown(queue) for queue in self._counts if queue[1] == namespace]

    def _shown(self, queue: Queue) -> QueueCounts:
        now = self._now()
        counts = self._at(queue, now)
        left = 1 - now % MINUTE / MINUTE  # of the minute before, so much is within the last sixty seconds
        added, dispatched, completed = (
            round(before * left + new, 2) for before, new in zip(counts.before, counts.now, strict=True)
        )
        return QueueCounts(
            kind=queue[0],
            queue=queue[2],
            added=added,
            dispatched=dispatched,
            completed=completed,
            waits=Counter(counts.waits) + Counter(counts.waits_before),
        )

    def _at(self, queue: Queue, now: Micros) -> _Counts:
        """The counts of a queue, of the present minute."""
        counts = self._counts.get(queue)
        if counts is None:
            counts = self._counts[queue] = _Counts()
        if counts.minute != now // MINUTE:
            counts.turn(now)
        return counts


def rates(counted: Iterable[QueueCounts]) -> Rates:
    """The rates of a queue from what every process has counted of it."""
    all = list(counted)
    waits: Counter[int] = Counter()
    for counts in all:
        waits.update(counts.waits)
    return Rates(
        sum(counts.added for counts in all),
        sum(counts.dispatched for counts in all),
        sum(counts.completed for counts in all),
        sum(waits.values()),
        _micros(waits, 0.5),
        _micros(waits, 0.95),
    )


def _micros(waits: dict[int, int], share: float) -> Micros | None:
    wait = percentile(waits, share)
    return None if wait is None else round(wait)
