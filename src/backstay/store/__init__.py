"""The Store: what an engine needs of a database, and nothing of any feature.

Every change goes through `apply`: independent Decisions, each guarded by the instance row it was decided on. Nothing
depends on a batch being atomic. A guard that does not match skips that Decision alone (`stale`), a Decision that cannot
be written fails alone, and a database that cannot commit is `down`: nothing of the batch happened and nobody may say it
did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from backstay.kernel.decision import CommandRecord, Decision, RunRow, WorkflowRow
from backstay.kernel.errors import BackstayError
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.kernel.values import Micros


class StoreError(BackstayError):
    """The base class for a database that cannot be used.

    Catch it to handle every such problem alike.
    """


class Unavailable(StoreError):
    """The database cannot commit now (disk full, I/O error, locked, unreachable). Nothing was lost.

    Remove the cause that the message names; a running engine resumes by itself. Repeat the request with the same id.
    """


class IncompatibleStore(StoreError):
    """The database was written by a newer version, or belongs to another program.

    Run the newer version, or name another database.
    """


class UnknownDatabase(StoreError, ValueError):
    """The argument names no database of a known kind.

    Use a path, `sqlite:PATH` or `postgresql://...`.
    """


class ForkedEngine(StoreError, RuntimeError):
    """An engine was used after a fork: its lock, threads and connections belong to the parent process.

    Open `Backstay` in the child process.
    """

    def __init__(self, path: str | None = None) -> None:
        what = (
            "this engine was opened before a fork" if path is None else f"{path} was open when this process was forked"
        )
        super().__init__(
            f"{what}; open Backstay only after forking (for example in the web server's post-fork or lifespan hook),"
            " not at import time, or start the child process with spawn"
        )


class Applied(NamedTuple):
    """What became of a batch, by position. Positions in neither were committed."""

    stale: frozenset[int] = frozenset()
    failed: dict[int, Exception] = {}
    down: Unavailable | None = None


ALL = Applied()


class Loaded(NamedTuple):
    """An instance as it is on disk: its row, its current run with its history, its task rows."""

    row: WorkflowRow
    run: RunRow | None
    history: list[Recorded]
    tasks: list[Task]
    drifted: bool = False  # its row names another run than its newest, which this is


class StoredSend(NamedTuple):
    """A send that nobody has taken yet; its parcel as it was packed."""

    key: int
    sender: int
    namespace: str
    workflow_id: str
    kind: str
    body: bytes


class Located(NamedTuple):
    """Where a run is."""

    workflow: int
    run: int


class Entry(NamedTuple):
    """One entry of the registry: what a server keeps beside workflows. `body` None removes it."""

    kind: str
    namespace: str
    name: str
    body: bytes | None


class Census(NamedTuple):
    """How many runs there are of one kind."""

    status: str
    archived: bool
    runs: int


class Budget(NamedTuple):
    """The histories of open runs: how many are over a threshold, the longest and the largest."""

    over: int
    events: int
    size: int


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


class Now(Generic[T]):
    """An awaitable whose value is already there. Who looks first saves a task switch; who awaits sees no difference."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        return self.value
        yield  # makes this a generator, as awaiting demands


