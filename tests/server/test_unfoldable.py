"""A run whose history cannot be folded is stranded, whatever rows it has: every surface of the fleet counts it."""

from __future__ import annotations

from typing import Any

import pytest

from ..store.seam import connection_of
from .kit import Api, blob, serving, sql, until

ACTIVITY = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])}
TIMER = {"type": "start_timer", "delay_seconds": 600}
CHILD = {"type": "start_child_workflow", "workflow_type": "order", "task_queue": "nowhere"}
WAITS = {"works": ACTIVITY, "sleeps": TIMER, "parent": CHILD}

OF = "run = (select key from run where workflow_id = ?)"
DAMAGE = {
    "the last event is gone": f"delete from event where {OF} and sequence = (select max(sequence) from event where {OF})",
    "an event in the middle is gone": f"delete from event where {OF} and sequence = 2 and 1 = 1 + 0 * length(?)",
    "all are gone": f"delete from event where {OF} and 1 = 1 + 0 * length(?)",
    "an event is altered": f"update event set body = cast(replace(cast(body as text), ':', ' :') as blob) where {OF}"
    " and sequence = 2 and 1 = 1 + 0 * length(?)",
    "an event is twice there": f"insert into event select run, 99, type, at, body, context, checksum from event where {OF}"
    " and sequence = 2 and 1 = 1 + 0 * length(?)",
}


async def get(api: Api, path: str) -> dict[str, Any]:
    found = await api.control("GET", path)
    assert found.status_code == 200, found.text
    return found.json()


def rows(api: Api, query: str) -> list[Any]:
    return connection_of(api.server.engine.store).execute(query).fetchall()


async def resting(api: Api) -> None:
    await api.register()
    for workflow_id, command in WAITS.items():
        await api.start(workflow_id)
        assert (await api.complete(await api.poll(), command)).status_code == 200
    await projected(api)


async def projected(api: Api) -> None:
    for _ in range(3):
        await api.world.advance(1)
        await get(api, "/system/projections")


async def states(api: Api) -> dict[str, int]:
    """The open runs by state, as three surfaces tell them alike; they add up."""
    stock = (await get(api, "/overview"))["stock"]
    counted = stock["states"] | {"without_view": stock["without_view"]}
    assert sum(counted.values()) == stock["open"]
    runs = (await get(api, "/system/operator-metrics"))["operator_metrics"]["runs"]
    assert (runs["states"], runs["running"]) == (counted, stock["open"])
    scraped = (await api.control("GET", "/../metrics")).text
    for state, number in counted.items():
        name = "unknown" if state == "without_view" else state
        assert f'backstay_open_runs{{namespace="default",state="{name}"}} {number}' in scraped, scraped
    return {state: number for state, number in counted.items() if number}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("workflow_id", WAITS)
async def test_a_run_that_cannot_be_folded_is_stranded_and_counted_everywhere(workflow_id: str, damage: str) -> None:
    async with serving() as api:
        await resting(api)
        before = await states(api)
        assert sql(api, DAMAGE[damage], workflow_id, workflow_id) > 0
        await api.world.advance(25)  # the next pass
        proven = await get(api, "/system/liveness")
        assert (proven["status"], proven["open_runs"], proven["stranded"]) == ("stranded", 4, 1)
        (named,) = proven["stranded_runs"]
        assert (named["workflow_id"], named["reason"]) == (workflow_id, "history_damaged")
        assert sum(proven["resume_sources"].values()) == 3
        after = await states(api)
        assert (sum(after.values()), after["blocked"]) == (sum(before.values()), 1)
        metrics = (await get(api, "/system/operator-metrics"))["operator_metrics"]
        assert (metrics["blocked"]["count"], metrics["blocked"]["by_reason"]) == (1, {"unsupported_history": 1})
        assert [one["workflow_id"] for one in metrics["blocked"]["runs"]] == [workflow_id]
        tasks = 1 if workflow_id == "works" else 0
        assert (metrics["tasks"]["history_damaged"], metrics["tasks"]["unhealthy"]) == (tasks, tasks)
        health = await get(api, "/system/health")
        (finding,) = [one for one in health["causes"] if one["name"] == "history_damaged"]
        assert health["status"] == "error"
        assert (finding["count"], finding["example"]["workflow_id"]) == (1, workflow_id)
        (cause,) = [one for one in (await get(api, "/overview"))["causes"] if one["name"] == "history_damaged"]
        assert (cause["count"], cause["severity"]) == (1, "error")
        for asked in ("attention=blocked", "state=blocked", "liveness_state=workflow_replay_blocked"):
            flows = (await get(api, f"/flows/running?{asked}"))["flows"]
            assert [flow["instance_id"] for flow in flows] == [workflow_id], asked
        flows = (await get(api, "/flows/running?repair_attention=true"))["flows"]
        assert workflow_id in {flow["instance_id"] for flow in flows}


async def test_a_history_that_was_restored_goes_on() -> None:
    async with serving() as api:
        await resting(api)
        before = await states(api)
        sql(api, "create temp table saved as select * from event")
        sql(api, "delete from event where type like 'Timer%'")
        await api.world.advance(25)
        assert (await get(api, "/system/liveness"))["stranded"] == 1
        sql(api, "insert into event select * from saved where type like 'Timer%'")
        await api.world.advance(25)
        proven = await get(api, "/system/liveness")
        assert (proven["status"], proven["stranded_runs"]) == ("ok", [])
        await projected(api)
        assert await states(api) == before
        assert [one for one in (await get(api, "/system/health"))["causes"] if one["name"] == "history_damaged"] == []
        await api.world.advance(600)
        assert (await api.poll())["workflow_id"] == "sleeps"


async def test_damage_counts_as_soon_as_a_run_is_loaded() -> None:
    async with serving() as api:
        await resting(api)
        sql(api, "delete from event where type like 'Timer%'")
        ((key,),) = rows(api, "select key from workflow where workflow_id = 'sleeps'")
        assert api.server.engine.reload(key)
        assert (await api.control("POST", "/workflows/sleeps/signal/hello")).status_code == 409
        await until(lambda: rows(api, "select 1 from workflow_run_summaries where state = 'blocked'"))
        assert (await states(api))["blocked"] == 1


async def test_without_stored_views_the_certificate_names_it_all_the_same() -> None:
    async with serving(views=False) as api:
        await resting(api)
        sql(api, DAMAGE["an event is altered"], "sleeps", "sleeps")
        await api.world.advance(25)
        proven = await get(api, "/system/liveness")
        assert ([one["workflow_id"] for one in proven["stranded_runs"]], proven["stranded"]) == (["sleeps"], 1)
        assert proven["resume_sources"]["wake"] + proven["resume_sources"]["task"] == 2


async def test_runs_that_no_view_tells_of_are_counted_with_their_age() -> None:
    async with serving(views=False) as api:
        await resting(api)
        await api.world.advance(7)
        assert await states(api) == {"without_view": 4}
        stock = (await get(api, "/overview"))["stock"]
        assert stock["without_view_age_seconds"] >= 10
        runs = (await get(api, "/system/operator-metrics"))["operator_metrics"]["runs"]
        assert runs["max_without_view_age_ms"] >= 10_000
        assert runs["oldest_without_view_at"] == stock["without_view_since"]


async def test_states_add_up_while_runs_close() -> None:
    async with serving() as api:
        await resting(api)
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        await api.complete(await api.poll(), {"type": "complete_workflow", "result": blob(1)})
        assert sum((await states(api)).values()) == 3, "its summary says still that it is open"
        await projected(api)
        assert sum((await states(api)).values()) == 3
