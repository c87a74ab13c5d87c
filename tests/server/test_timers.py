"""A timer of a workflow as a worker and an operator see it."""

from __future__ import annotations

import pytest

from .kit import detail, serving

NAP = {"type": "start_timer", "delay_seconds": 60}


@pytest.mark.contract("TIMER-01", "CMD-06")
async def test_a_run_at_a_timer_has_no_task_until_the_timer_has_fired_on_record() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(await api.poll(), NAP)
        for seconds in (0, 30, 29.9):
            await api.world.advance(seconds)
            assert await api.poll() is None
            assert (await api.types())[-1] == "TimerScheduled"
            found = await detail(api)
            (timer,) = found["timers"]
            assert (found["wait_kind"], found["liveness_state"]) == ("timer", "timer_scheduled")
            assert (timer["status"], found["open_wait_id"]) == ("pending", f"timer:{timer['id']}")
        await api.world.advance(0.2)
        assert (await api.types())[-1] == "TimerFired"
        task = await api.poll()
        assert (task["workflow_wait_kind"], task["workflow_event_type"]) == ("timer", "TimerFired")
        assert (task["timer_id"], task["open_wait_id"]) == (timer["id"], f"timer:{timer['id']}")
        assert (task["resume_source_kind"], task["resume_source_id"]) == ("timer", timer["id"])
        assert task["history_events"][-1]["event_type"] == "TimerFired"
        (timer,) = (await detail(api))["timers"]
        assert timer["status"] == "fired"


@pytest.mark.contract("CMD-06")
@pytest.mark.parametrize("delay", [None, -1, "soon", True, [5]], ids=str)
async def test_a_timer_without_a_delay_is_a_protocol_error_and_schedules_nothing(delay: object) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        task = await api.poll()
        wrong = NAP | {"delay_seconds": delay}
        for command in (wrong, {"type": "start_timer"}):
            refused = await api.complete(task, command)
            assert refused.status_code == 422, (command, refused.text)
            assert "delay_seconds" in refused.text
        assert await api.types() == ["StartAccepted", "WorkflowStarted"]
        assert (await api.complete(task, NAP | {"delay_seconds": 0})).status_code == 200, "the task is still held"
