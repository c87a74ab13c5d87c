"""A copier that is killed anywhere: nothing works on half a copy, and the next copier goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path

import pytest

from backstay import Unavailable
from backstay.kernel.machine import Machine
from backstay.store import Store
from backstay.store.opening import open_store
from backstay.store.sqlite.writer import Offload

from . import flows, killed
from .conftest import SOME
from .flows import StillApp, copied

ROOT = Path(__file__).parents[2]


def kill_at(when: str, source: Path, target: str) -> None:
    command = [sys.executable, "-m", "tests.copying.killed", str(source), target, when]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("when", "there"),
    [("1", 0), ("15", killed.PAGE), ("51", SOME), ("compare", SOME)],
    ids=["at once", "within a page", "with all instances there", "before comparing"],
)
async def test_a_killed_copy_is_refused_and_goes_on(source: Path, postgresql_url: str, when: str, there: int) -> None:
    kill_at(when, source, postgresql_url)
    with pytest.raises(Unavailable, match=r"the copy of sqlite:.*app.db into postgresql:.* is not finished; run the"):
        async with StillApp(postgresql_url):
            pass
    with pytest.raises(Unavailable, match="is not finished"):
        await open_store(postgresql_url, {})  # nor does anybody read or submit
    report = await copied(source, postgresql_url)
    assert (report.differences, report.resumed, report.discarded) == ([], there, False)
    async with StillApp(postgresql_url) as app:
        assert len(await app.list(status="open")) == SOME - 1


async def test_a_source_that_changed_since_is_copied_anew(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    kill_at("15", source, str(target))
    async with StillApp(str(source)) as app:
        await app.handle(flows.waits, "w-1").signal(flows.go, 1)
        await app.handle(flows.waits, "w-1").result()
    report = await copied(source, target)
    assert (report.differences, report.resumed, report.discarded) == ([], 0, True)


class OpenedBefore(StillApp):
    """Has opened the database before there was a mark in it."""

    def _open_store(self, machine: Machine, offload: Offload | None) -> Awaitable[Store]:
        return open_store(self.path, machine.kinds, offload, unfinished=True)


async def test_a_process_that_was_there_before_the_copier_does_not_become_the_engine_of_half_a_copy(
    source: Path, postgresql_url: str
) -> None:
    kill_at("15", source, postgresql_url)
    with pytest.raises(Unavailable, match="is not finished"):
        async with OpenedBefore(postgresql_url):
            pass
    assert (await copied(source, postgresql_url)).differences == []
