"""SQLite: the default store. One file, WAL, `synchronous=FULL`, one engine per file with other processes beside it.

Writes go through one connection in group commits; reads use another, so that a slow commit never blocks them.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, TypeVar
from warnings import warn

from backstay.kernel.decision import Decision, InstanceRow, RunRow
from backstay.kernel.event import Event, HistoryDamaged
from backstay.kernel.values import Micros
from backstay.private_files import open_beside
from backstay.store import Applied, Deferred, Loaded, Located, Opening, Ready, RegistryEntry, RunFilter, as_ready
from backstay.store.errors import StoreError, Unavailable
from backstay.store.figures import FIGURES
from backstay.store.measures import MEASURES
from backstay.store.ownership import SHARDS, NodeFacts, NodeRow, Ownership, ShardRow
from backstay.store.reading import POINTER, Found, Reading, found_by_order, loaded, named, opened
from backstay.store.rows import encode
from backstay.store.rows import run as run_row
from backstay.store.search import Steps, walk
from backstay.store.sql import queries
from backstay.store.sqlite import forks
from backstay.store.sqlite.connection import connect, open_database, unavailable
from backstay.store.sqlite.listing import DIALECT, select_runs
from backstay.store.sqlite.reader_thread import ReaderThread
from backstay.store.sqlite.writer import Offload, SqliteWriter
from backstay.store.views import VIEWS, ViewChanges

T = TypeVar("T")

COUNTS = frozenset(
    (
        *("event_types", "sizes", "by_state", "endless"),
        *("unprojected", "closed_but_open", "summary_orphans", "summary_counts", "count_summary_orphans"),
        *(f"count_{view}" for view in VIEWS),
        *(f"count_orphans_of_{view}" for view in VIEWS),
        *("resume_page", "stranded_page", "open_page"),
        *("command_sizes", "command_sizes_of", "command_log", "command_log_of"),
    )
)  # these read whole tables; only operators and background jobs ask for them

MANY = 1000  # runs of one list: one that may be longer is read on a thread

LONG = 1000  # events of a history that an engine reads on a thread
EVERYTHING = 1 << 62
ME, ANOTHER = 1, 2  # processes at a file, as far as one of them can see
LENGTH = InstanceRow.__struct_fields__.index("length")


COARSE = 100_000_000  # nanoseconds, many ticks of any kernel

_Log = tuple[int, int, int]


class _LongHistory(Exception):
    """A history is too long to be read on the engine's thread."""


