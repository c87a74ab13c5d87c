"""What every store counts for operators, whatever its dialect. Mixed into the test classes of dialects, as `conformance` is."""

from __future__ import annotations

import asyncio

import pytest

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.values import SECOND, Micros, Routing
from backstay.store import Store, figures
from backstay.store.errors import Unavailable
from backstay.store.figures import (
    AttentionGroup,
    BuildCount,
    DurationCount,
    OpenSizes,
    OverdueCount,
    ReadyGroup,
    ScheduleCounts,
    TallyCount,
    WaitingGroup,
)
from backstay.store.views import HOUR, MINUTE, SummaryRow, TallyRow, ViewChanges

from .conformance import Database, instances
from .instances import StoredFlow, applied, apply, instant


async def put(store: Store, changes: ViewChanges) -> None:
    done: asyncio.Future[Unavailable | None] = asyncio.get_running_loop().create_future()
    store.put_views(changes, done.set_result)
    assert await done is None


def summary(run: int, state: str, **fields: object) -> SummaryRow:
    known: dict[str, object] = {
        "run": run,
        "workflow": run,
        "namespace": "default",
        "run_id": f"run-{run}",
        "workflow_type": "order",
        "state": state,
        "attention": None,
        "liveness": "x",
        "wait_kind": None,
        "queue": "q",
        "build": None,
        "task_kind": None,
        "task_type": None,
        "since": run,
        "until": None,
        "sort_timestamp": run,
        "duration": None,
        "digest": "",
        "body": b"{}",
        "schema": 1,
        "reason": None,
        "error": None,
        "worker": None,
    }
    rest = {name: 0 for name in SummaryRow._fields if name not in known}
    return SummaryRow(**known | rest | fields)  # type: ignore[arg-type]


