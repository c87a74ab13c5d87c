"""Schedules with the published client and worker, unmodified, against our server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from durable_workflow import Client
from durable_workflow.client import ScheduleAction, ScheduleSpec
from durable_workflow.errors import InvalidArgument, ScheduleAlreadyExists, ScheduleListError, ScheduleNotFound

from .conftest import TOKEN, Running
from .test_published_sdk import working

GREET = ScheduleAction(workflow_type="greeter", task_queue="q", input=["ada"])
EVERY_SECOND = ScheduleSpec(intervals=[{"every": "PT1S"}])
DAILY = ScheduleSpec(cron_expressions=["30 2 * * *"], timezone="Europe/Berlin")


async def once(look: Callable[[], Awaitable[Any]]) -> Any:
    """What a look finds, once it finds something."""
    async with asyncio.timeout(20):
        while not (found := await look()):
            await asyncio.sleep(0.02)
        return found


async def test_a_schedule_fires_and_the_published_worker_runs_it(server: Running) -> None:
    async with working(server) as desk:
        client = desk.client
        handle = await client.create_schedule(schedule_id="often", spec=EVERY_SECOND, action=GREET, max_runs=2)

        async def fired() -> str | None:
            return (await handle.describe()).latest_workflow_instance_id

        id = await once(fired)
        assert id.startswith("schedule:often:")
        assert await desk.result(id) == {"greeting": "hello, ada", "length": 10}

        async def over() -> bool:
            return bool((await client.list_schedules(status="ended")).schedules)

        await once(over)  # after its second run
        assert (await handle.describe()).status == "ended"
        kinds = [event.event_type async for event in handle.iter_history(limit=2)]
        assert kinds.count("ScheduleTriggered") == 2
        assert kinds[0] == "ScheduleCreated"
        assert kinds.count("ScheduleDeleted") == 1  # the end of its last run may be recorded after it


async def test_the_published_client_can_make_every_schedule_request(server: Running) -> None:
    async with working(server) as desk:
        client = desk.client
        handle = await client.create_schedule(
            schedule_id="daily",
            spec=DAILY,
            action=GREET,
            overlap_policy="skip",
            jitter_seconds=5,
            memo={"who": "ada"},
            search_attributes={"team": "x"},
            paused=True,
            note="soon",
        )
        with pytest.raises(ScheduleAlreadyExists):
            await client.create_schedule(schedule_id="daily", spec=DAILY, action=GREET)
        found = await handle.describe()
        assert (found.status, found.note, found.jitter_seconds, found.fires_count) == ("paused", "soon", 5, 0)
        assert (found.memo, found.search_attributes) == ({"who": "ada"}, {"team": "x"})
        assert (found.spec or {})["cron_expressions"] == ["30 2 * * *"]
        assert (found.action or {})["workflow_type"] == "greeter"
        assert (found.next_fire_at, found.paused_at is None) == (None, False)
        assert (await handle.trigger()).reason == "status_not_triggerable"
        await handle.resume(note="go")
        assert (await handle.describe()).next_fire_at is not None
        triggered = await handle.trigger()
        assert triggered.outcome == "triggered"
        assert await desk.result(triggered.workflow_id or "") == {"greeting": "hello, ada", "length": 10}
        filled = await handle.backfill(
            start_time="2026-01-01T00:00:00Z", end_time="2026-01-04T00:00:00Z", overlap_policy="allow_all"
        )
        assert (filled.outcome, filled.fires_attempted) == ("backfill_started", 3)
        for one in filled.results or []:
            assert one["outcome"] == "started"
            await desk.result(one["workflow_id"])
        await handle.update(spec=ScheduleSpec(cron_expressions=["@hourly"]), overlap_policy="buffer_one", note="now")
        found = await handle.describe()
        assert (found.overlap_policy, found.note, (found.spec or {})["timezone"]) == ("buffer_one", "now", "UTC")
        await handle.pause(note="enough")
        assert (await handle.describe()).status == "paused"
        page = await handle.history(limit=3)
        assert (page.has_more, page.next_cursor, len(page.events)) == (True, 3, 3)
        await handle.delete()
        with pytest.raises(ScheduleNotFound):
            await handle.trigger()


async def test_lists_and_refusals_as_the_published_client_sees_them(server: Running) -> None:
    async with Client(server.url, token=TOKEN) as client:
        for name in ("a", "b", "c"):
            await client.create_schedule(schedule_id=name, spec=DAILY, action=GREET, note=name)
        made = await client.create_schedule(spec=DAILY, action=GREET)
        assert made.schedule_id
        assert len((await client.list_schedules(workflow_type="greeter")).schedules) == 4
        assert [s.schedule_id for s in (await client.list_schedules(query="Note = 'b'")).schedules] == ["b"]
        seen: list[str] = []
        token = None
        while True:
            page = await client.list_schedules(page_size=3, next_page_token=token)
            seen += [schedule.schedule_id for schedule in page.schedules]
            token = page.next_page_token
            if token is None:
                break
        assert seen == [made.schedule_id, "c", "b", "a"]
        with pytest.raises(ScheduleListError) as refused:
            await client.list_schedules(query="Colour = 'red'")
        assert refused.value.field == "query"
        with pytest.raises(InvalidArgument, match="five"):
            await client.create_schedule(spec=ScheduleSpec(cron_expressions=["x"]), action=GREET)
        with pytest.raises(InvalidArgument):
            await client.backfill_schedule("a", start_time="2026-01-02T00:00:00Z", end_time="2026-01-01T00:00:00Z")


async def test_a_server_that_was_killed_goes_on_with_its_schedules(server: Running) -> None:
    async with working(server) as desk:
        handle = await desk.client.create_schedule(schedule_id="often", spec=EVERY_SECOND, action=GREET)

        async def times(count: int) -> bool:
            return (await handle.describe()).fires_count >= count

        await once(lambda: times(1))
        server.kill()
        server.restart()
        before = (await handle.describe()).fires_count
        await once(lambda: times(before + 1))
        id = (await handle.describe()).latest_workflow_instance_id or ""

        async def arrived() -> bool:
            """Firing is one commit, the start that it sends another."""
            return id in [found.workflow_id for found in (await desk.client.list_workflows()).executions]

        await once(arrived)
        await desk.result(id)
        page = await handle.history(limit=500)
        ids = [event.workflow_instance_id for event in page.events if event.event_type == "ScheduleTriggered"]
        assert len(ids) == len(set(ids))
