"""What an engine has done since it was opened, in plain numbers: for Prometheus, which remembers them over restarts.

They are counted once per commit, of what is on disk. Names that users choose are bounded: beyond `NAMES` they count as `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from backstay.kernel.decision import Decision
from backstay.kernel.values import SECOND, Micros

K = TypeVar("K", bound=tuple[str, ...])

NAMES = 500  # combinations of namespace, workflow type and status that are told apart
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
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.events: Counter[str] = Counter()  # by type
        self.started: dict[tuple[str, str], int] = {}  # by namespace and workflow type
        self.closed: dict[tuple[str, str, str], int] = {}  # by namespace, workflow type and status
        # How long tasks waited for their worker, by kind: one value for each task that was leased.
        self.waited = {"workflow": Histogram(WAIT_SECONDS), "activity": Histogram(WAIT_SECONDS)}

    def committed(self, decisions: list[Decision], took: Micros) -> None:
        """Count a batch that is on disk, and how long its commit took."""
        self.commits += 1
        self.decisions += len(decisions)
        self.commit_seconds.observe(took / SECOND)
        self.events.update([entry.type for decision in decisions for entry in decision.events])
        for decision in decisions:
            if decision.runs:
                self._count_runs(decision)
            for task in decision.leased:
                waited = (task.leased_at or 0) - task.available_at
                histogram = self.waited[task.kind]
                if waited <= 0:
                    histogram.counts[0] += 1  # most of them: a worker had a free slot
                else:
                    histogram.observe(waited / SECOND)

    def _count_runs(self, decision: Decision) -> None:
        namespace = decision.instance.namespace
        if "/" in namespace:
            return  # a schedule or a stream
        for new, row in decision.runs:
            if new:
                _count(self.started, (namespace, row.workflow_type), (OTHER, OTHER))
            if decision.closed and row.run_id in decision.closed:
                how = row.closed_reason or row.status
                _count(self.closed, (namespace, row.workflow_type, how), (OTHER, OTHER, how))

    def of_events(self, kinds: Iterable[str]) -> int:
        return sum(self.events[kind] for kind in kinds)


def _count(counts: dict[K, int], key: K, other: K) -> None:
    found = counts.get(key)
    if found is None:
        if len(counts) >= NAMES:
            key = other
            found = counts.get(key, 0)
        else:
            found = 0
    counts[key] = found + 1
