"""SQLite: the default store. One file, WAL, `synchronous=FULL`, one engine per file with other processes beside it.

Writes go through one connection in group commits; reads use another, so that a slow commit never blocks them.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from holdfast.kernel.decision import CommandRecord, Decision, RunRow, WorkflowRow
from holdfast.kernel.event import Event, HistoryDamaged, Recorded, restore, unpack_held
from holdfast.kernel.task import Task
from holdfast.kernel.values import Micros
from holdfast.store import (
    Applied,
    Entry,
    Loaded,
    Located,
    RunFilter,
    StoredSend,
    StoreError,
    Unavailable,
    at_once,
)
from holdfast.store.sql import queries
from holdfast.store.sqlite import forks, rows
from holdfast.store.sqlite.connection import connect, open_database, unavailable
from holdfast.store.sqlite.listing import select_runs
from holdfast.store.sqlite.writer import Offload, Writer

_EVERYTHING = 1 << 62


class SqliteStore:
    """`kinds` maps event type names to event classes; `offload` runs slow commits on another thread."""

    def __init__(self, path: str, kinds: dict[str, type[Event]], offload: Offload | None = None) -> None:
        forks.refuse_inherited(path)
        connection = open_database(path)
        # From here on the file is meant, not whatever its name means after a change of directory.
        self.path = path = path if path == ":memory:" else os.path.realpath(path)
        self.shared = path != ":memory:"
        self._kinds = kinds
        self._sql = queries("holdfast.store.sqlite", "queries.sql")
        self._writer = Writer(path, self._sql, connection, None if path == ":memory:" else offload)
        self._writer.tell = path != ":memory:"
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
        self._lister = writing if memory else connect(self.path, readers=True)

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

    @at_once
    def expired(self, namespace: str, before: Micros, limit: int) -> list[RunRow]:
        return [rows.run(row) for row in self._all("expired", before, namespace, limit)]

    def prune(self, workflow: int, run: int, done: Callable[[bool | Unavailable], None]) -> None:
        self._writer.prune(workflow, run, done)

    @at_once
    def kept(self, kind: str) -> list[Entry]:
        return [Entry(kind, *row) for row in self._all("kept", kind)]

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
        with suppress(OSError):  # who holds it, for people; a full disk must not keep the engine from its work
            lock.truncate(0)
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        self._lock = lock
        forks.locks.add(lock)
        self._writer.tell = False
        return True

    def changed(self) -> bool:
        if self._writer.away or self._writer.connection is None:
            return False  # asked again soon
        version = self._data_version()
        if version == self._version:
            return False
        self._version = version
        return True

    @at_once
    def notices(self) -> list[int]:
        found = self._all("notices", self._noticed)
        if not found:
            return []
        # Keys are given anew when the table is empty, so the mark goes with the rows.
        last: int = found[-1][0]
        self._noticed = 0 if self._writer.forget_notices(last) else last
        return list(dict.fromkeys(workflow for _, workflow in found))

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

    @at_once
    def find(self, namespace: str, workflow_id: str) -> int | None:
        row = self._one("find", namespace, workflow_id)
        return None if row is None else row[0]

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
        row = self._one("load_workflow", key)
        if row is None:
            return None
        *columns, held = row
        workflow = WorkflowRow(*columns, held=() if held is None else unpack_held(self._kinds, held))
        tasks = [rows.task(body) for (body,) in self._all("load_tasks", key)]
        if workflow.run is None:
            return Loaded(workflow, None, [], tasks)
        found = self._one("run_by_key", workflow.run)
        if found is None:
            raise HistoryDamaged(workflow.run, 0, f"the row of a run of workflow {workflow.workflow_id!r} is missing")
        run = rows.run(found)
        history = self._history(run.key, 0, None)
        if len(history) < workflow.length:
            damage = HistoryDamaged(run.key, len(history) + 1, "missing, and so is everything behind it")
            raise damage.of(run.workflow_id, run.run_id)
        if history[workflow.length :] or (history and history[-1].checksum != workflow.checksum):
            damage = HistoryDamaged(run.key, len(history), "it is not the event its workflow ended with")
            raise damage.of(run.workflow_id, run.run_id)
        return Loaded(workflow, run, history, tasks)

    @at_once
    def locate(self, run_id: str) -> Located | None:
        row = self._one("locate", run_id)
        return None if row is None else Located(*row)

    @at_once
    def history(self, run: int, after: int = 0, limit: int | None = None) -> list[Recorded]:
        return self._history(run, after, limit)

    def _history(self, run: int, after: int, limit: int | None) -> list[Recorded]:
        try:
            return self._verified(run, after, limit)
        except HistoryDamaged as damage:
            raise self._named(damage) from damage.__cause__

    def _named(self, damage: HistoryDamaged) -> HistoryDamaged:
        """History rows know their run by its key; its own row knows what people call it."""
        found = self._one("run_by_key", damage.run)
        if found is None:
            return damage
        run = rows.run(found)
        return damage.of(run.workflow_id, run.run_id)

    def _verified(self, run: int, after: int, limit: int | None) -> list[Recorded]:
        # Reading on from the middle takes one row more, whose checksum the next one is chained to.
        start = max(after - 1, 0)
        count = _EVERYTHING if limit is None else limit + (after - start)
        found = self._all("history", run, start, count)
        events: list[Recorded] = []
        previous = (0, 0)
        if after and found:
            if found[0][0] != after:
                raise HistoryDamaged(run, after, f"missing; the next stored event is {found[0][0]}")
            previous = (after, found.pop(0)[5])
        for row in found:
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
        try:
            return restore(self._kinds, run, found[0], previous)
        except HistoryDamaged as damage:
            raise self._named(damage) from damage.__cause__

    @at_once
    def due(self, until: Micros, limit: int) -> list[tuple[Micros, int]]:
        return [(at, key) for at, key in self._all("due", until, limit)]

    @at_once
    def ahead(self, now: Micros, after: tuple[Micros, int], limit: int) -> list[tuple[Micros, int]]:
        return [(at, key) for at, key in self._all("ahead", after[0], *after, now, limit)]

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
        try:
            found = self._lister.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
        return [rows.run(row) for row in found]

    @at_once
    def run(self, run_id: str) -> RunRow | None:
        row = self._one("run_by_id", run_id)
        return None if row is None else rows.run(row)

    @at_once
    def commands(self, workflow: int) -> list[CommandRecord]:
        return [rows.command(body) for (body,) in self._all("commands", workflow)]

    @at_once
    def command(self, workflow: int, command_type: str, request_id: str) -> CommandRecord | None:
        row = self._one("command_by_request", workflow, command_type, request_id)
        return None if row is None else rows.command(row[0])

    @at_once
    def sends(self, after: int, limit: int) -> list[StoredSend]:
        return [StoredSend(*row) for row in self._all("sends", after, limit)]

    @at_once
    def awaiting(self, after: int, limit: int) -> list[int]:
        return [key for (key,) in self._all("awaiting", after, limit)]

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
        assert connection is not None, "asked only while there is a connection"
        try:
            return connection.execute("pragma data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise unavailable(self.path, error) from error
