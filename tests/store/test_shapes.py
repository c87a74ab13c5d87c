"""The shapes of the statement that writes: any batch leaves the same rows behind in its shape as in the whole statement."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.kernel.decision import Decision
from backstay.kernel.features.delivery import Deliver
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.columns import WIDTHS
from backstay.store.postgresql.connection import address
from backstay.store.postgresql.shapes import ALL, MOST, TABLES, Shapes
from backstay.store.sql import queries

from ..kernel.given import MACHINE
from ..kernel.world import call
from ..postgresql import with_schema
from .instances import STEPS, UNHURRIED, StoredFlow, apply, walk

WHOLE = queries("backstay.store.postgresql", numbered=True)["write"]

ROWS = {
    "workflow": "select * from workflow order by key",
    "run": "select * from run order by key",
    "event": "select * from event order by run, sequence",
    "task": "select * from task order by workflow, id",
    "command": "select workflow, sequence, request_id, command_type, body from command order by workflow, position",
    "send": "select * from send order by key",
    "notice": "select workflow from notice order by workflow, key",
    "writer": "select batch, committed from writer order by batch",
    "outcome": "select batch, array(select unnest(stale) order by 1) from outcome",
}


class Twice:
    """The same batches in two schemas: in shapes, and in the whole statement."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    async def begin(self, holder: bool) -> None:
        self.stores = [await PostgresqlStore.open(url, MACHINE.kinds) for url in self._urls]
        for url in self._urls:
            await _ask(url, ";".join(f"delete from {table}" for table in ROWS))
        self.stores[1].writer.shapes = Shapes(WHOLE, most=0)
        if holder:
            assert [await store.acquire() for store in self.stores] == [True, True]

    async def write(self, *decisions: Decision) -> None:
        shaped, whole = [await apply(store, *decisions) for store in self.stores]
        assert shaped.stale == whole.stale
        assert [str(error) for error in shaped.failed.values()] == [str(error) for error in whole.failed.values()]

    async def end(self) -> None:
        for name, query in ROWS.items():
            shaped, whole = [await _ask(url, query) for url in self._urls]
            assert shaped == whole, name
        for store in self.stores:
            await store.close()


async def _ask(url: str, query: str) -> list[Any]:
    place = address(url)
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        if query.startswith("select"):
            return [tuple(row) for row in await connection.fetch(query)]
        await connection.execute(query)
        return []
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def twice(postgresql_server: str) -> Twice:
    return Twice([with_schema(postgresql_server, f"{name}_{os.getpid()}") for name in ("shaped", "whole")])


@given(
    walks=st.lists(st.lists(st.sampled_from(STEPS), max_size=6), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    overtaken=st.lists(st.booleans(), min_size=1, max_size=6),
    messages=st.integers(0, 2),
    holder=st.booleans(),
)
@settings(max_examples=15, deadline=None, suppress_health_check=UNHURRIED)
def test_a_batch_leaves_the_same_rows_in_every_shape(
    twice: Twice,
    loop: asyncio.Runner,
    walks: list[list[str]],
    sizes: list[int],
    overtaken: list[bool],
    messages: int,
    holder: bool,
) -> None:
    crowd: list[list[Decision]] = []
    for steps in walks:
        flow = StoredFlow()
        walk(flow, steps)
        crowd.append(flow.written)
    for _ in range(messages):
        crowd += _parent_and_child()
    # Everybody's first, then everybody's second: a batch has decisions of several instances.
    decisions = [written[n] for n in range(max(map(len, crowd))) for written in crowd if n < len(written)]

    async def run() -> None:
        await twice.begin(holder)
        done = 0
        for number in range(len(decisions)):
            batch = decisions[done : done + sizes[number % len(sizes)]]
            again = decisions[:1] if done and overtaken[number % len(overtaken)] else []  # committed: it is stale
            if batch:
                await twice.write(*again, *batch)
            done += len(batch)
        await twice.end()

    loop.run(run())


def _parent_and_child() -> list[list[Decision]]:
    """The child takes in its second decision what the parent has sent in its last."""
    parent = StoredFlow()
    parent.start(at=0)
    parent.step(call())
    (send,) = parent.decisions[-1].sends
    child = StoredFlow(send.workflow_id)
    child.when(Deliver(send=send))
    return [parent.written, child.written]


def test_a_shape_has_the_parts_of_its_tables_and_numbers_its_parameters_anew() -> None:
    statement, tables = Shapes(WHOLE).fitting(1 << TABLES.index("moved") | 1 << TABLES.index("sent"), telling=False)
    assert tables == 0b1000000010
    assert "insert into send" in statement
    assert "update workflow" in statement
    for absent in ("insert into workflow", "notice", "union all", "from taken", "event", "$98"):
        assert absent not in statement
    last = 5 + WIDTHS[TABLES.index("moved")] + WIDTHS[TABLES.index("sent")]
    assert f"${last}::" in statement
    assert f"${last + 1}" not in statement


def test_a_batch_that_would_be_one_shape_too_many_takes_the_whole_statement() -> None:
    shapes = Shapes(WHOLE)
    kept = [shapes.fitting(tables, telling=False) for tables in range(1, MOST + 1)]
    assert [tables for _, tables in kept] == list(range(1, MOST + 1))
    whole = shapes.fitting(MOST + 1, telling=False)
    assert whole.tables == ALL
    assert f"${5 + sum(WIDTHS)}::" in whole.statement
    assert "notice" not in whole.statement
    assert shapes.fitting(3, telling=False) is kept[2]
    assert "notice" in shapes.fitting(3, telling=True).statement
