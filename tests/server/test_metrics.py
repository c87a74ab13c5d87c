"""What operators watch: counted from what is on disk."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backstay.kernel.features.workflow_task.crashed import MOST

from .kit import ME, TOKEN, Api, blob, serving, sql

RETRIED = {"max_attempts": 5, "backoff_seconds": [60]}


async def metrics(api: Api) -> dict[str, Any]:
    return (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]


async def load(api: Api) -> None:
    """Known work: a run archived, one retrying an activity, one leased, two ready."""
    await api.register()
    for id in ("archived", "retrying", "leased", "ready-1", "ready-2"):
        await api.start(id)
        if id == "archived":
            await api.complete(await api.poll(), {"type": "complete_workflow"})
            await api.control("POST", "/workflows/archived/archive", {})
        elif id == "retrying":
            charge = {"type": "schedule_activity", "activity_type": "charge", "retry_policy": RETRIED}
            await api.complete(await api.poll(), charge)
            await api.activity("fail", await api.poll("activity"), failure={"message": "no"})
        elif id == "leased":
            await api.poll()


@pytest.mark.contract("METRIC-02", "METRIC-03", "METRIC-04")
async def test_runs_tasks_and_attempts_are_counted_from_disk(tmp_path: Path) -> None:
    async with serving(store=f"sqlite:{tmp_path / 'm.db'}") as api:
        await load(api)
        found = await metrics(api)
        assert (found["runs"]["archived"], found["runs"]["completed"], found["runs"]["running"]) == (1, 1, 4)
        tasks = found["tasks"]
        assert (tasks["ready_due"], tasks["delayed"], tasks["leased"], tasks["unhealthy"]) == (2, 1, 1, 0)
        assert (found["backlog"]["runnable_tasks"], found["backlog"]["delayed_tasks"]) == (2, 1)
        assert (found["activities"]["retrying"], found["activities"]["failed_attempts"]) == (1, 1)
        before = found
    async with serving(store=f"sqlite:{tmp_path / 'm.db'}") as api:
        after = await metrics(api)
        # The clock of this server begins anew, so what is due since a time of the other counts from now.
        for section in ("runs", "tasks", "activities", "history"):
            changed = {
                name: (before[section][name], value)
                for name, value in after[section].items()
                if value != before[section][name] and "age" not in name and name != "oldest_ready_due_at"
            }
            assert not changed, section


@pytest.mark.contract("METRIC-05", "METRIC-06")
async def test_runs_that_do_not_move_are_counted_by_reason() -> None:
    async with serving() as api:
        await api.register(build_id="b1")
        await api.start("lease")
        await api.poll(build_id="b1")
        api.world._still += 301_000_000  # its lease is over, and the engine oversleeps
        tasks = (await metrics(api))["tasks"]
        assert (tasks["lease_expired"], tasks["unhealthy"]) == (1, 1)
        await api.world.advance(1)
        await api.complete(await api.poll(build_id="b1"), {"type": "complete_workflow"})

        await api.start("unheard")
        api.server.engine.matching.lanes.forget(lambda key: True)
        api.world._still += 4_000_000
        tasks = (await metrics(api))["tasks"]
        assert (tasks["dispatch_overdue"], tasks["unhealthy"]) == (1, 1)
        await api.world.advance(6)
        await api.fail(await api.poll(build_id="b1"), message="no such module")
        found = await metrics(api)
        assert (found["tasks"]["claim_failed"], found["runs"]["claim_failed"]) == (1, 1)

        await api.start("lost")
        key = "(select workflow from run where workflow_id = 'lost')"
        assert sql(api, f"delete from task where workflow = {key}") == 1
        await api.start("elsewhere", build_id="b9")
        found = await metrics(api)
        assert (found["runs"]["repair_needed"], found["runs"]["compatibility_blocked"]) == (1, 1)
        assert found["backlog"]["repair_needed_runs"] == 1
        assert found["backlog"]["compatibility_blocked_runs"] == 1


@pytest.mark.contract("METRIC-07")
async def test_workers_are_counted_with_the_build_that_is_wanted() -> None:
    async with serving() as api:
        await api.register("old", build_id="b1")
        await api.register("new", build_id="b2")
        await api.register("far", "other")
        promoted = await api.control("POST", "/task-queues/q/build-ids/promote", {"build_id": "b2"})
        assert promoted.status_code == 200, promoted.text
        workers = (await metrics(api))["workers"]
        assert (workers["active_workers"], workers["active_worker_scopes"]) == (3, 2)
        assert workers["active_workers_supporting_required"] == 2
        scope = next(one for one in workers["scopes"] if one["queue"] == "q")
        assert scope == {
            "queue": "q",
            "required_compatibility": "b2",
            "active_workers": 2,
            "active_workers_supporting_required": 1,
        }
        await api.world.advance(600)
        workers = (await metrics(api))["workers"]
        assert (workers["active_workers"], workers["stale"]) == (0, 3)


@pytest.mark.contract("METRIC-09")
async def test_the_metrics_show_the_backend_of_the_server(postgresql_url: str) -> None:
    async with serving() as api:
        backend = (await metrics(api))["backend"]
        assert (backend["database"]["driver"], backend["database"]["durable"]) == ("sqlite", False)
        assert backend["queue"]["leases"]
        assert "cache" in backend
    async with serving(store=postgresql_url, still=False) as api:
        backend = (await metrics(api))["backend"]
        assert (backend["database"]["driver"], backend["database"]["many_machines"]) == ("postgresql", True)


@pytest.mark.contract("METRIC-10")
async def test_histories_that_grow_too_long_are_counted() -> None:
    async with serving(continue_as_new_event_threshold=5) as api:
        await api.register()
        await api.start("short")
        await api.poll()
        await api.start("long")
        for _ in range(4):
            await api.complete(await api.poll(), {"type": "record_side_effect", "result": blob("x" * 100)["blob"]})
            await api.control("POST", "/workflows/long/signal/go", {"input": []})
        history = (await metrics(api))["history"]
        assert (history["continue_as_new_recommended_runs"], history["event_threshold"]) == (1, 5)
        assert history["max_event_count"] == len(await api.history("long"))
        assert history["max_size_bytes"] > 100
        assert history["size_bytes_threshold"] == 5 << 20
    async with serving(continue_as_new_size_bytes_threshold=50) as api:
        await api.register()
        await api.start("large", input=["x" * 100])
        assert (await metrics(api))["history"]["continue_as_new_recommended_runs"] == 1


@pytest.mark.contract("METRIC-16")
async def test_the_command_line_tells_what_the_route_tells() -> None:
    async with serving() as api:
        await load(api)
        answer = (await api.control("GET", "/system/operator-metrics")).json()
        url = str(api.http.base_url).rstrip("/")
        dw = [sys.executable, "-P", "-m", "backstay.cli.main", "system:operator-metrics", "--token", TOKEN]

        async def told(*more: str) -> subprocess.CompletedProcess[str]:
            command = [*dw, *more]
            return await asyncio.to_thread(
                lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            )

        same = json.loads((await told("--server", url, "--json")).stdout)
        assert same == answer
        assert same["operator_metrics"]["matching_role"]["queue_wake_enabled"] is True
        for section in ("backlog", "repair", "workers", "leases"):
            assert same["operator_metrics"][section], section
        words = (await told("--server", url)).stdout
        assert "archived=1" in words
        refused = await told("--server", url, "--namespace", "nowhere")
        assert (refused.returncode, "nowhere" in refused.stderr) == (2, True)
        gone = await told("--server", "http://127.0.0.1:1")
        assert (gone.returncode, "cannot be reached" in gone.stderr) == (2, True)


async def test_reading_the_metrics_does_not_move_the_sweep() -> None:
    """It reads ready tasks a page at a time, and its place among them is its own."""
    async with serving() as api:
        await load(api)
        place = api.server.sweep._ready_from = (1, 2, "a task of the last page")
        await metrics(api)
        await api.control("GET", "/system/health")
        await api.control("GET", "/system/repair")
        assert api.server.sweep._ready_from == place


async def health(api: Api) -> dict[str, Any]:
    answer = await api.control("GET", "/system/health")
    assert answer.status_code == 200
    return answer.json()


async def crash(api: Api) -> None:
    """Workers take the one ready workflow task and are never heard of again, until it is blocked."""
    api.server.engine.machine.failure_backoff = 0
    for _ in range(MOST):
        assert await api.poll() is not None
        (leased,) = api.server.engine.leases
        api.server.release(leased)


async def test_a_worker_that_leaves_takes_no_blame_for_what_it_gives_back() -> None:
    async with serving() as api:
        await api.start("order-1")
        for _ in range(MOST):
            await api.register()
            assert await api.poll() is not None
            answer = await api.worker(f"registrations/{ME}", method="DELETE")
            assert answer.json()["recovered_workflow_task_count"] == 1
        assert (await health(api))["operator_metrics"]["tasks"]["claim_failed"] == 0


async def test_health_names_the_runs_that_are_blocked(tmp_path: Path) -> None:
    async with serving(store=f"sqlite:{tmp_path / 'm.db'}") as api:
        await api.register()
        await api.start("crashed")
        await crash(api)
        for number in range(11):
            await api.start(f"blocked-{number}")
            await api.fail(await api.poll(), message="mismatch", type="NonDeterministicReplayError")
        await api.start("pausing")
        await api.fail(await api.poll(), message="boom")
    async with serving(store=f"sqlite:{tmp_path / 'm.db'}") as api:
        await api.world.advance(30)  # views that were not written before are made
        found = await health(api)
        assert found["status"] == "error"
        several, one = [cause for cause in found["causes"] if cause["name"] == "blocked"]
        assert (several["severity"], several["count"], several["subject"]["reason"]) == ("error", 11, "replay_blocked")
        assert several["example"]["workflow_id"].startswith("blocked-")
        assert (one["count"], one["subject"]["reason"]) == (1, "workflow_task_crashed")
        assert one["example"]["workflow_id"] == "crashed"
        assert "ten workers in a row died" in one["sentence"]
        other = (await api.control("POST", "/namespaces", {"name": "elsewhere", "retention_days": 1})).status_code
        assert other == 201
        elsewhere = await api.control("GET", "/system/health", headers={"X-Namespace": "elsewhere"})
        assert elsewhere.json()["causes"] == []
        for run in ("crashed", *(f"blocked-{n}" for n in range(11))):
            assert (await api.control("POST", f"/workflows/{run}/repair", {})).status_code == 200
        await settled(api)
        assert not [cause for cause in (await health(api))["causes"] if cause["name"] == "blocked"]


async def settled(api: Api) -> None:
    """Stored views follow a commit a moment later."""
    await api.world.advance(0.2)
    await api.world.advance(0.2)


@pytest.mark.contract("METRIC-04")
async def test_failed_attempts_of_closed_runs_count_too() -> None:
    async with serving() as api:
        await api.register()
        await api.start("failing")
        charge = {"type": "schedule_activity", "activity_type": "charge", "retry_policy": {"max_attempts": 1}}
        await api.complete(await api.poll(), charge)
        await api.activity("fail", await api.poll("activity"), failure={"message": "no"})
        await api.complete(await api.poll(), {"type": "fail_workflow", "message": "no"})
        found = await metrics(api)
        assert (found["runs"]["failed"], found["runs"]["running"]) == (1, 0)
        assert found["activities"]["failed_attempts"] == 1


@pytest.mark.contract("METRIC-06")
async def test_a_wake_that_was_lost_or_moved_is_a_run_that_needs_repair() -> None:
    async with serving() as api:
        await api.register()
        for id in ("lost", "moved", "fine"):
            await api.start(id)
            await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 3600})
        await settled(api)
        assert (await metrics(api))["runs"]["repair_needed"] == 0
        which = "where workflow_id = '{}'"
        assert sql(api, "update workflow set next_wake = null " + which.format("lost")) == 1
        assert sql(api, "update workflow set next_wake = next_wake + 86400000000 " + which.format("moved")) == 1
        found = await metrics(api)
        assert (found["runs"]["repair_needed"], found["repair"]["missing_task_candidates"]) == (2, 2)
        mended = await api.control("POST", "/system/repair/pass", {})
        assert mended.status_code == 200, mended.text
        assert (await metrics(api))["runs"]["repair_needed"] == 0


async def test_no_run_is_counted_twice_beside_another() -> None:
    async with serving() as api:
        await load(api)
        await settled(api)
        runs = (await metrics(api))["runs"]
        assert runs["total"] == sum(runs["by_status"].values()) == 5
        assert runs["running"] == sum(runs["by_status"][status] for status in ("pending", "running", "waiting")) == 4
        assert sum(runs["states"].values()) == runs["running"]
        assert (runs["states"]["retrying"], runs["states"]["working"], runs["states"]["ready"]) == (1, 1, 2)
        assert runs["total"] == runs["running"] + sum(
            runs[status] for status in ("completed", "failed", "cancelled", "terminated")
        )


async def test_a_count_that_took_long_is_told_again_and_says_when_it_was_made() -> None:
    async with serving() as api:
        await load(api)
        quick = await metrics(api)
        assert quick["counted_at"] == quick["generated_at"]
        store, counts = api.server.store, 0
        ready_counts = store.ready_counts

        async def slowly(*asked: Any) -> Any:
            nonlocal counts
            counts += 1
            api.world._still += 1_000_000
            return await ready_counts(*asked)

        store.ready_counts = slowly  # type: ignore[method-assign]
        first, second = await asyncio.gather(metrics(api), metrics(api))
        assert (counts, first["counted_at"]) == (1, second["counted_at"]), "two callers share a count"
        await api.start("another")
        await api.world.advance(9)
        again = await metrics(api)
        assert (again["counted_at"], again["runs"]) == (first["counted_at"], first["runs"])
        assert again["generated_at"] > first["generated_at"]
        await api.world.advance(2)
        assert (await metrics(api))["runs"]["total"] == first["runs"]["total"] + 1


async def test_every_database_counts_alike(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False) as api:
        await load(api)
        found = await metrics(api)
        runs, tasks = found["runs"], found["tasks"]
        assert (runs["total"], runs["archived"], runs["completed"], runs["running"]) == (5, 1, 1, 4)
        assert (tasks["ready_due"], tasks["delayed"], tasks["leased"], tasks["unhealthy"]) == (2, 1, 1, 0)
        assert (found["activities"]["retrying"], found["activities"]["failed_attempts"]) == (1, 1)
        assert (runs["repair_needed"], found["repair"]["total_candidates"]) == (0, 0)
        assert found["history"]["max_event_count"] > 3
        assert found["history"]["max_size_bytes"] > 100
        await api.worker(f"registrations/{ME}", method="DELETE")
        assert (await metrics(api))["runs"]["compatibility_blocked"] == 3
