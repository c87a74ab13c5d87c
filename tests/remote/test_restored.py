"""A backup is put in the place of the database while everything runs: what it says is what counts from then on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, AsyncClient, AsyncWorker, Signal, activity, wait, workflow

from ..sdk.kit import eventually
from .kit import TOKEN, House

ran: list[str] = []
gate = asyncio.Event()
go = Signal[str]("go")


@activity
async def guarded(name: str) -> str:
    ran.append(name)
    await gate.wait()
    return name


@workflow
def guards(name: str) -> str:
    return guarded.step(name).run()


@workflow
def guards_and_waits(name: str) -> str:
    return guarded.step(name).run() + wait(go)


EVERYTHING = [guards, guards_and_waits, guarded]


@asynccontextmanager
async def embedded(path: Path) -> AsyncIterator[AsyncBackstay]:
    async with AsyncBackstay(path, EVERYTHING) as app:
        yield app


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[AsyncClient]:
    async with (
        House(str(path)) as house,
        AsyncWorker(house.url, EVERYTHING, token=TOKEN),
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def _clean() -> None:
    global gate
    gate = asyncio.Event()
    ran.clear()


def back_up(path: Path) -> Path:
    copied = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(copied)) as copy:
        live.backup(copy)
    return copied


def restore(path: Path, backup: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    backup.rename(path)


@pytest.mark.parametrize("place", [embedded, served])
@pytest.mark.one_server("it copies the file of the database")
async def test_a_task_that_is_leased_in_a_restored_backup_is_done_again(tmp_path: Path, place: Any) -> None:
    path = tmp_path / "app.db"
    async with place(path) as app:
        run = await app.start(guards, "g", "g")
        await eventually(lambda: ran == ["g"], "it runs")
        backup = back_up(path)
        gate.set()
        assert await run.result() == "g"
        restore(path, backup)
        await eventually(lambda: ran == ["g", "g"], "it runs once more")
        assert await app.handle(guards, "g").result() == "g"


@pytest.mark.parametrize("place", [embedded, served])
@pytest.mark.one_server("it copies the file of the database")
async def test_a_run_that_is_open_goes_on_from_where_the_backup_has_it(tmp_path: Path, place: Any) -> None:
    path = tmp_path / "app.db"
    async with place(path) as app:
        run = await app.start(guards_and_waits, "g", "g")
        await eventually(lambda: ran == ["g"], "it runs")
        backup = back_up(path)
        gate.set()
        while "SignalWaitOpened" not in [entry.type for entry in await run.history()]:
            await asyncio.sleep(0.002)
        restore(path, backup)
        await eventually(lambda: ran == ["g", "g"], "it runs once more")
        await run.signal(go, "o")
        assert await run.result() == "go"
