"""A thread with a reading connection of its own: it reads for operators while the engine works."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from backstay.store.errors import Unavailable
from backstay.store.sqlite.connection import connect, unavailable

T = TypeVar("T")


class ReaderThread:
    """Started at the first use. One piece of work at a time, in order of submission."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._threads: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None  # used by the thread
        self._old = False  # the file may be another one: connect again
        self._closed = False

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise Unavailable(f"{self._path}: the database is closed")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, self._name)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)
        except sqlite3.Error as error:
            raise unavailable(self._path, error) from error

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._old:
            self._drop()
            self._old = False
        connection = self._connection
        if connection is None:
            connection = self._connection = connect(self._path, readers=True)
        try:
            # One read transaction: all of it is of the same moment.
            connection.execute("begin")
            try:
                return work(connection)
            finally:
                connection.execute("rollback")
        except sqlite3.Error:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def reopen(self) -> None:
        """Connect again before the next work."""
        self._old = True

    def close(self) -> None:
        """End the thread. Work that it is at is broken off."""
        self._closed = True
        if self._threads is not None:
            connection = self._connection
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.interrupt()
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._drop()
