"""What one process was told is true for the next one that is asked: an engine refuses nothing by what it remembers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from backstay import AsyncBackstay, ScheduleAlreadyExists, Unavailable, workflow
from backstay.engine import notices
from backstay.kernel.values import SECOND


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
        async with AsyncBackstay(where, [report], run_tasks=False) as beside:
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
