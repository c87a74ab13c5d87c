"""Figures for operators: open runs by state, tasks that wait, starts and ends over time, wakes to come.

Every answer comes from an index or says how far it looked. The counts of states come from stored views, which follow a commit
a moment later; tasks, wakes and schedules come from the rows of the commit itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.store.rows import Row, tasks

T = TypeVar("T")

_NO_BOUND = 1 << 62

MOST_WAKES = 200_000
"""How many wakes are counted, of all namespaces."""


class StatusCount(NamedTuple):
    """How many runs have a status, archived or not."""

    status: str
    archived: bool
    runs: int


class HistorySizes(NamedTuple):
    """Sizes of the histories of open runs: how many are over a threshold, the most events, the most bytes."""

    over: int
    events: int
    size: int


class ReadyGroup(NamedTuple):
    """Runs that wait for a worker of this queue, type and build (None: of any build)."""

    queue: str
    kind: str | None
    type: str | None
    build: str | None
    runs: int


class OpenRuns(NamedTuple):
    """Open runs by the state in their summary, and how many there are, whether or not they have one."""

    states: dict[str, int]
    runs: int

    @property
    def without_view(self) -> int:
        """Runs without a summary yet. With the states they add up to all open runs."""
        return self.runs - sum(self.states.values())


class DamagedRun(NamedTuple):
    """An open run whose history cannot be folded: since when that is known, and how many open tasks it has."""

    workflow: int
    workflow_id: str
    run_id: str
    since: Micros
    tasks: int


class BuildCount(NamedTuple):
    """How many open runs of a queue are pinned to a build."""

    queue: str
    build: str
    runs: int


class AttentionGroup(NamedTuple):
    """Runs that need attention for the same cause: of one type, with the same reason, error and worker.

    `run`: one of them. `all_runs` and `all_since`: of all groups of the cause, also those that were not read.
    """

    cause: str
    workflow_type: str
    reason: str | None
    error: str | None
    worker: str | None
    damaged: int  # 1: their history cannot be folded
    runs: int
    since: Micros
    run: int
    all_runs: int
    all_since: Micros


class WaitingGroup(NamedTuple):
    """Tasks that are due and wait for a worker of this queue, type and build (None: of any build)."""

    queue: str
    kind: str
    type: str
    build: str | None
    tasks: int
    oldest: Micros


class OpenSizes(NamedTuple):
    """The histories of open runs: how many are over a threshold, the most events, the most bytes."""

    over: int
    events: int
    bytes: int


class WaitingTask(NamedTuple):
    """A task that waits for a worker, with its run. Without a run, its instance cannot be read."""

    task: Task
    workflow_id: str | None
    run_id: str | None
    workflow_type: str | None


class TallyCount(NamedTuple):
    """How many runs started and how many ended, each way, in the interval that begins `at`."""

    at: Micros
    started: int
    completed: int
    failed: int
    cancelled: int
    terminated: int
    continued: int


class DurationCount(NamedTuple):
    """How many runs of a type ended like this, after less than 2^bucket milliseconds."""

    workflow_type: str
    outcome: str
    bucket: int
    runs: int


class Wakes(NamedTuple):
    """How many instances wake in each interval, by the time at which it begins, and up to which time all were counted."""

    counts: dict[Micros, int]
    until: Micros


class OverdueCount(NamedTuple):
    """Instances whose wake has passed, and the earliest of those wakes."""

    instances: int
    oldest: Micros | None


class ScheduleCounts(NamedTuple):
    active: int
    paused: int
    due: int
    overdue: int
    next: Micros | None


class FiguresStore(Protocol):
    """The part of a store that operators count with."""

    def count_states(self, namespace: str, closed_after: Micros) -> Awaitable[OpenRuns]:
        """Open runs by the state in their summary. A run that has closed since `closed_after` does not count as open, whatever
        its summary still says; the summary of a run that closed earlier is up to date."""
        ...

    def runs_without_view(self, namespace: str, limit: int) -> Awaitable[tuple[int, Micros | None]]:
        """Open runs without a summary among the newest of each status, and when the oldest of them started."""
        ...

    def damaged_runs(self, namespace: str, limit: int) -> Awaitable[list[DamagedRun]]:
        """Open runs that are marked as ones whose history cannot be folded."""
        ...

    def ready_runs(self, namespace: str) -> Awaitable[list[ReadyGroup]]:
        """Runs that wait for a worker, by the workers that could take them, as stored views say it."""
        ...

    def open_builds(self, namespace: str) -> Awaitable[list[BuildCount]]: ...

    def attention_groups(self, namespace: str, limit: int) -> Awaitable[list[AttentionGroup]]:
        """The largest groups of runs that need attention for the same cause, as stored views say it."""
        ...

    def open_sizes(self, namespace: str, events: int, size: int) -> Awaitable[OpenSizes]:
        """Sizes of the histories of open runs, as stored views say it. A threshold of 0 is none."""
        ...

    def waiting_tasks(self, namespace: str, now: Micros) -> Awaitable[list[WaitingGroup]]:
        """Ready tasks that are due, by the workers that they wait for."""
        ...

    def waiting_page(
        self, namespace: str, queue: str, now: Micros, after: tuple[Micros, int, str] | None, limit: int
    ) -> Awaitable[list[WaitingTask]]:
        """Ready tasks of a queue that are due, oldest first, paged by (available_at, instance key, task id)."""
        ...

    def started_and_ended(
        self, namespace: str, grain: Micros, since: Micros, before: Micros
    ) -> Awaitable[list[TallyCount]]:
        """Starts and ends by interval; intervals in which nothing happened are left out."""
        ...

    def durations(
        self, namespace: str, grain: Micros, since: Micros, before: Micros
    ) -> Awaitable[list[DurationCount]]: ...

    def wakes(self, namespace: str, now: Micros, until: Micros, interval: Micros) -> Awaitable[Wakes]:
        """How many instances wake in each interval after now. At most about `MOST_WAKES` are counted."""
        ...

    def overdue(self, namespace: str, before: Micros, limit: int) -> Awaitable[OverdueCount]:
        """Instances that should have woken before this time, among the first `limit` of any namespace."""
        ...

    def schedule_counts(self, namespace: str, due: Micros, overdue: Micros) -> Awaitable[ScheduleCounts]:
        """Schedules in the namespace of schedules: due until a time, and overdue since one."""
        ...


FIGURES = frozenset(name for name in vars(FiguresStore) if not name.startswith("_")) | {"wake_at"}
"""Their queries, most of which have the same names: nothing but operators waits for them."""


class Figures(ABC):
    """Those methods, in every dialect."""

    @abstractmethod
    def _ask(self, query: str, parameters: Sequence[Any], shape: Callable[[Sequence[Row]], T]) -> Awaitable[T]: ...

    def count_states(self, namespace: str, closed_after: Micros) -> Awaitable[OpenRuns]:
        def shape(rows: Sequence[Row]) -> OpenRuns:
            states: dict[str, int] = {}
            for state, count in rows:
                states[state] = states.get(state, 0) + int(count)
            runs = states.pop("", 0)
            return OpenRuns({state: count for state, count in states.items() if count}, runs)

        return self._ask("count_states", (namespace, namespace, closed_after, namespace), shape)

    def runs_without_view(self, namespace: str, limit: int) -> Awaitable[tuple[int, Micros | None]]:
        return self._ask("runs_without_view", (namespace, limit) * 3, lambda rows: (int(rows[0][0]), rows[0][1]))

    def damaged_runs(self, namespace: str, limit: int) -> Awaitable[list[DamagedRun]]:
        return self._ask("damaged_runs", (namespace, limit), lambda rows: [DamagedRun(*row) for row in rows])

    def ready_runs(self, namespace: str) -> Awaitable[list[ReadyGroup]]:
        return self._ask("ready_runs", (namespace,), lambda rows: [ReadyGroup(*row) for row in rows])

    def open_builds(self, namespace: str) -> Awaitable[list[BuildCount]]:
        return self._ask("open_builds", (namespace,), lambda rows: [BuildCount(*row) for row in rows])

    def attention_groups(self, namespace: str, limit: int) -> Awaitable[list[AttentionGroup]]:
        return self._ask("attention_groups", (namespace, limit), lambda rows: [AttentionGroup(*row) for row in rows])

    def open_sizes(self, namespace: str, events: int, size: int) -> Awaitable[OpenSizes]:
        parameters = (events or _NO_BOUND, size or _NO_BOUND, namespace)
        return self._ask("open_sizes", parameters, lambda rows: OpenSizes(*(int(number or 0) for number in rows[0])))

    def waiting_tasks(self, namespace: str, now: Micros) -> Awaitable[list[WaitingGroup]]:
        def shape(rows: Sequence[Row]) -> list[WaitingGroup]:
            return [
                WaitingGroup(queue, kind, type, build or None, waiting, oldest)
                for queue, kind, type, build, waiting, oldest in rows
            ]

        return self._ask("waiting_tasks", (namespace, now), shape)

    def waiting_page(
        self, namespace: str, queue: str, now: Micros, after: tuple[Micros, int, str] | None, limit: int
    ) -> Awaitable[list[WaitingTask]]:
        def shape(rows: Sequence[Row]) -> list[WaitingTask]:
            return [WaitingTask(task, *row[1:]) for row in rows for task in tasks((row[0],))]

        return self._ask("waiting_page", (namespace, queue, now, *(after or (-1, 0, "")), limit), shape)

    def started_and_ended(
        self, namespace: str, grain: Micros, since: Micros, before: Micros
    ) -> Awaitable[list[TallyCount]]:
        return self._ask(
            "started_and_ended",
            (namespace, grain, since, before),
            lambda rows: [TallyCount(*(int(number) for number in row)) for row in rows],
        )

    def durations(self, namespace: str, grain: Micros, since: Micros, before: Micros) -> Awaitable[list[DurationCount]]:
        return self._ask(
            "durations",
            (namespace, grain, since, before),
            lambda rows: [DurationCount(type, outcome, bucket, int(runs)) for type, outcome, bucket, runs in rows],
        )

    async def wakes(self, namespace: str, now: Micros, until: Micros, interval: Micros) -> Wakes:
        last: Micros | None = await self._ask("wake_at", (now, MOST_WAKES), _first)
        if last is not None and last < until:
            until = max(now + (last - now) // interval * interval, now + interval)
        parameters = (now, interval, interval, until, namespace, interval)
        counts = await self._ask("wakes", parameters, lambda rows: {at: int(runs) for at, runs in rows if runs})
        return Wakes(counts, until)

    def overdue(self, namespace: str, before: Micros, limit: int) -> Awaitable[OverdueCount]:
        return self._ask("overdue", (before, limit, namespace), lambda rows: OverdueCount(*rows[0]))

    def schedule_counts(self, namespace: str, due: Micros, overdue: Micros) -> Awaitable[ScheduleCounts]:
        def shape(rows: Sequence[Row]) -> ScheduleCounts:
            active, paused, soon, late, first = rows[0]
            return ScheduleCounts(int(active or 0), int(paused or 0), int(soon or 0), int(late or 0), first)

        return self._ask("schedule_counts", (due, overdue, namespace), shape)


def _first(rows: Sequence[Row]) -> Any:
    return rows[0][0] if rows else None
