"""What one process was told is true for the next one that is asked: an engine refuses nothing by what it remembers alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backstay import AsyncBackstay, ScheduleAlreadyExists, Unavailable, workflow
from backstay.engine.cluster import notices
from backstay.kernel.values import SCHEDULES, SECOND
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, SlowAnswers, of, shared


@workflow
def report() -> str:
    return "done"


@pytest.fixture(params=["file", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/app.db" if request.param == "file" else request.getfixturevalue("postgresql_url")


@pytest.fixture(autouse=True)
def hears_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine does not hear in time what other processes commit."""
    monkeypatch.setattr(notices, "NOTICE", 3600 * SECOND)
    monkeypatch.setattr(notices, "LOOK_ANYWAY", 3600 * SECOND)


async def test_a_refusal_is_checked_against_the_database(where: str) -> None:
    async with AsyncBackstay(where, [report]) as engine:
        hourly = engine.schedules.options(every=3600)
        await hourly.create(report, "hourly")
        with pytest.raises(ScheduleAlreadyExists):
            await hourly.create(report, "hourly")
        async with AsyncBackstay(where, [report], client_only=True) as beside:
            await beside.schedules.handle("hourly").delete()
        await hourly.create(report, "hourly")
        assert (await engine.schedules.handle("hourly").describe()).status == "active"


async def test_what_cannot_be_checked_is_not_refused(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncBackstay(where, [report]) as engine:
        hourly = engine.schedules.options(every=3600)
        await hourly.create(report, "hourly")

        async def unreachable(key: int) -> int | None:
            raise Unavailable("no answer")

        with monkeypatch.context() as cut:
            cut.setattr(engine.engine.store, "last", unreachable)
            with pytest.raises(Unavailable):
                await hourly.create(report, "hourly")
        with pytest.raises(ScheduleAlreadyExists):
            await hourly.create(report, "hourly")


def test_a_refusal_that_waited_for_a_commit_is_checked_after_it() -> None:
    """Another process may have committed on top of that commit before its owner heard that it is on disk."""

    async def story(_: object) -> str:
        disk, answers = Disk(), SlowAnswers()
        async with OnDisk(disk, 1, [report], answers) as owner, OnDisk(disk, 2, [report]) as guest:
            await shared(owner, guest)
            hourly = owner.schedules.options(every=3600)
            schedule = await hourly.create(report, of(owner, 1, f"default{SCHEDULES}"))
            answers.late = 0.5
            paused = asyncio.ensure_future(schedule.pause())
            await eventually(lambda: any(entry.inflight for entry in owner.engine.cache), "the pause is on its way")
            await guest.schedules.handle(schedule.id).delete()
            await hourly.create(report, schedule.id)
            await paused
            return (await owner.schedules.handle(schedule.id).describe()).status

    assert run(1, story) == "active"
