"""The SQLite store: the common suite on a file and in memory, then what only a file can do to us."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.values import Routing
from backstay.store import ALL, Applied
from backstay.store.errors import IncompatibleStore, StoreError, Unavailable
from backstay.store.sql import Migration, migrations
from backstay.store.sqlite import SqliteStore, connection
from backstay.store.sqlite.connection import APPLICATION_ID, migrate
from backstay.store.sqlite.writer import Offload

from ..kernel.given import MACHINE
from .children import child, hear
from .conformance import Alone, OneEngine, OneEngineProcesses, Processes, Shared, instances
from .figures import Counted
from .instances import StoredFlow, applied, apply, expected, instant, stored
from .node_conformance import Watching
from .ownership_conformance import OfShards, OneOwner
from .seam import connection_of
from .searching import Searching
from .view_conformance import Projecting

ROOT = Path(__file__).parents[2]


class Handles:
    """Every handle that a test opens on one database."""

    def __init__(self, path: str) -> None:
        self.path = self.where = path
        self._stores: list[SqliteStore] = []

    async def open(self) -> SqliteStore:
        return self.opened()

    def opened(self, offload: Offload | None = None) -> SqliteStore:
        store = SqliteStore(self.path, MACHINE.kinds, offload)
        self._stores.append(store)
        return store

    async def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(statement)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Handles]:
    handles = Handles(str(tmp_path / "backstay.db"))
    yield handles
    handles.close()


class TestFile(
    Alone,
    Shared,
    OneEngine,
    Watching,
    OfShards,
    OneOwner,
    Counted,
    Processes,
    OneEngineProcesses,
    Searching,
    Projecting,
):
    exclusive = True

    @pytest.fixture
    def database(self, file: Handles) -> Handles:
        return file


class TestMemory(Alone, Watching):
    @pytest.fixture
    def database(self) -> Iterator[Handles]:
        handles = Handles(":memory:")
        yield handles
        handles.close()


@contextmanager
def writing(path: str) -> Iterator[sqlite3.Connection]:
    """Somebody else is in the middle of a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield connection


# -- opening


async def test_a_file_is_written_ahead_and_synced_at_every_commit(file: Handles) -> None:
    store = file.opened()
    assert file.ask("pragma journal_mode") == [("wal",)]
    assert _synchronous(store) == 2
    assert await store.probe() is None
    assert _synchronous(store) == 2


def _synchronous(store: SqliteStore) -> int:
    connection = connection_of(store)
    return connection.execute("pragma synchronous").fetchone()[0]


def _untouched(path: str) -> Callable[[], None]:
    """Remember a file and its neighbours; the answer checks that nothing of them changed."""
    directory = Path(path).parent
    before = {entry.name: entry.read_bytes() for entry in directory.iterdir()}

    def check() -> None:
        assert {entry.name: entry.read_bytes() for entry in directory.iterdir()} == before

    return check


async def test_a_file_of_a_newer_version_is_refused_untouched(file: Handles) -> None:
    store = file.opened()
    await applied(store, _started())
    store.close()
    await file.sql("pragma user_version = 99")
    check = _untouched(file.path)
    with pytest.raises(IncompatibleStore, match=r"schema 99.*knows up to \d+; upgrade Backstay"):
        file.opened()
    check()


@pytest.mark.parametrize("mark", ["create table notes (text)", "pragma application_id = 7", "pragma user_version = 3"])
async def test_a_file_of_another_program_is_refused_untouched(file: Handles, mark: str) -> None:
    await file.sql("create table theirs (a)")
    await file.sql(mark)
    check = _untouched(file.path)
    with pytest.raises(IncompatibleStore, match="belongs to another program"):
        file.opened()
    check()


async def test_an_empty_database_with_the_mark_of_another_program_is_refused_untouched(file: Handles) -> None:
    await file.sql("pragma application_id = 7")
    check = _untouched(file.path)
    with pytest.raises(IncompatibleStore, match="belongs to another program"):
        file.opened()
    check()


