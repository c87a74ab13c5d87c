"""The PostgreSQL store: the common suite on a real server, then what only a server can do to us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.store.postgresql import PostgresqlStore
from holdfast.store.postgresql.connection import address

from ..kernel.given import MACHINE
from .conformance import Alone, Shared


class Handles:
    """Every handle that a test opens on one schema."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = address(url)
        self._stores: list[PostgresqlStore] = []

    async def open(self) -> PostgresqlStore:
        store = await PostgresqlStore.open(self.url, MACHINE.kinds)
        self._stores.append(store)
        return store

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.place.dsn, server_settings={"search_path": self.place.schema})
        try:
            yield connection
        finally:
            await connection.close()

    async def sql(self, statement: str) -> None:
        async with self.session() as connection:
            await connection.execute(statement)

    async def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        async with self.session() as connection:
            return [tuple(row) for row in await connection.fetch(query, *parameters)]

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@pytest.fixture
def database(postgresql_url: str, runner: asyncio.Runner) -> Iterator[Handles]:
    handles = Handles(postgresql_url)
    yield handles
    runner.run(handles.close())


class TestServer(Alone, Shared):
    pass
