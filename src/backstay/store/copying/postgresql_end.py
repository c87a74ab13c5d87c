"""A PostgreSQL schema as an end of a copy.

Rows are written in the session that holds the engine's lock: if it is lost, the lock is, and nothing more is committed. They are
read in another session, in one transaction that keeps all others from writing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from backstay.store import rows
from backstay.store.copying.tables import COPIED, TASK, CopiedTable, Insert, Row
from backstay.store.errors import StoreError
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.columns import call_of
from backstay.store.postgresql.connection import LOCK, Address, connect
from backstay.store.postgresql.driver import DriverConnection, unavailable
from backstay.store.sql import number

_SOME = 100  # rows at a time

_ENGINE = """
select a.pid, a.application_name, coalesce(host(a.client_addr), 'the machine of the server')
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory'
  and l.database = (select oid from pg_database where datname = current_database())
  and l.classid = $1::bigint::oid
  and l.objid = 'workflow'::regclass::oid
  and l.objsubid = 1
  and l.granted
"""


class PostgresqlEnd:
    position = "position"

    def __init__(self, store: PostgresqlStore, database: Address) -> None:
        self.store = store
        self.shown = f"{database.shown}?schema={database.schema}"
        self._place = database
        self._reading: Any = None
        self._tables = ", ".join(table.name for table in COPIED)

    async def hold(self) -> None:
        if await self.store.acquire():
            return
        connection: Any = await connect(self._place)
        with self._errors():
            sessions = await connection.fetch(_ENGINE, LOCK)
            await connection.close()
        which = (
            "a process"
            if not sessions
            else f"a process at {sessions[0][2]} (session {sessions[0][0]}, {sessions[0][1]!r})"
        )
        raise StoreError(f"{which} runs the engine of {self.shown}; stop it, so that nothing changes during the copy")

    async def freeze(self) -> None:
        self._reading = await connect(self._place)
        with self._errors():
            # One look into an index a run, however large the tables are and whatever is known of them.
            for way in ("seqscan", "hashjoin", "mergejoin"):
                await self._reading.execute(f"set enable_{way} = off")
            await self._reading.execute("begin isolation level repeatable read")
            await self._reading.execute(f"lock table {self._tables} in share mode")

    async def thaw(self) -> None:
        reading, self._reading = self._reading, None
        with self._errors():
            await reading.close()

    async def rows(self, statement: str, *given: Any) -> AsyncIterator[Row]:
        with self._errors():
            async for row in self._reading.cursor(number(statement), *given, prefetch=_SOME):
                yield tuple(row)

    async def write(self, work: Callable[[Insert], Awaitable[None]], *before: tuple[str, Row]) -> None:
        async def within(session: DriverConnection) -> None:
            async with session.transaction():
                for statement, given in before:
                    await session.execute(number(statement), *given)
                await work(lambda table, rows: self._insert(session, table, rows))

        await self.store.writer.do(within)

    async def _insert(self, session: Any, table: CopiedTable, records: Sequence[Row]) -> None:
        for row in records:
            if any(isinstance(value, str) and "\0" in value for value in row):
                raise StoreError(
                    f"a row of the table {table.name} has a text with a zero byte, which PostgreSQL cannot store:"
                    f" {row[:6]!r}"
                )
        columns = table.columns
        if table is TASK:
            columns, records = (*columns, "until", "call"), [task_row(row) for row in records]
        await session.copy_records_to_table(
            table.name, schema_name=self._place.schema, columns=columns, records=records
        )

    async def clear(self) -> None:
        async def remove(session: DriverConnection) -> None:
            await session.execute(f"truncate {self._tables}, facet")

        await self.store.writer.do(remove)

    async def settle(self) -> None:
        async def analyze(session: DriverConnection) -> None:
            await session.execute(f"analyze {self._tables}, facet")

        await self.store.writer.do(analyze)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.terminate()
        await self.store.close()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (StoreError, GeneratorExit):
            raise
        except Exception as error:
            raise unavailable(self._place.shown, error) from error


def task_row(row: Row) -> Row:
    """A file keeps which workers a task waits for only while it is ready, and the end of its lease only in its body."""
    workflow, id, state, available_at, body, *wanted = row
    try:
        task = rows.task(body)
    except msgspec.DecodeError:
        return (*row, None, None)  # loading its instance says why
    routing = task.routing
    wanted = (routing.namespace, routing.queue, task.kind, task.type, routing.compatibility or "")
    return (workflow, id, state, available_at, body, *wanted, task.until, call_of(task))