class Counted:
    """Counts for an overview."""

    async def test_open_runs_are_counted_by_state_and_by_the_workers_they_wait_for(self, database: Database) -> None:
        store = await database.open()
        ready = {"task_kind": "activity", "task_type": "charge"}
        await put(
            store,
            ViewChanges(
                [
                    summary(1, "ready", **ready),
                    summary(2, "ready", **ready),
                    summary(3, "ready", **ready, build="b1"),
                    summary(4, "ready", **ready, queue="other"),
                    summary(5, "sleeping"),
                    summary(6, "blocked", attention="blocked", since=60),
                    summary(7, "blocked", attention="blocked", since=50, reason="other", worker="w"),
                    summary(8, "retrying", attention="retrying", reason="charge", error="no"),
                    summary(11, "retrying", attention="retrying", reason="charge", error="no"),
                    summary(9, "completed"),
                    summary(10, "ready", **ready, namespace="elsewhere"),
                ]
            ),
        )
        assert await store.count_states("default", 0) == ({"ready": 4, "sleeping": 1, "blocked": 2, "retrying": 2}, 0)
        found = await store.ready_runs("default")
        assert sorted(found, key=lambda group: (group.queue, group.build or "")) == [
            ReadyGroup("other", "activity", "charge", None, 1),
            ReadyGroup("q", "activity", "charge", None, 2),
            ReadyGroup("q", "activity", "charge", "b1", 1),
        ]
        assert await store.attention_groups("default", 9) == [
            AttentionGroup("retrying", "order", "charge", "no", None, 0, 2, 8, 8, 2, 8),
            AttentionGroup("blocked", "order", "other", None, "w", 0, 1, 50, 7, 2, 50),
            AttentionGroup("blocked", "order", None, None, None, 0, 1, 60, 6, 2, 50),
        ]
        (largest,) = await store.attention_groups("default", 1)
        assert (largest.cause, largest.runs, largest.all_runs) == ("retrying", 2, 2)
        assert await store.count_states("nowhere", 0) == ({}, 0)
        assert await store.attention_groups("nowhere", 9) == []

    async def test_the_histories_of_open_runs_are_counted_by_their_size(self, database: Database) -> None:
        store = await database.open()
        sizes = [
            summary(1, "ready", events=12, bytes=900),
            summary(2, "waiting", events=20, bytes=100),
            summary(3, "waiting", events=3, bytes=5000),
            summary(4, "completed", events=999, bytes=9999, duration=7),
            summary(5, "ready", events=500, bytes=500, namespace="elsewhere"),
        ]
        await put(store, ViewChanges(sizes))
        assert await store.open_sizes("default", 20, 4000) == OpenSizes(2, 20, 5000)
        assert await store.open_sizes("default", 0, 0) == OpenSizes(0, 20, 5000)
        assert await store.open_sizes("nowhere", 1, 1) == OpenSizes(0, 0, 0)

    async def test_open_runs_are_counted_by_the_build_they_are_pinned_to(self, database: Database) -> None:
        store = await database.open()
        pinned = instances(3, routing=Routing(queue="q", compatibility="b1"))
        free = instances(2, routing=Routing(queue="q"))
        elsewhere = StoredFlow(namespace="other")
        elsewhere.start(routing=Routing(namespace="other", compatibility="b1"))
        await applied(store, *pinned, *free, elsewhere)
        assert await store.open_builds("default") == [BuildCount("q", "b1", 3)]
        assert (await store.count_states("default", 0))[1] == 5
        pinned[0].complete(CompleteWorkflow())
        assert await apply(store, *pinned[0].decisions[1:]) is not None
        assert await store.open_builds("default") == [BuildCount("q", "b1", 2)]
        assert (await store.count_states("default", 0))[1] == 4
        assert await store.open_builds("nowhere") == []

    async def test_waiting_tasks_are_counted_by_who_could_take_them_and_listed_by_age(self, database: Database) -> None:
        store = await database.open()
        flows = instances(4, routing=Routing(queue="q"))
        pinned = StoredFlow()
        pinned.start(at=9, routing=Routing(queue="q", compatibility="b1"))
        elsewhere = StoredFlow(namespace="other")
        elsewhere.start(at=0, routing=Routing(namespace="other", queue="q"))
        await applied(store, *flows, pinned, elsewhere)
        now = instant(100)
        assert sorted(await store.waiting_tasks("default", now), key=lambda group: group.tasks) == [
            WaitingGroup("q", "workflow", "order", "b1", 1, instant(9)),
            WaitingGroup("q", "workflow", "order", None, 4, instant(0)),
        ]
        assert await store.waiting_tasks("default", instant(0) - 1) == [], "not due yet"
        page = await store.waiting_page("default", "q", now, None, 3)
        assert [(one.workflow_id, one.task.available_at) for one in page] == [
            (flow.workflow_id, instant(position)) for position, flow in enumerate(flows[:3])
        ]
        assert [one.workflow_type for one in page] == ["order"] * 3
        last = page[-1].task
        after = (last.available_at, last.workflow, last.id)
        rest = await store.waiting_page("default", "q", now, after, 3)
        assert [one.workflow_id for one in rest] == [flows[3].workflow_id, pinned.workflow_id]
        assert await store.waiting_page("default", "elsewhere", now, None, 3) == []
        flows[0].complete(ScheduleActivity(activity_type="charge", arguments=b""))
        assert await apply(store, *flows[0].decisions[1:]) is not None
        kinds = {group.kind: group for group in await store.waiting_tasks("default", instant(1000)) if not group.build}
        assert (kinds["activity"].type, kinds["activity"].tasks, kinds["workflow"].tasks) == ("charge", 1, 3)

    async def test_starts_and_ends_are_counted_by_interval_and_by_duration(self, database: Database) -> None:
        store = await database.open()
        await put(
            store,
            ViewChanges(
                tallies=[
                    TallyRow("default", MINUTE, MINUTE, "order", "started", 0, 3),
                    TallyRow("default", MINUTE, MINUTE, "order", "completed", 4, 2),
                    TallyRow("default", MINUTE, 2 * MINUTE, "order", "completed", 4, 1),
                    TallyRow("default", MINUTE, 2 * MINUTE, "ship", "failed", 9, 5),
                    TallyRow("default", MINUTE, 9 * MINUTE, "ship", "failed", 9, 100),
                    TallyRow("default", HOUR, 0, "order", "started", 0, 7),
                    TallyRow("other", MINUTE, MINUTE, "order", "started", 0, 9),
                ]
            ),
        )
        asked = ("default", MINUTE, MINUTE, 9 * MINUTE)
        assert await store.started_and_ended(*asked) == [
            TallyCount(MINUTE, 3, 2, 0, 0, 0, 0),
            TallyCount(2 * MINUTE, 0, 1, 5, 0, 0, 0),
        ]
        assert sorted(await store.durations(*asked)) == [
            DurationCount("order", "completed", 4, 3),
            DurationCount("order", "started", 0, 3),
            DurationCount("ship", "failed", 9, 5),
        ]
        assert await store.started_and_ended("default", HOUR, 0, HOUR) == [TallyCount(0, 7, 0, 0, 0, 0, 0)]

    async def test_wakes_are_counted_by_interval_in_one_namespace(self, database: Database) -> None:
        store = await database.open()
        await self._sleepers(store)
        counted = await store.wakes("default", instant(0), instant(180), 60 * SECOND)
        assert counted.counts == {instant(0): 3, instant(120): 1}
        assert counted.until == instant(180)
        assert (await store.wakes("other", instant(0), instant(180), 60 * SECOND)).counts == {instant(0): 1}
        assert await store.overdue("default", instant(40), 100) == OverdueCount(2, instant(30))
        assert await store.overdue("default", instant(0), 100) == OverdueCount(0, None)

    async def test_wakes_that_are_too_many_are_counted_up_to_a_time_that_is_told(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await database.open()
        await self._sleepers(store)
        monkeypatch.setattr(figures, "MOST_WAKES", 4)
        counted = await store.wakes("default", instant(0), instant(600), 60 * SECOND)
        assert counted.until == instant(120), "the fifth wake is after it"
        assert counted.counts == {instant(0): 3}

    async def _sleepers(self, store: Store) -> None:
        flows = [StoredFlow(), StoredFlow(), StoredFlow(), StoredFlow(), StoredFlow(namespace="other")]
        for flow, seconds in zip(flows, (30, 40, 50, 130, 30), strict=True):
            flow.start(at=0, routing=Routing(namespace=flow.state.namespace))
            flow.complete(StartTimer(delay_seconds=seconds), at=0)
        await applied(store, *flows)

    async def test_schedules_are_counted_by_when_they_are_due(self, database: Database) -> None:
        store = await database.open()
        flows = instances(4)
        await applied(store, *flows)
        wakes: list[Micros | str] = [instant(10), instant(50), instant(500), "null"]
        for position, (flow, wake) in enumerate(zip(flows, wakes, strict=True)):
            status = "paused" if position == 3 else "active"
            place = "namespace = 'default/schedules'"
            await database.sql(f"update workflow set next_wake = {wake}, {place} where key = {flow.key}")
            await database.sql(f"update run set status = '{status}', {place} where workflow = {flow.key}")
        found = await store.schedule_counts("default/schedules", instant(100), instant(20))
        assert found == ScheduleCounts(active=3, paused=1, due=2, overdue=1, next=instant(10))
        assert await store.schedule_counts("other/schedules", 0, 0) == ScheduleCounts(0, 0, 0, 0, None)
