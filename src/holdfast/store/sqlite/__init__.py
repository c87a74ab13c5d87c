"""SQLite: the default store. One file, WAL, `synchronous=FULL`, one engine per file with other processes beside it.

Writes go through one connection in group commits; reads use another, so that a slow commit never blocks them.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import IO, Any

from holdfast.kernel.decision import CommandRecord, Decision, RunRow, WorkflowRow
from holdfast.kernel.event import Event, HistoryDamaged, Recorded, restore
from holdfast.kernel.task import Task
from holdfast.kernel.values import Micros
from holdfast.store import Applied, Loaded, RunFilter, StoreError, Unavailable, at_once
from holdfast.store.sql import queries
from holdfast.store.sqlite import rows
from holdfast.store.sqlite.connection import check_path, connect, migrate, unavailable
from holdfast.store.sqlite.listing import select_runs
from holdfast.store.sqlite.writer import Offload, Writer

_EVERYTHING = 1 << 62


class SqliteStore:
    """`kinds` maps event type names to event classes; `offload` runs slow commits on another thread."""

    def __init__(self, path: str, kinds: dict[str, type[Event]], offload: Offload | None = None) -> None:
        check_path(path)
        self.path = path
        self._kinds = kinds
        self._sql = queries("holdfast.store.sqlite", "queries.sql")
        connection = connect(path)
        try:
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        self._writer = Writer(path, self._sql, connection, offload)
        # A database in memory exists in one connection only.
        self._reader = connection if path == ":memory:" else connect(path, readers=True)
        self._lock: IO[str] | None = None
        self._writer.tell = path != ":memory:"
        self._version = self._data_version()

    # -- writing

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        self._writer.apply(decisions, done)

    @at_once
    def probe(self) -> Unavailable | None:
        error = self._writer.probe()
        if error is None:
            return None
        return error if isinstance(error, Unavailable) else Unavailable(f"{self.path}: {error}")

    # -- one engine per file

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
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        self._writer.tell = False
        return True

    def changed(self) -> bool:
        version = self._data_version()
        if version == self._version:
            return False
        self._version = version
        return True

    @at_once
    def notices(self) -> list[int]:
        found = self._reader.execute(self._sql["notices"]).fetchall()
        if not found:
            return []
        connection = self._writer.connection
        if connection is not None:
            connection.execute(self._sql["forget_notices"], (found[-1][0],))
        return list(dict.fromkeys(workflow for _, workflow in found))

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- reading

    @at_once
    def find(self, namespace: str, workflow_id: str) -> int | None:
        row = self._one("find", namespace, workflow_id)
        return None if row is None else row[0]

    @at_once
    def load(self, key: int) -> Loaded | None:
        # One read transaction: the row, its history and its tasks belong to the same moment.
        reader = self._reader
        own = not reader.in_transaction
        if own:
            reader.execute("begin")
        try:
            row = self._one("load_workflow", key)
            if row is None:
                return None
            workflow = WorkflowRow(*row)
            tasks = [rows.task(body) for (body,) in self._all("load_tasks", key)]
            if workflow.run is None:
                return Loaded(workflow, None, [], tasks)
            found = self._one("run_by_key", workflow.run)
            if found is None:
                raise HistoryDamaged(workflow.run, 0, "the run's row is missing")
            return Loaded(workflow, rows.run(found), self._history(workflow.run, 0, None), tasks)
        finally:
            if own:
                reader.execute("commit")

    @at_once
    def locate(self, run_id: str) -> tuple[int, int] | None:
        row = self._one("locate", run_id)
        return None if row is None else (row[0], row[1])

    @at_once
    def history(self, run: int, after: int = 0, limit: int | None = None) -> list[Recorded]:
        return self._history(run, after, limit)

    def _history(self, run: int, after: int, limit: int | None) -> list[Recorded]:
        # Reading on from the middle takes one row more, whose checksum the next one is chained to.
        start = max(after - 1, 0)
        count = _EVERYTHING if limit is None else limit + (after - start)
        found = self._all("history", run, start, count)
        events: list[Recorded] = []
        previous = (0, 0)
        for row in found:
            if after and row[0] == after:
                previous = (row[0], row[5])
                continue
            entry = restore(self._kinds, run, row, previous)
            events.append(entry)
            previous = (entry.sequence, entry.checksum)
        return events

    @at_once
    def last_event(self, run: int) -> Recorded | None:
        found = self._all("last_event", run)
        if not found:
            return None
        previous = (found[1][0], found[1][5]) if len(found) > 1 else (0, 0)
        return restore(self._kinds, run, found[0], previous)

    @at_once
    def due(self, until: Micros, limit: int) -> list[tuple[Micros, int]]:
        return [(at, key) for at, key in self._all("due", until, limit)]

    @at_once
    def ready(self, limit: int, after: tuple[Micros, int, str] | None = None) -> list[Task]:
        return [rows.task(body) for (body,) in self._all("ready", *(after or (-1, 0, "")), limit)]

    @at_once
    def leased(self) -> list[Task]:
        return [rows.task(body) for (body,) in self._all("by_state", "leased")]

    @at_once
    def failed(self) -> list[Task]:
        return [rows.task(body) for (body,) in self._all("by_state", "failed")]

    @at_once
    def suspects(self, after: int, limit: int) -> tuple[list[int], int | None]:
        page = self._all("suspects", after, limit)
        return [key for key, wrong in page if wrong], (page[-1][0] if len(page) == limit else None)

    @at_once
    def runs(self, where: RunFilter) -> list[RunRow]:
        statement, parameters = select_runs(self._sql["runs"], where)
        return [rows.run(row) for row in self._reader.execute(statement, parameters).fetchall()]

    @at_once
    def run(self, run_id: str) -> RunRow | None:
        row = self._one("run_by_id", run_id)
        return None if row is None else rows.run(row)

    @at_once
    def commands(self, workflow: int) -> list[CommandRecord]:
        return [rows.command(body) for (body,) in self._all("commands", workflow)]

    def _one(self, name: str, *parameters: Any) -> tuple[Any, ...] | None:
        try:
            return self._reader.execute(self._sql[name], parameters).fetchone()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _all(self, name: str, *parameters: Any) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(self._sql[name], parameters).fetchall()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error

    def _data_version(self) -> int:
        # Asked on the writing connection: its own commits do not move the number, everybody else's do.
        connection = self._writer.connection
        return 0 if connection is None else connection.execute("pragma data_version").fetchone()[0]
