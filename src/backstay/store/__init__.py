"""The Store: the interface of an engine to its database. It knows no feature.

Every change goes through `apply`: independent Decisions, each guarded by the instance row it was decided on. Nothing
depends on a batch being atomic. A guard that does not match skips that Decision alone (`stale`), a Decision that cannot
be written fails alone, and if the database cannot commit (`down`), nothing of the batch was written, and no caller may be
told that it was.

A clock that was set back. Histories are stamped with the engine's clock, and deadlines count from those stamps. If the
clock is set back by an hour, every wake that was written before lies an hour too far in the future, and its timer would
fire an hour late. A store cannot see that: a wake in the future is its normal state. So an engine reads once, when it
starts, the instances whose last event lies in the future (`written_in_future`); the kernel then moves their deadlines
by its own rules (`Machine.rearm`). Later events never go back: `Context.ahead` keeps the difference. Without this
question a timer waits until the old clock's time. Shown by `tests/kernel/test_clock.py` and by the conformance test of
`written_in_future` for every dialect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from backstay.kernel.decision import CommandRecord, Decision, InstanceRow, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import RunPlace, RunQuery, TaskGroup
from backstay.store.errors import Unavailable
from backstay.store.figures import FiguresStore, HistorySizes, StatusCount
from backstay.store.measures import MeasuresStore
from backstay.store.ownership import OwnershipStore
from backstay.store.views import (
    NEVER,
    BlockedPlace,
    InstanceFacts,
    ResumePage,
    SummaryCounts,
    SummaryRow,
    Unprojected,
    ViewChanges,
    ViewCounts,
    ViewRow,
)

if TYPE_CHECKING:
    from backstay.store.counting import RunCounts
    from backstay.store.search import SearchedRuns


class Applied(NamedTuple):
    """The result of a batch, by position. Positions in neither `stale` nor `failed` were committed."""

    stale: frozenset[int] = frozenset()
    failed: dict[int, Exception] = {}
    down: Unavailable | None = None


ALL = Applied()


class Loaded(NamedTuple):
    """An instance as it is on disk: its row, its current run with its history, its task rows."""

    row: InstanceRow
    run: RunRow | None
    history: list[Recorded]
    tasks: list[Task]
    drifted: bool = False  # its row names another run than its newest, which this is


class Opening(NamedTuple):
    """An instance at one moment without its history, which may be long: its row, the row of its current run, its task rows.

    The history of that moment is the first `row.length` events of the run. It ends with `row.checksum`.
    """

    row: InstanceRow
    run: RunRow | None  # None: it has none, or the run that its row names has no row
    tasks: list[Task]


class StoredSend(NamedTuple):
    """An outbox message that was not delivered yet; `body` is the encoded message."""

    key: int
    sender: int
    namespace: str
    workflow_id: str
    kind: str
    body: bytes


class Located(NamedTuple):
    """The keys of a run and of its instance."""

    workflow: int
    run: int


class LoggedCommand(NamedTuple):
    """The record of a command with its place in the order of all commands, and the instance that it was for."""

    position: int
    namespace: str
    workflow_id: str
    record: CommandRecord


class RegistryEntry(NamedTuple):
    """One entry of the registry: data of a server beside workflows. `body` None removes it.

    `counted` False: its change does not move `registry_version`, since no process has such entries in memory.
    """

    kind: str
    namespace: str
    name: str
    body: bytes | None
    counted: bool = True


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list; None matches everything. Newest first."""

    namespace: str = "default"
    workflow_id: str | None = None
    workflow_type: str | None = None
    status: str | None = None
    statuses: tuple[str, ...] | None = None  # any of these
    current: bool = False  # only the latest run of each instance
    queue: str | None = None
    business_key: str | None = None
    label: tuple[str, str] | None = None
    search: tuple[str, str | float | bool] | None = None  # exact: True is not 1, "1" is not 1, but 1.0 is
    searches: tuple[tuple[str, str | float | bool], ...] = ()  # all of these, each as exact
    run_id: str | None = None
    compatibility: str | None = None
    before: int | None = None  # run key of the last row of the page before
    limit: int = 100


