"""Measures for operators: tasks and runs that do not move, failures, and the runs at the extremes.

Like figures, these come from indexes or from open work only, and nothing but operators waits for them. Failures are counted from
events, by an index of their own: they are there as long as their run is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.store.rows import Row, tasks

T = TypeVar("T")

MOST = 10_000
"""The most entries in a list of runs or tasks that do not move."""
CLOSED_LOOKED_AT = 10_000
"""How many closed runs, the last ones, the longest is looked for among."""


class ReadyCount(NamedTuple):
    """Ready tasks of a kind: all, those that are due, and those of them that are another attempt of an activity."""

    kind: str
    tasks: int
    due: int
    retrying: int
    oldest_due: Micros | None


class OverdueTask(NamedTuple):
    """A task that has been ready for a while: its id, its instance, and since when."""

    id: str
    workflow: int
    available_at: Micros


class LostWork(NamedTuple):
    """An instance that has other task rows, or a later wake, than its last decision left."""

    workflow: int
    connection: str | None
    queue: str
    compatibility: str | None
    started_at: Micros


class OpenState(NamedTuple):
    """Open runs in a state, and since when the oldest of them is in it."""

    state: str
    runs: int
    oldest: Micros


class ExtremeRun(NamedTuple):
    """A run at an extreme: its ids, and the time or the number that makes it one."""

    workflow_id: str
    run_id: str
    workflow_type: str
    value: int


class MeasuresStore(Protocol):
    def ready_counts(self, namespace: str, now: Micros) -> Awaitable[list[ReadyCount]]: ...

    def worn_tasks(self, namespace: str) -> Awaitable[list[Task]]:
        """Tasks that are leased or have failed, and ready ones that were leased or repaired before."""
        ...

    def overdue_tasks(self, namespace: str, before: Micros, limit: int = 10 * MOST) -> Awaitable[list[OverdueTask]]:
        """Tasks that have been ready since before a time, the oldest first."""
        ...

    def waiting_runs(
        self, namespace: str, queue: str, kind: str, type: str, build: str | None, now: Micros
    ) -> Awaitable[int]:
        """How many runs have due tasks for these workers."""
        ...

    def lost_work(self, namespace: str) -> Awaitable[list[LostWork]]:
        """Instances with other task rows than expected, and open runs that nothing will wake."""
        ...

    def lost_wakes(self, namespace: str) -> Awaitable[list[LostWork]]:
        """Instances whose wake is missing, or later than their stored summary says."""
        ...

    def open_states(self, namespace: str) -> Awaitable[list[OpenState]]:
        """Open runs by state, as stored views say it."""
        ...

    def failures(self, namespace: str, since: Micros) -> Awaitable[dict[str, int]]:
        """How many failures of each type of event were recorded since a time."""
        ...

    def most_failures(self, namespace: str, since: Micros) -> Awaitable[ExtremeRun | None]:
        """The run with the most failures since a time, and their number."""
        ...

    def oldest_open(self, namespace: str) -> Awaitable[ExtremeRun | None]:
        """The open run that started first, and when."""
        ...

    def oldest_wait(self, namespace: str) -> Awaitable[ExtremeRun | None]:
        """The open run that has been in its state for longest, and since when."""
        ...

    def longest_closed(self, namespace: str) -> Awaitable[ExtremeRun | None]:
        """The closed run that took longest among the last `CLOSED_LOOKED_AT`, and how long."""
        ...


MEASURES = frozenset(name for name in vars(MeasuresStore) if not name.startswith("_")) | {
    "count_by_status",
    "history_sizes",
}
"""Their queries, which have the same names, and two more for metrics only."""


class Measures(ABC):
    """Those methods, in every dialect."""

    @abstractmethod
    def _ask(self, query: str, parameters: Sequence[Any], shape: Callable[[Sequence[Row]], T]) -> Awaitable[T]: ...

    def ready_counts(self, namespace: str, now: Micros) -> Awaitable[list[ReadyCount]]:
        return self._ask("ready_counts", (now, now, namespace), lambda rows: [ReadyCount(*row) for row in rows])

    def worn_tasks(self, namespace: str) -> Awaitable[list[Task]]:
        return self._ask("worn_tasks", (namespace, 5 * MOST), lambda rows: list(tasks(body for (body,) in rows)))

    def overdue_tasks(self, namespace: str, before: Micros, limit: int = 10 * MOST) -> Awaitable[list[OverdueTask]]:
        parameters = (namespace, before, limit)
        return self._ask("overdue_tasks", parameters, lambda rows: [OverdueTask(*row) for row in rows])

    def waiting_runs(
        self, namespace: str, queue: str, kind: str, type: str, build: str | None, now: Micros
    ) -> Awaitable[int]:
        parameters = (namespace, queue, kind, type, build or "", now)
        return self._ask("waiting_runs", parameters, lambda rows: int(rows[0][0]))

    def lost_work(self, namespace: str) -> Awaitable[list[LostWork]]:
        return self._ask("lost_work", (namespace, namespace, MOST), lambda rows: [LostWork(*row) for row in rows])

    def lost_wakes(self, namespace: str) -> Awaitable[list[LostWork]]:
        return self._ask("lost_wakes", (namespace, MOST), lambda rows: [LostWork(*row) for row in rows])

    def open_states(self, namespace: str) -> Awaitable[list[OpenState]]:
        return self._ask("open_states", (namespace,), lambda rows: [OpenState(*row) for row in rows])

    def failures(self, namespace: str, since: Micros) -> Awaitable[dict[str, int]]:
        return self._ask("failures", (since, namespace), lambda rows: {str(kind): int(n) for kind, n in rows})

    def most_failures(self, namespace: str, since: Micros) -> Awaitable[ExtremeRun | None]:
        return self._ask("most_failures", (since, namespace), _extreme)

    def oldest_open(self, namespace: str) -> Awaitable[ExtremeRun | None]:
        return self._ask("oldest_open", (namespace, namespace, namespace), _extreme)

    def oldest_wait(self, namespace: str) -> Awaitable[ExtremeRun | None]:
        return self._ask("oldest_wait", (namespace,), _extreme)

    def longest_closed(self, namespace: str) -> Awaitable[ExtremeRun | None]:
        return self._ask("longest_closed", (namespace, CLOSED_LOOKED_AT), _extreme)


def _extreme(rows: Sequence[Row]) -> ExtremeRun | None:
    if not rows or rows[0][3] is None:
        return None
    workflow_id, run_id, workflow_type, value = rows[0]
    return ExtremeRun(workflow_id, run_id, workflow_type, int(value))
