"""A connection to a pooler in transaction mode: each transaction may be in another session of the server.

So nothing of ours may be in a session. Tables are named with their schema. A statement has no name on the server: it is
parsed and run in one message, which is one transaction. Its description, which costs a round trip, is read once for a
connection. Settings are those of the server, the database and the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

TABLES = (
    "command",
    "engine",
    "event",
    "facet",
    "migration",
    "notice",
    "outcome",
    "registry",
    "run",
    "send",
    "shard",
    "tally",
    "task",
    "workflow",
    "workflow_run_lineage_entries",
    "workflow_run_summaries",
    "workflow_run_timeline_entries",
    "workflow_run_timer_entries",
    "workflow_run_waits",
    "writer",
)
"""All of ours. Columns have the same names as some of them, but never stand where a table does."""

MOST = 300  # statements whose looks are kept; there are fewer, apart from searches

_TABLE = re.compile(rf"\b((?:from|join|into|update|using)\s+)({'|'.join(TABLES)})\b(?![.(])")
_CLASS = re.compile(rf"'({'|'.join(TABLES)})'(?=::regclass)")


def qualified(statement: str, schema: str) -> str:
    """The statement with the schema before each of our tables."""
    return _CLASS.sub(rf"'{schema}.\1'", _TABLE.sub(rf'\1"{schema}".\2', statement))


class PooledConnection:
    """`connection`: of asyncpg, which keeps no statements on the server."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._statements: dict[str, Any] = {}

    async def fetch(self, query: str, *parameters: Any) -> list[Sequence[Any]]:
        return await (await self._statement(query)).fetch(*parameters)

    async def execute(self, query: str, *parameters: Any) -> str:
        """Without parameters it may be several statements, and names of tables are left as they are."""
        if not parameters:
            return await self._connection.execute(query)
        await self.fetch(query, *parameters)
        return ""

    async def executemany(self, query: str, parameters: Sequence[Sequence[Any]]) -> None:
        await (await self._statement(query)).executemany(parameters)

    async def _statement(self, query: str) -> Any:
        statement = self._statements.get(query)
        if statement is None:
            if len(self._statements) >= MOST:
                del self._statements[next(iter(self._statements))]
            statement = self._statements[query] = await self._connection.prepare(qualified(query, self._schema))
        return statement

    def transaction(self) -> Any:
        return self._connection.transaction()

    def get_server_version(self) -> tuple[int, ...]:
        return self._connection.get_server_version()

    async def close(self, *, timeout: float) -> None:
        self._statements.clear()
        await self._connection.close(timeout=timeout)

    def terminate(self) -> None:
        self._connection.terminate()

    def is_closed(self) -> bool:
        return self._connection.is_closed()