class SqliteStore(Reading):
    """`kinds` maps event type names to event classes; `offload` runs slow commits on another thread.

    A store with `offload` searches and counts on threads of its own: searches, which are bounded, never wait for a count of
    whole tables, nor for the figures of an overview.
    """

    _dialect = DIALECT
    _is_open = False

    def __init__(self, path: str, kinds: dict[str, type[Event]], offload: Offload | None = None) -> None:
        forks.refuse_inherited(path)
        connection = open_database(path)
        # The absolute path: the name would mean another file after a change of directory.
        self.path = path = path if path == ":memory:" else os.path.realpath(path)
        self.shared = path != ":memory:"
        self._kinds = kinds
        self._sql = queries("backstay.store.sqlite")
        self.writer = SqliteWriter(path, self._sql, connection, None if path == ":memory:" else offload)
        self.writer.tell = path != ":memory:"
        self._patient = (
            offload is not None and path != ":memory:"
        )  # an engine that commits on a thread may count on one
        self._loader = ReaderThread(path, "backstay-load")
        self._searcher = ReaderThread(path, "backstay-search")
        self._counter = ReaderThread(path, "backstay-count")
        self._figures = ReaderThread(path, "backstay-figures")
        self._measures = ReaderThread(path, "backstay-measures")
        self._lock: IO[str] | None = None
        self._owner = False
        self._facts = NodeFacts()
        self.exclusive = True
        self.shards = SHARDS
        self.owned = bytearray(SHARDS)
        self.me = ME
        self._log: _Log | None = None  # the log file as it was when `changed` was asked
        self._noticed = 0  # the last notice that was returned and could not be deleted yet
        try:
            self._open_readers(connection)
            self._version: int | None = self._data_version()
            forks.opened(path)
        except BaseException:
            connection.close()
            raise
        self._is_open = True

    def __del__(self) -> None:
        # Python reports a connection that is left open from 3.13 on, without the name of its database.
        if self._is_open:
            warn(f"the database {self.path} was left open; close its app, or use a `with` block", ResourceWarning, 2)

    def _open_readers(self, writing: sqlite3.Connection) -> None:
        # A database in memory exists in one connection only. Lists get one of their own: they may take long.
        memory = self.path == ":memory:"
        self._reader = writing if memory else connect(self.path, readers=True)
        try:
            self._lister = writing if memory else connect(self.path, readers=True)
        except BaseException:
            self._reader.close()
            raise

    # -- writing

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        self.writer.apply(decisions, done)

    @as_ready
    def probe(self) -> Unavailable | None:
        error = self.writer.probe()
        if error is None:
            error = self._reopen_readers()
        if error is None:
            self._version = self._log = None  # `changed` is true at its next call
            return None
        return error if isinstance(error, Unavailable) else Unavailable(f"{self.path}: {error}")

    def _reopen_readers(self) -> StoreError | None:
        """Reopen the reading connections: the file may be another one than before, restored from a backup."""
        writing = self.writer.connection
        assert writing is not None, "a probe that succeeds leaves a connection"
        if self.path == ":memory:":
            return None
        self._reader.close()
        self._lister.close()
        self._loader.reopen()
        self._searcher.reopen()
        self._counter.reopen()
        self._figures.reopen()
        self._measures.reopen()
        try:
            self._open_readers(writing)
        except StoreError as error:
            return error
        return None

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        self.writer.keep([entry], done)

    def keep_all(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        self.writer.keep(entries, done)

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        done: asyncio.Future[bool | Unavailable] = asyncio.get_running_loop().create_future()
        self.writer.keep_if(entry, before, done.set_result)
        written = await done
        if isinstance(written, Unavailable):
            raise written
        return written

    def prune(self, runs: Sequence[Located], done: Callable[[frozenset[int] | Unavailable], None]) -> None:
        self.writer.prune(runs, done)

    def put_views(self, changes: ViewChanges, done: Callable[[Unavailable | None], None]) -> None:
        self.writer.put_views(changes, done)

    async def prune_views(self) -> None:
        ended = asyncio.get_running_loop().create_future()
        self.writer.write_views([(f"orphans_of_{view}", [()]) for view in VIEWS], ended.set_result)
        error = await ended
        if error is not None:
            raise error

    # -- one engine per file

    @as_ready
    def acquire(self) -> bool:
        """Take an OS lock, which the operating system frees when the process dies."""
        return self._take()

    def _take(self) -> bool:
        if self.path == ":memory:" or self._lock is not None:
            self._owner = True
            return True
        try:
            lock = open_beside(f"{self.path}-engine", self.path)  # held as long as the engine lives
        except OSError as error:
            raise StoreError(f"cannot open the engine lock {self.path}-engine: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        with suppress(
            OSError
        ):  # the process id is for people to read; a full disk must not keep the engine from starting
            lock.truncate(0)
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        self._lock = lock
        forks.locks.add(lock)
        self.writer.tell = False
        self._owner = True
        return True

    def _release(self) -> None:
        self._owner = False
        if self._lock is not None:
            forks.locks.discard(self._lock)
            self._lock.close()
            self._lock = None
            self.writer.tell = True

    @as_ready
    def look(self) -> Ownership:
        if self._owner:
            owner = ME
        else:
            owner = ANOTHER if self.path != ":memory:" and self._is_locked() else None
        nodes = [NodeRow(ME, self._facts, 0, True)]
        if owner == ANOTHER:
            nodes.append(NodeRow(ANOTHER, NodeFacts(), 0, True))
        return Ownership(ME, [ShardRow(owner, 0)] * SHARDS, nodes)

    @as_ready
    def mark(self, facts: NodeFacts, now: Micros) -> bool:
        self._facts = facts
        return True

    @as_ready
    def claim(self, shards: Sequence[int]) -> dict[int, ShardRow]:
        """All or none, whichever are wanted."""
        return dict.fromkeys(range(SHARDS), ShardRow(ME, 0)) if shards and self._take() else {}

    @as_ready
    def depose(self, node: int, *, gone: bool = False) -> bool:
        """The operating system frees the lock of a process that is dead."""
        return False

    @as_ready
    def hand_over(self, shards: Sequence[int], to: int | None, now: Micros) -> list[int]:
        """Only all of them, and only without a successor: a lock cannot be given to another process."""
        if to is not None or not self._owner or len(set(shards)) < SHARDS:
            return []
        self._release()
        return list(shards)

    @as_ready
    def clock(self) -> None:
        """A file has no clock of its own."""

    @as_ready
    def has_engine(self) -> bool:
        return self.path == ":memory:" or self._lock is not None or self._is_locked()

    def _is_locked(self) -> bool:
        """Whether another process has the lock."""
        try:
            # Shared and only for a moment: a process that wants to become the engine meanwhile tries again soon.
            with open(f"{self.path}-engine", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                return True
            raise StoreError(f"cannot read the engine lock {self.path}-engine: {error}") from error
        return False

    def undisturbed(self) -> bool:
        """A commit writes to the log file, and so changes the time or the size of that. To ask this costs two looks at files,
        where `changed` takes and releases locks."""
        return (
            self._log is not None
            and not self.writer.away
            and self.writer.is_current()
            and _log_of(self.path) == self._log
        )

    @as_ready
    def changed(self) -> bool:
        if self.writer.away or self.writer.connection is None:
            return False  # the next call finds out
        log = _log_of(self.path)  # before the version is read: a later commit has another time
        # The times of files are as coarse as the ticks of the kernel: a log that was written a moment ago proves nothing yet.
        self._log = log if log is not None and time.time_ns() - log[1] > COARSE else None
        try:
            self.writer.check_file()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        version = self._data_version()
        if version == self._version:
            return False
        self._version = version
        return True

    @as_ready
    def registry_version(self) -> None:
        """A file counts commits, not what they change."""

    @as_ready
    def notices(self, *, shards: Sequence[int] | None = None) -> list[int]:
        rows = self._all("notices", (self._noticed,))
        if not rows:
            return []
        # An empty table starts its keys again at 1, so the mark is reset when the rows are deleted.
        last: int = rows[-1][0]
        self._noticed = 0 if self.writer.forget_notices(last) else last
        return list(dict.fromkeys(workflow for _, workflow in rows))

    @as_ready
    def close(self) -> None:
        self._is_open = False
        self.writer.close()
        self._loader.close()
        self._searcher.close()
        self._counter.close()
        self._figures.close()
        self._measures.close()
        self._reader.close()
        self._lister.close()
        self._release()
        forks.closed(self.path)

    # -- reading

    def _ask(
        self, query: str, parameters: Sequence[Any], shape: Callable[[Found], T], *, shards: Sequence[int] | None = None
    ) -> Ready[T] | Deferred[T]:
        # A file has one owner for all its shards, so they are not looked at.
        if self._patient and (query in COUNTS or query in FIGURES or query in MEASURES):
            statement, given = self._sql[query], tuple(parameters)
            measured = self._measures if query in MEASURES else self._counter
            thread = self._figures if query in FIGURES else measured
            return Deferred(lambda: thread.run(lambda reader: shape(reader.execute(statement, given).fetchall())))
        rows = self._all(query, parameters)
        try:
            return Ready(shape(rows))
        except HistoryDamaged as damage:
            raise named(damage, self._all("run_by_key", (damage.run,))) from damage.__cause__

    def _listed(self, names: list[str]) -> str:
        return encode(names).decode()

    def _walk(self, steps: Callable[[], Steps[T]]) -> Ready[T] | Deferred[T]:
        if self._patient:
            return Deferred(lambda: self._searcher.run(lambda reader: walk(steps(), _asking(reader))))
        try:
            return Ready(walk(steps(), _asking(self._lister)))
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def load(self, key: int) -> Ready[Loaded | None] | Deferred[Loaded | None]:
        try:
            return Ready(self._at_one_moment(lambda: self._load(key, self._all, LONG if self._patient else None)))
        except _LongHistory:

            def read(reader: sqlite3.Connection) -> Loaded | None:
                ask = _asking(reader)
                return self._load(key, lambda name, given: ask(self._sql[name], list(given)))

            return Deferred(lambda: self._loader.run(read))

    @as_ready
    def opening(self, key: int) -> Opening | None:
        return self._at_one_moment(lambda: self._opening(key))

    def _at_one_moment(self, read: Callable[[], T]) -> T:
        """Read in one transaction: the row, its history and its tasks belong together."""
        reader = self._reader
        try:
            reader.execute("begin")
            try:
                return read()
            finally:
                reader.execute("commit")
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _load(self, key: int, ask: Callable[[str, Sequence[Any]], Found], longest: int | None = None) -> Loaded | None:
        """Load with these queries. A history with more events than `longest` is not read here."""
        rows = ask("load_workflow", (key,))
        if not rows:
            return None
        if longest is not None and rows[0][LENGTH] > longest:
            raise _LongHistory
        tasks = [body for (body,) in ask("load_tasks", (key,))]
        run: int | None = rows[0][POINTER]
        row = () if run is None else ask("run_by_key", (run,))
        try:
            events = () if run is None else ask("history", (run, 0, EVERYTHING))
            return loaded(self._kinds, rows[0], tasks, row[0] if row else None, events)
        except HistoryDamaged:
            newest = ask("newest_run", (key,))
            if not newest or newest[0][0] == run:
                raise
            events = ask("history", (newest[0][0], 0, EVERYTHING))
            return found_by_order(self._kinds, rows[0], tasks, newest[0], events)

    def _opening(self, key: int) -> Opening | None:
        rows = self._all("load_workflow", (key,))
        if not rows:
            return None
        tasks = [body for (body,) in self._all("load_tasks", (key,))]
        run: int | None = rows[0][POINTER]
        row = () if run is None else self._all("run_by_key", (run,))
        return opened(self._kinds, rows[0], tasks, row[0] if row else None)

    def runs(self, where: RunFilter) -> Ready[list[RunRow]] | Deferred[list[RunRow]]:
        statement, parameters = select_runs(self._sql["runs"], where)
        if self._patient and where.limit > MANY:
            return Deferred(lambda: self._searcher.run(lambda reader: _run_rows(reader, statement, parameters)))
        try:
            return Ready(_run_rows(self._lister, statement, parameters))
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _all(self, name: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(self._sql[name], parameters).fetchall()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _data_version(self) -> int:
        # On the writing connection: its own commits do not change the number, those of other connections do.
        connection = self.writer.connection
        assert connection is not None, "asked only while there is a connection"
        try:
            return connection.execute("pragma data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error


def _log_of(path: str) -> _Log | None:
    """The log file of a database: which file it is, when it was written, and its size; None if there is none."""
    try:
        log = os.stat(f"{path}-wal")
    except OSError:
        return None
    return log.st_ino, log.st_mtime_ns, log.st_size


def _asking(reader: sqlite3.Connection) -> Callable[[str, list[Any]], Found]:
    return lambda statement, given: reader.execute(statement, given).fetchall()


def _run_rows(reader: sqlite3.Connection, statement: str, parameters: Sequence[Any]) -> list[RunRow]:
    return [run_row(row) for row in reader.execute(statement, parameters).fetchall()]