def test_a_file_that_is_no_database_is_refused_untouched(file: Handles) -> None:
    Path(file.path).write_text("The quick brown fox jumps over the lazy dog.\n" * 50)
    check = _untouched(file.path)
    with pytest.raises(IncompatibleStore, match="not a SQLite database"):
        file.opened()
    check()


def test_an_empty_file_becomes_ours(file: Handles) -> None:
    Path(file.path).touch()
    file.opened()
    assert file.ask("pragma application_id") == [(APPLICATION_ID,)]


def test_a_directory_is_refused_with_a_name_to_use_instead(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path} is a directory; name a file in it"):
        SqliteStore(str(tmp_path), MACHINE.kinds)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(StoreError, match="the path of the database is empty; name a file"):
        SqliteStore("", MACHINE.kinds)


def test_a_missing_directory_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing does not exist; create it first"):
        SqliteStore(str(tmp_path / "missing" / "backstay.db"), MACHINE.kinds)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that users other than ours can reach."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


@pytest.mark.parametrize(
    ("directory", "mode", "why"),
    [
        (0o555, None, "not writable"),
        (0o777, 0o444, "not writable"),
        (0o555, 0o666, "not writable"),
        (0o000, 0o666, "may not read"),
    ],
    ids=["read-only directory", "read-only file", "file in a read-only directory", "closed directory"],
)
def test_a_file_that_this_user_may_not_write_is_refused(
    open_place: Path, directory: int, mode: int | None, why: str
) -> None:
    place = open_place / "data"
    place.mkdir()
    path = place / "backstay.db"
    if mode is not None:
        SqliteStore(str(path), MACHINE.kinds).close()
        path.chmod(mode)
    check = _untouched(str(path))
    place.chmod(directory)
    try:
        with child("refused", str(path)) as process:
            kind, message = hear(process)
    finally:
        place.chmod(0o755)
    assert kind == "Unavailable"
    assert why in message
    assert str(place) in message
    check()


async def test_a_store_keeps_to_its_file_when_the_process_changes_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with closing(SqliteStore("backstay.db", MACHINE.kinds)) as store:
        instance = _started()
        await applied(store, instance)
        monkeypatch.chdir(there)
        assert await store.probe() is None
        assert store.acquire().value
        assert await stored(store, instance) == expected(instance)
    assert list(there.iterdir()) == []
    assert (here / "backstay.db-engine").exists()


# -- migrations


