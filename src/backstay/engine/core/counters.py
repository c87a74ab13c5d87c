"""Counters of an engine since it was opened, for Prometheus, which handles restarts.

They are counted once per commit, after it. Names that users choose are bounded: beyond `NAMES` they count as `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from backstay.engine.core.batch import BatchEntry
from backstay.kernel.decision import RunRow
from backstay.kernel.values import SECOND, Micros

K = TypeVar("K", bound=tuple[str, ...])

NAMES = 500  # combinations of namespace, workflow type and status that are told apart
RUNS = 1000  # that are counted at a time
OTHER = "other"
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3600.0)


class Histogram:
    """How many values were at most each bound, and their sum. The last count is of those above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counters:
    def __init__(self) -> None:
        self.commits = 0
        self.lost_commits = 0  # that the database could not make
        self.decisions = 0
        self.guest_decisions = 0  # about instances that other processes own
        self.stolen = 0  # tasks of other processes' shards that were taken here
        self.fetched = 0  # tasks that other processes gave to polls which are parked here
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.events: Counter[str] = Counter()  # by type
        self._runs: list[tuple[bool, RunRow]] = []  # written, and not counted yet
        self._started: dict[tuple[str, str], int] = {}
        self._closed: dict[tuple[str, str, str], int] = {}
        # How long tasks waited for their worker, by kind: one value for each task that was leased.
        self.waited = {"workflow": Histogram(WAIT_SECONDS), "activity": Histogram(WAIT_SECONDS)}

    def committed(self, batch: Sequence[BatchEntry], took: Micros) -> None:
        """Count a batch that is on disk, and how long its commit took."""
        self.commits += 1
        self.decisions += len(batch)
        self.commit_seconds.observe(took / SECOND)
        events: list[str] = []
        for item in batch:
            decision = item.decision
            if decision is None:
                continue
            events += [entry.type for entry in decision.events]
            if decision.runs:
                self._runs += decision.runs
            for task in decision.leased:
                waited = (task.leased_at or 0) - task.available_at
                histogram = self.waited[task.kind]
                if waited <= 0:
                    histogram.counts[0] += 1  # most of them: a worker had a free slot
                else:
                    histogram.observe(waited / SECOND)
        self.events.update(events)
        if len(self._runs) >= RUNS:
            self._count_runs()

    @property
    def started(self) -> dict[tuple[str, str], int]:
        """Runs by namespace and workflow type."""
        self._count_runs()
        return self._started

    @property
    def closed(self) -> dict[tuple[str, str, str], int]:
        """Runs by namespace, workflow type and status."""
        self._count_runs()
        return self._closed

    def _count_runs(self) -> None:
        """Count the runs of the last batches: many of them have the same names."""
        runs, self._runs = self._runs, []
        started = Counter([(row.namespace, row.workflow_type) for new, row in runs if new])
        closed = Counter(
            [
                (row.namespace, row.workflow_type, row.closed_reason or row.status)
                for new, row in runs
                if row.closed_at is not None and (new or row.archived_at is None)
            ]
        )
        for key, n in started.items():
            _count(self._started, key, (OTHER, OTHER), n)
        for key, n in closed.items():
            _count(self._closed, key, (OTHER, OTHER, key[2]), n)

    def of_events(self, kinds: Iterable[str]) -> int:
        return sum(self.events[kind] for kind in kinds)


def _count(counts: dict[K, int], key: K, other: K, n: int) -> None:
    if "/" in key[0]:
        return  # a schedule or a stream
    if key not in counts and len(counts) >= NAMES:
        key = other
    counts[key] = counts.get(key, 0) + n
