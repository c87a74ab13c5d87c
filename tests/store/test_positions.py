"""Positions of commands on PostgreSQL, which writers mint by their own clocks: the order of one instance is that of its commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import asyncpg
from msgspec.structs import replace

from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.values import SECOND
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.connection import address, migrate
from backstay.store.postgresql.positions import Positions
from backstay.store.rows import encode
from backstay.store.sql import migrations

from ..kernel.given import MACHINE, T0
from .instances import StoredFlow, applied, apply

HOUR = 3600 * SECOND


@asynccontextmanager
async def two_clocks(url: str) -> AsyncIterator[tuple[PostgresqlStore, PostgresqlStore]]:
    """The clock of the second handle is an hour behind that of the first."""
    stores = [await PostgresqlStore.open(url, MACHINE.kinds) for _ in range(2)]
    for store, clock in zip(stores, (T0 + HOUR, T0), strict=True):
        store.writer.positions = Positions(lambda clock=clock: clock)
    try:
        yield stores[0], stores[1]
    finally:
        for store in stores:
            await store.close()


async def positions(url: str, workflow: int) -> list[int]:
    place = address(url)
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        rows = await connection.fetch("select position from command where workflow = $1 order by position", workflow)
        return [row[0] for row in rows]
    finally:
        await connection.close()


async def test_commands_of_an_instance_stay_in_order_when_a_clock_is_an_hour_behind(postgresql_url: str) -> None:
    async with two_clocks(postgresql_url) as (ahead, behind):
        flow, other = StoredFlow(), StoredFlow()
        flow.start(at=0)
        await applied(ahead, flow)
        done = len(flow.written)
        for number in range(9):
            for part in range(1 + number % 3):  # one, two or three commands in one batch
                flow.when(DeliverSignal(name="go", request_id=f"{number}-{part}"), at=1)
            batch, done = flow.written[done:], len(flow.written)
            assert (await apply((behind, ahead, behind)[number % 3], *batch)).stale == frozenset()
        assert await ahead.commands(flow.key) == flow.commands
        assert await behind.last_command(flow.key, "signal") == flow.commands[-1]
        log = await ahead.command_log(1 << 62, 100, flow.key)
        assert [one.record for one in log] == flow.commands[::-1]
        assert all(a < b for a, b in pairwise(await positions(postgresql_url, flow.key)))
        other.start(at=0)
        await applied(behind, other)
        assert (await positions(postgresql_url, other.key))[0] < min(await positions(postgresql_url, flow.key))


async def test_what_an_earlier_version_recorded_comes_first(postgresql_url: str) -> None:
    async with two_clocks(postgresql_url) as (ahead, _):
        flow = StoredFlow()
        flow.start(at=0)
        await applied(ahead, flow)
        place = address(postgresql_url)
        connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
        await connection.execute("update command set position = 7")  # as an identity column gave them
        flow.when(Cancel(), at=1)
        await apply(ahead, *flow.written[-1:])
        assert await ahead.commands(flow.key) == flow.commands
        # An earlier version that still runs beside says no position, and no key of a notice.
        for _ in range(3):
            await connection.execute(
                "insert into command (workflow, command_type, body) select workflow, 'late', body from command limit 1"
            )
            await connection.execute("insert into notice (workflow) values ($1)", flow.key)
        await connection.close()
        kinds = [one.record.command_type for one in await ahead.command_log(1 << 62, 3, flow.key)]
        assert len(kinds) == 3
        assert len(set(await positions(postgresql_url, flow.key))) == len(flow.commands) + 3


def test_positions_grow_when_a_clock_stands_still_or_goes_back() -> None:
    clock = [T0]
    minted = Positions(lambda: clock[0])
    found = [minted.mint(), minted.mint()]
    clock[0] -= HOUR
    found += [minted.mint(), minted.mint()]
    clock[0] += 2 * HOUR
    found.append(minted.mint())
    assert all(a < b for a, b in pairwise(found))
    assert found[-1] < 1 << 62


async def test_notices_of_two_handles_are_all_told(postgresql_url: str) -> None:
    async with two_clocks(postgresql_url) as (first, second):
        crowd = [StoredFlow() for _ in range(8)]
        for flow in crowd:
            flow.start(at=0)
        await asyncio.gather(applied(first, *crowd[:4]), applied(second, *crowd[4:]))
        assert sorted(await first.notices()) == sorted(flow.key for flow in crowd)
        assert await first.notices() == []


async def test_a_schema_of_an_earlier_version_knows_its_leases_and_goes_on_counting(postgresql_url: str) -> None:
    place = address(postgresql_url)
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    await migrate(connection, place, migrations("backstay.store.postgresql")[:6])
    flow = StoredFlow()
    flow.start(at=0)
    (task,) = flow.rows.values()
    for id, until in (("a", None), ("b", T0 + HOUR)):
        lease = replace(task, id=id, state="leased", until=until)
        await connection.execute(
            "insert into task (workflow, id, state, available_at, body) values ($1, $2, 'leased', 1, $3)",
            *(flow.key, id, encode(lease)),
        )
    await connection.execute(
        "insert into task (workflow, id, state, available_at, body) values (1, 'c', 'leased', 1, 'x')"
    )
    await connection.execute("insert into command (workflow, command_type, body) values ($1, 'old', '{}')", flow.key)
    await connection.execute("insert into notice (workflow) values (9), (8)")
    async with two_clocks(postgresql_url) as (ahead, _):
        rows = await connection.fetch("select id, until from task order by id")
        assert [tuple(row) for row in rows] == [("a", None), ("b", T0 + HOUR), ("c", None)]
        await connection.execute("delete from task where id = 'c'")  # nobody can read it
        assert [task.id for task in await ahead.endless(10)] == ["a"]
        assert sorted(await ahead.notices()) == [8, 9]
        await connection.execute("delete from task")
        await applied(ahead, flow)
        assert (await positions(postgresql_url, flow.key))[0] == 1
    await connection.close()
