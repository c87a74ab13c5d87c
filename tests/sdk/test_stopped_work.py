"""Work that is under way when its run is cancelled or terminated: told to stop, recorded once, never reopened."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from backstay import AsyncBackstay, WorkflowStopped, activity, query, side_effect, sleep, workflow
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.task import Block
from backstay.protocol import requests as ask

from .kit import eventually, memory, names
from .test_bridge import ME, Bridge, bridge, refusal

BOTH = pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])


async def stop(by: Bridge, verb: str) -> None:
    await getattr(by.app.handle(None, "o"), verb)()


@BOTH
@pytest.mark.contract("LEASE-12", "LEASE-13")
async def test_every_verb_of_a_leased_workflow_task_says_that_its_run_is_closed(verb: str, status: str) -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        await by.world.advance(1)
        await stop(by, verb)
        before = await by.names()
        run = (await by.app.describe("o")).run
        assert run is not None
        history = ask.GetTaskHistory(task_id=task.task.id, lease_owner=ME, workflow_task_attempt=1)
        for call in (
            by.app.call(history),
            by.beat(task),
            by.complete(task, CompleteWorkflow()),
            by.fail(task, Block(message="no")),
        ):
            refused = await refusal(call)
            assert refused.reason == "run_closed"
            assert (refused.fields["can_continue"], refused.fields["cancel_requested"]) == (False, True)
            assert refused.fields["stop_reason"] == f"run_{status}"
            assert (refused.fields["run_closed_reason"], refused.fields["run_closed_at"]) == (status, run.closed_at)
        assert await by.names() == before


@BOTH
@pytest.mark.contract("ACT-05", "ACT-06")
async def test_a_leased_activity_of_a_stopped_run_is_told_so_and_cancelled_once(verb: str, status: str) -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge"))
        work = await by.poll_activity()
        await by.world.advance(1)
        await stop(by, verb)
        run = (await by.app.describe("o")).run
        assert run is not None
        reply = await by.beat_activity(work)
        assert (reply.can_continue, reply.cancel_requested, reply.heartbeat_recorded) == (False, True, False)
        assert (reply.run_closed_reason, reply.run_closed_at) == (status, run.closed_at)
        for late in (by.finish(work), by.break_activity(work, Failure(message="late"))):
            refused = await refusal(late)
            assert refused.fields["outcome"] == "ignored"
            assert (refused.fields["run_closed_reason"], refused.fields["run_closed_at"]) == (status, run.closed_at)
        found = await by.names()
        assert found.count("ActivityCancelled") == 1
        assert found[-1] == f"Workflow{status.capitalize()}"
        assert (await by.app.describe("o")).tasks == []


@BOTH
@pytest.mark.contract("TIMER-05")
async def test_a_timer_of_a_stopped_run_is_superseded_and_its_time_passes_unnoticed(verb: str, status: str) -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), StartTimer(delay_seconds=60))
        await stop(by, verb)
        before = await by.names()
        assert "TimerCancelled" in before
        await by.world.advance(120)
        assert await by.names() == before
        described = await by.app.describe("o")
        assert (described.status, described.next_wake, described.wait_kind) == (status, None, None)


gate = threading.Event()
passed: list[str] = []


@activity(type="long")
def long() -> None:
    passed.append("in")
    assert gate.wait(5)
    passed.append("through")


@workflow(type="waits_long")
def waits_long() -> None:
    long()


@pytest.mark.contract("ACT-30")
async def test_a_cancel_does_not_break_off_code_that_is_running() -> None:
    passed.clear()
    gate.clear()
    async with memory(long, waits_long) as app:
        handle = await app.start(waits_long, "w")
        await eventually(lambda: passed == ["in"])
        await handle.cancel()
        with pytest.raises(WorkflowStopped):
            await handle.result()
        assert passed == ["in"]
        gate.set()
        await eventually(lambda: passed == ["in", "through"])
        assert names(await handle.history()).count("ActivityCompleted") == 0


rolled: list[int] = []


@workflow(type="rolls")
class Rolls:
    def __init__(self) -> None:
        self.value = 0

    @query
    def shown(self) -> int:
        return self.value

    def handle(self) -> int:
        self.value = side_effect(lambda: len(rolled) + (rolled.append(1) or 7))
        sleep("1h")
        return self.value


@pytest.mark.contract("SIDE-02")
async def test_a_side_effect_is_not_run_again_for_a_query_or_a_restart(tmp_path: Path) -> None:
    rolled.clear()
    path = tmp_path / "rolls.db"
    async with AsyncBackstay(path, [Rolls]) as app:
        handle = await app.start(Rolls, "w")
        await eventually(lambda: rolled)
        assert await handle.query(Rolls.shown) == 7
    async with AsyncBackstay(path, [Rolls]) as app:
        assert await app.handle(Rolls, "w").query(Rolls.shown) == 7
        await app.handle(Rolls, "w").terminate()
        assert await app.handle(Rolls, "w").query(Rolls.shown) == 7
    assert rolled == [1]
