"""Everything that was open in a file goes on at a server: timers, retries, children, schedules, signals, streams."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay import WorkflowFailed
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros, Routing
from backstay.store import RegistryEntry
from backstay.store.copying import copier
from backstay.store.copying.postgresql_end import task_row

from ..sdk.kit import eventually, names
from . import flows
from .conftest import SOME
from .flows import Buffers, StillApp, copied, emits, go, waits


@pytest.fixture(params=["postgresql", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "target.db") if request.param == "sqlite" else request.getfixturevalue("postgresql_url")


async def begun(path: Path) -> Micros:
    """Workflows in every state, left as a process leaves them that is killed. Returns the time on their clock."""
    flows.gate = flows.Gate()
    async with StillApp(str(path)) as app:
        await app.execute(flows.ends, "closed", "fine")
        with pytest.raises(WorkflowFailed):
            await app.execute(flows.fails, "failed")
        labelled = app.options(business_key="b-1", labels={"team": "red"}, search={"city": "Delft", "n": 3})
        await labelled.start(waits, "waits")
        await app.start(flows.naps, "naps")
        await app.start(flows.retries, "retries")
        await app.start(flows.parent, "parent")
        await app.start(flows.continues, "continues", 1)
        talks = await app.start(emits, "emits")
        for n in (1, 2):
            await app.options(request_id=f"r-{n}").handle(emits, "emits").signal(go, n)
        await app.schedules.options(every="1h").create(flows.ends, "hourly", "on time")
        await app.start(flows.works, "works")
        await eventually(flows.gate.began.is_set)
        flows.gate.began.clear()
        await app.start(Buffers, "buffers")
        await eventually(flows.gate.began.is_set)
        for n in (1, 2):
            await app.options(request_id=f"b-{n}").handle(Buffers, "buffers").signal(Buffers.add, n)
        await eventually(lambda: _failed_once(app), "a first attempt has failed")
        await eventually(lambda: _emitted(talks, 2), "both are in the stream")
        app.store.keep(RegistryEntry("saved_view", "default", "mine", b'{"a":1}'), lambda error: None)
        now = app.clock.now()
    flows.gate.opened.set()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("select count(*) from workflow where held is not null").fetchall() == [(1,)]
        assert file.execute("select count(*) from task where state = 'leased'").fetchall() == [(2,)]
    return now


async def _failed_once(app: StillApp) -> bool:
    return "ActivityRetryScheduled" in names(await app.history("retries"))


async def _emitted(handle: Any, number: int) -> bool:
    found: list[Any] = []
    async for item in handle.stream("out"):
        found.append(item)
        if len(found) == number:
            return True
    return False


async def test_everything_that_was_open_goes_on_in_the_copy(tmp_path: Path, target: str) -> None:
    now = await begun(tmp_path / "app.db")
    report = await copied(tmp_path / "app.db", target)
    assert (report.differences, report.damaged, report.resumed) == ([], [], 0)
    assert report.compared >= 12
    async with StillApp(target, now + 1 * SECOND) as app:
        assert app.engine.holder
        # Requests that were answered before are known.
        again = app.options(request_id="r-2").handle(emits, "emits")
        await again.signal(go, 2)
        await app.options(request_id="b-2").handle(Buffers, "buffers").signal(Buffers.add, 2)
        await app.handle(Buffers, "buffers").signal(Buffers.add, 3)
        assert await app.handle(Buffers, "buffers").result() == [1, 2, 3]
        assert await app.handle(flows.works, "works").result() == "through"
        await app.handle(waits, "waits").signal(go, 7)
        assert await app.handle(waits, "waits").result() == 7
        (child,) = [row.workflow_id for row in await app.list(type="waits") if row.workflow_id != "waits"]
        await app.handle(waits, child).signal(go, 41)
        assert await app.handle(flows.parent, "parent").result() == 42
        await app.handle(flows.continues, "continues").signal(go, 1)
        assert await app.handle(flows.continues, "continues").result() == 4
        await again.signal(go, 2)
        await app.handle(emits, "emits").signal(go, 3)
        await app.handle(emits, "emits").signal(go, -1)
        assert await app.handle(emits, "emits").result() == "enough"
        assert [item async for item in app.handle(emits, "emits").stream("out")] == [1, 2, 3]
        await app.clock.advance(600)
        assert await app.handle(flows.retries, "retries").result() == "done at attempt 2"
        await app.clock.advance(3000)
        assert await app.handle(flows.naps, "naps").result() == "awake"
        fired = await eventually(lambda: _fired(app), "the schedule has fired")
        assert await app.handle(flows.ends, fired).result() == "on time"
        assert (await app.schedules.handle("hourly").describe()).fires_count == 1
        # What was closed is as it was, and is found by what it was found by.
        assert await app.handle(flows.ends, "closed").result() == "fine"
        with pytest.raises(WorkflowFailed, match="no stock"):
            await app.handle(flows.fails, "failed").result()
        assert [row.workflow_id for row in await app.list(labels={"team": "red"}, search=("city", "Delft"))] == [
            "waits"
        ]
        assert [entry.body for entry in await app.store.kept("saved_view")] == [b'{"a":1}']
        assert len(await app.list(type="continues")) == 3


async def _fired(app: StillApp) -> str | None:
    return next((row.workflow_id for row in await app.list() if row.workflow_id.startswith("schedule:hourly")), None)


async def test_a_copy_back_into_a_file_is_the_same_again(tmp_path: Path, postgresql_url: str) -> None:
    await begun(tmp_path / "app.db")
    assert (await copied(tmp_path / "app.db", postgresql_url)).differences == []
    assert (await copied(postgresql_url, tmp_path / "back.db")).differences == []
    async with flows.copying(tmp_path / "app.db", tmp_path / "back.db") as both:
        report = await both.compare()
    assert (report.differences, report.damaged) == ([], [])


async def test_a_long_run_is_copied_in_pieces(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "ROWS", 50)
    async with StillApp(str(tmp_path / "app.db")) as app:
        await app.start(emits, "long")
        await asyncio.gather(*(app.handle(emits, "long").signal(go, n) for n in range(300)))
    assert (await copied(tmp_path / "app.db", postgresql_url)).differences == []
    async with StillApp(postgresql_url) as app:
        await app.handle(emits, "long").signal(go, -1)
        assert await app.handle(emits, "long").result() == "enough"
        assert len([item async for item in app.handle(emits, "long").stream("out")]) == 300


async def test_pages_are_cut_by_the_events_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "EVENTS", 10)
    pages: list[int] = []
    async with StillApp(str(tmp_path / "app.db")) as app:
        for n in range(3):
            await app.start(waits, f"w-{n}")  # three events each
        await app.start(emits, "long")
        await asyncio.gather(*(app.handle(emits, "long").signal(go, n) for n in range(20)))
    hooks: Any = {"progress": lambda what, done, total: pages.append(done)}
    async with flows.copying(tmp_path / "app.db", tmp_path / "target.db", **hooks) as both:
        assert (await both.copy()).differences == []
    assert pages == [3, 4, 5] * 2, "the stream of the long one is an instance, too"


async def test_an_empty_database_is_copied(tmp_path: Path, postgresql_url: str) -> None:
    async with StillApp(str(tmp_path / "app.db")):
        pass
    report = await copied(tmp_path / "app.db", postgresql_url)
    assert (report.compared, report.differences) == (0, [])


async def test_thousands_of_instances_are_copied_in_pages(source: Path, postgresql_url: str) -> None:
    """One instance, made into 5,000 with the same history."""
    with closing(sqlite3.connect(source)) as file, file:
        ((key, run),) = file.execute("select key, run from workflow where workflow_id = 'w-1'").fetchall()
        for table, changes, whose in (
            ("workflow", {"key": "key + n", "run": "run + n", "workflow_id": "'c-' || n"}, f"key = {key}"),
            (
                "run",
                {"key": "key + n", "workflow": "workflow + n", "run_id": "run_id || n", "workflow_id": "'c-' || n"},
                f"key = {run}",
            ),
            ("event", {"run": "run + n"}, f"run = {run}"),
            ("command", {"workflow": "workflow + n"}, f"workflow = {key}"),
        ):
            columns = [row[1] for row in file.execute(f"pragma table_info({table})")]
            made = ", ".join(str(changes.get(column, column)) for column in columns)
            file.execute(
                "with recursive number (n) as (select 1 << 40 union all select n + (1 << 40) from number limit 5000)"
                f" insert into {table} ({', '.join(columns)}) select {made} from number, {table} where {whose}"
            )
    pages: list[tuple[str, int]] = []
    hooks: Any = {"progress": lambda what, done, total: pages.append((what, done))}
    async with flows.copying(source, postgresql_url, **hooks) as both:
        report = await both.copy()
    assert (report.compared, report.differences, report.damaged) == (5000 + SOME, [], [])
    assert pages == [(what, min(n * 500, 5000 + SOME)) for what in ("copied", "compared") for n in range(1, 12)]


def test_a_task_of_a_file_gets_what_a_server_looks_for() -> None:
    leased = Task(
        id="t",
        workflow=1,
        run=2,
        kind="activity",
        type="charge",
        routing=Routing(queue="q", compatibility="b1"),
        available_at=3,
        created_at=3,
        state="leased",
        until=9,
    )
    row = (1, "t", "leased", 3, msgspec.json.encode(leased), "default", "", "", "", "")
    assert task_row(row) == (*row[:5], "default", "q", "activity", "charge", "b1", 9, None)
    broken = (1, "t", "leased", 3, b"{", "default", "", "", "", "")
    assert task_row(broken) == (*broken, None, None)