def test_migrations_are_recorded_with_their_checksums(file: Handles) -> None:
    file.opened()
    steps = migrations("backstay.store.sqlite")
    assert [number for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert file.ask("select number, name, checksum from migration order by number") == [
        (number, name, sha256(script.encode()).hexdigest()) for number, name, script in steps
    ]
    assert file.ask("pragma user_version") == [(len(steps),)]


async def test_a_file_made_by_another_version_of_a_migration_is_refused_untouched(file: Handles) -> None:
    file.opened().close()
    await file.sql("update migration set checksum = 'another' where number = 1")
    check = _untouched(file.path)
    with pytest.raises(IncompatibleStore, match="another migration 1"):
        file.opened()
    check()


async def test_a_migration_goes_forward_and_keeps_what_is_there(file: Handles) -> None:
    store = file.opened()
    instance = _started()
    await applied(store, instance)
    steps = migrations("backstay.store.sqlite")
    newest = len(steps) + 1
    with closing(sqlite3.connect(file.path, isolation_level=None)) as connection:
        migrate(connection, file.path, [*steps, Migration(newest, "notes", "create table note (text text) strict;\n")])
        migrate(connection, file.path, [*steps, Migration(newest, "notes", "create table note (text text) strict;\n")])
        with pytest.raises(IncompatibleStore):
            migrate(connection, file.path, steps)
    assert file.ask("pragma user_version") == [(newest,)]
    assert file.ask("select number, name from migration where name = 'notes'") == [(newest, "notes")]
    assert await stored(store, instance) == expected(instance)


async def test_instances_of_an_older_version_have_counted_no_attempts(file: Handles) -> None:
    store = file.opened()
    instance = _started()
    await applied(store, instance)
    store.close()
    (step,) = [step for step in migrations("backstay.store.sqlite") if step.name == "attempts"]
    await file.sql("alter table workflow drop column attempts")
    await file.sql("drop index summary_group")
    for column in ("reason", "error", "worker"):
        await file.sql(f"alter table workflow_run_summaries drop column {column}")
    await file.sql(f"delete from migration where number >= {step.number}")
    await file.sql(f"pragma user_version = {step.number - 1}")
    store = file.opened()
    assert await stored(store, instance) == expected(instance)
    instance.lease()
    assert await apply(store, instance.written[-1]) == Applied()
    loaded = await store.load(instance.key)
    assert loaded is not None
    assert loaded.row.attempts == 1


def test_a_migration_that_fails_changes_nothing(file: Handles) -> None:
    file.opened().close()
    before = file.ask("select name, sql from sqlite_master")
    steps = migrations("backstay.store.sqlite")
    broken = Migration(
        len(steps) + 1, "broken", "create table note (text text) strict;\ncreate table note (again text);\n"
    )
    with closing(sqlite3.connect(file.path, isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, file.path, [*steps, broken])
        assert not connection.in_transaction
    assert file.ask("select name, sql from sqlite_master") == before
    assert file.ask("pragma user_version") == [(len(steps),)]


async def test_tasks_of_an_older_version_are_counted_too(file: Handles) -> None:
    store = file.opened()
    (instance,) = instances(1, routing=Routing(queue="q", compatibility="b1"))
    await applied(store, instance)
    counted = await store.waiting_tasks("default", instant(100))
    assert [(group.queue, group.kind, group.type, group.build) for group in counted] == [
        ("q", "workflow", "order", "b1")
    ]
    await file.sql("update task set namespace = '', queue = '', kind = '', type = '', build = ''")
    (script,) = [step.script for step in migrations("backstay.store.sqlite") if step.name == "overview"]
    await file.sql(script[script.index("update task") : script.index(";", script.index("update task"))])
    assert await store.waiting_tasks("default", instant(100)) == counted


# -- a file that somebody else is writing


async def test_a_locked_file_is_unavailable_and_works_again_when_it_is_free(file: Handles) -> None:
    store = file.opened()
    instance = _started()
    store.changed()
    with writing(file.path) as other:
        result = await apply(store, *instance.written)
        assert isinstance(result.down, Unavailable)
        assert "another program holds its write lock" in str(result.down)
        assert isinstance(await store.probe(), Unavailable)
        assert await store.load(instance.key) is None
        assert not store.changed().value
        other.execute("insert into notice (workflow) values (7)")
        other.execute("commit")
    assert await store.load(instance.key) is None
    assert await store.probe() is None
    assert store.changed().value, "what others did meanwhile is not missed"
    await applied(store, instance)
    assert await stored(store, instance) == expected(instance)


async def test_a_file_can_be_opened_and_read_while_another_process_writes_it(file: Handles) -> None:
    instance = _started()
    await applied(file.opened(), instance)
    with writing(file.path) as other:
        other.execute("delete from event")
        assert await stored(file.opened(), instance) == expected(instance)


async def test_a_batch_that_waits_for_another_writer_does_not_hold_up_the_engine(file: Handles) -> None:
    loop = asyncio.get_running_loop()
    waiting = threading.Event()

    def offload(work: Callable[[], Applied], done: Callable[[Applied], None]) -> None:
        connection = connection_of(store)
        connection.set_trace_callback(lambda statement: waiting.set() if statement == "begin immediate" else None)
        threading.Thread(target=lambda: loop.call_soon_threadsafe(done, work())).start()

    store = file.opened(offload)
    instance = _started()
    with writing(file.path) as other:
        result: asyncio.Future[Applied] = loop.create_future()
        store.apply(instance.written, result.set_result)
        waiting.wait()
        began = perf_counter()
        assert not store.changed().value
        assert await store.notices() == []
        assert await store.load(instance.key) is None
        assert perf_counter() - began < 1
        assert not result.done()
        other.execute("insert into notice (workflow) values (7)")
        other.execute("commit")
    assert await result == ALL
    assert store.changed().value, "what the other writer did meanwhile is not missed"
    assert not store.changed().value
    assert await stored(store, instance) == expected(instance)


async def test_notices_are_told_once_even_while_they_cannot_be_deleted(file: Handles) -> None:
    engine, guest = file.opened(), file.opened()
    assert engine.acquire().value
    first, second = _started(), _started()
    await applied(guest, first)
    with writing(file.path):
        assert await engine.notices() == [first.key]
        assert await engine.notices() == []
    await applied(guest, second)
    assert await engine.notices() == [second.key]
    assert file.ask("select * from notice") == []
    await applied(guest, third := _started())
    assert await engine.notices() == [third.key]


# -- a file that cannot grow


async def test_a_full_database_is_unavailable_keeps_nothing_of_the_batch_and_comes_back(file: Handles) -> None:
    store = file.opened()
    kept = _started()
    await applied(store, kept)
    connection = connection_of(store)
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")
    lost = [_started(arguments=b"x" * 4000) for _ in range(50)]
    result = await apply(store, *(instance.written[0] for instance in lost))
    assert isinstance(result.down, Unavailable)
    assert "the disk is full; free some space" in str(result.down)
    for instance in lost:
        assert await store.load(instance.key) is None
    assert (await apply(store, *lost[0].written)).down is not None, "nothing is taken before a probe has succeeded"
    assert await store.probe() is None  # on a fresh connection, which has room
    await applied(store, *lost)
    for instance in (kept, *lost):
        assert await stored(store, instance) == expected(instance)


def test_an_error_at_the_commit_is_not_tried_again_and_nothing_of_the_batch_is_there(file: Handles) -> None:
    with child("fill_the_disk", file.path) as process:
        full = hear(process)
        assert "the disk reports an error" in full["down"]
        assert full["commits"] == 1, "one commit, whose failure is final"
        assert "disk" in hear(process)["probe while full"]
        assert "closed" in hear(process)["down without a probe"], "room alone is not enough"
        assert hear(process) == {"probe": None, "lost": None}
        after = hear(process)
        assert after["down"] is None
        process.wait()
    assert file.ask("select key from workflow order by key") == [(after["kept"],), (after["later"],)]
    assert file.ask("select distinct workflow from run order by workflow") == [(after["kept"],), (after["later"],)]
    assert file.ask("pragma integrity_check") == [("ok",)]


async def test_a_database_in_memory_that_is_full_keeps_what_it_had() -> None:
    with closing(SqliteStore(":memory:", MACHINE.kinds)) as store:
        kept, lost = _started(), _started(arguments=b"x" * 400_000)
        await applied(store, kept)
        connection = connection_of(store)
        connection.execute("pragma max_page_count = 40")
        assert isinstance((await apply(store, *lost.written)).down, Unavailable)
        assert await store.load(lost.key) is None
        assert await store.probe() is None
        assert await stored(store, kept) == expected(kept)
        connection.execute("pragma max_page_count = 10000")
        await applied(store, lost)


async def test_a_database_that_is_gone_does_not_come_back_empty(file: Handles) -> None:
    store = file.opened()
    instance = _started()
    await applied(store, instance)
    with writing(file.path):
        assert (await apply(store, *instance.step(ScheduleActivity(activity_type="charge")))).down is not None
    moved = Path(file.path).with_name("moved.db")
    Path(file.path).rename(moved)
    assert isinstance(await store.probe(), Unavailable)
    assert not Path(file.path).exists()
    moved.rename(file.path)
    assert await store.probe() is None
    assert await apply(store, *instance.written[1:]) == ALL
    assert await stored(store, instance) == expected(instance)


# -- one engine per file


def test_another_name_for_the_same_file_does_not_give_a_second_engine(file: Handles, tmp_path: Path) -> None:
    assert file.opened().acquire().value
    alias = tmp_path / "alias.db"
    alias.symlink_to(file.path)
    with closing(SqliteStore(str(alias), MACHINE.kinds)) as store:
        assert not store.acquire().value


def _started(**options: Any) -> StoredFlow:
    instance = StoredFlow()
    instance.start(**options)
    return instance


def test_a_store_that_cannot_open_its_last_connection_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    def connect(path: str, **options: Any) -> sqlite3.Connection:
        if opened:
            raise Unavailable("too many open files")
        opened.append(real(path, **options))
        return opened[0]

    real = connection.connect
    monkeypatch.setattr("backstay.store.sqlite.connect", connect)
    with pytest.raises(Unavailable, match="too many open files"):
        SqliteStore(str(tmp_path / "app.db"), MACHINE.kinds)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_is_gone_takes_no_commits(tmp_path: Path, how: str) -> None:
    path = tmp_path / "app.db"
    store = SqliteStore(str(path), MACHINE.kinds)
    first, second = instances(2)
    await applied(store, first)
    path.rename(tmp_path / "elsewhere.db")
    if how == "replaced":
        path.write_bytes(b"")
    result = await apply(store, *second.written)
    assert result.down is not None
    assert "was removed or replaced while it was open" in str(result.down)
    assert "put the file back" in str(result.down)
    await store.close()


async def test_an_idle_engine_notices_that_its_file_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "app.db", tmp_path / "elsewhere.db"
    store = SqliteStore(str(path), MACHINE.kinds)
    (instance,) = instances(1)
    await applied(store, instance)
    assert not await store.changed()
    path.rename(elsewhere)
    with pytest.raises(Unavailable, match="removed or replaced"):
        await store.changed()
    assert await store.probe() is not None
    elsewhere.rename(path)
    assert await store.probe() is None
    await store.changed()
    assert await store.load(instance.key) is not None
    await store.close()


# -- a file that rests


async def test_a_file_that_rests_is_known_to_be_undisturbed_and_any_commit_of_others_ends_that(file: Handles) -> None:
    store, other = file.opened(), file.opened()
    first, second = instances(2)
    await applied(store, first)
    log = Path(f"{file.path}-wal")
    store.changed()
    assert not store.undisturbed(), "it was written a moment ago, and times of files are coarse"
    at_rest(log)
    assert not store.changed().value
    assert store.undisturbed()
    await applied(other, second)
    assert not store.undisturbed()
    assert store.changed().value


async def test_a_log_that_begins_again_is_not_undisturbed(file: Handles) -> None:
    store, other = file.opened(), file.opened()
    first, second = instances(2)
    await applied(store, first)
    log = Path(f"{file.path}-wal")
    at_rest(log)
    store.changed()
    connection_of(other).execute("pragma wal_checkpoint(truncate)")
    await applied(other, second)
    assert not store.undisturbed()


async def test_a_file_that_is_gone_is_not_undisturbed(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    store = SqliteStore(str(path), MACHINE.kinds)
    (instance,) = instances(1)
    await applied(store, instance)
    at_rest(Path(f"{path}-wal"))
    store.changed()
    assert store.undisturbed()
    path.rename(tmp_path / "elsewhere.db")
    assert not store.undisturbed()
    (tmp_path / "elsewhere.db").rename(path)
    await store.close()


def at_rest(log: Path) -> None:
    """The log was written a second ago."""
    written = log.stat().st_mtime_ns - 1_000_000_000
    os.utime(log, ns=(written, written))
