"""The SQL of the PostgreSQL store: every named query prepares, is used, and the hot ones never read a whole table."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backstay.kernel.views.run_query import RunPlace
from backstay.store import RunFilter
from backstay.store import postgresql as dialect
from backstay.store.postgresql.connection import address, prepare, writing
from backstay.store.postgresql.listing import DIALECT, select_runs
from backstay.store.postgresql.pooled import TABLES as OUR_TABLES
from backstay.store.postgresql.pooled import qualified
from backstay.store.postgresql.shapes import ALL as SHAPES_ALL
from backstay.store.postgresql.shapes import TABLES, Shapes
from backstay.store.sql import OF_SHARDS, number, queries
from backstay.store.views import VIEWS

from ..postgresql import with_schema
from .plans import SEARCHES, statements

QUERIES = queries("backstay.store.postgresql", numbered=True)

HOT = {
    "find": "workflow_id",
    "find_all": "workflow_id",
    "load": "workflow_pkey",
    "locate": "run_id",
    "history": "event_run",
    "last_event": "event_run",
    "due": "workflow_wake",
    "written_in_future": "workflow_wake",
    "ready": "task_ready",
    "endless": "task_other",
    "last": "workflow_pkey",
    "moved": "workflow_pkey",
    "mismatched": "workflow_pkey",
    "run_by_id": "run_id",
    "run_by_key": "run_pkey",
    "commands": "command_key",
    "command_by_request": "command_request",
    "sends": "send_pkey",
    "sends_of": "send_sender",
    "awaiting": "workflow_awaited",
    "write": "workflow_pkey",
}


@pytest.fixture(scope="session")
def url(postgresql_server: str) -> str:
    return with_schema(postgresql_server, f"plans_{os.getpid()}")


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Any]:
    place = address(url)
    connection = await writing(place)  # with the settings of a session that writes
    try:
        await prepare(connection, place, True)
        await connection.execute("set plan_cache_mode = force_generic_plan")
        yield connection
    finally:
        await connection.close(timeout=5)


async def plan(connection: Any, statement: str, parameters: int) -> str:
    await connection.execute(f"prepare one as {statement}")
    nulls = "(" + ",".join(["null"] * parameters) + ")" if parameters else ""
    found = await connection.fetch(f"explain (costs off) execute one{nulls}")
    await connection.execute("deallocate one")
    return "\n".join(row[0] for row in found)


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_used(name: str) -> None:
    native = Path(dialect.__file__).parent
    code = [
        *native.glob("*.py"),
        native.parent / "reading.py",
        native.parent / "views.py",
        native.parent / "figures.py",
        native.parent / "measures.py",
        native.parent / "rows.py",
    ]
    # The statements of the views are named after them.
    name = name.removesuffix(OF_SHARDS)
    spelt = {f'"{name}"', *(f'"{name.removesuffix(view)}{{view}}"' for view in VIEWS if name.endswith(view))}
    assert any(one in place.read_text(encoding="utf-8") for place in code for one in spelt)


async def test_every_query_prepares_and_the_hot_ones_go_through_their_index(url: str) -> None:
    async with session(url) as connection:
        for name, statement in QUERIES.items():
            prepared = await connection.prepare(statement)
            steps = await plan(connection, statement, len(prepared.get_parameters()))
            index = HOT.get(name.removesuffix(OF_SHARDS))
            if index is not None:
                assert index in steps, f"{name}\n{steps}"
                assert "Seq Scan on" not in steps.replace("Seq Scan on writer", ""), f"{name}\n{steps}"
                assert "Sort Key: w" not in steps, f"{name}\n{steps}"


async def test_no_shape_of_the_statement_that_writes_reads_a_whole_table(url: str) -> None:
    shapes = Shapes(QUERIES["write"], most=1 << len(TABLES))
    guards = [1 << TABLES.index(name) for name in ("fresh", "moved")]
    async with session(url) as connection:
        for tables in sorted({guard | 1 << bit for guard in guards for bit in range(len(TABLES))} | {SHAPES_ALL}):
            statement, _ = shapes.fitting(tables, telling=bool(tables & 1))
            prepared = await connection.prepare(statement)
            steps = await plan(connection, statement, len(prepared.get_parameters()))
            assert "Seq Scan on" not in steps, f"{tables:b}\n{steps}"


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (RunFilter(workflow_id="order-1"), "run_workflow"),
        (RunFilter(status="failed"), "run_status"),
        (RunFilter(business_key="b-1"), "run_business_key"),
        (RunFilter(before=7), "run_pkey"),
    ],
    ids=["workflow id", "status", "business key", "page"],
)
async def test_a_list_by_an_indexed_column_does_not_read_all_runs(url: str, where: RunFilter, index: str) -> None:
    statement, parameters = select_runs(QUERIES["runs"], where)
    async with session(url) as connection:
        steps = await plan(connection, statement, len(parameters))
    assert index in steps
    assert "Seq Scan" not in steps


async def test_a_search_reads_no_table_as_a_whole(url: str) -> None:
    async with session(url) as connection:
        for kind, (query, index) in SEARCHES.items():
            for after in (None, RunPlace(9, 9)):
                steps = ""
                for statement, parameters in statements(DIALECT, query, after):
                    steps += await plan(connection, number(statement), len(parameters))
                assert re.search({"facet": "facet_key"}.get(index, index), steps), f"{kind}\n{steps}"
                assert "Seq Scan" not in steps, f"{kind}\n{steps}"


async def test_every_query_finds_its_tables_by_their_schema(url: str) -> None:
    place = address(url)
    async with session(url) as connection:
        found = await connection.fetch("select tablename from pg_tables where schemaname = $1", place.schema)
        assert {name for (name,) in found} == set(OUR_TABLES), "a table that is new is named in `pooled.py`"
        await connection.execute("set search_path = ''")
        for statement in (*QUERIES.values(), *_all_shapes(), *_searches()):
            await connection.prepare(qualified(statement, place.schema))


def _all_shapes() -> Iterator[str]:
    shapes = Shapes(QUERIES["write"])
    for telling in (False, True):
        yield shapes.fitting(SHAPES_ALL, telling).statement


def _searches() -> Iterator[str]:
    for query, _ in SEARCHES.values():
        for statement, _ in statements(DIALECT, query, None):
            yield number(statement)
