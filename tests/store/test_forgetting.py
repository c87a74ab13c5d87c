"""A PostgreSQL database that has lost commits which it had confirmed: a backup was restored, or a standby without them promoted."""

from __future__ import annotations

import asyncio
import logging

import pytest

from backstay import AsyncBackstay, activity, workflow
from backstay.store import ALL
from backstay.store.errors import Forgotten, Unavailable
from backstay.store.ownership import NodeFacts
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.pooled import TABLES

from .instances import applied, apply
from .ownership_conformance import id_of, owners, placed
from .test_postgresql import Handles, common_url, database, fresh
from .test_postgresql_ownership import joined

__all__ = ["common_url", "database", "fresh"]


async def backed_up(database: Handles) -> None:
    await database.sql("; ".join(f"create table saved_{table} as table {table}" for table in TABLES))


async def restored(database: Handles) -> None:
    """All tables at once, as they were; those that processes change first in their order."""
    tables = ("writer", *(table for table in TABLES if table != "writer"))
    async with database.session() as session, session.transaction():
        await session.execute("; ".join(f"delete from {table}" for table in tables))
        await session.execute("; ".join(f"insert into {table} table saved_{table}" for table in tables))


async def forgets(store: PostgresqlStore) -> None:
    down = (await apply(store, *placed(1).written)).down
    assert isinstance(down, Forgotten)
    assert "may run again" in str(down)


async def begins_anew(store: PostgresqlStore, other: PostgresqlStore) -> None:
    before = store.me
    assert await store.probe() is None
    assert await id_of(store) != before
    assert before not in {node.id for node in (await other.look()).nodes}
    assert before not in (await owners(other)).values(), "what its row owned by then is free"
    flow = placed(1)
    assert await apply(store, *flow.written) == ALL


async def test_a_process_whose_commits_are_gone_says_so_and_begins_anew(
    database: Handles, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await joined(database, 1), await joined(database, 2)
    await applied(one, placed(1))
    ((committed,),) = await database.ask("select committed from writer where id = $1", one.me)
    await applied(one, placed(1))
    await applied(one, placed(1))
    await database.ask("update writer set committed = $2, batch = $2 where id = $1", one.me, committed)
    await database.cut(one)
    await forgets(one)
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "restored from a backup" in said.message
    await forgets(one)
    await begins_anew(one, other)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def test_it_is_noticed_without_a_lost_connection_too(database: Handles) -> None:
    one, other = await joined(database, 1), await joined(database, 2)
    await applied(one, placed(1))
    await database.ask("update writer set committed = 0, batch = 0 where id = $1", one.me)
    await forgets(one)
    await begins_anew(one, other)


async def test_a_process_that_began_after_the_backup_was_made_has_no_row(fresh: Handles) -> None:
    other = await joined(fresh, 2)
    await backed_up(fresh)
    one = await joined(fresh, 1)
    await restored(fresh)
    with pytest.raises(Forgotten):
        await one.mark(NodeFacts(), 1)
    await begins_anew(one, other)


async def test_a_process_that_has_committed_nothing_since_sees_it_by_the_owners(fresh: Handles) -> None:
    one, other = await joined(fresh, 1), await joined(fresh, 2)
    await other.look()
    await backed_up(fresh)
    assert await one.hand_over([1], other.me, 1) == [1]
    await other.look()
    await restored(fresh)
    with pytest.raises(Forgotten):
        await other.look()
    await begins_anew(other, one)
    assert await owners(one) == {1: one.me}


async def test_it_is_seen_by_the_owners_also_if_others_have_changed_since(fresh: Handles) -> None:
    """As many changes as were lost, or more, do not hide them."""
    one, other = await joined(fresh, 1), await joined(fresh, 2)
    await other.look()
    await backed_up(fresh)
    assert await one.hand_over([1], other.me, 1) == [1]
    await other.look()
    await restored(fresh)
    assert list(await one.claim([7])) == [7]
    with pytest.raises(Forgotten):
        await other.look()
    await begins_anew(other, one)


async def test_a_hand_over_that_is_gone_is_seen_by_who_gave(fresh: Handles) -> None:
    """It has not looked since. Else nobody would work for the shard: the row says that this process does."""
    one, other = await joined(fresh, 1), await joined(fresh, 2)
    await one.look()
    await backed_up(fresh)
    assert await one.hand_over([1], other.me, 1) == [1]
    await restored(fresh)
    with pytest.raises(Forgotten):
        await one.look()


async def test_a_claim_that_is_gone_is_seen(fresh: Handles) -> None:
    one = await joined(fresh, 1)
    await one.look()
    await backed_up(fresh)
    assert list(await one.claim([7])) == [7]
    await restored(fresh)
    with pytest.raises(Forgotten):
        await one.look()


async def test_another_owner_of_the_same_term_is_seen(fresh: Handles) -> None:
    one, other = await joined(fresh, 1), await joined(fresh, 2)
    await other.look()
    await backed_up(fresh)
    assert await one.hand_over([1], other.me, 1) == [1]
    assert (await other.look()).shards[1].owner == other.me
    await restored(fresh)
    assert await one.hand_over([1], None, 1) == [1]
    assert (await other.look()).shards[1].owner is None


async def test_a_commit_that_was_lost_with_its_answer_is_not_forgotten(database: Handles) -> None:
    one = await joined(database, 1)
    await applied(one, placed(1))
    await database.cut(one)
    assert await apply(one, *placed(1).written) == ALL


@activity
def double(number: int) -> int:
    return 2 * number


@workflow
def doubled(number: int) -> int:
    return double(number)


def test_it_is_counted_also_if_the_database_was_away_in_between(postgresql_url: str) -> None:
    """As in a failover: it is noticed when it is back."""

    async def story() -> None:
        behind = Handles(postgresql_url)
        async with AsyncBackstay(postgresql_url, [doubled, double]) as app:
            await backed_up(behind)
            assert await app.execute(doubled, "lost", 2) == 4
            app.engine.on_unavailable(Unavailable("the server is away"))
            await restored(behind)
            async with asyncio.timeout(20):
                while app.engine.down or "backstay_database_forgotten_total 1" not in await app.prometheus():
                    await asyncio.sleep(0.01)
            assert await app.execute(doubled, "lost", 3) == 6, "it never was"

    asyncio.run(story())


def test_work_goes_on_with_what_the_database_has(postgresql_url: str) -> None:
    async def story() -> None:
        behind = Handles(postgresql_url)
        async with AsyncBackstay(postgresql_url, [doubled, double]) as app:
            assert await app.execute(doubled, "kept", 1) == 2
            await backed_up(behind)
            assert await app.execute(doubled, "lost", 2) == 4
            store = app.engine.store
            assert isinstance(store, PostgresqlStore)
            await restored(behind)
            await behind.cut(store)
            async with asyncio.timeout(20):
                while app.engine.down or "backstay_database_forgotten_total 1" not in await app.prometheus():
                    await asyncio.sleep(0.01)
            assert await app.handle(doubled, "kept").result() == 2
            assert await app.execute(doubled, "lost", 3) == 6, "it never was"
            assert await app.execute(doubled, "new", 4) == 8
            assert "backstay_database_forgotten_total 1" in await app.prometheus()

    asyncio.run(story())
