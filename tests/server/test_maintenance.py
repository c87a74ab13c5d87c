"""System passes: repair, retention, activity timeouts; and the archive of what retention removes."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from durable_workflow.history_bundle_verify import verify_bundle

from ..store.seam import connection_of
from .kit import Api, detail, serving, sql

DAY = 86_400


async def finished(api: Api, workflow_id: str) -> str:
    """Run a workflow to its end. The worker registers anew: it is forgotten if it was silent for a week."""
    await api.register()
    run_id = (await api.start(workflow_id))["run_id"]
    await api.complete(await api.poll(), {"type": "complete_workflow"})
    return run_id


async def swept(api: Api, **body: Any) -> dict[str, Any]:
    return (await api.control("POST", "/system/retention/pass", body)).json()


async def test_closed_runs_older_than_the_namespace_keeps_them_are_removed() -> None:
    async with serving(retention_interval_seconds=0) as api:
        await api.register()
        await api.control("PUT", "/namespaces/default", {"retention_days": 2})
        old = await finished(api, "old")
        await api.start("open")
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 9 * DAY})
        await api.world.advance(1.5 * DAY)
        young = await finished(api, "young")
        assert (await swept(api))["processed"] == 0
        await api.world.advance(DAY)
        seen = (await api.control("GET", "/system/retention")).json()
        assert (seen["expired_run_ids"], seen["retention_days"], seen["scan_pressure"]) == ([old], 2, False)
        named = await swept(api, run_ids=[young, "no-such-run"])
        assert [(r["outcome"], r["reason"]) for r in named["results"]] == [
            ("skipped", "run_not_found"),
            ("skipped", "not_expired"),
        ]
        done = await swept(api)
        assert (done["pruned"], done["results"][0]["run_id"]) == (1, old)
        assert (await api.control("GET", "/workflows/old")).json()["reason"] == "instance_not_found"
        assert (await api.control("GET", f"/workflows/old/runs/{old}/history")).status_code == 404
        left = (await api.control("GET", "/workflows")).json()["workflows"]
        assert {w["workflow_id"] for w in left} == {"open", "young"}
        store = api.server.engine.store
        assert await store.expired("default", api.world.now(), 10) == [await store.run("default", young)]
        assert await finished(api, "old") != old, "the id may be used again"


async def test_retention_runs_by_itself_and_spares_a_chain_that_goes_on() -> None:
    async with serving(retention_interval_seconds=3600) as api:
        await api.register()
        await finished(api, "gone")
        await api.start("chain")
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        first, second = (await api.control("GET", "/workflows/chain/runs")).json()["runs"]
        await api.world.advance(31 * DAY)
        await api.world.advance(3601)
        answer = await api.control("GET", "/workflows/chain/runs")
        assert answer.status_code == 200, answer.text
        runs = answer.json()["runs"]
        assert [run["run_id"] for run in runs] == [second["run_id"]] != [first["run_id"]]
        assert (await api.control("GET", "/workflows/gone")).status_code == 404
        await api.register()  # it was silent for longer than it is remembered
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        assert (await api.describe("chain"))["status"] == "completed"


async def test_a_run_goes_to_the_archive_before_it_is_removed(tmp_path: Path) -> None:
    async with serving(retention_interval_seconds=0, retention_archive=str(tmp_path / "kept")) as api:
        await api.register()
        run_id = await finished(api, "old")
        await api.world.advance(31 * DAY)
        assert (await swept(api))["pruned"] == 1
        (file,) = (tmp_path / "kept").iterdir()
        assert file.name == f"default-{run_id}.json"
        assert file.stat().st_mode & 0o077 == 0, "for its owner only"
        assert verify_bundle(json.loads(file.read_bytes()))["status"] == "ok"
        await finished(api, "second")
        await api.world.advance(31 * DAY)
        file.unlink()
        (tmp_path / "kept").rmdir()
        (tmp_path / "kept").write_text("not a directory")
        failed = await swept(api)
        assert (failed["failed"], failed["results"][0]["reason"]) == (1, "archive_failed")
        assert (await api.describe("second"))["status"] == "completed", "what cannot be archived stays"


async def test_an_instance_that_owes_others_something_stays() -> None:
    async with serving(retention_interval_seconds=0) as api:
        await api.register()
        await api.start("parent")
        child = {"type": "start_child_workflow", "workflow_type": "order", "parent_close_policy": "abandon"}
        await api.complete(await api.poll(), child)
        started = await api.poll()
        api.server.engine.outbox.dispatch = lambda send: None  # type: ignore[method-assign] - the answer gets lost
        await api.complete(started, {"type": "complete_workflow"})
        await api.world.advance(31 * DAY)
        outcome = await swept(api)
        assert [(r["outcome"], r["reason"]) for r in outcome["results"]] == [("skipped", "undelivered_sends")]


async def test_a_repair_pass_restores_what_history_expects() -> None:
    async with serving() as api:
        await api.register()
        await api.start("lost")
        await api.start("kept")
        store = api.server.engine.store
        key = await store.find("default", "lost")
        connection_of(store).execute("delete from task where workflow = ?", (key,))
        seen = (await api.control("GET", "/system/repair")).json()
        assert seen["candidates"]["missing_task_candidates"] == 1
        assert seen["policy"]["failure_backoff_max_seconds"] == 60
        done = (await api.control("POST", "/system/repair/pass", {})).json()
        assert (done["selected_missing_task_candidates"], done["repaired_missing_tasks"]) == (1, 1)
        assert (await api.control("GET", "/system/repair")).json()["candidates"]["total_candidates"] == 0
        assert {(await api.poll())["workflow_id"] for _ in range(2)} == {"lost", "kept"}
        partial = await api.control("POST", "/system/repair/pass", {"run_ids": ["nowhere"], "instance_id": "kept"})
        assert partial.status_code == 207
        assert partial.json()["existing_task_failures"] == [{"run_id": "nowhere", "reason": "run_not_found"}]


@pytest.mark.contract("REPAIR-22")
async def test_the_repair_policy_is_what_the_settings_say() -> None:
    chosen: dict[str, Any] = {
        "task_repair_redispatch_after_seconds": 30,
        "task_repair_loop_throttle_seconds": 20,
        "task_repair_scan_limit": 1,
        "task_repair_failure_backoff_max_seconds": 4,
    }
    async with serving(**chosen) as api:
        await api.register()
        metrics = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]
        assert {f"task_repair_{name}": metrics["repair_policy"][name] for name in (n[12:] for n in chosen)} == chosen
        assert (await api.control("GET", "/system/repair")).json()["policy"] == metrics["repair_policy"]
        for id in ("first", "second"):
            await api.start(id)
        sql(api, "delete from task")
        api.server.engine.matching.lanes.forget(lambda key: True)
        await api.world.advance(19)
        assert await api.poll() is None, "it does not look before its time"
        done = (await api.control("POST", "/system/repair/pass", {})).json()
        assert done["repaired_missing_tasks"] == 1, "one at a time"
        first = await api.poll()
        await api.fail(first, message="no such module")
        await api.world.advance(2)  # the sweep brings the other one
        second = await api.poll()
        assert {first["workflow_id"], second["workflow_id"]} == {"first", "second"}
        await api.complete(second, {"type": "complete_workflow"})
        for _ in range(3):
            await api.world.advance(4)  # at most
            await api.fail(await api.poll(), message="no such module")
        await api.start("unheard")
        api.server.engine.matching.lanes.forget(lambda key: True)
        await api.world.advance(29)
        found = (await api.control("GET", "/system/repair")).json()["candidates"]
        waiting = found["existing_task_candidates"]
        await api.world.advance(2)
        found = (await api.control("GET", "/system/repair")).json()["candidates"]
        assert found["existing_task_candidates"] == waiting + 1


@pytest.mark.contract("REPAIR-23")
async def test_a_task_that_fails_again_and_again_waits_longer_and_says_so() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.fail(await api.poll(), message="no such module")
        (task,) = (await detail(api))["tasks"]
        assert (task["transport_state"], task["last_error"]) == ("repair_backoff", "no such module")
        answer = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert answer["outcome"] == "repair_dispatched", "the first time at once, if somebody asks"
        waits: list[float] = []
        for _ in range(6):
            await api.fail(await api.poll(), message="no such module")
            sql(api, "delete from notice")  # and forget everything that is only in memory
            (task,) = (await detail(api))["tasks"]
            assert task["transport_state"] == "repair_backoff"
            assert await api.poll() is None
            due = datetime.fromisoformat(task["repair_available_at"]).timestamp()
            waits.append(due - api.world.now() / 1_000_000)
            await api.world.advance(waits[-1])
        assert waits == [6, 12, 24, 48, 60, 60]
        assert (await api.poll())["workflow_id"] == "o-1"


@pytest.mark.contract("REPAIR-24", "METRIC-08")
async def test_a_busy_queue_does_not_take_all_places_of_a_pass() -> None:
    async with serving() as api:
        await api.register()
        await api.register("far-1", "far")
        for number in range(40):
            await api.start(f"near-{number}")
        await api.start("far", task_queue="far")
        sql(api, "delete from task")
        api.server.engine.matching.lanes.forget(lambda key: True)
        metrics = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]["repair"]
        assert (metrics["missing_task_candidates"], metrics["selected_missing_task_candidates"]) == (41, 25)
        assert metrics["missing_task_scan_limit_reached"]
        scopes = [
            (one["queue"], one["candidates"], one["selected_missing_task_candidates"]) for one in metrics["scopes"]
        ]
        assert scopes == [("q", 40, 24), ("far", 1, 1)]
        done = (await api.control("POST", "/system/repair/pass", {})).json()
        assert (done["selected_missing_task_candidates"], done["repaired_missing_tasks"]) == (25, 25)
        assert (await api.poll("workflow", "far-1", "far"))["workflow_id"] == "far"


@pytest.mark.contract("REPAIR-24", "METRIC-08")
@pytest.mark.parametrize("other", [{"task_queue": "far"}, {"connection": "redis"}, {"build_id": "b2"}], ids=str)
async def test_each_queue_connection_and_build_has_its_places_in_a_pass(other: dict[str, str]) -> None:
    """Forty runs of one scope are older than the one of another scope, and there are 25 places."""
    async with serving() as api:
        await api.register(build_id="b1")
        for number in range(40):
            await api.start(f"near-{number}", build_id="b1")
        await api.start("alone", **({"build_id": "b1"} | other))
        sql(api, "delete from task")
        api.server.engine.matching.lanes.forget(lambda key: True)
        metrics = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]["repair"]
        assert (metrics["missing_task_candidates"], metrics["selected_missing_task_candidates"]) == (41, 25)
        selected = [(one["candidates"], one["selected_missing_task_candidates"]) for one in metrics["scopes"]]
        assert selected == [(40, 24), (1, 1)]
        assert len({(one["connection"], one["queue"], one["compatibility"]) for one in metrics["scopes"]}) == 2
        await api.control("POST", "/system/repair/pass", {})
        assert (await detail(api, "alone"))["liveness_state"] != "repair_needed"


@pytest.mark.contract("REPAIR-25")
async def test_recovering_a_task_needs_no_worker_of_its_build_and_claiming_it_does() -> None:
    async with serving() as api:  # no workflow type is known to a server
        await api.register("old", build_id="b1")
        await api.register("new", build_id="b2")
        await api.start(build_id="b1")
        sql(api, "delete from task")
        api.server.engine.matching.lanes.forget(lambda key: True)
        await api.world.advance(6)
        assert await api.poll("workflow", "new", build_id="b2") is None
        assert (await api.poll("workflow", "old", build_id="b1"))["workflow_id"] == "o-1"


async def test_activity_timeouts_are_told_by_the_engine_itself() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(
            await api.poll(), {"type": "schedule_activity", "activity_type": "charge", "start_to_close_timeout": 5}
        )
        work = await api.poll("activity")
        assert (await api.control("GET", "/system/activity-timeouts")).json()["expired_count"] == 0
        api.world._still += 6_000_000  # the engine oversleeps
        seen = (await api.control("GET", "/system/activity-timeouts")).json()
        assert seen["expired_execution_ids"] == [work["activity_execution_id"]]
        done = (await api.control("POST", "/system/activity-timeouts/pass", {})).json()
        assert (done["enforced"], done["processed"]) == (1, 1)
        assert "ActivityTimedOut" in await api.types()
        again = (
            await api.control(
                "POST", "/system/activity-timeouts/pass", {"execution_ids": [work["activity_execution_id"], "nope"]}
            )
        ).json()
        assert [r["reason"] for r in again["results"]] == ["not_expired", "execution_not_found"]


async def test_passes_are_for_administrators_and_what_they_would_find_for_everybody_who_reads() -> None:
    async with serving(operator_token="o", viewer_token="v", worker_token="w") as api:
        for path in ("repair", "retention", "activity-timeouts"):
            for token, reads in (("o", 200), ("v", 200), ("w", 403)):
                assert (await api.control("GET", f"/system/{path}", token=token)).status_code == reads
                assert (await api.control("POST", f"/system/{path}/pass", {}, token=token)).status_code == 403
