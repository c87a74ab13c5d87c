"""Schedules over HTTP: the same surface as embedded, with the server's own clock."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from backstay import RequestRefused, ScheduleAlreadyExists, ScheduleNotFound, workflow

from ..sdk.kit import eventually
from .kit import remote


@workflow(type="report")
def report(region: str) -> str:
    return f"report of {region}"


async def test_a_schedule_lives_its_life_over_http() -> None:
    async with remote(report) as app:
        nightly = await app.schedules.options(cron="0 2 * * *", timezone="Europe/Berlin", memo={"by": "ann"}).create(
            report, "nightly", "emea"
        )
        assert [found.schedule_id for found in await app.schedules.list()] == ["nightly"]
        await nightly.update(cron="30 3 * * *", labels={"team": "north"})
        found = await nightly.describe()
        assert found.plan.spec.cron_expressions == ["30 3 * * *"]
        assert found.plan.visibility_labels == {"team": "north"}
        await nightly.pause("moving house")
        assert (await nightly.describe()).status == "paused"
        await nightly.resume()
        fired = await nightly.trigger()
        assert fired.workflow_id is not None
        assert await app.handle(report, fired.workflow_id).result() == "report of emea"
        day = [datetime(2026, 1, n, tzinfo=UTC) for n in (5, 7)]
        filled = await nightly.backfill(*day, overlap="allow_all")
        assert len(filled) == 2
        for one in filled:
            assert one.workflow_id is not None
            assert await app.handle(report, one.workflow_id).result() == "report of emea"

        async def told() -> list[str]:
            return [event.entry.type for event in await nightly.history()]

        async def all_told() -> bool:
            return (await told()).count("ScheduleActionClosed") == 3

        await eventually(all_told)
        assert (await told())[0] == "ScheduleCreated"
        await nightly.delete()
        with pytest.raises(ScheduleNotFound):
            await nightly.describe()


async def test_mistakes_are_told_as_in_process() -> None:
    async with remote(report) as app:
        await app.schedules.options(every="1h").create(report, "hourly", "emea")
        with pytest.raises(ScheduleAlreadyExists):
            await app.schedules.options(every="2h").create(report, "hourly", "emea")
        with pytest.raises(ScheduleNotFound):
            await app.schedules.handle("nobody").trigger()
        with pytest.raises(RequestRefused, match="minute is 0 to 59"):
            await app.schedules.options(cron="99 * * * *").create(report, "never", "emea")
