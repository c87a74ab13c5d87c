"""Sessions that read, and write stored views: a few, opened when they are needed, so that a long list never blocks a load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from backstay.store.postgresql.connection import Address, closed, connect
from backstay.store.postgresql.driver import DriverConnection, is_lost, is_misuse, unavailable
from backstay.store.views import Statements

READERS = 4


class Readers:
    def __init__(self, database: Address, first: DriverConnection) -> None:
        self._place = database
        self._idle = [first]
        self._room = asyncio.Semaphore(READERS)
        self._closed = False

    async def fetch(self, statement: str, *parameters: Any) -> list[Sequence[Any]]:
        async with self._room:
            if self._closed:
                raise closed(self._place)
            if self._idle:
                try:
                    return await self._fetch(self._idle.pop(), statement, parameters)
                except Exception as error:
                    if is_misuse(error):
                        raise
                    if not is_lost(error):
                        raise unavailable(self._place.shown, error) from error
                    self.forget()  # idle sessions were cut, most likely all of them
            connection = await connect(self._place)
            try:
                return await self._fetch(connection, statement, parameters)
            except Exception as error:
                if is_misuse(error):
                    raise
                raise unavailable(self._place.shown, error) from error

    async def _fetch(
        self, connection: DriverConnection, statement: str, parameters: Sequence[Any]
    ) -> list[Sequence[Any]]:
        try:
            rows = await connection.fetch(statement, *parameters)
        except BaseException:
            connection.terminate()
            raise
        if self._closed:
            connection.terminate()
        else:
            self._idle.append(connection)
        return rows

    async def write_views(self, statements: Statements) -> None:
        """Write stored views, in one transaction that need not be on disk at once: they can be made again."""
        async with self._room:
            if self._closed:
                raise closed(self._place)
            connection = self._idle.pop() if self._idle else await connect(self._place)
            try:
                async with connection.transaction():
                    await connection.execute("set local synchronous_commit = off")
                    for statement, rows in statements:
                        await connection.executemany(statement, rows)
            except Exception as error:
                connection.terminate()
                raise unavailable(self._place.shown, error) from error
            except BaseException:
                connection.terminate()
                raise
            if self._closed:
                connection.terminate()
            else:
                self._idle.append(connection)

    def forget(self) -> None:
        """Close all idle sessions: the server may have been replaced."""
        while self._idle:
            self._idle.pop().terminate()

    async def close(self, seconds: float) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close(timeout=seconds)
