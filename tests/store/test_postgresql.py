"""The PostgreSQL store: the common suite on a real server, then what only a server can do to us."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.values import Routing
from backstay.store import ALL, Applied, RunFilter
from backstay.store.errors import IncompatibleStore, StoreError, Unavailable
from backstay.store.opening import open_store
from backstay.store.postgresql import PostgresqlStore, writer
from backstay.store.postgresql.connection import OLDEST_SERVER, address, check_server, migrate
from backstay.store.postgresql.shapes import Shapes
from backstay.store.sql import Migration, migrations, queries

from ..kernel.given import MACHINE
from ..postgresql import with_schema
from .conformance import Alone, OneEngine, OneEngineProcesses, Processes, Shared, instances, stale
from .figures import Counted
from .instances import StoredFlow, applied, apply, expected, instant, stored
from .node_conformance import Watching
from .ownership_conformance import OfShards, Owning
from .proxy import Fault, Proxy, proxied
from .searching import Searching
from .view_conformance import Projecting

ACTIVITY = ScheduleActivity(activity_type="charge")


class Handles:
    """Every handle that a test opens on one schema."""

    def __init__(self, url: str) -> None:
        self.where = url
        self.place = address(url)
        self._stores: list[PostgresqlStore] = []

    async def open(self, url: str | None = None) -> PostgresqlStore:
        store = await PostgresqlStore.open(url or self.where, MACHINE.kinds)
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

    async def tables(self) -> list[str]:
        found = await self.ask("select tablename from pg_tables where schemaname = $1", self.place.schema)
        return sorted(name for (name,) in found)

    async def cut(self, store: PostgresqlStore) -> None:
        """End the session of a store that writes, as an administrator or a failing server does."""
        connection: Any = store.writer.connection
        await self.ask("select pg_terminate_backend($1, 10000)", connection.get_server_pid())
        async with asyncio.timeout(10):
            while not connection.is_closed():
                await asyncio.sleep(0.001)

    async def silence(self, store: PostgresqlStore, length: int) -> None:
        await self.ask(
            "update writer set seen = clock_timestamp() - make_interval(secs => $2::bigint / 1000000.0) where id = $1",
            store.writer.id,
            length,
        )

    async def lose_session(self, store: PostgresqlStore) -> None:
        await self.cut(store)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@pytest.fixture
def fresh(postgresql_url: str, runner: asyncio.Runner) -> Iterator[Handles]:
    """A schema that does not exist yet."""
    handles = Handles(postgresql_url)
    yield handles
    runner.run(handles.close())


@pytest.fixture(scope="session")
def common_url(postgresql_server: str) -> str:
    """One schema for all tests of a worker that do not care what it is called: making one costs more than most tests."""
    return with_schema(postgresql_server, f"common_{os.getpid()}")


async def empty(handles: Handles) -> None:
    tables = set(await handles.tables()) - {"migration", "engine", "shard"}
    free = ["update shard set owner = null, term = 0, clock = 0"] if tables else []
    await handles.sql("; ".join(["select 1", *free, *(f"delete from {table}" for table in tables)]))


@pytest.fixture
def database(common_url: str, runner: asyncio.Runner) -> Iterator[Handles]:
    handles = Handles(common_url)

    runner.run(empty(handles))
    yield handles
    runner.run(handles.close())


class TestServer(Alone, Shared, OneEngine, Watching, OfShards, Owning, Counted, Searching, Projecting):
    pass


class TestProcesses(Processes, OneEngineProcesses):
    @pytest.fixture
    def database(self, fresh: Handles) -> Handles:
        return fresh


# -- a connection that is lost in the middle of a commit


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf") as place:
        yield Path(place)


@asynccontextmanager
async def through_a_wire(database: Handles, place: Path) -> AsyncIterator[tuple[PostgresqlStore, Proxy]]:
    """A store whose wire can be cut, and which has written before, so that its next batch is one request."""
    if "host=/" not in database.where:
        pytest.skip("another server than our own: it is not reached through a socket of this machine")
    async with proxied(database.where, place) as (proxy, url):
        store = await database.open(url)
        for _ in range(2):
            await applied(store, *instances(1))
        yield store, proxy
        await store.close()


@pytest.mark.parametrize("fault", ["lose the request", "lose the answer", "deliver it late"])
async def test_a_batch_whose_answer_is_lost_is_there_exactly_once(database: Handles, place: Path, fault: Fault) -> None:
    async with through_a_wire(database, place) as (store, proxy):
        first, second = instances(2)
        proxy.fault = fault
        assert await apply(store, *first.written, *second.written) == ALL
        if fault == "deliver it late":
            await proxy.deliver()
        for instance in (first, second):
            assert await stored(store, instance) == expected(instance)
        assert await apply(store, *first.step(ACTIVITY)) == ALL
        assert await stored(store, first) == expected(first)


@pytest.mark.parametrize("fault", ["lose the request", "lose the answer", "deliver it late"])
async def test_decisions_that_a_batch_with_a_lost_answer_left_out_are_stale(
    database: Handles, place: Path, fault: Fault
) -> None:
    other = await database.open()
    async with through_a_wire(database, place) as (store, proxy):
        torn, whole = instances(2)
        await applied(store, torn, whole)
        late = torn.twin()
        assert await apply(other, *torn.step(ACTIVITY)) == ALL
        proxy.fault = fault
        assert await apply(store, late.start(), *whole.step(ACTIVITY)) == stale(0)
        for instance in (torn, whole):
            assert await stored(store, instance) == expected(instance)


async def test_a_batch_that_arrives_after_it_was_given_up_writes_nothing(
    database: Handles, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOKING", 0.0)
    async with through_a_wire(database, place) as (store, proxy):
        (instance,) = instances(1)
        proxy.fault = "deliver it late"
        proxy.open = False
        result = await apply(store, *instance.written)
        assert isinstance(result.down, Unavailable)
        assert "its outcome is known when the database is back" in str(result.down)
        assert isinstance((await apply(store, *instances(1)[0].written)).down, Unavailable), "not before a probe"
        proxy.open = True
        assert await store.probe() is None
        assert await store.load(instance.key) is None
        await proxy.deliver()
        assert await store.load(instance.key) is None, "it was fenced off"
        await applied(store, instance)
        assert await stored(store, instance) == expected(instance)


async def test_a_batch_that_came_through_is_not_called_lost_when_the_database_is_back(
    database: Handles, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOKING", 0.0)
    async with through_a_wire(database, place) as (store, proxy):
        (instance,) = instances(1)
        proxy.fault = "lose the answer"
        proxy.open = False
        assert isinstance((await apply(store, *instance.written)).down, Unavailable)
        proxy.open = True
        assert await store.probe() is None
        assert await stored(store, instance) == expected(instance)
        assert await apply(store, *instance.written) == stale(0)


async def test_an_answer_that_is_lost_twice_is_looked_up_right(database: Handles, place: Path) -> None:
    """The fence itself may come through without an answer; that must not hide that the batch did."""
    async with through_a_wire(database, place) as (store, proxy):
        (instance,) = instances(1)
        batch = store.writer.batch + 1
        proxy.fault = "lose the answer"
        writer: Any = store.writer
        looked = writer.outcome_of
        calls = 0

        async def losing(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                async with database.session() as fence:  # as our own, whose answer nobody heard
                    await fence.execute(store._sql["fence"], store.writer.id, batch + 1, True)
                raise Unavailable("the wire was cut again")
            return await looked(*args)

        writer.outcome_of = losing
        assert await apply(store, *instance.written) == ALL
        assert calls == 2
        assert await stored(store, instance) == expected(instance)


async def test_a_store_reads_on_after_its_sessions_were_ended(database: Handles) -> None:
    store = await database.open()
    (instance,) = instances(1)
    await applied(store, instance)
    idle: list[Any] = store._readers._idle
    await database.ask(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'backstay'"
        " and pid = any($1::int[])",
        [connection.get_server_pid() for connection in idle],
    )
    assert await stored(store, instance) == expected(instance)


# -- one engine


async def test_an_engine_that_lost_its_session_to_another_commits_nothing_more(database: Handles) -> None:
    one, other = await database.open(), await database.open()
    assert await one.acquire()
    (instance,) = instances(1)
    await applied(one, instance)
    assert not await other.acquire()
    await database.cut(one)
    assert await other.acquire()
    late = instance.twin()
    result = await apply(one, *late.step(ACTIVITY))
    assert isinstance(result.down, Unavailable)
    assert "another process became the engine" in str(result.down)
    assert await stored(other, instance) == expected(instance), "nothing of it was written"
    assert isinstance((await apply(one, *instances(1)[0].written)).down, Unavailable)
    assert await one.probe() is None
    assert not await one.acquire()
    await applied(one, *instances(1))  # as a guest, like any other process
    await other.close()
    assert await one.acquire()


async def test_an_engine_that_lost_its_session_goes_on_if_no_other_was_faster(database: Handles) -> None:
    one, other = await database.open(), await database.open()
    assert await one.acquire()
    await database.cut(one)
    await applied(one, *instances(1))
    assert await one.acquire()
    assert not await other.acquire()
    assert await one.notices() == [], "it wrote as the engine"


async def test_an_engine_notices_that_there_was_another_in_between(database: Handles) -> None:
    one, other = await database.open(), await database.open()
    assert await one.acquire()
    await database.cut(one)
    assert await other.acquire()
    await other.close()
    with pytest.raises(Unavailable, match="another process became the engine"):
        await one.changed()
    assert isinstance((await apply(one, *instances(1)[0].written)).down, Unavailable)
    assert await one.probe() is None
    assert await one.acquire()


async def test_engines_of_two_schemas_are_no_rivals(database: Handles, fresh: Handles) -> None:
    here, there = await database.open(), await fresh.open()
    assert await here.acquire()
    assert await there.acquire()


# -- writers in each other's way


async def test_two_handles_that_write_the_same_instances_in_opposite_order_both_get_through(
    database: Handles,
) -> None:
    one, other = await database.open(), await database.open()
    crowd = instances(40)
    await applied(one, *crowd)
    rivals = [instance.twin() for instance in crowd]
    mine = [instance.start() for instance in crowd]
    theirs = [instance.start() for instance in reversed(rivals)]
    first, second = await asyncio.gather(apply(one, *mine), apply(other, *theirs))
    assert (first.down, second.down, first.failed, second.failed) == (None, None, {}, {})
    won = {crowd[at].key for at in range(40) if at not in first.stale}
    lost = {rivals[::-1][at].key for at in second.stale}
    assert won == lost, "of two decisions on one state exactly one wins"


async def test_a_deadlock_is_tried_again(database: Handles) -> None:
    store = await database.open()
    first, second = sorted(instances(2), key=lambda instance: instance.key)
    await applied(store, first, second)
    async with database.session() as rival:
        await rival.execute("set deadlock_timeout = '1h'")  # it is never the one that is given up
        tangle = rival.transaction()
        await tangle.start()
        await rival.execute(f"update workflow set cursor = cursor where key = {second.key}")
        writing = asyncio.ensure_future(apply(store, *first.step(ACTIVITY), *second.step(ACTIVITY)))
        async with asyncio.timeout(20):
            while not await database.ask("select 1 from pg_locks where not granted and locktype = 'transactionid'"):
                await asyncio.sleep(0.01)
        blocked = asyncio.ensure_future(rival.execute(f"update workflow set cursor = cursor where key = {first.key}"))
        await asyncio.wait([blocked])
        await tangle.commit()
        assert await writing == ALL
    for instance in (first, second):
        assert await stored(store, instance) == expected(instance)


async def test_a_locked_table_is_unavailable_and_says_so(database: Handles) -> None:
    store = await database.open()
    (instance,) = instances(1)
    await applied(store, *instances(1))
    await store.writer.connection.execute("set lock_timeout = '50ms'")  # type: ignore[union-attr]
    async with database.session() as other, other.transaction():
        await other.execute("lock table workflow in exclusive mode")
        result = await apply(store, *instance.written)
        assert "another session holds a lock" in str(result.down)
    assert await store.probe() is None
    await applied(store, instance)
    assert await stored(store, instance) == expected(instance)


async def test_a_handle_whose_row_was_tidied_away_enrols_again(database: Handles) -> None:
    quiet, engine = await database.open(), await database.open()
    await applied(quiet, *instances(1))
    await database.sql("update writer set seen = now() - interval '2 days'")
    assert await engine.acquire()
    assert await database.ask("select 1 from writer where id = $1", quiet.writer.id) == []
    await applied(quiet, *(crowd := instances(2)))
    assert [await stored(quiet, instance) for instance in crowd] == [expected(instance) for instance in crowd]
    await quiet.close()
    await engine.close()
    assert await database.ask("select * from writer") == []


# -- text that PostgreSQL cannot hold


async def test_a_run_with_a_zero_byte_in_its_name_fails_alone(database: Handles) -> None:
    store = await database.open()
    odd, (plain,) = StoredFlow(), instances(1)
    odd.start()
    (decision,) = odd.written
    # The kernel refuses such a name, so it is put in behind its back.
    decision.runs = [(new, replace(row, business_key="a\0b")) for new, row in decision.runs]
    result = await apply(store, decision, *plain.written)
    assert list(result.failed) == [0]
    assert result == Applied(failed=result.failed)
    assert await stored(store, plain) == expected(plain)


async def test_a_search_attribute_with_a_zero_byte_is_kept_and_found(database: Handles) -> None:
    store = await database.open()
    odd, plain = StoredFlow("odd"), StoredFlow("plain")
    odd.start(search_attributes={"x": "a\0b"})
    plain.start(search_attributes={"x": "ab"})
    await applied(store, odd, plain)
    assert [run.workflow_id for run in await store.runs(RunFilter(search=("x", "a\0b")))] == ["odd"]
    assert [run.workflow_id for run in await store.runs(RunFilter(search=("x", "ab")))] == ["plain"]
    assert await store.runs(RunFilter(search=("x", 1))) == []
    assert await store.runs(RunFilter(search=("a\0b", "a"))) == []
    assert await store.runs(RunFilter(business_key="a\0b")) == []
    assert await store.find("default", "a\0b") is None


# -- opening


async def test_a_new_schema_is_made_and_recorded(fresh: Handles) -> None:
    await (await fresh.open()).close()
    steps = migrations("backstay.store.postgresql")
    assert await fresh.ask("select number, name, checksum from migration order by number") == [
        (step.number, step.name, step.checksum) for step in steps
    ]
    assert await fresh.ask("select * from writer") == [], "who only reads leaves nothing behind"


async def test_a_schema_may_have_the_name_of_a_word_of_sql(fresh: Handles, postgresql_server: str) -> None:
    url = with_schema(postgresql_server, "order")
    try:
        for more in ("", "&pooler=transaction"):
            store = await fresh.open(url + more)
            (instance,) = instances(1)
            await applied(store, instance)
            await store.close()
        assert await fresh.ask('select count(*) from "order".workflow') == [(2,)]
    finally:
        await fresh.sql('drop schema if exists "order" cascade')


async def test_a_migration_goes_forward_and_keeps_what_is_there(fresh: Handles) -> None:
    store = await fresh.open()
    (instance,) = instances(1)
    await applied(store, instance)
    steps = migrations("backstay.store.postgresql")
    newer = [*steps, Migration(len(steps) + 1, "notes", "create table note (text text);\n")]
    broken = [*newer, Migration(len(steps) + 2, "broken", "create table more (a int);\ncreate table note (b int);\n")]
    async with fresh.session() as session:
        await migrate(session, fresh.place, newer)
        await migrate(session, fresh.place, newer)
        before = await fresh.tables()
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate(session, fresh.place, broken)
        assert await fresh.tables() == before, "all of it or nothing"
    assert await stored(store, instance) == expected(instance)
    with pytest.raises(IncompatibleStore, match=rf"has schema {len(newer)}, .* knows up to {len(steps)}; upgrade"):
        await fresh.open()


async def test_tasks_of_an_older_version_are_counted_too(fresh: Handles) -> None:
    store = await fresh.open()
    (instance,) = instances(1, routing=Routing(queue="q", compatibility="b1"))
    await applied(store, instance)
    counted = await store.waiting_tasks("default", instant(100))
    assert [(group.queue, group.kind, group.type, group.build) for group in counted] == [
        ("q", "workflow", "order", "b1")
    ]
    await fresh.sql("update task set namespace = '', queue = '', kind = '', type = '', build = ''")
    (script,) = [step.script for step in migrations("backstay.store.postgresql") if step.name == "overview"]
    await fresh.sql(script[script.index("create function") : script.index("create index task_waiting")])
    assert await store.waiting_tasks("default", instant(100)) == counted


async def test_instances_of_an_older_version_have_counted_no_attempts(fresh: Handles) -> None:
    store = await fresh.open()
    (instance,) = instances(1)
    await applied(store, instance)
    await store.close()
    (step,) = [step for step in migrations("backstay.store.postgresql") if step.name == "attempts"]
    await fresh.sql("alter table workflow drop column attempts")
    await fresh.sql("drop index summary_group")
    for column in ("reason", "error", "worker"):
        await fresh.sql(f"alter table workflow_run_summaries drop column {column}")
    await fresh.sql(f"delete from migration where number >= {step.number}")
    store = await fresh.open()
    assert await stored(store, instance) == expected(instance)
    instance.lease()
    assert await apply(store, instance.written[-1]) == Applied()
    loaded = await store.load(instance.key)
    assert loaded is not None
    assert loaded.row.attempts == 1


async def test_a_schema_made_by_other_migrations_is_refused(fresh: Handles) -> None:
    await fresh.open()
    await fresh.sql("update migration set checksum = 'another' where number = 1")
    with pytest.raises(IncompatibleStore, match="another migration 1"):
        await fresh.open()


async def test_a_schema_of_another_program_is_refused_untouched(fresh: Handles) -> None:
    await fresh.sql(f"create schema {fresh.place.schema}; create table theirs (a int)")
    with pytest.raises(IncompatibleStore, match="belongs to another program; name one of Backstay's own"):
        await fresh.open()
    assert await fresh.tables() == ["theirs"]


async def test_reading_makes_no_schema(fresh: Handles) -> None:
    with pytest.raises(StoreError, match=f"has no schema {fresh.place.schema} of Backstay"):
        await open_store(fresh.where, MACHINE.kinds, create=False)
    assert await fresh.ask("select 1 from pg_namespace where nspname = $1", fresh.place.schema) == []


async def test_commits_reach_the_disk_even_if_the_server_is_told_not_to_care(database: Handles) -> None:
    store = await database.open(database.where + "&synchronous_commit=off")
    await applied(store, *instances(1))
    session: Any = store.writer.connection
    assert (await session.fetch("show synchronous_commit"))[0][0] == "on"
    strict = await database.open(database.where + "&synchronous_commit=remote_apply")
    await applied(strict, *instances(1))
    session = strict.writer.connection
    assert (await session.fetch("show synchronous_commit"))[0][0] == "remote_apply"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("/postgres?", "/nowhere?"), 'database "nowhere" does not exist: create it first'),
        (("postgres@", "nobody_here@"), 'role "nobody_here" does not exist: the server rejects this user'),
        (("host=/", "host=/no/such/place/"), "the server cannot be reached"),
        (("schema=", "schema=Not-"), "is not a plain name"),
        (("schema=", "default_transaction_read_only=on&schema="), "read-only standby"),
    ],
    ids=["no database", "no user", "no server", "schema", "read only"],
)
async def test_a_database_that_cannot_be_opened_says_what_to_do(
    fresh: Handles, change: tuple[str, str], says: str
) -> None:
    assert change[0] in fresh.where
    with pytest.raises(StoreError) as caught:
        await fresh.open(fresh.where.replace(*change))
    assert says in str(caught.value)
    assert "postgresql://" in str(caught.value) or "schema" in str(caught.value)


@pytest.fixture
def guarded(fresh: Handles, runner: asyncio.Runner) -> str:
    """The URL of a user with a password and no rights."""
    if "BACKSTAY_TEST_POSTGRESQL" in os.environ:
        pytest.skip("another server than our own: who may log in there is not for us to say")

    async def make() -> None:
        async with fresh.session() as session, session.transaction():
            await session.execute("select pg_advisory_xact_lock(1)")
            if not await session.fetch("select 1 from pg_roles where rolname = 'guarded'"):
                await session.execute("create role guarded login password 'right'")

    runner.run(make())
    return fresh.where.replace("postgres@", "guarded:{}@")


async def test_a_wrong_password_is_named_and_not_shown(fresh: Handles, guarded: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await fresh.open(guarded.format("wrong"))
    assert "check the user and password in the URL" in str(caught.value)
    assert "wrong@" not in str(caught.value)


async def test_a_user_without_rights_is_told_which_it_needs(fresh: Handles, guarded: str) -> None:
    with pytest.raises(Unavailable, match=r"permission denied .*: grant this user the right to use and to create"):
        await fresh.open(guarded.format("right"))
    await fresh.open()
    with pytest.raises(Unavailable, match="permission denied"):
        await fresh.open(guarded.format("right"))


async def test_a_user_who_may_only_read_reads(fresh: Handles, guarded: str) -> None:
    writing = await fresh.open()
    (instance,) = instances(1)
    await applied(writing, instance)
    schema = fresh.place.schema
    await fresh.sql(
        f"grant usage on schema {schema} to guarded; grant select on all tables in schema {schema} to guarded"
    )
    reading = await fresh.open(guarded.format("right"))
    assert await stored(reading, instance) == expected(instance)
    assert "permission denied" in str((await apply(reading, *instances(1)[0].written)).down)


def test_an_old_server_is_refused() -> None:
    check_server("here", (OLDEST_SERVER, 1))
    with pytest.raises(StoreError, match=f"is PostgreSQL 13; Backstay needs {OLDEST_SERVER} or newer"):
        check_server("here", (OLDEST_SERVER - 1, 99))


def test_without_its_driver_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from backstay.store.opening import open_store\n"
        "open_store('postgresql://here/there', {})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'backstay[postgresql]'" in done.stderr


# -- an error of ours is not an outage


async def test_a_statement_with_too_few_values_fails_instead_of_being_sent_again(database: Handles) -> None:
    store = await database.open()
    (flow,) = instances(1)
    (other,) = instances(1)
    await applied(store, other)
    right = store.writer.shapes
    whole = queries("backstay.store.postgresql", numbered=True)["write"]
    store.writer.shapes = Shapes(whole.replace("$103::bigint", "$103::bigint + $104::bigint"))
    async with asyncio.timeout(10):
        done = await apply(store, *flow.written)
    assert "arguments for this query" in str(done.failed[0])
    assert done.down is None
    store.writer.shapes = right
    assert await apply(store, *flow.written) == ALL


async def test_a_question_with_too_few_values_is_no_outage(database: Handles) -> None:
    store = await database.open()
    for ask in (
        lambda: store.writer.do(lambda session: session.fetch("select $1::bigint")),
        lambda: store._read("select $1::bigint"),
    ):
        with pytest.raises(asyncpg.InterfaceError, match="expects 1 argument"):
            await ask()
    assert await store.has_engine() is False
