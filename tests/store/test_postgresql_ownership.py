"""Owners of shards on a real server: what two processes do at the same time, and what happens to their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from backstay.kernel.features.close import CompleteWorkflow
from backstay.store import ALL, Applied
from backstay.store.errors import Deposed
from backstay.store.ownership import SILENT, NodeFacts
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.connection import LOCK

from .instances import applied, apply
from .ownership_conformance import id_of, owners, placed
from .test_postgresql import Handles, common_url, database

__all__ = ["common_url", "database"]


async def joined(database: Handles, *shards: int, url: str | None = None) -> PostgresqlStore:
    store = await database.open(url)
    assert await store.mark(NodeFacts(), 1)
    assert set(await store.claim(shards)) == set(shards)
    for shard in shards:
        store.owned[shard] = 1
    return store


@asynccontextmanager
async def row_locked(database: Handles, statement: str, *given: Any) -> AsyncIterator[Any]:
    """A transaction of somebody else that holds the row which it has changed; it ends when the block ends, and commits."""
    async with database.session() as session, session.transaction():
        await session.execute(statement, *given)
        yield session


async def waiting(database: Handles, sessions: int = 1) -> None:
    """Until so many sessions wait for a lock of another one."""
    async with asyncio.timeout(10):
        while (
            await database.ask(
                "select count(*) from pg_stat_activity where application_name = 'backstay' and wait_event_type = 'Lock'"
            )
        )[0][0] < sessions:
            await asyncio.sleep(0.002)


BATCH = "update writer set batch = batch + 1, committed = batch + 1, seen = clock_timestamp() where id = $1"


async def test_a_process_whose_batch_is_under_way_is_judged_after_it(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    await database.silence(one, SILENT)
    async with row_locked(database, BATCH, one.writer.id):
        deposing = asyncio.ensure_future(other.depose(one.writer.id))
        await waiting(database)
    assert not await deposing
    assert await owners(other) == {1: one.writer.id}


async def test_a_process_that_comes_back_while_it_is_deposed_for_its_session_lives(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    await database.cut(one)
    async with database.session() as session:  # the lock goes with it, so it stays until all is over
        async with session.transaction():
            await session.execute("update writer set batch = batch where id = $1", one.writer.id)
            deposing = asyncio.ensure_future(other.depose(one.writer.id, gone=True))
            await waiting(database)
            await session.execute("select pg_advisory_lock_shared($1)", one.writer.id)
        assert not await deposing


async def test_a_batch_that_waits_for_its_deposition_writes_nothing(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    (late, after) = placed(1), placed(1)
    await database.silence(one, SILENT)
    # The shard is held, so the deposition stands still with the row of the process in its hands.
    async with row_locked(database, "update shard set term = term where id = 1"):
        deposing = asyncio.ensure_future(other.depose(one.writer.id))
        await waiting(database)
        writing = asyncio.ensure_future(apply(one, *late.written))
        await waiting(database, 2)
    assert await deposing
    assert isinstance((await writing).down, Deposed)
    assert await other.load(late.key) is None
    assert isinstance((await apply(one, *after.written)).down, Deposed)
    assert await owners(other) == {}


async def test_of_two_that_depose_one_does(database: Handles) -> None:
    one, other, third = await joined(database, 1), await joined(database), await joined(database)
    await database.silence(one, SILENT)
    async with row_locked(database, "update writer set batch = batch where id = $1", one.writer.id):
        both = [asyncio.ensure_future(store.depose(one.writer.id)) for store in (other, third)]
        await waiting(database, 2)
    assert sorted([await result for result in both]) == [False, True]
    assert (await other.look()).shards[1].term == 2


async def test_of_two_that_claim_one_does(database: Handles) -> None:
    one, other = await joined(database), await joined(database)
    async with row_locked(database, "update shard set clock = clock where id = 5"):
        both = [asyncio.ensure_future(store.claim([4, 5, 6])) for store in (one, other)]
        await waiting(database, 2)
    first, second = [set(await result) for result in both]
    assert first | second == {4, 5, 6}
    assert not first & second


async def test_shards_are_handed_over_or_freed_but_not_both(database: Handles) -> None:
    one, other = await joined(database, 1, 2), await joined(database)
    await database.silence(one, SILENT)
    async with row_locked(database, "update shard set clock = clock where id = 1"):
        deposing = asyncio.ensure_future(other.depose(one.writer.id))
        await waiting(database)
        giving = asyncio.ensure_future(one.hand_over([1, 2], other.writer.id, 1))
        await waiting(database, 2)
    assert await deposing
    assert await giving == []
    assert await owners(other) == {}
    third = await joined(database, 1, 2)
    await database.silence(third, SILENT)
    async with row_locked(database, "update shard set clock = clock where id = 1"):
        giving = asyncio.ensure_future(third.hand_over([1, 2], other.writer.id, 1))
        await waiting(database)
        deposing = asyncio.ensure_future(other.depose(third.writer.id))
        await waiting(database, 2)
    assert await giving == [1, 2]
    assert not await deposing, "handing over is a sign of life"
    assert await owners(other) == {1: other.writer.id, 2: other.writer.id}


async def test_a_claim_of_a_process_that_is_being_deposed_gets_nothing(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    await database.silence(one, SILENT)
    async with row_locked(database, "update shard set clock = clock where id = 1"):
        deposing = asyncio.ensure_future(other.depose(one.writer.id))
        await waiting(database)
        claiming = asyncio.ensure_future(one.claim([7]))
        await waiting(database, 2)
    assert await deposing
    assert await claiming == {}
    assert await owners(other) == {}


async def test_a_shard_given_to_a_process_that_is_dead_is_free(database: Handles) -> None:
    one, other, third = await joined(database, 1, 2), await joined(database), await joined(database)
    assert await one.hand_over([1, 2], other.writer.id, 1) == [1, 2]
    await database.sql(f"update writer set fenced = true where id = {other.writer.id}")
    assert set(await third.claim([1])) == {1}
    await database.sql(f"delete from writer where id = {other.writer.id}")
    assert set(await third.claim([2])) == {2}


async def test_a_handle_without_a_row_goes_on_only_if_it_owned_nothing(database: Handles) -> None:
    guest, owner = await joined(database), await joined(database, 1)
    await database.sql("delete from writer")
    await applied(guest, placed(3))
    assert await guest.mark(NodeFacts(), 1)
    assert isinstance((await apply(owner, *placed(1).written)).down, Deposed)
    await database.sql("delete from writer")
    assert await guest.mark(NodeFacts(name="again"), 1), "its row was only unused"
    assert [node.facts.name for node in (await guest.look()).nodes] == ["again"]


async def test_the_row_of_an_owner_is_not_tidied_away(database: Handles) -> None:
    owner, silent = await joined(database, 1), await joined(database)
    await database.sql("update writer set seen = now() - interval '2 days'")
    third = await joined(database, 2)
    left = {id for (id,) in await database.ask("select id from writer")}
    assert left == {owner.writer.id, third.writer.id}
    assert silent.writer.id not in left


async def test_a_batch_that_was_committed_before_its_process_was_deposed_is_told(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    flow = placed(1)
    await applied(one, flow)
    batch = one.writer.batch
    await database.silence(one, SILENT)
    assert await other.depose(one.writer.id)
    await database.cut(one)
    columns: Any = type("Columns", (), {"asked": [flow.key]})
    assert await one.writer.outcome_of(batch, columns) == {flow.key}
    assert isinstance((await apply(one, *placed(1).written)).down, Deposed)


async def test_a_process_cut_off_and_not_deposed_goes_on_under_its_id(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    me = one.writer.id
    flow = placed(1)
    await applied(one, flow)
    await database.cut(one)
    flow.step(CompleteWorkflow(result=b"1"))
    assert await apply(one, *flow.written[1:]) == ALL
    assert one.writer.id == me
    assert {node.id: node.session for node in (await other.look()).nodes}[me] is True
    await database.cut(one)
    await one.changed()
    assert {node.id: node.session for node in (await other.look()).nodes}[me] is True


async def test_without_evidence_only_silence_counts(database: Handles) -> None:
    url = f"{database.where}&sessions=no"
    one, other = await joined(database, 1, url=url), await joined(database)
    assert {node.session for node in (await one.look()).nodes} == {None}
    assert {node.id: node.session for node in (await other.look()).nodes} == {
        one.writer.id: None,
        other.writer.id: True,
    }
    await database.cut(one)
    assert not await other.depose(one.writer.id, gone=True)
    await database.cut(other)
    assert not await one.depose(other.writer.id, gone=True), "it does not look at sessions itself"
    assert await other.has_engine()
    await database.silence(one, SILENT)
    assert await other.depose(one.writer.id, gone=True)


LOCKED = f"select pg_try_advisory_lock(({LOCK}::bigint << 32) | 'workflow'::regclass::oid::bigint)"


async def test_an_engine_of_an_earlier_version_and_owners_exclude_each_other(database: Handles) -> None:
    one = await database.open()
    assert await one.mark(NodeFacts(), 1)
    async with database.session() as earlier:
        assert await earlier.fetchval(LOCKED)
        assert await one.claim([1]) == {}
        assert await one.has_engine()
    assert not await one.has_engine()
    assert set(await one.claim([1])) == {1}
    async with database.session() as earlier:
        assert not await earlier.fetchval(LOCKED)
        assert not await (await database.open()).acquire()
        await database.cut(one)
        assert await earlier.fetchval(LOCKED)
        down = (await apply(one, *placed(1).written)).down
        assert isinstance(down, Deposed)
        me = one.writer.id
        assert await one.probe() is None
        assert await id_of(one) != me
        assert await one.claim([2]) == {}
    assert set(await one.claim([2])) == {2}


async def test_a_server_whose_clock_was_set_back_finds_the_dead(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database)
    await database.silence(one, -3600 * 1_000_000)
    assert [node.silent >= SILENT for node in (await other.look()).nodes if node.id == one.writer.id] == [True]
    assert await other.depose(one.writer.id)


async def test_an_earlier_fence_of_ones_own_is_not_a_deposition(database: Handles) -> None:
    one = await joined(database, 1)
    await database.sql("update writer set batch = batch + 2")
    assert await apply(one, *placed(1).written) == Applied()
