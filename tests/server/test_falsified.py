"""Rows deleted or falsified under a running server, for runs in every state: what operators are told, and what a repair restores.

A row is transport or a view; history is the truth. So for every state and every mutable row there are three questions. Does the
server say what is wrong, in the detail, the list and the certificate? Does one repair put the rows back as they were? Does the run then
go on to its end? The server is told nothing of what was changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ..store.seam import connection_of
from .kit import Api, blob, detail, serving, sql

CHARGE = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])}
RETRIED = CHARGE | {"retry_policy": {"max_attempts": 3, "backoff_seconds": [600]}}
WAIT = {"type": "open_condition_wait", "condition_key": "paid"}
CONTRACT = {"signals": ["note"], "updates": ["change"], "queries": []}

Make = Callable[[Api], Awaitable[None]]


async def started(api: Api, *commands: dict[str, Any]) -> None:
    await api.register(workflow_command_contracts={"order": CONTRACT})
    await api.start()
    if commands:
        assert (await api.complete(await api.poll(), *commands)).status_code == 200


async def ready(api: Api) -> None:
    await started(api)


async def working(api: Api) -> None:
    await started(api)
    await api.poll()


async def activity_ready(api: Api) -> None:
    await started(api, CHARGE)


async def activity_working(api: Api) -> None:
    await started(api, CHARGE)
    await api.poll("activity")


async def retrying(api: Api) -> None:
    await started(api, RETRIED)
    await api.activity("fail", await api.poll("activity"), failure={"message": "carrier down"})


async def sleeping(api: Api) -> None:
    await started(api, {"type": "start_timer", "delay_seconds": 600})


async def waiting(api: Api) -> None:
    await started(api, WAIT)


async def waiting_with_timeout(api: Api) -> None:
    await started(api, WAIT | {"timeout_seconds": 600})


async def signalled(api: Api) -> None:
    await started(api, WAIT)
    await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})


async def updating(api: Api) -> None:
    await started(api, WAIT)
    await api.control("POST", "/workflows/o-1/update/change", {"input": [], "wait_for": "accepted"})


async def with_child(api: Api) -> None:
    await started(api, {"type": "start_child_workflow", "workflow_type": "order", "workflow_id": "child-1"})


async def paused(api: Api) -> None:
    await started(api)
    await api.control("POST", "/workflows/o-1/pause", {"reason": "audit"})


async def blocked(api: Api) -> None:
    await started(api)
    task = await api.poll()
    await api.fail(task, message="history does not fit", reason="history_shape_mismatch", replay_blocked=True)


async def completed(api: Api) -> None:
    await started(api, {"type": "complete_workflow", "result": blob("x")})


STATES: dict[str, Make] = {
    "ready": ready,
    "working": working,
    "activity ready": activity_ready,
    "activity working": activity_working,
    "retrying": retrying,
    "sleeping": sleeping,
    "waiting": waiting,
    "waiting with timeout": waiting_with_timeout,
    "signalled": signalled,
    "updating": updating,
    "with a child": with_child,
    "paused": paused,
    "blocked": blocked,
    "completed": completed,
}
OPEN = [state for state in STATES if state != "completed"]
WITH_TASK = ["ready", "activity ready", "retrying", "signalled", "updating", "blocked"]
LEASED = ["working", "activity working"]
WITH_WAKE = ["sleeping", "waiting with timeout", "retrying"]


def rows(api: Api, query: str, *parameters: Any) -> list[Any]:
    return connection_of(api.server.engine.store).execute(query, parameters).fetchall()


def mine(api: Api) -> int:
    ((key,),) = rows(api, "select key from workflow where workflow_id = 'o-1' and namespace = 'default'")
    return key


def tables(api: Api) -> dict[str, list[Any]]:
    """The rows of the run beside history, without what a repair has to count."""
    key = mine(api)
    return {
        "workflow": rows(api, "select run, next_wake, expects, length, checksum from workflow where key = ?", key),
        "run": rows(api, "select status, closed_at, workflow_type from run where workflow = ?", key),
        "task": rows(api, "select id, available_at from task where workflow = ? order by id", key),
    }


async def listed(api: Api, **query: str) -> list[str]:
    found = await api.control("GET", "/flows/all", params=query)
    assert found.status_code == 200, found.text
    return [row["workflow_id"] for row in found.json()["flows"]]


async def liveness(api: Api) -> list[str]:
    proven = (await api.control("GET", "/system/liveness?fresh=1")).json()
    return [run["workflow_id"] for run in proven["stranded_runs"]]


async def repaired(api: Api) -> dict[str, Any]:
    answer = await api.control("POST", "/workflows/o-1/repair", {})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def settled(api: Api) -> None:
    for _ in range(3):
        await api.world.advance(1)
        await api.describe()


async def ended(api: Api) -> None:
    """Whatever the run does, a worker brings it to its end: nothing of it was lost."""
    await api.control("POST", "/workflows/o-1/unpause", {})
    for _ in range(12):
        await api.world.advance(700)
        if (await api.describe())["status"] in ("completed", "failed"):
            break
        activity = await api.poll("activity", timeout_seconds=0)
        if activity is not None:
            await api.activity("complete", activity, result=blob("ok"))
            continue
        task = await api.poll(timeout_seconds=0)
        if task is None:
            await api.control("POST", "/workflows/o-1/signal/note", {"input": ["go"]})
            await api.control("POST", "/workflows/o-1/repair", {})
        else:
            await api.complete(task, {"type": "complete_workflow", "result": blob("end")})
    assert (await api.describe())["status"] == "completed"


# -- task rows


@pytest.mark.contract("REPAIR-01", "REPAIR-04", "REPAIR-10", "ACTION-04", "METRIC-06")
@pytest.mark.parametrize("state", WITH_TASK)
async def test_a_deleted_task_is_told_everywhere_and_comes_back(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        before = tables(api)
        assert before["task"]
        assert sql(api, "delete from task where workflow = ?", mine(api)) == 1
        told = await detail(api)
        assert (told["liveness_state"], told["actions"]["can_repair"]) == ("repair_needed", True)
        assert [task["task_missing"] for task in told["tasks"] if task["type"] != "timer"] == [True]
        assert await listed(api, task_problem="true") == ["o-1"]
        assert await listed(api, liveness_state="repair_needed") == ["o-1"]
        assert await liveness(api) == ["o-1"]
        assert (await repaired(api))["outcome"] == "repair_dispatched"
        assert [row[0] for row in tables(api)["task"]] == [row[0] for row in before["task"]]
        assert (await detail(api))["liveness_state"] != "repair_needed"
        assert await liveness(api) == []
        await ended(api)


UNREADABLE = ("x'00'", """cast(json_set(cast(body as text), '$.state', 'completed') as blob)""")


@pytest.mark.contract("REPAIR-01", "REPAIR-21", "ACT-22", "REPLAY-11")
@pytest.mark.parametrize("body", UNREADABLE, ids=["no task at all", "a state that no task has"])
@pytest.mark.parametrize("state", [*WITH_TASK, *LEASED])
async def test_a_task_row_that_cannot_be_read_is_a_lost_one_and_no_damage_of_history(state: str, body: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        before, row = await detail(api), tables(api)["task"]
        assert sql(api, f"update task set body = {body} where workflow = ?", mine(api)) == 1
        told = await detail(api)
        assert told["history_damage"] is None
        running = state == "activity working"
        assert told["liveness_state"] == ("activity_running_without_task" if running else "repair_needed")
        for part in ("timeline", "commands", "signals", "updates"):
            assert told[part] == before[part], part
        for shown, was in zip(told["activities"], before["activities"], strict=True):
            known = ("id", "status", "attempts", "attempt_count", "arguments", "history_authority", "diagnostic_only")
            assert [shown[name] for name in known] == [was[name] for name in known]
        outcome = (await repaired(api))["outcome"]
        assert outcome == ("repair_not_needed" if running else "repair_dispatched")
        assert [key[0] for key in tables(api)["task"]] == [key[0] for key in row]
        if running:
            await api.world.advance(400)  # its worker may report as long as its lease lasts
            assert (await repaired(api))["outcome"] == "repair_dispatched"
        await settled(api)
        assert (await detail(api))["liveness_state"] not in ("repair_needed", "activity_running_without_task")
        await ended(api)


@pytest.mark.contract("REPAIR-18")
@pytest.mark.parametrize("body", UNREADABLE, ids=["no task at all", "a state that no task has"])
@pytest.mark.parametrize("state", ["ready", "activity ready", "signalled", "updating"])
async def test_the_sweep_writes_a_ready_task_again_that_cannot_be_read(state: str, body: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        before = tables(api)["task"]
        assert sql(api, f"update task set body = {body} where workflow = ?", mine(api)) == 1
        api.server.engine.matching.lanes.forget(lambda key: True)
        for _ in range(4):
            await api.world.advance(6)
            await settled(api)
        assert [row[0] for row in tables(api)["task"]] == [row[0] for row in before]
        assert (await detail(api))["liveness_state"] != "repair_needed"
        await ended(api)
        assert "RepairRequested" not in await api.types(), "nobody asked for it"


@pytest.mark.parametrize("state", LEASED)
async def test_a_deleted_lease_is_told_and_the_work_counts_all_the_same(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        assert sql(api, "delete from task where workflow = ?", mine(api)) == 1
        told = await detail(api)
        assert told["liveness_state"] in ("activity_running_without_task", "repair_needed")
        assert await liveness(api) == ["o-1"]
        await repaired(api)
        await api.world.advance(400)  # a worker that runs it may report as long as its lease lasts
        await settled(api)
        assert await liveness(api) == []
        await ended(api)


@pytest.mark.contract("MATCH-14", "METRIC-05")
@pytest.mark.parametrize("state", LEASED)
async def test_a_lease_that_is_over_is_told_and_goes_to_another_worker(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        body = "cast(json_set(cast(body as text), '$.until', 1) as blob)"
        assert sql(api, f"update task set body = {body} where workflow = ?", mine(api)) == 1
        assert (await detail(api))["liveness_state"] == "repair_needed"
        assert await listed(api, liveness_state="repair_needed") == ["o-1"]
        health = (await api.control("GET", "/system/health")).json()
        assert health["operator_metrics"]["tasks"]["lease_expired"] == 1
        await repaired(api)
        await settled(api)
        assert (await detail(api))["liveness_state"] != "repair_needed"
        await ended(api)


# -- the row of the instance


@pytest.mark.parametrize("state", WITH_WAKE)
async def test_a_deleted_wake_is_told_and_comes_back(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        before = tables(api)["workflow"]
        assert sql(api, "update workflow set next_wake = null where key = ?", mine(api)) == 1
        assert (await detail(api))["liveness_state"] == "repair_needed"
        assert await listed(api, liveness_state="repair_needed") == ["o-1"]
        await repaired(api)
        assert tables(api)["workflow"][0][1] == before[0][1]
        assert (await detail(api))["liveness_state"] != "repair_needed"
        await ended(api)


@pytest.mark.parametrize("state", OPEN)
async def test_a_falsified_guard_loses_no_message(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        sql(api, "update workflow set last = last + 1 where key = ?", mine(api))
        accepted = await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})
        assert accepted.status_code in (200, 202), accepted.text
        told = await detail(api)
        assert [signal["signal_name"] for signal in told["signals"]].count("note") >= 1
        await repaired(api)
        await ended(api)


@pytest.mark.parametrize("state", OPEN)
async def test_a_link_to_no_run_is_found_by_the_order_of_runs(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        run_id = (await api.describe())["run_id"]
        sql(api, "update workflow set run = 7 where key = ?", mine(api))
        told = await detail(api)
        assert (told["run_id"], told["current_run_source"]) == (run_id, "run_order_fallback")
        await repaired(api)
        assert (await detail(api))["current_run_source"] == "continue_as_new_lineage"
        assert tables(api)["workflow"][0][0] != 7
        await ended(api)


# -- the index of runs


@pytest.mark.parametrize("state", OPEN)
async def test_a_run_that_the_index_calls_completed_is_open_in_its_detail_and_after_a_repair(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        before = tables(api)["run"]
        sql(
            api,
            "update run set status = 'completed', closed_at = 5, closed_reason = 'completed' where workflow = ?",
            mine(api),
        )
        assert (await detail(api))["status"] == before[0][0]
        await repaired(api)
        assert tables(api)["run"] == before
        assert await listed(api, status_bucket="running") != []
        await ended(api)


# -- stored views

PROJECTIONS = (
    "workflow_run_summaries",
    "workflow_run_waits",
    "workflow_run_timeline_entries",
    "workflow_run_timer_entries",
    "workflow_run_lineage_entries",
)


@pytest.mark.contract("PROJ-02", "PROJ-04", "PROJ-05", "PROJ-08", "LIVE-01")
@pytest.mark.parametrize("state", STATES)
async def test_deleted_views_are_made_again_by_their_readers(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        await settled(api)
        before = await told_of(api)
        for table in PROJECTIONS:
            sql(api, f"delete from {table}")
        rebuilt = sources(await detail(api))
        assert set(rebuilt) == {f"{table}_rebuilt" for table in PROJECTIONS[1:]}
        assert await told_of(api) == before
        await settled(api)
        assert set(sources(await detail(api))) == set(PROJECTIONS[1:])


@pytest.mark.contract("PROJ-05", "PROJ-06")
@pytest.mark.parametrize("state", STATES)
async def test_a_falsified_summary_is_believed_by_no_reader(state: str) -> None:
    async with serving() as api:
        await STATES[state](api)
        await settled(api)
        before = await told_of(api)
        assert (
            sql(api, "update workflow_run_summaries set state = 'paused', attention = 'blocked', wait_kind = 'child'")
            >= 1
        )
        assert await told_of(api) == before


def sources(shown: dict[str, Any]) -> list[str]:
    """Where the views of a detail stand."""
    return [value for name, value in shown.items() if name.endswith("_projection_source")]


async def told_of(api: Api) -> dict[str, Any]:
    """What detail and list say of the run, without the moment at which they say it."""
    shown = await detail(api)
    found = (await api.control("GET", "/flows/all")).json()["flows"]
    row = next(row for row in found if row["workflow_id"] == "o-1")
    moving = ("generated_at", "compatibility_fleet", "last_progress_at", "why", "duration_ms")
    return {
        "detail": {
            name: value
            for name, value in shown.items()
            if name not in moving and not name.endswith("_projection_source")
        },
        "row": {name: value for name, value in row.items() if name not in moving},
    }
