"""Tests of copying may be coroutines, as those of the SDK. They share one file with a few workflows in it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ..sdk.conftest import pytest_pyfunc_call
from ..sdk.kit import eventually
from . import flows
from .flows import StillApp

__all__ = ["pytest_pyfunc_call"]

SOME = 23  # instances


async def _made(path: Path) -> None:
    async with StillApp(str(path)) as app:
        for n in range(SOME - 4):
            await app.options(labels={"n": str(n % 2)}).start(flows.waits, f"w-{n}")
        await app.execute(flows.ends, "closed", "fine")
        await app.start(flows.continues, "continues", 1)
        await app.start(flows.parent, "parent")
        await eventually(lambda: _has_child(app), "the child has started")
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("select count(*) from workflow").fetchall() == [(SOME,)]


async def _has_child(app: StillApp) -> bool:
    return len(await app.list(type="waits")) == SOME - 3


@pytest.fixture(scope="session")
def _one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copying") / "app.db"
    asyncio.run(_made(path))
    return path


@pytest.fixture
def source(_one_file: Path, tmp_path: Path) -> Path:
    """A file with some workflows, nobody's but the test's."""
    return Path(shutil.copy(_one_file, tmp_path / "app.db"))