T = TypeVar("T")
P = ParamSpec("P")


class Ready(Generic[T]):
    """An awaitable whose value is already there. A caller that checks for it saves a task switch; awaiting it works too."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        return self.value
        yield  # makes this a generator, as awaiting demands


class Deferred(Generic[T]):
    """A lazy awaitable: nothing starts until it is awaited. Callers may drop it."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()


def as_ready(verb: Callable[P, T]) -> Callable[P, Ready[T]]:
    """Decorator: a plain method as one that returns an awaitable, as the protocol asks."""

    @wraps(verb)
    def answer(*args: P.args, **kwargs: P.kwargs) -> Ready[T]:
        return Ready(verb(*args, **kwargs))

    return answer


class StoredReads(FiguresStore, Protocol):
    """The reads of the database for callers of the engine. Reads see committed state only.

    `shards` narrows a read to the instances of these shards, where several processes can be owners; None reads of all.
    """

    exclusive: bool
    """Whether one process owns all shards, or none."""

    def find(self, namespace: str, workflow_id: str) -> Awaitable[int | None]:
        """The key of that instance, if it exists."""
        ...

    def find_all(self, namespace: str, workflow_ids: Sequence[str]) -> Awaitable[dict[str, int]]:
        """The keys of these instances, by their ids; those that do not exist are left out. Called on every start."""
        ...

    def locate(self, namespace: str, run_id: str) -> Awaitable[Located | None]:
        """The keys of a run, if it exists in this namespace."""
        ...

    def load(self, key: int) -> Awaitable[Loaded | None]: ...

    def opening(self, key: int) -> Awaitable[Opening | None]:
        """The rows of `load` without the history, for readers that read it page by page."""
        ...

    def last(self, key: int) -> Awaitable[int | None]:
        """The last decision of an instance, if it exists. Another one means that the instance has changed."""
        ...

    def moved(self, seen: Mapping[int, int | None]) -> Awaitable[dict[int, int | None]]:
        """Of these instances with their last decisions, those that have another one by now, or are gone (None), with it."""
        ...

    def history(self, run: int, after: int = 0, limit: int | None = None) -> Awaitable[list[Recorded]]:
        """A run's events after a sequence, verified. Damage raises `HistoryDamaged`."""
        ...

    def last_event(self, run: int) -> Awaitable[Recorded | None]: ...

    def due(
        self, until: Micros, limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[tuple[Micros, int]]]:
        """(next wake, instance key), earliest first."""
        ...

    def written_in_future(
        self, now: Micros, after: tuple[Micros, int], limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[tuple[Micros, int]]]:
        """Instances whose last event lies in the future (the clock was set back), paged by (next wake, instance key)."""
        ...

    def ready(
        self, limit: int, after: tuple[Micros, int, str] | None = None, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[Task]]:
        """Unleased ready tasks, oldest first, paged by (available_at, instance key, task id)."""
        ...

    def leased(self, *, shards: Sequence[int] | None = None) -> Awaitable[list[Task]]: ...

    def leased_by(self, namespace: str, owner: str, call: str) -> Awaitable[list[Task]]:
        """The tasks that a worker holds since its poll with the id `call`. For databases with several owners; elsewhere slow."""
        ...

    def endless(
        self, limit: int, after: tuple[int, str] | None = None, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[Task]]:
        """Tasks that are leased without an end, paged by (instance key, task id)."""
        ...

    def tasks(self, workflow: int) -> Awaitable[list[Task]]:
        """The task rows of an instance, without a look at its history."""
        ...

    def failed(self, *, shards: Sequence[int] | None = None) -> Awaitable[list[Task]]: ...

    def mismatched(
        self, after: int, limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[tuple[list[int], int | None]]:
        """One page of the sweep: instances with another number of task rows than expected, and where the next page begins."""
        ...

    def runs(self, where: RunFilter) -> Awaitable[list[RunRow]]: ...

    def search(
        self,
        query: RunQuery,
        after: RunPlace | None,
        limit: int,
        bound: int,
        now: Micros,
        *,
        views: bool = True,
        trusts: bool = False,
        untaken: Sequence[TaskGroup] = (),
        whole: bool = False,
    ) -> Awaitable[SearchedRuns]:
        """One page of the runs that fit, after looking at no more than `bound` of them.

        `views` False: conditions on summaries are left to the caller. `trusts`: the indexes of summaries may drive the
        search, so a run whose summary is missing may be left out. `untaken`: ready tasks that no worker takes, or that
        a limit throttles, if the query needs them. `whole`: nothing is found unless everything is within the bound.
        """
        ...

    def count(
        self,
        query: RunQuery,
        group_by: str | None,
        bound: int,
        now: Micros,
        *,
        trusts: bool = False,
        untaken: Sequence[TaskGroup] = (),
    ) -> Awaitable[RunCounts]:
        """The number of matching runs, by their values of a field. One number is up to `counting.INDEXED`, or looks at
        `bound` runs."""
        ...

    def suggest(self, namespace: str, field: str, prefix: str, limit: int) -> Awaitable[list[str]]:
        """Values of a field that begin like this."""
        ...

    def ready_groups(self, namespace: str, limit: int) -> Awaitable[dict[TaskGroup, int]]:
        """The ready tasks of summaries by what a worker must serve to take them, those of most runs first."""
        ...

    def run(self, namespace: str, run_id: str) -> Awaitable[RunRow | None]: ...

    def run_by_key(self, key: int) -> Awaitable[RunRow | None]: ...

    def count_by_status(self, namespace: str) -> Awaitable[list[StatusCount]]: ...

    def event_types(self, namespace: str) -> Awaitable[dict[str, int]]:
        """How many events of each type the histories of open runs have."""
        ...

    def history_sizes(self, namespace: str, events: int, size: int) -> Awaitable[HistorySizes]:
        """Sizes of the histories of open runs. Over: with at least so many events or bytes; 0 disables a threshold."""
        ...

    def sizes(self, runs: Sequence[int]) -> Awaitable[dict[int, tuple[int, int]]]:
        """The number of events and of bytes in the history of each of these runs."""
        ...

    def commands(self, workflow: int, skip: int = 0, limit: int | None = None) -> Awaitable[list[CommandRecord]]:
        """The records of commands in the order in which they were decided. They are only ever added to."""
        ...

    def command_sizes(self, before: int, limit: int, workflow: int | None) -> Awaitable[list[int]]:
        """The sizes of the records that `command_log` would read."""
        ...

    def command_log(self, before: int, limit: int, workflow: int | None) -> Awaitable[list[LoggedCommand]]:
        """Commands of all instances, or of one, before a position: the newest first."""
        ...

    def command(self, workflow: int, command_type: str, request_id: str) -> Awaitable[CommandRecord | None]:
        """The record of an earlier command with this request id."""
        ...

    def last_command(self, workflow: int, command_type: str) -> Awaitable[CommandRecord | None]:
        """The record of the newest command of this type."""
        ...

    def sends(self, after: int, limit: int, *, shards: Sequence[int] | None = None) -> Awaitable[list[StoredSend]]:
        """Outbox messages that were not delivered yet, in the order they were made. The shard is that of the sender."""
        ...

    def sends_of(self, senders: Sequence[int]) -> Awaitable[list[StoredSend]]:
        """All of these senders that were not delivered yet, in the order they were made."""
        ...

    def awaiting(self, after: int, limit: int, *, shards: Sequence[int] | None = None) -> Awaitable[list[int]]:
        """Instances that wait for the answer of another one, paged by key."""
        ...

    def blocked(self, namespace: str, workflow_type: str, limit: int) -> Awaitable[list[BlockedPlace]]:
        """Open runs of a type that are blocked, as their summaries say."""
        ...

    def has_engine(self) -> Awaitable[bool]:
        """Whether any process, this one included, is the engine of this database."""
        ...


class Store(StoredReads, MeasuresStore, OwnershipStore, Protocol):
    """The operations of an engine on a database."""

    shared: bool
    """Whether other processes can reach this database."""

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        """Write and commit; `done` is called on the engine's thread once it is on disk (or is not)."""
        ...

    def probe(self) -> Awaitable[Unavailable | None]:
        """Try one commit on a fresh connection; None means the database works again."""
        ...

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        """Write one entry of the registry, or remove it; `done` as in `apply`."""
        ...

    def keep_all(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        """The same for many entries, in one transaction."""
        ...

    def keep_if(self, entry: RegistryEntry, before: bytes | None) -> Awaitable[bool]:
        """Write one entry of the registry, or remove it, if its body is `before`; None: if there is none. False: it is not.

        Raises `Unavailable`; then it may be written or not.
        """
        ...

    def expired(
        self, namespace: str, before: Micros, limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[RunRow]]:
        """Runs that were closed before a time, oldest first."""
        ...

    def prune(self, runs: Sequence[Located], done: Callable[[frozenset[int] | Unavailable], None]) -> None:
        """Remove closed runs, each with its history, and with its last run an instance. All of it in one commit.

        Returns the runs that stay: another instance still waits for theirs, or theirs for another.
        """
        ...

    def kept(self, kind: str) -> Awaitable[list[RegistryEntry]]: ...

    def registry_version(self) -> Awaitable[int | None]:
        """A number that changes with every counted entry that is kept or removed; None: unknown, so `changed` must be
        called."""
        ...

    def put_views(self, changes: ViewChanges, done: Callable[[Unavailable | None], None]) -> None:
        """Write stored views in one transaction, which may be lost with the machine; `done` as in `apply`."""
        ...

    def summaries(self, runs: Sequence[int]) -> Awaitable[dict[int, SummaryRow]]: ...

    def view_rows(self, view: str, run: int) -> Awaitable[list[ViewRow]]: ...

    def facts(self, workflows: Sequence[int]) -> Awaitable[dict[int, InstanceFacts]]:
        """The state that stored views are compared with."""
        ...

    def unprojected(self, schema: int, after: int, limit: int) -> Awaitable[Unprojected]:
        """One page of runs: those whose stored views are missing or old."""
        ...

    def closed_but_open(self) -> Awaitable[list[int]]:
        """Runs that have closed, and whose summary says that they are open."""
        ...

    def orphaned_views(self, limit: int) -> Awaitable[list[int]]:
        """Summaries of runs that do not exist."""
        ...

    def prune_views(self) -> Awaitable[None]:
        """Remove the rows of views whose run does not exist."""
        ...

    def count_summaries(
        self, namespace: str, schema: int, limit: int, settled: Micros = NEVER
    ) -> Awaitable[tuple[SummaryCounts, int]]:
        """Compare summaries with the newest runs of a namespace. Also returns the oldest run it has looked at. A run without a
        summary is missing one if it was started before `settled`."""
        ...

    def count_view(self, view: str, namespace: str, oldest: int, settled: Micros = NEVER) -> Awaitable[ViewCounts]:
        """Compare the rows of a view with runs and their summaries, from a run on. `settled` as above."""
        ...

    def resume_sources(self, after: int, limit: int) -> Awaitable[ResumePage]:
        """One page of all open runs, by what will resume them."""
        ...

    def open_instances(self, after: int, limit: int) -> Awaitable[tuple[list[int], int | None]]:
        """The instances of a page that have an open run, and where the next page begins."""
        ...

    def acquire(self) -> Awaitable[bool]:
        """Become the one engine of this database, if it has none. Lasts until the process ends or closes the store."""
        ...

    def clock(self) -> Awaitable[Micros | None]:
        """The time of the database's own clock; None: it is that of this machine."""
        ...

    def changed(self) -> Awaitable[bool]:
        """Whether another process has committed since the last call."""
        ...

    def undisturbed(self) -> bool:
        """Whether it is certain, without a question to the database, that no other process has committed since `changed`."""
        ...

    def notices(self, *, shards: Sequence[int] | None = None) -> Awaitable[list[int]]:
        """Instances that other processes have changed since the last call."""
        ...

    def close(self) -> Awaitable[None]:
        """Release the database. As soon as this has returned, another process can become its engine."""
        ...