class Later(Generic[T]):
    """An awaitable that begins when somebody awaits it; who finds that it is not `Now` may also let it be."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()


def at_once(verb: Callable[P, T]) -> Callable[P, Now[T]]:
    """Offer a plain method as an awaitable verb of the protocol."""

    @wraps(verb)
    def answer(*args: P.args, **kwargs: P.kwargs) -> Now[T]:
        return Now(verb(*args, **kwargs))

    return answer


class Store(Protocol):
    """About fifteen coarse verbs. Reads see committed state only."""

    shared: bool
    """Whether other processes can reach this database."""

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        """Write and commit; `done` is called on the engine's thread once it is on disk (or is not)."""
        ...

    def probe(self) -> Awaitable[Unavailable | None]:
        """Try one commit on a fresh connection; None means the database works again."""
        ...

    def find(self, namespace: str, workflow_id: str) -> Awaitable[int | None]:
        """The key of that instance, if it exists."""
        ...

    def find_all(self, namespace: str, workflow_ids: Sequence[str]) -> Awaitable[dict[str, int]]:
        """The keys of those of these instances that exist, by their ids. Asked on every start, so it must be cheap."""
        ...

    def locate(self, namespace: str, run_id: str) -> Awaitable[Located | None]:
        """Where a run is. Every look-up by an id says whose: a run of another namespace is not there."""
        ...

    def load(self, key: int) -> Awaitable[Loaded | None]: ...

    def history(self, run: int, after: int = 0, limit: int | None = None) -> Awaitable[list[Recorded]]:
        """A run's events behind a sequence, verified. Damage raises `HistoryDamaged`."""
        ...

    def last_event(self, run: int) -> Awaitable[Recorded | None]: ...

    def due(self, until: Micros, limit: int) -> Awaitable[list[tuple[Micros, int]]]:
        """(next wake, instance key), earliest first."""
        ...

    def ahead(self, now: Micros, after: tuple[Micros, int], limit: int) -> Awaitable[list[tuple[Micros, int]]]:
        """Of those behind (next wake, instance key): the ones last written at a time that is still to come."""
        ...

    def ready(self, limit: int, after: tuple[Micros, int, str] | None = None) -> Awaitable[list[Task]]:
        """Unleased ready tasks, oldest first, behind (available_at, instance key, task id)."""
        ...

    def leased(self) -> Awaitable[list[Task]]: ...

    def tasks(self, workflow: int) -> Awaitable[list[Task]]:
        """The task rows of an instance, whatever its history says."""
        ...

    def failed(self) -> Awaitable[list[Task]]: ...

    def suspects(self, after: int, limit: int) -> Awaitable[tuple[list[int], int | None]]:
        """Instances whose task rows are not as many as they expect, in one page of the sweep; then where to go on."""
        ...

    def runs(self, where: RunFilter) -> Awaitable[list[RunRow]]: ...

    def run(self, namespace: str, run_id: str) -> Awaitable[RunRow | None]: ...

    def census(self, namespace: str) -> Awaitable[list[Census]]: ...

    def event_types(self, namespace: str) -> Awaitable[dict[str, int]]:
        """How often which event stands in the histories of open runs."""
        ...

    def budget(self, namespace: str, events: int, size: int) -> Awaitable[Budget]:
        """Open runs with at least so many events or bytes; 0: whatever that is."""
        ...

    def sizes(self, runs: Sequence[int]) -> Awaitable[dict[int, tuple[int, int]]]:
        """Of the histories of these runs: how many events, and how many bytes."""
        ...

    def commands(self, workflow: int) -> Awaitable[list[CommandRecord]]: ...

    def command(self, workflow: int, command_type: str, request_id: str) -> Awaitable[CommandRecord | None]:
        """The record of an earlier command with this request id."""
        ...

    def sends(self, after: int, limit: int) -> Awaitable[list[StoredSend]]:
        """Sends that nobody has taken yet, in the order they were made."""
        ...

    def awaiting(self, after: int, limit: int) -> Awaitable[list[int]]:
        """Instances to which others owe an answer, behind a key."""
        ...

    def keep(self, entry: Entry, done: Callable[[Unavailable | None], None]) -> None:
        """Write one entry of the registry, or remove it; `done` as in `apply`."""
        ...

    def expired(self, namespace: str, before: Micros, limit: int) -> Awaitable[list[RunRow]]:
        """Runs that were closed before then, the longest closed first."""
        ...

    def prune(self, workflow: int, run: int, done: Callable[[bool | Unavailable], None]) -> None:
        """Remove a closed run; with the last one of an instance goes the instance. False: it still owes or is owed."""
        ...

    def kept(self, kind: str) -> Awaitable[list[Entry]]: ...

    def acquire(self) -> Awaitable[bool]:
        """Become the one engine of this database, if there is none. Held until the process ends or closes the store."""
        ...

    def has_engine(self) -> Awaitable[bool]:
        """Whether some process, this one or another, is the engine of this database."""
        ...

    def changed(self) -> Awaitable[bool]:
        """Whether another process has committed since the last time this was asked."""
        ...

    def notices(self) -> Awaitable[list[int]]:
        """Instances that other processes have changed; each is told once."""
        ...

    def close(self) -> Awaitable[None]:
        """Let go of the database. Whoever is to be the engine next can be it as soon as this has ended."""
        ...
