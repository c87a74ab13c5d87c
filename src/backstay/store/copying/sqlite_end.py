"""A SQLite file as an end of a copy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from backstay.store.copying.tables import COPIED, RUN, CopiedTable, Insert, Row, columns_of
from backstay.store.errors import StoreError
from backstay.store.sql import queries
from backstay.store.sqlite import SqliteStore
from backstay.store.sqlite.connection import unavailable

_SOME = 100  # rows at a time


class SqliteEnd:
    position = "rowid"

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.shown = f"sqlite:{store.path}"
        self._facets = queries("backstay.store.sqlite")["insert_facets"]

    @property
    def _connection(self) -> sqlite3.Connection:
        connection = self.store.writer.connection
        assert connection is not None, "nothing but `close` takes it away"
        return connection

    async def hold(self) -> None:
        path = self.store.path
        if path == ":memory:":
            raise StoreError("a database in memory exists in its own process only; name a file")
        if not await self.store.acquire():
            raise StoreError(
                f"{_process(_engine(path))} runs the engine of {path}; stop it, so that nothing changes during the copy"
            )
        users = _users(path)
        if users:
            raise StoreError(
                f"{', '.join(_process(user) for user in users)} has {path} open; stop it, so that nothing changes during"
                " the copy"
            )

    async def freeze(self) -> None:
        self._do("begin immediate")  # until the end no other process gets the lock for writing

    async def thaw(self) -> None:
        self._do("rollback")

    async def rows(self, statement: str, *given: Any) -> AsyncIterator[Row]:
        try:
            cursor = self._connection.execute(statement, given)
            while page := cursor.fetchmany(_SOME):
                for row in page:
                    yield row
        except sqlite3.Error as error:
            raise unavailable(self.store.path, error) from error

    async def write(self, work: Callable[[Insert], Awaitable[None]], *before: tuple[str, Row]) -> None:
        self._do("begin immediate")
        try:
            for statement, given in before:
                self._do(statement, given)
            await work(self._insert)
            self._do("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("rollback")
            raise

    async def _insert(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        columns = columns_of(self, table)
        marks = ", ".join("?" for _ in columns)
        try:
            self._connection.executemany(
                f"insert into {table.name} ({', '.join(columns)}) values ({marks})", map(tuple, rows)
            )
            if table is RUN:
                labels, search = RUN.columns.index("labels"), RUN.columns.index("search_attributes")
                faceted = [(row[0], row[0]) for row in rows if row[labels] or row[search]]
                self._connection.executemany(self._facets, faceted)
        except sqlite3.Error as error:
            raise unavailable(self.store.path, error) from error

    async def clear(self) -> None:
        async def nothing(_: Insert) -> None: ...

        await self.write(nothing, *((f"delete from {table.name}", ()) for table in reversed(COPIED)))

    async def settle(self) -> None:
        self._do("pragma optimize")

    async def close(self) -> None:
        await self.store.close()

    def _do(self, statement: str, given: Row = ()) -> None:
        try:
            self._connection.execute(statement, given)
        except sqlite3.Error as error:
            raise unavailable(self.store.path, error) from error


def _engine(path: str) -> int | None:
    """The process that holds the engine's lock, which writes its number into it."""
    try:
        return int(Path(f"{path}-engine").read_text())
    except (OSError, ValueError):
        return None


def _users(path: str) -> list[int]:
    """Other processes that have the file open, as far as this system and this user can know."""
    processes: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with suppress(OSError):
            if any(os.readlink(file) in (path, f"{path}-wal") for file in (process / "fd").iterdir()):
                processes.append(int(process.name))
    return sorted(processes)


def _process(number: int | None) -> str:
    if number is None:
        return "another process"
    try:
        command = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return f"process {number} ({command[:80]})" if command else f"process {number}"
