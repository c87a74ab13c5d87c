"""Schedules through the client: created, looked at, changed, fired by a clock that only the test moves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    Backstay,
    RequestRefused,
    ScheduleAlreadyExists,
    ScheduleNotFound,
    WorkflowNotFound,
    continue_as_new,
    info,
    signal,
    wait,
    workflow,
)
from backstay.engine.core.engine import Engine
from backstay.kernel.features.schedule import Schedule, firing
from backstay.kernel.values import SECOND
from backstay.protocol import schedules as ask
from backstay.protocol.native import nodes
from backstay.sdk.client.schedules import AsyncScheduleHandle

from .kit import StillWorld, eventually, names, settle

T0 = datetime(2027, 1, 15, 8, tzinfo=UTC)
"""Where a StillWorld begins."""


@workflow(type="report")
def report(region: str, copies: int = 1) -> str:
    return f"{region} x{copies}"


@workflow(type="shift")
class Shift:
    @signal
    def end(self) -> None:
        self.over = True

    def __init__(self) -> None:
        self.over = False

    def handle(self) -> None:
        wait(lambda: self.over)


class Still(AsyncBackstay):
    """On a clock that stands still."""

    def __init__(self, path: Any = ":memory:", **options: Any) -> None:
        super().__init__(path, [report, Shift], world=lambda: self.clock, guard="off", **options)

    async def __aenter__(self) -> Still:
        self.clock = StillWorld()
        await super().__aenter__()
        return self

    async def ids(self) -> list[str]:
        return [row.workflow_id for row in reversed(await self.list())]

    async def appeared(self, id: str) -> None:
        """It is on its way when the schedule has fired."""

        async def there() -> bool:
            return id in await self.ids()

        await eventually(there, id)


async def told(handle: AsyncScheduleHandle, **wanted: Any) -> Schedule:
    """Its description, once it is as wanted."""

    async def look() -> Schedule | None:
        found = await handle.describe()
        return found if all(getattr(found, name) == value for name, value in wanted.items()) else None

    return await eventually(look, f"{handle}: {wanted}")


async def test_a_workflow_is_started_by_the_clock_and_its_end_is_heard_of() -> None:
    async with Still() as app:
        nightly = await app.schedules.options(cron="0 2 * * *", timezone="Europe/Berlin").create(
            report, "nightly", "emea", copies=3
        )
        assert nightly.id == "nightly"
        await app.clock.advance(16 * 3600)
        assert await app.ids() == []
        await app.clock.advance(3600)  # 01:00 in UTC
        id = "schedule:nightly:2027-01-16T01:00:00Z"
        assert await app.handle(report, id).result() == "emea x3"
        state = await told(nightly, running={})
        assert [(past.workflow_id, past.status) for past in state.recent] == [(id, "completed")]
        described = await app.describe(id)
        assert (described.schedule_id, described.parent_workflow_id, described.child_call_id) == ("nightly", None, None)
        assert described.fingerprint is not None, "judged by the code that is registered"
        assert names(await app.history(id))[:3] == ["StartAccepted", "WorkflowStarted", "ScheduleTriggered"]
        with pytest.raises(WorkflowNotFound):
            await app.describe("nightly")


async def test_code_knows_what_it_was_started_for_in_every_run_of_its_chain() -> None:
    @workflow(type="dated")
    def dated(left: int) -> list[str | None]:
        told = info()
        if left:
            continue_as_new(dated, left - 1)
        return [told.schedule_id, None if told.occurrence is None else told.occurrence.isoformat()]

    async with Still() as app:
        app.register(dated)
        one = await app.schedules.options(every="1h", jitter="10m").create(dated, "one", 2)
        await app.clock.advance(2 * 3600 - 1)
        id = "schedule:one:2027-01-15T09:00:00Z"
        assert await app.handle(dated, id).result() == ["one", "2027-01-15T09:00:00+00:00"]
        assert (await told(one, running={})).recent[0].run_number == 3
        assert await app.execute(dated, "plain", 1) == [None, None]


async def test_an_interval_and_how_it_overlaps() -> None:
    async with Still() as app:
        schedules = app.schedules.options(every="10m", offset="1m", overlap="buffer_one", note="shifts")
        shifts = await schedules.create(Shift, "shifts")
        for _ in range(4):
            await app.clock.advance(600)
        state = await shifts.describe()
        assert (state.fires_count, len(state.buffer), state.skipped_count) == (1, 1, 2)
        (first,) = state.running
        assert first == "schedule:shifts:2027-01-15T08:01:00Z"
        await app.handle(Shift, first).signal(Shift.end)
        state = await told(shifts, fires_count=2)
        assert list(state.running) == ["schedule:shifts:2027-01-15T08:11:00Z"]


async def test_a_schedule_is_created_changed_paused_resumed_triggered_and_deleted() -> None:
    async with Still() as app:
        one = await app.schedules.options(every=3600, overlap="allow_all").create(report, "one", "x")
        await one.pause("holidays")
        assert ((await one.describe()).status, (await one.describe()).plan.note) == ("paused", "holidays")
        assert (await one.trigger()).reason == "status_not_triggerable"
        await one.resume()
        fired = await one.trigger()
        assert (fired.outcome, fired.workflow_id) == ("triggered", "schedule:one:trigger:1")
        assert await app.handle(report, fired.workflow_id or "").result() == "x x1"
        filled = await one.backfill(T0 - timedelta(hours=3), T0)
        assert [one.outcome for one in filled] == ["triggered"] * 3
        again = await one.backfill(T0 - timedelta(hours=4), T0)
        assert [one.reason for one in again] == [None, *["already_started"] * 3]
        await one.update(cron="@daily", timezone="Asia/Tokyo", jitter="30s", note="daily now")
        plan = (await one.describe()).plan
        assert (plan.spec.cron_expressions, plan.spec.intervals, plan.spec.timezone) == (["@daily"], [], "Asia/Tokyo")
        assert (plan.jitter_seconds, plan.note, plan.overlap_policy) == (30, "daily now", "allow_all")
        await one.update(timezone="UTC")
        assert (await one.describe()).plan.spec.cron_expressions == ["@daily"]
        await one.change_workflow(report, "y", copies=2)
        fired = await one.trigger()
        assert await app.handle(report, fired.workflow_id or "").result() == "y x2"
        await one.delete()
        with pytest.raises(ScheduleNotFound):
            await one.describe()
        with pytest.raises(ScheduleNotFound):
            await one.trigger()
        kinds = [event.entry.type for event in await one.history()]
        assert kinds[0] == "ScheduleCreated"
        assert kinds[-1] == "ScheduleDeleted"
        assert [event.sequence for event in await one.history(after=2, limit=2)] == [3, 4]


async def test_lists_are_in_order_and_can_be_filtered_and_paged() -> None:
    async with Still() as app:
        schedules = app.schedules.options(every="1h")
        for name in ("b", "a"):
            await schedules.options(search={"team": name}).create(report, name, "x")
        await app.clock.advance(10)
        await schedules.options(paused=True).create(Shift, "c")
        gone = await schedules.create(Shift, "gone")
        await gone.delete()
        assert [s.schedule_id for s in await app.schedules.list()] == ["c", "a", "b"]
        assert [s.schedule_id for s in await app.schedules.list(status="paused")] == ["c"]
        assert [s.schedule_id for s in await app.schedules.list(status="deleted")] == ["gone"]
        assert [s.schedule_id for s in await app.schedules.list(type="report")] == ["a", "b"]
        assert [s.schedule_id for s in await app.schedules.list(search={"team": "b"})] == ["b"]
        first = await app.schedules.list(limit=2)
        rest = await app.schedules.list(limit=2, after=first[-1])
        assert [s.schedule_id for s in [*first, *rest]] == ["c", "a", "b"]
        assert await app.list() == [], "no workflow is a schedule"


async def test_a_program_may_say_at_every_start_what_it_needs() -> None:
    async with Still() as app:
        schedules = app.schedules.options(cron="@hourly")
        one = await schedules.ensure(report, "one", "x")
        await one.pause("not now")
        events = len(await one.history())
        await schedules.ensure(report, "one", "x")
        assert len(await one.history()) == events, "nothing has changed"
        await schedules.options(cron="@daily").ensure(report, "one", "y")
        state = await one.describe()
        assert (state.plan.spec.cron_expressions, state.status, state.plan.note) == (["@daily"], "paused", "not now")
        with pytest.raises(TypeError, match="max_runs"):
            await schedules.options(max_runs=1).ensure(report, "one", "x")


async def test_a_schedule_that_exists_already_or_is_unknown_or_malformed_is_refused() -> None:
    async with Still() as app:
        schedules = app.schedules.options(cron="@hourly")
        one = await schedules.create(report, "one", "x")
        with pytest.raises(ScheduleAlreadyExists):
            await schedules.create(report, "one", "x")
        with pytest.raises(RequestRefused, match="five") as refused:
            await app.schedules.options(cron="every day").create(report, "two", "x")
        assert refused.value.reason == "invalid_schedule_spec"
        with pytest.raises(ScheduleNotFound):
            await app.schedules.handle("two").describe()
        with pytest.raises(ValueError, match=r"needs options\(cron=...\) or options\(every=...\)"):
            await app.schedules.create(report, "two", "x")
        with pytest.raises(TypeError, match="unknown option 'crno'"):
            app.schedules.options(crno="@daily")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="every"):
            await app.schedules.options(offset=3).create(report, "two", "x")
        with pytest.raises(ValueError, match="whole seconds"):
            await app.schedules.options(every=1.5).create(report, "two", "x")
        with pytest.raises(ValueError, match="time zone"):
            await one.backfill(datetime(2027, 1, 1), datetime(2027, 1, 2))
        with pytest.raises(TypeError, match="pause"):
            await one.update(paused=True)
        with pytest.raises(ValueError, match="namespace"):
            AsyncBackstay(":memory:", namespace="default/schedules")


async def test_a_request_that_is_sent_again_is_done_once() -> None:
    async with Still() as app:
        one = app.options(request_id="same").schedules.options(every="1h", overlap="allow_all")
        await one.create(report, "one", "x")
        await one.create(report, "one", "x")
        fired = [await app.options(request_id="go").schedules.handle("one").trigger() for _ in range(2)]
        assert fired[0] == fired[1]
        await settle()
        assert await app.ids() == ["schedule:one:trigger:1"]
        with pytest.raises(RequestRefused) as refused:
            await app.options(request_id="go").schedules.handle("one").trigger(overlap="skip")
        assert refused.value.reason == "request_id_conflict"


async def test_after_a_restart_a_schedule_fires_once_for_what_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with Still(path) as app:
        await app.schedules.options(every="1m", overlap="allow_all").create(report, "often", "x")
        await app.clock.advance(60)
        await eventually(app.ids, "the first")
    async with _at(Still(path), 600) as app:
        state = await told(app.schedules.handle("often"), fires_count=2)
        assert (state.skipped_count, state.last_skip_reason) == (8, "missed_occurrences")
        await app.appeared("schedule:often:2027-01-15T08:10:00Z")


def _at(app: Still, seconds: int) -> Still:
    """The same with a clock that has gone on meanwhile."""

    class Later(Still):
        async def __aenter__(self) -> Still:
            self.clock = StillWorld()
            self.clock._still += seconds * SECOND
            await AsyncBackstay.__aenter__(self)
            return self

    return Later(app.path)


async def test_a_clock_that_was_set_back_does_not_stop_a_schedule(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with _at(Still(path), 365 * 86_400) as app:
        await app.schedules.options(every="1m", overlap="allow_all").create(report, "often", "x")
        await app.clock.advance(60)
        await eventually(app.ids, "the first")
    async with _at(Still(path), 0) as app:
        await app.clock.advance(60)
        state = await told(app.schedules.handle("often"), fires_count=2)
        await app.appeared("schedule:often:2027-01-15T08:01:00Z")
        assert state.skipped_count == 0


async def test_the_runs_of_a_long_lived_schedule_are_read_as_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "ROLL_OVER", 8)
    async with Still() as app:
        often = await app.schedules.options(every="1m").create(report, "often", "x")
        for number in range(12):
            await app.clock.advance(60)
            await told(often, fires_count=number + 1, running={})
        found: list[ask.ScheduleEvent] = []
        while page := await often.history(after=found[-1].sequence if found else 0, limit=3):
            found += page
        kinds = [event.entry.type for event in found]
        assert kinds == ["ScheduleCreated", *["ScheduleTriggered", "ScheduleActionClosed"] * 12]
        assert [event.sequence for event in found] == sorted({event.sequence for event in found})
        assert len({event.id for event in found}) == len(found)
        assert [s.schedule_id for s in await app.schedules.list()] == ["often"]


async def test_a_process_beside_the_engine_may_create_and_trigger(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with AsyncBackstay(path, [report], guard="off") as engine, AsyncBackstay(path, client_only=True) as guest:
        assert isinstance(guest.engine, Engine)
        assert not guest.engine.holder
        one = await guest.schedules.options(every="1h").create(report, "one", "x")
        fired = await one.trigger()
        assert await engine.handle(report, fired.workflow_id or "").result() == "x x1"
        await engine.schedules.options(every="1s").create(report, "fast", "x")
        await eventually(lambda: _fired(guest, "fast"), "the engine fires what it has")
        await one.update(every="1s")
        await eventually(lambda: _fired(guest, "one", 2), "the engine hears of a change beside it")


async def _fired(app: AsyncBackstay, id: str, times: int = 1) -> bool:
    return (await app.schedules.handle(id).describe()).fires_count >= times


def test_the_same_without_await(tmp_path: Path) -> None:
    with Backstay(tmp_path / "app.db", [report], guard="off") as app:
        one = app.schedules.options(cron="0 0 1 1 *").create(report, "yearly", "x")
        assert one.id == "yearly"
        app.schedules.options(cron="0 0 1 1 *").ensure(report, "yearly", "y")
        fired = one.trigger()
        assert app.handle(report, fired.workflow_id or "").result() == "y x1"
        one.change_workflow(report, "z")
        one.update(overlap="allow_all", max_runs=9)
        one.pause("p")
        one.resume("r")
        filled = one.backfill(datetime(2020, 1, 1, tzinfo=UTC), datetime(2022, 1, 1, tzinfo=UTC), overlap="allow_all")
        assert [done.outcome for done in filled] == ["triggered", "triggered"]
        assert one.describe().remaining_actions == 7
        assert [found.schedule_id for found in app.schedules.list()] == ["yearly"]
        assert repr(app.schedules.handle("yearly")) == "<schedule 'yearly'>"
        one.delete()
        assert one.history()[-1].entry.type == "ScheduleDeleted"


async def test_a_creation_without_an_id_that_is_repeated_under_one_request_id_is_one_schedule() -> None:
    async with Still() as app:
        once = app.options(request_id="create-1").schedules.options(every=600)
        first, second = [await once.create(report, None, "north") for _ in range(2)]
        other = await app.options(request_id="create-2").schedules.options(every=600).create(report, None, "north")
        assert first.id == second.id != other.id
        assert len(await app.schedules.list()) == 2


async def test_a_request_that_came_over_a_wire_is_the_one_that_was_made_here() -> None:
    async with Still() as app:
        asked: list[Any] = []
        call = app._engine_room.api.call  # type: ignore[union-attr]
        app._engine_room.call = lambda request: asked.append(request) or call(request)  # type: ignore[method-assign]
        nightly = app.options(request_id="create-1").schedules.options(every=600)
        one = await nightly.create(report, "nightly", "north")
        await app.options(request_id="change-1").schedules.handle("nightly").change_workflow(report, "south")
        for request in [request for request in asked if not isinstance(request, ask.DescribeSchedule)]:
            verb = nodes.OF[type(request)]
            again = nodes.received(verb.decode_request.decode(nodes.encode(request)))
            assert (await call(again)).schedule_id == one.id


def test_a_schedule_that_has_reached_its_last_run_is_not_gone(tmp_path: Path) -> None:
    with Backstay(tmp_path / "s.db", [report], guard="off") as app:
        one = app.schedules.options(cron="@yearly", max_runs=1).create(report, "once", "x")
        app.handle(report, one.trigger().workflow_id or "").result()
        assert (one.describe().status, one.describe().remaining_actions) == ("ended", 0)
        for _ in range(1000):  # it hears of the end of its workflow a moment later
            if (ended := one.describe().recent[0].status) is not None:
                break
            time.sleep(0.002)
        assert ended == "completed"
        assert app.schedules.list() == []
        assert [found.schedule_id for found in app.schedules.list(status="ended")] == ["once"]
        assert app.schedules.list(status="deleted") == []
        with pytest.raises(ScheduleNotFound, match=r"'once' has ended: .* max_runs allowed; create it again"):
            one.pause()
        app.schedules.options(cron="@yearly").create(report, "once", "y")
        assert one.describe().status == "active"
