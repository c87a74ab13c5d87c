"""The one write path: a batch of decisions, one transaction, one fsync.

Fast way: all rows of the batch in multi-row statements, with the guards counted. If a count is short, or a statement
fails, the batch is rolled back and each decision is written under a savepoint of its own, so that only the one at fault
fails. A failed commit is never tried again on the same connection: after an I/O error SQLite may report success for
pages it lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from backstay.kernel.decision import Decision
from backstay.store import ALL, Applied, Located, RegistryEntry
from backstay.store.errors import Unavailable
from backstay.store.rows import guarded_keep
from backstay.store.sqlite.connection import (
    BUSY,
    PATIENT,
    FileGone,
    connect,
    file_of,
    is_down,
    is_taken_key,
    primary,
    unavailable,
)
from backstay.store.sqlite.rows import Rows
from backstay.store.views import Statements, ViewChanges, view_statements

Offload = Callable[[Callable[[], Applied], Callable[[Applied], None]], None]

_CHUNKS = (64, 16, 4, 3, 2, 1)  # a lone step is three events: one statement
SLOW_COMMIT = 0.003


def _of_rows(insert: str) -> tuple[int, dict[int, str]]:
    """An insert of one row: how many parameters that takes, and as inserts of many, by how many they take."""
    head, row = insert.rsplit("values", 1)
    width = row.count("?")
    return width, {width * size: f"{head}values{','.join([row] * size)}" for size in _CHUNKS}


class _Short(Exception):
    """A guard of the batch did not match."""


class SqliteWriter:
    """Owns the writing connection. Used by one thread at a time: the engine's, or the commit thread's."""

    def __init__(self, path: str, sql: dict[str, str], connection: sqlite3.Connection, offload: Offload | None) -> None:
        self.path = path
        self._sql = sql
        self.connection: sqlite3.Connection | None = connection
        self._offload = offload
        self._pace = 0.0  # moving average of a commit, in seconds
        self._inserts = {
            name: _of_rows(sql[name])
            for name in (
                "guard_new",
                "insert_run",
                "insert_event",
                "put_task",
                "put_ready_task",
                "insert_command",
                "insert_send",
            )
        }
        self._later: list[Callable[[], None]] = []  # runs when the commit thread returns the connection
        self._file = file_of(path)
        self.tell = False  # leave a notice for the engine, because we are not it
        self.away = False  # the connection is with the commit thread; touching it would wait for the disk

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        connection = self.connection
        if connection is None:
            done(Applied(down=unavailable(self.path, sqlite3.OperationalError("the database is closed"))))
            return
        try:
            result = self._write(connection, decisions)
        except sqlite3.Error as error:
            if primary(error) == sqlite3.SQLITE_BUSY and self._offload is not None:
                # Another process is writing. Wait for it, but not on the engine's thread.
                self._elsewhere(self._offload, lambda: self._whole(connection, decisions), done)
                return
            done(self._give_up(error))
            return
        if self._offload is not None and self._pace > SLOW_COMMIT:
            self._elsewhere(self._offload, lambda: self._commit(connection, result), done)
        else:
            done(self._commit(connection, result))

    def _elsewhere(self, offload: Offload, work: Callable[[], Applied], done: Callable[[Applied], None]) -> None:
        def back(result: Applied) -> None:
            self.away = False
            later, self._later = self._later, []
            for work in later:
                work()
            done(result)

        self.away = True
        offload(work, back)

    def keep(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        self._when_here(lambda: done(self._keep(entries)))

    def keep_if(self, entry: RegistryEntry, before: bytes | None, done: Callable[[bool | Unavailable], None]) -> None:
        self._when_here(lambda: done(self._keep_if(entry, before)))

    def prune(self, runs: Sequence[Located], done: Callable[[frozenset[int] | Unavailable], None]) -> None:
        self._when_here(lambda: done(self._prune(runs)))

    def put_views(self, changes: ViewChanges, done: Callable[[Unavailable | None], None]) -> None:
        self.write_views(view_statements(changes), done)

    def write_views(self, statements: Statements, done: Callable[[Unavailable | None], None]) -> None:
        """Write stored views in a transaction of their own, which the disk need not confirm: they can be made again."""
        self._when_here(lambda: done(self._write_views(statements)))

    def _write_views(self, statements: Statements) -> Unavailable | None:
        connection = self.connection
        if connection is None:
            return unavailable(self.path, sqlite3.OperationalError("the database is closed"))
        try:
            connection.execute("pragma synchronous = normal")
            connection.execute("begin immediate")
            for name, values in statements:
                connection.executemany(self._sql[name], values)
            connection.execute("commit")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            return unavailable(self.path, error)
        finally:
            with suppress(sqlite3.Error):
                connection.execute("pragma synchronous = full")
        return None

    def _when_here(self, work: Callable[[], None]) -> None:
        if self.away:
            self._later.append(work)
        else:
            work()

    def _prune(self, runs: Sequence[Located]) -> frozenset[int] | Unavailable:
        """Remove runs in one transaction, and with its last run an instance. Returns the runs that stay."""
        connection = self.connection
        if connection is None:
            return unavailable(self.path, sqlite3.OperationalError("the database is closed"))
        stay: set[int] = set()
        try:
            connection.execute("begin immediate")
            for workflow, run in runs:
                if connection.execute(self._sql["is_current"], (workflow, run)).fetchone() is not None:
                    if connection.execute(self._sql["owed"], (workflow,)).fetchone() is not None:
                        stay.add(run)
                        continue
                    connection.execute(self._sql["forget_instance"], (workflow, run))
                    connection.execute(self._sql["forget_commands"], (workflow,))
                    connection.execute(self._sql["forget_tasks"], (workflow,))
                connection.execute(self._sql["forget_events"], (run,))
                connection.execute(self._sql["forget_run"], (run,))
            connection.execute("commit")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            return unavailable(self.path, error)
        return frozenset(stay)

    def _keep(self, entries: Sequence[RegistryEntry]) -> Unavailable | None:
        """One small transaction of its own."""
        connection = self.connection
        if connection is None:
            return unavailable(self.path, sqlite3.OperationalError("the database is closed"))
        gone = [(kind, namespace, name) for kind, namespace, name, body, _ in entries if body is None]
        kept = [entry[:4] for entry in entries if entry.body is not None]
        try:
            connection.execute("begin immediate")
            connection.executemany(self._sql["forget"], gone)
            connection.executemany(self._sql["keep"], kept)
            connection.execute("commit")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            return unavailable(self.path, error)
        return None

    def _keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool | Unavailable:
        if self.connection is None:
            return unavailable(self.path, sqlite3.OperationalError("the database is closed"))
        name, values = guarded_keep(entry, before)
        try:
            return bool(self.connection.execute(self._sql[name], values).fetchall())
        except sqlite3.Error as error:
            return unavailable(self.path, error)

    def probe(self) -> Exception | None:
        """Make one real commit on a fresh connection: the only proof that the database works again."""
        if self.path != ":memory:":
            self.close()
        try:
            connection = self.connection or connect(self.path)
        except Exception as error:
            return error
        try:
            connection.execute("begin immediate")
            connection.execute(self._sql["insert_probe"])
            connection.execute(self._sql["forget_probe"])
            connection.execute("commit")
        except Exception as error:
            self._drop(connection)
            return error
        self.connection = connection
        self._file = file_of(self.path)
        return None

    def forget_notices(self, until: int) -> bool:
        """Delete the notices up to this key. False: another process is writing, and they stay until the next call."""
        connection = self.connection
        if connection is None or self.away:
            return False
        try:
            connection.execute(self._sql["forget_notices"], (until,))
        except sqlite3.Error:
            return False
        return True

    def close(self) -> None:
        if self.connection is not None:
            with suppress(sqlite3.Error):
                self.connection.close()
            self.connection = None

    def _whole(self, connection: sqlite3.Connection, decisions: Sequence[Decision]) -> Applied:
        try:
            connection.execute(f"pragma busy_timeout = {PATIENT}")
            result = self._write(connection, decisions)
            connection.execute(f"pragma busy_timeout = {BUSY}")
        except sqlite3.Error as error:
            return self._give_up(error)
        return self._commit(connection, result)

    def _write(self, connection: sqlite3.Connection, decisions: Sequence[Decision]) -> Applied:
        """Everything but the commit."""
        connection.execute("begin immediate")
        try:
            self._rows(connection, Rows(decisions))
            return ALL
        except Exception as error:
            if isinstance(error, sqlite3.Error) and is_down(error):
                raise
            connection.execute("rollback")
        connection.execute("begin immediate")
        return self._one_by_one(connection, decisions)

    def _one_by_one(self, connection: sqlite3.Connection, decisions: Sequence[Decision]) -> Applied:
        stale: set[int] = set()
        failed: dict[int, Exception] = {}
        for position, decision in enumerate(decisions):
            connection.execute("savepoint one")
            try:
                self._rows(connection, Rows((decision,)))
            except _Short:
                stale.add(position)
                connection.execute("rollback to one")
            except Exception as error:
                if isinstance(error, sqlite3.Error) and is_down(error):
                    raise
                if is_taken_key(error):
                    stale.add(position)
                else:
                    failed[position] = error
                connection.execute("rollback to one")
            connection.execute("release one")
        return Applied(frozenset(stale), failed)

    def _rows(self, connection: sqlite3.Connection, rows: Rows) -> None:
        sql = self._sql
        if rows.new and not self._insert(connection, "guard_new", rows.new):
            raise _Short
        if rows.guards and connection.executemany(sql["guard"], rows.guards).rowcount != len(rows.guards):
            raise _Short
        if rows.wakes and connection.executemany(sql["guard_and_wake"], rows.wakes).rowcount != len(rows.wakes):
            raise _Short
        if rows.runs:
            self._insert(connection, "insert_run", rows.runs)
        if rows.faceted:
            connection.executemany(sql["insert_facets"], rows.faceted)
        if rows.runs_closed:
            closed = connection.executemany(sql["close_run"], rows.runs_closed).rowcount
            if closed != len(rows.runs_closed):  # one has lost its attributes with its end
                rows.runs_changed += [(*row[:2], "", *row[2:]) for row in rows.runs_closed]
        if rows.runs_changed:
            connection.executemany(sql["update_run"], rows.runs_changed)
        if rows.events:
            self._insert(connection, "insert_event", rows.events)
        # Drop before put: a task that changed its lease is in both when its retry reuses the row.
        if rows.drops:
            connection.executemany(sql["drop_task"], rows.drops)
        if rows.puts:
            self._insert(connection, "put_task", rows.puts)
        if rows.ready:
            self._insert(connection, "put_ready_task", rows.ready)
        if rows.commands:
            self._insert(connection, "insert_command", rows.commands)
        if rows.sends:
            self._insert(connection, "insert_send", rows.sends)
        if rows.took:
            connection.executemany(sql["take_send"], rows.took)
        if self.tell:
            connection.executemany(sql["insert_notice"], [(decision.instance.key,) for decision in rows.batch])

    def _insert(self, connection: sqlite3.Connection, name: str, values: list[Any]) -> bool:
        """Multi-row statements in a few fixed sizes: fewer steps into SQLite, and each statement stays prepared.

        Whether every row went in.
        """
        width, statements = self._inserts[name]
        if len(values) in statements:
            return connection.execute(statements[len(values)], values).rowcount * width == len(values)
        rows = start = 0
        left = len(values)
        for size, statement in statements.items():
            while left >= size:
                rows += connection.execute(statement, values[start : start + size]).rowcount
                start += size
                left -= size
        return rows * width == len(values)

    def _commit(self, connection: sqlite3.Connection, result: Applied) -> Applied:
        began = perf_counter()
        try:
            self.check_file()
            connection.execute("commit")
        except sqlite3.Error as error:
            return self._give_up(error)
        self._pace += (perf_counter() - began - self._pace) / 16
        return result

    def is_current(self) -> bool:
        """Whether the file that is open is still the one of its name."""
        return self._file is None or file_of(self.path) == self._file

    def check_file(self) -> None:
        """Raise if the file was removed or replaced: its commits succeed for as long as it is open, and are lost."""
        if not self.is_current():
            raise FileGone("the file was removed or replaced while it was open")

    def _give_up(self, error: sqlite3.Error) -> Applied:
        if self.connection is not None:
            self._drop(self.connection)
        return Applied(down=unavailable(self.path, error))

    def _drop(self, connection: sqlite3.Connection) -> None:
        """Roll back and never use this connection again. A database in memory keeps it, because it has no other."""
        with suppress(sqlite3.Error):
            connection.execute("rollback")
        if self.path != ":memory:":
            with suppress(sqlite3.Error):
                connection.close()
            self.connection = None
