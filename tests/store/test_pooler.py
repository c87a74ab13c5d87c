"""A database server that is reached through pgbouncer, where the machine has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from backstay import AsyncBackstay, StoreError, activity, workflow
from backstay.store import ALL
from backstay.store.errors import Deposed
from backstay.store.ownership import SILENT, NodeFacts
from backstay.store.postgresql import PostgresqlStore
from backstay.store.postgresql.connection import LOCK, connect

from ..postgresql import with_schema
from .conformance import Alone, Processes, Shared
from .figures import Counted
from .instances import applied, apply
from .node_conformance import Watching
from .ownership_conformance import OfShards, OwningBySilence, placed
from .pooler import PGBOUNCER, SESSIONS, StorePooler, server_of
from .searching import Searching
from .test_postgresql import Handles, common_url, empty
from .view_conformance import Projecting

__all__ = ["common_url"]

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")

Pooled = Callable[[str], str]


@activity
def double(number: int) -> int:
    return 2 * number


@workflow
def doubled(number: int) -> int:
    return double(number)


def local_server(url: str) -> str:
    server = server_of(url)
    if server is None:
        pytest.skip("the server of the tests is not one of this machine")
    return server


@pytest.fixture
def pooled(postgresql_url: str) -> Iterator[Pooled]:
    """The URL of a pooler in a mode, before the server of the tests."""
    schema = parse_qs(urlsplit(postgresql_url).query)["schema"][0]
    started: list[StorePooler] = []

    def start(mode: str) -> str:
        started.append(StorePooler(local_server(postgresql_url), mode))
        return with_schema(started[-1].url, schema)

    yield start
    for pooler in started:
        pooler.close()


async def share(*apps: AsyncBackstay) -> None:
    """Until each of the processes owns some shards, and together they own all."""
    async with asyncio.timeout(20):
        while not all(app.engine.holder for app in apps) or sum(sum(app.engine.owned) for app in apps) < 256:
            await asyncio.sleep(0.01)


async def several(where: str, directly: str) -> None:
    async with AsyncBackstay(where, [doubled, double]) as one:
        await share(one)
        assert await one.execute(doubled, "one", 1) == 2
        async with AsyncBackstay(where, [doubled, double]) as beside:
            await share(one, beside)
            assert await beside.execute(doubled, "two", 2) == 4
            async with AsyncBackstay(directly, [doubled, double]) as third:
                await share(one, beside, third)
                assert await third.handle(doubled, "two").result() == 4, "the schema is the one that was named"
                assert await third.execute(doubled, "three", 3) == 6
    async with AsyncBackstay(where, [doubled, double]) as later:
        await share(later)
        assert await later.handle(doubled, "three").result() == 6


def test_a_pooler_in_session_mode_is_like_the_server(pooled: Pooled, postgresql_url: str) -> None:
    async def sees_sessions() -> bool:
        store = await PostgresqlStore.open(where, {})
        await store.close()
        return store.writer.evidence

    where = pooled("session")
    asyncio.run(several(where, postgresql_url))
    assert asyncio.run(sees_sessions())


def test_a_pooler_in_transaction_mode_is_refused_unless_the_url_names_it(pooled: Pooled) -> None:
    async def opened() -> None:
        async with AsyncBackstay(where, [doubled, double]):
            pass

    where = pooled("transaction")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"session mode.*\?pooler=transaction|\?pooler=transaction.*session mode"):
            asyncio.run(opened())


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_url_that_names_a_pooler_works_through_it(pooled: Pooled, postgresql_url: str, mode: str) -> None:
    asyncio.run(several(f"{pooled(mode)}&pooler=transaction", postgresql_url))


def test_a_url_that_names_a_pooler_works_without_one(postgresql_url: str) -> None:
    asyncio.run(several(f"{postgresql_url}&pooler=transaction", postgresql_url))


async def test_the_url_names_a_pooler_that_is_known(postgresql_url: str) -> None:
    with pytest.raises(StoreError, match="pooler=statement of the URL is not transaction"):
        await PostgresqlStore.open(f"{postgresql_url}&pooler=statement", {})


# -- the store


class PooledHandles(Handles):
    """Stores go through the pooler; what is done behind their backs does not."""

    def __init__(self, directly: str, pooler: StorePooler) -> None:
        super().__init__(directly)
        self.where = f"{with_schema(pooler.url, self.place.schema)}&pooler=transaction"

    async def cut(self, store: PostgresqlStore) -> None:
        connection = store.writer.connection
        assert connection is not None
        connection.terminate()


@pytest.fixture(scope="session")
def pooler(postgresql_server: str) -> Iterator[StorePooler]:
    pooler = StorePooler(local_server(postgresql_server), "transaction")
    yield pooler
    pooler.close()


@pytest.fixture
def database(common_url: str, pooler: StorePooler, runner: asyncio.Runner) -> Iterator[PooledHandles]:
    handles = PooledHandles(common_url, pooler)
    runner.run(empty(handles))
    yield handles
    runner.run(handles.close())


@pytest.fixture
def fresh(postgresql_url: str, pooler: StorePooler, runner: asyncio.Runner) -> Iterator[PooledHandles]:
    handles = PooledHandles(postgresql_url, pooler)
    yield handles
    runner.run(handles.close())


class TestPooled(Alone, Shared, Watching, OfShards, OwningBySilence, Counted, Searching, Projecting):
    pass


class TestPooledProcesses(Processes):
    @pytest.fixture
    def database(self, fresh: PooledHandles) -> PooledHandles:
        return fresh


async def test_many_open_a_new_schema_at_once(fresh: PooledHandles) -> None:
    stores = await asyncio.gather(*(fresh.open() for _ in range(2 * SESSIONS)))
    await applied(stores[0], placed(1))
    numbers = [number for (number,) in await fresh.ask("select number from migration order by number")]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_nothing_of_a_store_stays_in_a_session(database: PooledHandles) -> None:
    one, other = await joined(database, 1, 2), await database.open()
    flow = placed(1, search_attributes={"tenant": "a"})
    await applied(one, flow)
    assert await other.load(flow.key) is not None
    held = await database.ask(
        "select count(*) from pg_locks where locktype = 'advisory' and (classid::bigint << 32 | objid::bigint)"
        f" in ({one.me}, {other.me}, {LOCK}::bigint << 32 | 'workflow'::regclass::oid::bigint)"
    )
    plain = await connect(database.place._replace(dsn=database.where.partition("?")[0], pooled=True))
    found = await plain.fetch("select current_setting('search_path'), current_setting('plan_cache_mode')")
    prepared = await plain.fetch("select count(*) from pg_prepared_statements")
    plain.terminate()
    assert (*found[0], prepared[0][0], held[0][0]) == ('"$user", public', "auto", 0, 0)


async def test_a_server_that_may_lose_commits_is_refused(database: PooledHandles, common_url: str) -> None:
    directly = common_url.replace("postgres@", "careless@")
    async with database.session() as session:
        await session.execute("create role careless superuser login")
        await session.execute("alter role careless set synchronous_commit = off")
    try:
        with pytest.raises(StoreError, match="alter role careless set synchronous_commit = on"):
            await database.open(f"{directly}&pooler=transaction")
    finally:
        await database.sql("drop role careless")


# -- two nodes


async def joined(database: Handles, *shards: int) -> PostgresqlStore:
    store = await database.open()
    assert await store.mark(NodeFacts(), 1)
    assert set(await store.claim(shards)) == set(shards)
    for shard in shards:
        store.owned[shard] = 1
    return store


async def test_a_batch_that_was_under_way_when_its_client_was_cut_off_is_looked_up(database: PooledHandles) -> None:
    one = await joined(database, 1)
    flow = placed(1)
    await applied(one, flow)
    await database.cut(one)
    later = placed(1)
    assert await apply(one, *later.written) == ALL
    assert await one.load(later.key) is not None


async def test_a_store_beside_an_engine_of_an_earlier_version_owns_nothing(database: PooledHandles) -> None:
    locked = f"select pg_try_advisory_lock(({LOCK}::bigint << 32) | 'workflow'::regclass::oid::bigint)"
    one = await database.open()
    assert await one.mark(NodeFacts(), 1)
    async with database.session() as earlier:
        assert await earlier.fetchval(locked)
        assert await one.claim([1]) == {}
    assert set(await one.claim([1])) == {1}
    one.owned[1] = 1
    # No session of ours can keep it out; it is noticed when this process says that it is alive.
    async with database.session() as earlier:
        assert await earlier.fetchval(locked)
        assert not await one.mark(NodeFacts(), 1)
        assert isinstance((await apply(one, *placed(1).written)).down, Deposed)
        assert await one.probe() is None
        assert await one.claim([1]) == {}


async def test_an_engine_that_wants_to_be_alone_waits_for_owners_behind_a_pooler(database: PooledHandles) -> None:
    one = await joined(database, 1)
    alone = await PostgresqlStore.open(f"{database.place.dsn}&schema={database.place.schema}", {})
    try:
        assert not await alone.acquire()
        await database.silence(one, SILENT)
        assert await alone.acquire()
    finally:
        await alone.close()


NODE = """
import asyncio, sys
from backstay import AsyncBackstay

