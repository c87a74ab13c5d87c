"""Processes at one PostgreSQL database that do not fit together: of two releases, with one id, or where locks are not real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backstay.kernel.features.activity import ScheduleActivity
from backstay.store import ALL, RunFilter
from backstay.store.errors import IncompatibleStore
from backstay.store.ownership import NodeFacts
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.connection import migrate, sees_locks
from backstay.store.sql import Migration, migrations

from .instances import applied, apply, expected, stored
from .ownership_conformance import placed
from .test_postgresql import Handles, common_url, database, fresh
from .test_postgresql_ownership import joined
from .view_conformance import project

__all__ = ["common_url", "database", "fresh"]

LATER = """
alter table run add column later text;
alter table workflow add column later bigint not null default 7;
alter table task add column later bigint;
alter table writer add column later boolean not null default true;
alter table shard add column later text;
alter table workflow_run_summaries add column later text;
drop index run_type;
create index run_type_later on run (namespace, workflow_type, key);
"""


@pytest.mark.parametrize("pooler", ["", "&pooler=transaction"], ids=["directly", "as through a pooler"])
async def test_a_process_goes_on_while_a_later_release_migrates_the_schema(fresh: Handles, pooler: str) -> None:
    one = await joined(fresh, 1, url=f"{fresh.where}{pooler}")
    before, after = placed(1), placed(1)

    async def works(*flows: Any) -> None:
        for flow in flows:
            assert await stored(one, flow) == expected(flow)
        assert {run.workflow for run in await one.runs(RunFilter())} == {flow.key for flow in flows}
        assert await one.mark(NodeFacts(), 1)
        assert (await one.look()).shards[1].owner == one.me
        for flow in flows:
            await project(one, flow, waits=[{"kind": "timer"}])
            assert await one.summaries([flow.run.key])
            assert await one.view_rows("waits", flow.run.key)

    await applied(one, before)
    await works(before)
    steps = migrations("backstay.store.postgresql")
    async with fresh.session() as session:
        await migrate(session, fresh.place, [*steps, Migration(steps[-1].number + 1, "later", LATER)])
    assert await apply(one, *before.step(ScheduleActivity(activity_type="charge"))) == ALL
    await applied(one, after)
    await works(before, after)
    with pytest.raises(IncompatibleStore, match="upgrade Backstay"):
        await fresh.open()


async def test_two_processes_with_one_id_part(database: Handles) -> None:
    """As a copy of a running machine has it. Each commit is there once, and one of them begins anew."""
    one, twin = await joined(database, 1), await database.open()
    twin.writer.id = one.me
    flows = [placed(1) for _ in range(12)]
    for number, flow in enumerate(flows):
        store = (one, twin)[number % 4 == 3]
        done = await apply(store, *flow.written)
        if done.down is not None:
            assert await store.probe() is None
            done = await apply(store, *flow.written)
        assert done == ALL
    assert one.me != twin.me
    for flow in flows:
        assert await stored(one, flow) == expected(flow)


class WithoutRealLocks:
    """A session of a database whose locks by name are all granted and never shown."""

    async def fetch(self, query: str, *parameters: Any) -> list[Sequence[Any]]:
        return [("pg_locks" not in query,)]


async def test_a_database_whose_locks_do_not_lock_is_recognised(database: Handles) -> None:
    stub: Any = WithoutRealLocks()
    assert not await sees_locks(stub, stub)
    async with database.session() as session, database.session() as other:
        assert await sees_locks(session, other)
        assert not await sees_locks(session, session), "a lock that its holder gets again is no evidence"


async def test_what_is_not_recognised_can_be_said(database: Handles) -> None:
    store: PostgresqlStore = await database.open(f"{database.where}&sessions=no")
    assert not store.writer.evidence
