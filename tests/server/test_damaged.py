"""A run whose history was damaged: shown as evidence, moved by nothing, repaired by nothing. Rows alone are never a wait."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, detail, serving, sql

CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
TIMER = {"type": "start_timer", "delay_seconds": 60}
CHILD = {"type": "start_child_workflow", "workflow_type": "order"}


async def asking(api: Api, *commands: dict[str, Any]) -> None:
    await api.register()
    await api.start()
    await api.complete(await api.poll(), *commands)


def cut(api: Api, prefix: str) -> None:
    """Remove the events of one kind from the history of `o-1`."""
    of_run = "run = (select key from run where workflow_id = 'o-1')"
    assert sql(api, f"delete from event where {of_run} and type like ?", f"{prefix}%")


async def listed(api: Api) -> dict[str, Any]:
    (flow,) = (await api.control("GET", "/flows/running", params={"instance_id": "o-1"})).json()["flows"]
    return flow


async def unsupported(api: Api) -> dict[str, Any]:
    """The detail of `o-1`, which nothing moves and nothing repairs."""
    found, flow = await detail(api), await listed(api)
    for shown in (found, flow):
        assert shown["liveness_state"] == "workflow_replay_blocked"
        assert (shown["repair_blocked_reason"], shown["repair_attention"]) == ("unsupported_history", True)
        for name in ("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id"):
            assert shown[name] is None, name
    assert (found["can_repair"], found["repair_blocked"]["badge_visible"]) == (False, True)
    assert not [task for task in found["tasks"] if task["task_missing"]], "no row is made up for what is not known"
    forced = (await api.control("POST", "/workflows/o-1/repair", {})).json()
    assert forced["outcome"] == "repair_not_needed"
    assert (await detail(api))["tasks"] == found["tasks"]
    return found


@pytest.mark.contract("REPAIR-17", "REPAIR-27", "LIVE-06", "ACTION-03")
async def test_an_open_activity_without_its_events_is_evidence_only() -> None:
    async with serving() as api:
        await asking(api, CHARGE)
        cut(api, "Activity")
        (wait,) = (await unsupported(api))["waits"]
        assert (wait["kind"], wait["target_name"], wait["row_status"]) == ("activity", "charge", "ready")
        assert (wait["history_authority"], wait["diagnostic_only"]) == ("mutable_open_fallback", True)
        assert (wait["resume_source_kind"], wait["resume_source_id"]) == (None, None)


@pytest.mark.contract("REPAIR-17", "LIVE-06")
async def test_a_timer_without_its_events_wakes_nobody() -> None:
    async with serving() as api:
        await asking(api, TIMER)
        cut(api, "Timer")
        found = await unsupported(api)
        assert (found["waits"], found["tasks"], found["timers"]) == ([], [], [])
        assert found["history_damage"]["sequence"] > 0
        await api.world.advance(61)
        assert await api.poll() is None
        await unsupported(api)


@pytest.mark.contract("CHILD-25", "REPAIR-17", "LIVE-06")
async def test_a_child_that_ended_without_its_events_is_unsupported() -> None:
    async with serving() as api:
        await asking(api, CHILD)
        child = await api.poll()
        await api.complete(child, {"type": "complete_workflow"})
        (link,) = (await detail(api))["children"]
        cut(api, "Child")
        (wait,) = (await unsupported(api))["waits"]
        assert (wait["kind"], wait["status"]) == ("child", "unsupported")
        assert wait["history_authority"] == "unsupported_terminal_without_history"
        assert wait["history_unsupported_reason"] == "terminal_child_link_without_typed_parent_history"
        assert (wait["child_call_id"], wait["child_workflow_run_id"]) == (link["child_call_id"], child["run_id"])
        assert wait["diagnostic_only"]


@pytest.mark.contract("REPAIR-27")
async def test_rows_that_no_event_speaks_of_are_no_wait() -> None:
    async with serving() as api:
        await asking(api, TIMER)
        before = await detail(api)
        run = "(select key from run where workflow_id = 'o-1')"
        body = """cast('{"id":"' || ? || '","workflow":' || w.key || ',"run":' || r.key || ',"kind":"activity",
            "type":"charge","routing":{"queue":"q"},"available_at":1,"created_at":1,"step":9}' as blob)"""
        put = f"""insert into task (workflow, id, state, available_at, body)
            select w.key, ?, 'ready', 1, {body} from workflow w join run r on r.workflow = w.key where r.key = {run}"""
        task = f"{before['run_id']}-a9.1"
        assert sql(api, put, task, task) == 1
        after = await detail(api)
        for part in ("waits", "activities", "timers", "wait_kind", "open_wait_id", "resume_source_id"):
            assert after[part] == before[part], part
        await api.control("POST", "/workflows/o-1/repair", {})
        assert await api.poll("activity") is None
        assert "ActivityStarted" not in await api.types()