async def serve():
    async with AsyncBackstay(sys.argv[1], []):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""


def test_the_work_of_a_node_that_was_killed_goes_on_elsewhere(pooled: Pooled, postgresql_url: str) -> None:
    async def story() -> None:
        behind = Handles(postgresql_url)
        async with AsyncBackstay(where, [doubled, double]) as left:
            async with asyncio.timeout(20):
                while sum(left.engine.owned) == 256:
                    await asyncio.sleep(0.01)
            killed.kill()
            killed.wait()
            (lost,) = {id for (id,) in await behind.ask("select id from writer")} - {left.engine.store.me}
            await behind.ask("update writer set seen = seen - interval '14 seconds' where id = $1", lost)
            async with asyncio.timeout(20):
                while sum(left.engine.owned) < 256:
                    await asyncio.sleep(0.01)
            assert await behind.ask("select fenced from writer where id = $1", lost) == [(True,)]
            for number in range(8):
                assert await left.execute(doubled, f"late-{number}", number) == 2 * number

    where = f"{pooled('transaction')}&pooler=transaction"
    killed = subprocess.Popen([sys.executable, "-c", NODE, where], stdout=subprocess.PIPE)
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"up\n"
        asyncio.run(story())
    finally:
        killed.kill()
        killed.communicate()
