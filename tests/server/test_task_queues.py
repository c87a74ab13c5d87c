"""Task queues as operators see them: what waits, who serves it, how fast it goes, and why it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from .kit import Api, serving, sql


async def queue(api: Api, name: str = "q") -> dict[str, Any]:
    answer = await api.control("GET", f"/task-queues/{name}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(api: Api) -> dict[str, dict[str, Any]]:
    answer = await api.control("GET", "/task-queues")
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["task_queues"]}


async def test_a_queue_says_what_waits_and_since_when_in_numbers() -> None:
    async with serving() as api:
        await api.start("o-1")
        await api.world.advance(30)
        await api.start("o-2")
        await api.world.advance(12)
        stats = (await queue(api))["stats"]
        assert stats["approximate_backlog_count"] == 2
        assert stats["approximate_backlog_age_seconds"] == pytest.approx(42.002, abs=0.01)
        assert stats["approximate_backlog_age"] == f"{stats['approximate_backlog_age_seconds']:.3f}s"
        assert stats["workflow_tasks"]["oldest_ready_age_seconds"] == stats["approximate_backlog_age_seconds"]
        assert stats["activity_tasks"]["oldest_ready_age_seconds"] is None
        empty = (await queue(api, "nobody-knows"))["stats"]
        assert (empty["approximate_backlog_count"], empty["approximate_backlog_age"]) == (0, None)


async def test_a_name_with_a_slash_is_one_segment_of_an_address() -> None:
    async with serving() as api:
        await api.start("o-1", task_queue="eu/orders")
        assert (await queue(api, "eu%2Forders"))["stats"]["approximate_backlog_count"] == 1
        tasks = await api.control("GET", "/task-queues/eu%2Forders/tasks")
        assert [one["workflow_id"] for one in tasks.json()["tasks"]] == ["o-1"], tasks.text
        assert (await queue(api, "eu%2Ftasks"))["name"] == "eu/tasks", "the name of a queue is no part of a route"
        assert (await api.http.get("/api%2Fhealth")).json()["reason"] == "route_not_found"
        drained = await api.control("POST", "/task-queues/eu%2Forders/build-ids/drain", {"build_id": "b1"})
        assert drained.json()["task_queue"] == "eu/orders", drained.text


async def test_a_task_row_that_is_gone_waits_no_longer() -> None:
    """What waits is counted on disk: no memory of this server contradicts a row."""
    async with serving() as api:
        await api.start()
        assert (await queue(api))["stats"]["approximate_backlog_count"] == 1
        sql(api, "delete from task")
        assert (await queue(api))["stats"]["approximate_backlog_count"] == 0


async def test_rows_name_workers_by_id_and_do_not_repeat_their_documents() -> None:
    async with serving(worker_stale_after_seconds=60) as api:
        contract = {"order": {"queries": [f"query-{number}" for number in range(500)]}}
        await api.register("silent", workflow_command_contracts=contract)
        await api.world.advance(100)
        await api.register("alive", workflow_command_contracts=contract)
        row = (await listed(api))["q"]
        assert row["workers"] == {"ids": ["silent", "alive"], "active": 1, "stale": 1}
        assert row["stats"]["pollers"] == {"active_count": 1, "stale_count": 1, "stale_after_seconds": 60}
        assert [(one["worker_id"], one["status"]) for one in row["pollers"]] == [
            ("silent", "stale"),
            ("alive", "active"),
        ]
        assert "query-1" not in (await api.control("GET", "/task-queues")).text


async def test_queues_come_in_pages() -> None:
    async with serving() as api:
        for number in range(3):
            await api.register(f"w-{number}", queue=f"q-{number}")
        first = (await api.control("GET", "/task-queues?page_size=2")).json()
        assert ([one["name"] for one in first["task_queues"]], first["next_after"]) == (["q-0", "q-1"], "q-1")
        rest = (await api.control("GET", "/task-queues?page_size=2&after=q-1")).json()
        assert ([one["name"] for one in rest["task_queues"]], rest["next_after"]) == (["q-2"], None)


async def test_a_queue_counts_the_tasks_of_the_last_minute_and_how_long_they_waited() -> None:
    async with serving() as api:
        await api.register()
        for number in range(4):
            await api.start(f"o-{number}")
        await api.world.advance(8)
        for _ in range(3):
            task = await api.poll()
            await api.complete(task, {"type": "complete_workflow"})
        seen = await queue(api)
        assert seen["rates"] == {"added_per_minute": 4, "dispatched_per_minute": 3, "completed_per_minute": 3}
        assert seen["stats"]["workflow_tasks"]["added_last_minute"] == 4
        assert seen["stats"]["activity_tasks"]["added_last_minute"] == 0
        waits = seen["schedule_to_start"]["workflow_tasks"]
        assert waits["count"] == 3
        assert 4000 < waits["p50_ms"] <= 16_400, "they waited eight seconds: within a factor of two"
        assert seen["schedule_to_start"]["activity_tasks"] == {"count": 0, "p50_ms": None, "p95_ms": None}
        await api.world.advance(130)
        quiet = await queue(api)
        assert quiet["rates"] == {"added_per_minute": 0, "dispatched_per_minute": 0, "completed_per_minute": 0}
        assert quiet["schedule_to_start"]["workflow_tasks"]["count"] == 3, "percentiles last for five minutes at least"
        await api.world.advance(700)
        assert (await queue(api))["schedule_to_start"]["workflow_tasks"]["count"] == 0


async def test_a_heartbeat_is_no_dispatch_and_a_task_that_is_leased_at_once_is_added_too() -> None:
    async with serving() as api:
        await api.register()
        parked = asyncio.create_task(api.poll(timeout_seconds=30))
        while not api.server.engine.matching.polls.all():
            await asyncio.sleep(0)
        await api.start()
        task = await parked
        body = {"lease_owner": task["lease_owner"], "workflow_task_attempt": task["workflow_task_attempt"]}
        assert (await api.worker(f"workflow-tasks/{task['task_id']}/heartbeat", body)).status_code == 200
        assert (await queue(api))["rates"] == {
            "added_per_minute": 1,
            "dispatched_per_minute": 1,
            "completed_per_minute": 0,
        }


async def test_what_waits_is_listed_oldest_first_in_pages() -> None:
    async with serving() as api:
        for number in range(5):
            await api.start(f"o-{number}", build_id="b1" if number == 4 else None)
        await api.start("elsewhere", task_queue="other")
        await api.world.advance(10)
        first = (await api.control("GET", "/task-queues/q/tasks?page_size=3")).json()
        assert [one["workflow_id"] for one in first["tasks"]] == ["o-0", "o-1", "o-2"]
        one = first["tasks"][0]
        assert (one["task_type"], one["type"], one["workflow_type"], one["build_id"]) == (
            "workflow",
            "order",
            "order",
            None,
        )
        assert one["run_id"] == (await api.describe("o-0"))["run_id"]
        assert one["waiting_seconds"] == pytest.approx(10.006, abs=0.01)
        rest = (await api.control("GET", f"/task-queues/q/tasks?next_page_token={first['next_page_token']}")).json()
        assert [one["workflow_id"] for one in rest["tasks"]] == ["o-3", "o-4"]
        assert (rest["tasks"][1]["build_id"], rest["next_page_token"]) == ("b1", None)


@pytest.mark.parametrize("token", ["x", "!!!", "W10="])
async def test_a_token_of_another_list_is_refused(token: str) -> None:
    async with serving() as api:
        for number in range(2):
            await api.start(f"o-{number}")
        wrong = await api.control("GET", f"/task-queues/q/tasks?next_page_token={token}")
        assert (wrong.status_code, wrong.json()["reason"]) == (400, "invalid_page_token")
        page = (await api.control("GET", "/task-queues/q/tasks?page_size=1")).json()
        other = await api.control("GET", f"/task-queues/r/tasks?next_page_token={page['next_page_token']}")
        assert (other.status_code, other.json()["reason"]) == (400, "invalid_page_token")


async def test_a_task_that_backs_off_does_not_wait_yet() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        task = await api.poll()
        retry = {"max_attempts": 3, "backoff_seconds": [3600]}
        await api.complete(task, {"type": "schedule_activity", "activity_type": "charge", "retry_policy": retry})
        attempt = await api.poll("activity")
        failure = {"message": "no", "type": "Error"}
        assert (await api.activity("fail", attempt, failure=failure)).status_code == 200
        assert (await api.control("GET", "/task-queues/q/tasks")).json()["tasks"] == []
        assert (await queue(api))["stats"]["approximate_backlog_count"] == 0
        await api.world.advance(3601)
        (due,) = (await api.control("GET", "/task-queues/q/tasks")).json()["tasks"]
        assert (due["type"], due["waiting_seconds"] < 5) == ("charge", True)


async def test_a_full_queue_says_in_one_sentence_which_limit_and_who_holds_it() -> None:
    async with serving(workflow_task_max_active_leases_per_queue=1) as api:
        await api.register()
        for number in range(2):
            await api.start(f"o-{number}")
        assert (await queue(api))["throttled_because"] is None
        await api.poll()
        said = (await queue(api))["throttled_because"]
        assert said == (
            "1 of 1 workflow tasks of queue 'q' are leased (max_active_leases_per_queue, from settings):"
            " worker 'worker-1' holds 1."
        )


async def test_a_full_namespace_names_the_queues_that_hold_it() -> None:
    async with serving(workflow_task_max_active_leases_per_namespace=1) as api:
        await api.register()
        await api.register("other", queue="r")
        await api.start("o-1")
        await api.start("o-2", task_queue="r")
        await api.poll()
        said = (await queue(api, "r"))["throttled_because"]
        assert "namespace 'default'" in said
        assert "queue 'q' holds 1" in said


async def test_a_budget_a_minute_says_when_it_goes_on() -> None:
    async with serving(workflow_task_max_dispatches_per_minute=1) as api:
        await api.register()
        for number in range(2):
            await api.start(f"o-{number}")
        await api.poll()
        said = (await queue(api))["throttled_because"]
        assert said.startswith("1 of 1 workflow tasks of queue 'q' went out this minute (max_dispatches_per_minute,")
        assert "more follow in " in said
        await api.world.advance(61)
        assert (await queue(api))["throttled_because"] is None


async def test_a_standby_counts_what_waits_from_disk(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'shared.db'}"
    async with serving(still=False, store=store) as engine:
        await engine.register()
        await engine.start("leased")
        for number in range(2):
            await engine.start(f"o-{number}", build_id="b1")
        assert (await engine.poll())["workflow_id"] == "leased"
        async with serving(still=False, store=store) as standby:
            assert not standby.server.engine.holder
            seen = await queue(standby)
            assert seen["counted_by"] == "disk"
            assert seen["stats"]["approximate_backlog_count"] == 2
            assert seen["stats"]["approximate_backlog_age_seconds"] > 0
            assert seen["stats"]["workflow_tasks"]["ready_count"] == 2
            assert seen["stats"]["workflow_tasks"]["leased_count"] == 1
            assert seen["open_runs_by_build"] == {"b1": 2}
            assert (seen["rates"], seen["schedule_to_start"], seen["throttled_because"]) == (None, None, None)
            assert seen["admission"]["workflow_tasks"]["reason"] == "not_the_engine"
            (one, two) = (await standby.control("GET", "/task-queues/q/tasks")).json()["tasks"]
            assert (one["workflow_id"], two["workflow_id"]) == ("o-0", "o-1")
        assert (await queue(engine))["counted_by"] == "engine"


async def builds(api: Api) -> dict[str, dict[str, Any]]:
    found = (await api.control("GET", "/task-queues/q/build-ids")).json()["build_ids"]
    return {one["build_id"]: one for one in found}


async def test_a_build_that_open_runs_are_pinned_to_stays_listed_without_workers() -> None:
    async with serving() as api:
        await api.register(build_id="b1")
        for number in range(2):
            await api.start(f"o-{number}", build_id="b1")
        pinned = (await builds(api))["b1"]
        assert (pinned["open_runs"], pinned["workers"], pinned["drained"]) == (2, ["worker-1"], False)
        await api.worker("registrations/worker-1", method="DELETE")
        left = (await builds(api))["b1"]
        assert (left["open_runs"], left["workers"], left["rollout_status"]) == (2, [], "no_workers")
        assert (await queue(api))["open_runs_by_build"] == {"b1": 2}
        for number in range(2):
            await api.control("POST", f"/workflows/o-{number}/terminate", {"reason": "enough"})
        assert await builds(api) == {}


async def test_a_build_is_drained_when_nothing_is_pinned_to_it_any_more() -> None:
    async with serving() as api:
        await api.start(build_id="b1")
        await api.control("POST", "/task-queues/q/build-ids/drain", {"build_id": "b1"})
        draining = (await builds(api))["b1"]
        assert (draining["drain_intent"], draining["open_runs"], draining["drained"]) == ("draining", 1, False)
        await api.control("POST", "/workflows/o-1/terminate", {"reason": "enough"})
        drained = (await builds(api))["b1"]
        assert (drained["open_runs"], drained["drained"]) == (0, True)
