"""SQLite: the default store. One file, WAL, `synchronous=FULL`, one engine per file with other processes beside it.

Writes go through one connection in group commits; reads use another, so that a slow commit never blocks them.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import IO, Any, TypeVar

from backstay.kernel.decision import Decision, RunRow
from backstay.kernel.event import Event, HistoryDamaged
from backstay.store import Applied, Entry, Later, Loaded, Now, RunFilter, StoreError, Unavailable, at_once
from backstay.store.reading import POINTER, Found, Reading, found_by_order, loaded, named
from backstay.store.rows import encode
from backstay.store.rows import run as run_row
from backstay.store.sql import queries
from backstay.store.sqlite import forks
from backstay.store.sqlite.connection import connect, open_database, unavailable
from backstay.store.sqlite.listing import select_runs
from backstay.store.sqlite.writer import Offload, Writer

T = TypeVar("T")

COUNTS = frozenset(("census", "event_types", "budget", "sizes"))  # read as much as there is; nobody but operators asks


class SqliteStore(Reading):
    """`kinds` maps event type names to event classes; `offload` runs slow commits on another thread."""

    def __init__(self, path: str, kinds: dict[str, type[Event]], offload: Offload | None = None) -> None:
        forks.refuse_inherited(path)
        connection = open_database(path)
        # From here on the file is meant, not whatever its name means after a change of directory.
        self.path = path = path if path == ":memory:" else os.path.realpath(path)
        self.shared = path != ":memory:"
        self._kinds = kinds
        self._sql = queries("backstay.store.sqlite", "queries.sql")
        self._writer = Writer(path, self._sql, connection, None if path == ":memory:" else offload)
        self._writer.tell = path != ":memory:"
        self._patient = offload is not None and path != ":memory:"  # whoever has threads may use one more
        self._lock: IO[str] | None = None
        self._noticed = 0  # the last notice that was told and could not be deleted yet
        try:
            self._open_readers(connection)
            self._version: int | None = self._data_version()
            forks.opened(path)
        except BaseException:
            connection.close()
            raise

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
        self._writer.apply(decisions, done)

    @at_once
    def probe(self) -> Unavailable | None:
        error = self._writer.probe()
        if error is None:
            error = self._reopen_readers()
        if error is None:
            self._version = None  # whatever happened meanwhile, look at it
            return None
        return error if isinstance(error, Unavailable) else Unavailable(f"{self.path}: {error}")

    def _reopen_readers(self) -> StoreError | None:
        """The file may be another one than before, restored from a backup."""
        writing = self._writer.connection
        assert writing is not None, "a probe that succeeds leaves a connection"
        if self.path == ":memory:":
            return None
        self._reader.close()
        self._lister.close()
        try:
            self._open_readers(writing)
        except StoreError as error:
            return error
        return None

    def keep(self, entry: Entry, done: Callable[[Unavailable | None], None]) -> None:
        self._writer.keep(entry, done)

    def prune(self, workflow: int, run: int, done: Callable[[bool | Unavailable], None]) -> None:
        self._writer.prune(workflow, run, done)

    # -- one engine per file

    @at_once
    def acquire(self) -> bool:
        """An OS lock, so that the kernel frees it when its process dies."""
        if self.path == ":memory:" or self._lock is not None:
            return True
        try:
            lock = open(f"{self.path}-engine", "a+", encoding="utf-8")  # noqa: SIM115 - held as long as the engine lives
        except OSError as error:
            raise StoreError(f"cannot open the engine lock {self.path}-engine: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        with suppress(OSError):  # who holds it, for people; a full disk must not keep the engine from its work
            lock.truncate(0)
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        self._lock = lock
        forks.locks.add(lock)
        self._writer.tell = False
        return True

    @at_once
    def has_engine(self) -> bool:
        if self.path == ":memory:" or self._lock is not None:
            return True
        try:
            # Shared and only for a moment: whoever wants to be the engine just then tries again soon.
            with open(f"{self.path}-engine", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                return True
            raise StoreError(f"cannot read the engine lock {self.path}-engine: {error}") from error
        return False

    @at_once
    def changed(self) -> bool:
        if self._writer.away or self._writer.connection is None:
            return False  # asked again soon
        try:
            self._writer.check_file()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        version = self._data_version()
        if version == self._version:
            return False
        self._version = version
        return True

    @at_once
    def notices(self) -> list[int]:
        found = self._all("notices", (self._noticed,))
        if not found:
            return []
        # Keys are given anew when the table is empty, so the mark goes with the rows.
        last: int = found[-1][0]
        self._noticed = 0 if self._writer.forget_notices(last) else last
        return list(dict.fromkeys(workflow for _, workflow in found))

    @at_once
    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._lister.close()
        if self._lock is not None:
            forks.locks.discard(self._lock)
            self._lock.close()
            self._lock = None
        forks.closed(self.path)

    # -- reading

    def _ask(self, query: str, parameters: Sequence[Any], shape: Callable[[Found], T]) -> Now[T] | Later[T]:
        if self._patient and query in COUNTS:
            return Later(lambda: self._count(query, parameters, shape))
        found = self._all(query, parameters)
        try:
            return Now(shape(found))
        except HistoryDamaged as damage:
            raise named(damage, self._all("run_by_key", (damage.run,))) from damage.__cause__

    def _listed(self, names: list[str]) -> str:
        return encode(names).decode()

    async def _count(self, query: str, parameters: Sequence[Any], shape: Callable[[Found], T]) -> T:
        """On a thread and a connection of its own: the engine goes on meanwhile."""

        def count() -> Found:
            with closing(connect(self.path, readers=True)) as connection:
                return connection.execute(self._sql[query], tuple(parameters)).fetchall()

        try:
            return shape(await asyncio.get_running_loop().run_in_executor(None, count))
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    @at_once
    def load(self, key: int) -> Loaded | None:
        # One read transaction: the row, its history and its tasks belong to the same moment.
        reader = self._reader
        try:
            reader.execute("begin")
            try:
                return self._load(key)
            finally:
                reader.execute("commit")
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _load(self, key: int) -> Loaded | None:
        found = self._all("load_workflow", (key,))
        if not found:
            return None
        tasks = [body for (body,) in self._all("load_tasks", (key,))]
        run: int | None = found[0][POINTER]
        row = () if run is None else self._all("run_by_key", (run,))
        try:
            return loaded(self._kinds, found[0], tasks, row[0] if row else None, self._events(run))
        except HistoryDamaged:
            newest = self._all("newest_run", (key,))
            if not newest or newest[0][0] == run:
                raise
            return found_by_order(self._kinds, found[0], tasks, newest[0], self._events(newest[0][0]))

    def _events(self, run: int | None) -> Found:
        return () if run is None else self._all("history", (run, 0, 1 << 62))

    @at_once
    def runs(self, where: RunFilter) -> list[RunRow]:
        statement, parameters = select_runs(self._sql["runs"], where)
        try:
            found = self._lister.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        return [run_row(row) for row in found]

    def _all(self, name: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(self._sql[name], parameters).fetchall()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _data_version(self) -> int:
        # Asked on the writing connection: its own commits do not move the number, everybody else's do.
        connection = self._writer.connection
        assert connection is not None, "asked only while there is a connection"
        try:
            return connection.execute("pragma data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
