"""What a copy refuses, what it finds, and what it leaves out."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backstay import StoreError, Unavailable
from backstay.store.copying import copier as module
from backstay.store.copying.copier import DamagedSource
from backstay.store.copying.sqlite_end import SqliteEnd
from backstay.store.copying.tables import COPIED, SEND, TASK
from backstay.store.postgresql.connection import address
from backstay.store.postgresql.driver import asyncpg
from backstay.store.sql import migrations
from backstay.store.sqlite.connection import migrate

from . import flows
from .conftest import SOME
from .flows import StillApp, copied, copying


def sql(path: Path, statement: str, *given: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as file, file:
        return file.execute(statement, given).fetchall()


async def ask(url: str, statement: str) -> list[Any]:
    place = address(url)
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema, "lock_timeout": "50ms"})
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


async def compared(source: Path | str, target: Path | str) -> list[str]:
    async with copying(source, target) as copier:
        return (await copier.compare()).differences


# -- who else is there


async def test_a_source_with_an_engine_is_refused_with_its_process(source: Path, tmp_path: Path) -> None:
    async with StillApp(str(source)):
        with pytest.raises(StoreError, match=rf"process {os.getpid()} \(.*\) runs the engine of .*app.db; stop it"):
            await copied(source, tmp_path / "target.db")


async def test_a_source_that_another_process_has_open_is_refused_with_it(source: Path, tmp_path: Path) -> None:
    program = (
        f"import sqlite3; c = sqlite3.connect({str(source)!r}); c.execute('pragma user_version'); print(); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreError, match=rf"process {other.pid} \(.*\) has .*app.db open; stop it"):
            await copied(source, tmp_path / "target.db")
        other.communicate(b"\n")


async def test_a_target_with_an_engine_is_refused(source: Path, postgresql_url: str) -> None:
    async with StillApp(postgresql_url):
        with pytest.raises(
            StoreError, match=r"a process at .* \(session \d+, 'backstay'\) runs the engine of postgresql:"
        ):
            await copied(source, postgresql_url)


async def test_writers_are_kept_out_of_a_file_while_it_is_copied(source: Path, tmp_path: Path) -> None:
    tried: list[str] = []

    def write(what: str, done: int, total: int) -> None:
        with (
            closing(sqlite3.connect(source, timeout=0)) as file,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            file.execute("delete from workflow")
        tried.append(what)

    async with copying(source, tmp_path / "target.db", progress=write) as copier:
        assert (await copier.copy()).differences == []
    assert tried == ["copied", "compared"]


async def test_writers_are_kept_out_of_a_schema_while_it_is_copied(
    source: Path, tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied(source, postgresql_url)
    rest = module.Copier._rest

    async def write(self: Any) -> None:
        for table in COPIED:
            with pytest.raises(asyncpg.LockNotAvailableError):
                await ask(postgresql_url, f"delete from {table.name}")
        await rest(self)

    monkeypatch.setattr(module.Copier, "_rest", write)
    assert (await copied(postgresql_url, tmp_path / "target.db")).differences == []


async def test_a_target_that_is_not_empty_is_refused(source: Path, tmp_path: Path, postgresql_url: str) -> None:
    await copied(source, postgresql_url)
    with pytest.raises(
        StoreError, match=r"schema=test_\w+ is not empty .*; copy into a new database or another schema"
    ):
        await copied(source, postgresql_url, restart=True)
    async with StillApp(str(tmp_path / "other.db")) as app:
        await app.execute(flows.ends, "e", "fine")
    with pytest.raises(StoreError, match="is not empty"):
        await copied(source, tmp_path / "other.db")


async def test_a_target_with_half_a_copy_of_another_source_is_refused_until_it_is_discarded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with StillApp(str(tmp_path / "other.db")) as app:
        await app.execute(flows.ends, "e", "fine")
    with monkeypatch.context() as broken:
        broken.setattr(module.Copier, "_rest", lambda self: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await copied(tmp_path / "other.db", tmp_path / "target.db")
    with pytest.raises(
        StoreError, match=r"has an unfinished copy of sqlite:.*other.db, not of sqlite:.*app.db; .*--restart"
    ):
        await copied(source, tmp_path / "target.db")
    report = await copied(source, tmp_path / "target.db", restart=True)
    assert (report.differences, report.discarded) == ([], True)
    assert sql(tmp_path / "target.db", "select count(*) from workflow") == [(SOME,)]


async def test_a_database_is_not_copied_into_itself(source: Path, tmp_path: Path) -> None:
    os.symlink(source, tmp_path / "same.db")
    with pytest.raises(StoreError, match="cannot be copied into itself"):
        await copied(source, tmp_path / "same.db")
    with pytest.raises(StoreError, match="in memory"):
        await copied(source, ":memory:")


async def test_a_target_that_cannot_be_reached_is_told_and_nothing_happens(source: Path) -> None:
    with pytest.raises(Unavailable, match="the server cannot be reached") as caught:
        await copied(source, "postgresql://ann:secret@/db?host=/nowhere")
    assert "secret" not in str(caught.value)


async def test_a_target_that_is_lost_in_the_middle_is_told_and_the_copy_goes_on(
    source: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pour = module._pour

    async def cut(found: Any, table: Any, insert: Any) -> None:
        if table is SEND:
            await ask(
                postgresql_url,
                "select pg_terminate_backend(pid) from pg_locks"
                " where locktype = 'advisory' and objid = 'workflow'::regclass::oid",
            )
        await pour(found, table, insert)

    with monkeypatch.context() as broken:
        broken.setattr(module, "_pour", cut)
        sql(source, "insert into send values (7, 1, 'default', 'nobody', 'Ask', x'00')")
        with pytest.raises(Unavailable, match=r"terminat|closed"):
            await copied(source, postgresql_url)
    report = await copied(source, postgresql_url)
    assert (report.differences, report.resumed) == ([], SOME)


async def test_what_a_server_keeps_may_change_until_the_copy_goes_on(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    sql(source, "insert into registry values ('token', '', 'old', x'7b7d')")
    async with copying(source, target) as copier:
        copier._compared = lambda: 1 // 0  # type: ignore[method-assign, assignment]
        with pytest.raises(ZeroDivisionError):
            await copier.copy()
    sql(source, "insert into registry values ('token', '', 'new', x'7b7d')")
    report = await copied(source, target)
    assert (report.differences, report.resumed) == ([], SOME)
    assert sql(target, "select name from registry where kind = 'token' order by name") == [("new",), ("old",)]


# -- what is in the source


async def test_a_file_of_the_first_version_is_migrated_by_opening_it(source: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    steps = migrations("backstay.store.sqlite")
    with closing(sqlite3.connect(old, isolation_level=None)) as file:
        migrate(file, str(old), steps[:1])
        file.execute("attach ? as new", (str(source),))
        for table in ("workflow", "run", "event", "task", "command"):
            columns = ", ".join(row[1] for row in file.execute(f"pragma main.table_info({table})"))
            file.execute(f"insert into main.{table} ({columns}) select {columns} from new.{table}")
    report = await copied(old, tmp_path / "target.db")
    assert (report.differences, report.compared) == ([], SOME)
    assert sql(old, "pragma user_version") == [(steps[-1].number,)]
    missing = await compared(source, tmp_path / "target.db")
    assert [said for said in missing if not said.startswith("tally ")] == [], "it had no tallies yet"


async def test_a_damaged_history_is_named_and_copied_only_if_that_is_asked_for(
    source: Path, tmp_path: Path, postgresql_url: str
) -> None:
    sql(
        source,
        "update event set body = x'00' where sequence = 2 and run = (select run from workflow where workflow_id = 'w-3')",
    )
    sql(source, "delete from event where sequence = 2 and run = (select run from workflow where workflow_id = 'w-5')")
    with pytest.raises(DamagedSource) as caught:
        await copied(source, postgresql_url)
    assert [re.sub(r"run \w+", "run R", line) for line in caught.value.found] == [
        "workflow w-3: run R, event 2: its checksum does not match",
        "workflow w-5: run R, event 2: missing; the next stored event is 3",
    ]
    report = await copied(source, postgresql_url, with_damaged=True)
    assert (report.differences, report.damaged) == ([], caught.value.found)
    async with StillApp(postgresql_url) as app:
        await app.handle(flows.waits, "w-4").signal(flows.go, 4)
        assert await app.handle(flows.waits, "w-4").result() == 4


async def test_rows_beside_workflows_are_copied_too(source: Path, postgresql_url: str) -> None:
    sql(source, "insert into send values (7, 1, 'default', 'nobody', 'Ask', x'00')")
    sql(source, "insert into registry values ('namespace', '', 'default', x'7b7d')")
    sql(source, "insert into tally values ('default', 60, 1, 'waits', 'started', 0, 12)")
    await copied(source, postgresql_url)
    assert len(await ask(postgresql_url, "select 1 from send where key = 7 and body = '\\x00'")) == 1
    assert len(await ask(postgresql_url, "select 1 from tally where n = 12")) == 1
    assert [row[0] for row in await ask(postgresql_url, "select name from registry")] == ["default"]
    assert await ask(postgresql_url, "select count(*) from facet where name = 'label:n'") == [(SOME - 4,)]


async def test_a_text_that_the_target_cannot_store_is_told(source: Path, postgresql_url: str) -> None:
    sql(source, "update run set business_key = 'a' || char(0) where workflow_id = 'w-2'")
    with pytest.raises(StoreError, match="a row of the table run has a text with a zero byte, which PostgreSQL"):
        await copied(source, postgresql_url)


# -- comparing

CHANGES = {
    "update workflow set cursor = cursor + 1 where workflow_id = 'w-2'": "workflow w-2: its row differ",
    "update run set status = 'lost' where workflow_id = 'w-2'": "workflow w-2: its runs differ",
    "delete from command where workflow = (select key from workflow where workflow_id = 'w-2')": "w-2: its commands differ",
    "update event set at = at + 1 where run = (select run from workflow where workflow_id = 'w-2')": "w-2: its history differ",
    "insert into task (workflow, id, state, available_at, body) select key, 'x', 'ready', 1, '{}' from workflow"
    " where workflow_id = 'w-2'": "w-2: its tasks differ; damaged in the target",
    "delete from workflow where workflow_id = 'w-2'": "w-2: its row differ; damaged in the target, the row of the workflow",
    "insert into send values (8, 1, 'default', 'nobody', 'Ask', '')": "send 8/1/default/nobody: is only in the target",
    "insert into registry values ('token', '', 't', '')": "registry token//t: is only in the target",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: " ".join(change.split()[:3]))
async def test_a_row_that_differs_is_found_with_its_workflow(source: Path, tmp_path: Path, change: str) -> None:
    await copied(source, tmp_path / "target.db")
    sql(tmp_path / "target.db", change.replace("'{}'", "x'7b7d'").replace(", '')", ", x'')"))
    (said,) = await compared(source, tmp_path / "target.db")
    assert CHANGES[change] in said


async def test_rows_that_differ_at_a_server_are_found(source: Path, postgresql_url: str) -> None:
    await copied(source, postgresql_url)
    await ask(
        postgresql_url, "update event set body = 'x' where run = (select run from workflow where workflow_id = 'w-2')"
    )
    await ask(postgresql_url, "delete from workflow where workflow_id = 'w-3'")
    changed, gone = sorted(await compared(source, postgresql_url))
    assert changed.startswith("workflow w-2: its history differ; damaged in the target, run ")
    assert gone.startswith("workflow w-3: its row differ")


async def test_a_copy_with_differences_stays_closed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target.db"
    settle = SqliteEnd.settle

    async def spoil(self: Any) -> None:
        await settle(self)
        self._do("update workflow set cursor = 99 where workflow_id = 'w-2'")

    with monkeypatch.context() as spoiled:
        spoiled.setattr(SqliteEnd, "settle", spoil)
        assert (await copied(source, target)).differences == ["workflow w-2: its row differ"]
    with pytest.raises(Unavailable, match="is not finished"):
        async with StillApp(str(target)):
            pass
    assert (await copied(source, target)).differences == ["workflow w-2: its row differ"]
    assert (await copied(source, target, restart=True)).differences == []


# -- nothing is forgotten

LEFT_OUT = {"migration", "notice", "facet", "writer", "shard", "engine", "outcome", "sqlite_stat1", "sqlite_stat4"}
"""Tables of the database itself, of processes, and what is made of other rows."""


async def test_every_table_and_column_is_copied_or_left_out_on_purpose(source: Path, postgresql_url: str) -> None:
    async with StillApp(postgresql_url):
        found = await ask(
            postgresql_url,
            "select table_name, column_name from information_schema.columns where table_schema = current_schema()",
        )
    at_server: dict[str, set[str]] = {}
    for table, column in found:
        at_server.setdefault(table, set()).add(column)
    in_file = {
        table: {row[1] for row in sql(source, f"pragma table_info({table})")}
        for (table,) in sql(source, "select name from sqlite_master where type = 'table'")
    }
    copied_columns = {table.name: set(table.columns) for table in COPIED}
    assert {table: columns for table, columns in in_file.items() if table not in LEFT_OUT} == copied_columns | {
        "command": copied_columns["command"] - {"position"}
    }
    assert {table: columns for table, columns in at_server.items() if table not in LEFT_OUT} == copied_columns | {
        TASK.name: copied_columns["task"] | {"until", "call"}
    }


async def test_what_is_of_use_to_one_database_only_is_left_out(source: Path, tmp_path: Path) -> None:
    """By the secret of the original the nodes of a copy would be its nodes, and a cookie of the original would open the copy."""
    kinds = ("node_secret", "browser_session", "gone_node", "signature:28413")
    for kind in (*kinds, "token"):
        sql(source, "insert into registry values (?, '', 'one', x'7b7d')", kind)
    target = tmp_path / "target.db"
    report = await copied(source, target)
    assert report.differences == []
    assert sql(target, "select kind from registry where name = 'one'") == [("token",)]
    assert await compared(source, target) == []
