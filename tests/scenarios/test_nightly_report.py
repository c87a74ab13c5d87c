"""A shop's report, every night at half past two in Berlin, through a spring, an outage, a slow night and a holiday.

Every night has exactly one report, or it is known why it has none. Time is the test's own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tests.sdk.kit import StillWorld, eventually

from backstay import AsyncBackstay, WorkflowNotFound, activity, info, workflow
from backstay.kernel.features.schedule import Schedule
from backstay.kernel.values import SECOND

BERLIN = ZoneInfo("Europe/Berlin")
written: list[str] = []
printer_works = True


@activity(retries=9, backoff="20h")
def write(night: str) -> None:
    if not printer_works:
        raise ConnectionError("the printer is broken")
    written.append(night)


@workflow(type="night-report")
def night_report(shop: str) -> None:
    night = info().occurrence
    assert night is not None
    write(f"{night.astimezone(BERLIN):%d.%m. %H:%M}")


class Calendar(StillWorld):
    """A clock that goes from one moment in Berlin to another."""

    def set(self, text: str) -> None:
        self._still = round(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()) * SECOND

    async def until(self, text: str) -> None:
        there = round(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()) * SECOND
        await self.advance((there - self._still) / SECOND)


def test_every_night_has_its_report_or_a_reason_why_not() -> None:
    asyncio.run(nights())


async def nights() -> None:
    global printer_works
    written.clear()
    calendar = Calendar()
    calendar.set("2027-03-26T12:00")
    async with AsyncBackstay(":memory:", [night_report, write], world=lambda: calendar) as shop:
        nightly = await shop.schedules.options(cron="30 2 * * *", timezone="Europe/Berlin").create(
            night_report, "report", "corner shop"
        )

        async def quiet() -> Schedule | None:
            state = await nightly.describe()
            return None if state.running else state

        # Three nights; in the second one the clock jumps from two to three.
        for morning in ("2027-03-27T08:00", "2027-03-28T08:00", "2027-03-29T08:00"):
            await calendar.until(morning)
            await eventually(quiet, "the report")
        assert written == ["27.03. 02:30", "28.03. 03:00", "29.03. 02:30"]

        # Nobody looks at the clock for two days and more: one report, for the last night, and two nights that are counted.
        calendar.set("2027-04-01T07:00")
        await calendar.advance(0)
        await eventually(lambda: len(written) == 4, "the report after the outage")
        assert written[-1] == "01.04. 02:30"
        assert ((await nightly.describe()).skipped_count, (await nightly.describe()).last_skip_reason) == (
            2,
            "missed_occurrences",
        )
        lost = await nightly.backfill(
            datetime(2027, 3, 30, tzinfo=UTC), datetime(2027, 4, 1, tzinfo=UTC), overlap="allow_all"
        )
        assert [night.outcome for night in lost] == ["triggered", "triggered"]
        await eventually(quiet, "the reports of the outage")
        assert sorted(written[4:]) == ["30.03. 02:30", "31.03. 02:30"]

        # The printer breaks for three days. The night after has no report of its own; the one after that may wait.
        printer_works = False

        async def tried(times: int) -> bool:
            with suppress(WorkflowNotFound):
                history = await shop.history("schedule:report:2027-04-02T00:30:00Z")
                return [entry.type for entry in history].count("ActivityRetryScheduled") == times
            return False

        await calendar.until("2027-04-02T02:30")
        await eventually(lambda: tried(1), "the first try")
        await calendar.until("2027-04-03T02:30")
        await eventually(lambda: tried(2), "the second try")
        assert ((await nightly.describe()).skipped_count, (await nightly.describe()).last_skip_reason) == (
            3,
            "overlap_policy_skip",
        )
        await nightly.update(overlap="buffer_one")
        await calendar.until("2027-04-04T02:30")
        await eventually(lambda: tried(3), "the third try")
        assert len((await nightly.describe()).buffer) == 1
        printer_works = True
        await calendar.until("2027-04-04T23:00")
        await eventually(lambda: len(written) == 8, "the reports that had to wait")
        assert written[6:] == ["02.04. 02:30", "04.04. 02:30"]

        # On holiday nothing is written, and nothing is made up for.
        await eventually(quiet, "nothing runs")
        await nightly.pause("on holiday")
        await calendar.until("2027-04-12T09:00")
        await nightly.resume("back")
        state = await nightly.describe()
        assert state.next_fire is not None
        following = datetime.fromtimestamp(state.next_fire.at / SECOND, BERLIN)
        assert following == datetime(2027, 4, 13, 2, 30, tzinfo=BERLIN)
        assert following - datetime.fromtimestamp(calendar.now() / SECOND, BERLIN) < timedelta(days=1)
        kinds = [event.entry.type for event in await nightly.history(limit=500)]
        assert kinds.count("ScheduleTriggered") == len(written) == 8
