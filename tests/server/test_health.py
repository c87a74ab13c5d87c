"""Webhooks, search attributes, and what operators watch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .kit import TOKEN, Api, blob, detail, serving, until

AUTH = {"Authorization": f"Bearer {TOKEN}"}
WAIT = {"type": "open_condition_wait", "condition_key": "paid"}


async def hook(api: Api, path: str, body: Any = None) -> Any:
    return await api.http.post(f"/webhooks/{path}", json={} if body is None else body, headers=AUTH)


@pytest.mark.contract("HOOK-01", "HOOK-02", "HOOK-03", "HOOK-04", "HOOK-05")
async def test_the_same_commands_as_webhooks() -> None:
    async with serving() as api:
        await api.register()
        nobody = await api.http.post("/webhooks/start/order", json={})
        assert nobody.status_code == 401
        started = await hook(api, "start/order", {"workflow_id": "h", "task_queue": "q", "input": [1]})
        assert (started.status_code, started.json()["outcome"]) == (202, "started_new")
        run = started.json()["run_id"]
        assert (await hook(api, "start/order", {"workflow_id": "h"})).json()["outcome"] == "rejected_duplicate"
        await api.complete(await api.poll(), WAIT)
        sent = await hook(api, "instances/h/signals/pay", {"input": [5]})
        assert (sent.status_code, sent.json()["outcome"]) == (202, "signal_received")
        await api.complete(await api.poll(), WAIT)
        updating = asyncio.create_task(hook(api, f"instances/h/runs/{run}/updates/rename", {"input": ["x"]}))
        await until(lambda: bool(api.server.engine.matching.lanes.waiting_since()))
        task = await api.poll()
        done = {"type": "complete_update", "update_id": task["workflow_update_id"], "result": blob("ok")}
        await api.complete(task, done)
        updated = await updating
        assert (updated.status_code, updated.json()["result"], updated.json()["wait_for"]) == (200, "ok", "completed")
        assert (await hook(api, "instances/h/repair")).status_code == 200
        assert (await hook(api, "instances/h/archive")).status_code == 409
        assert (await hook(api, f"instances/h/runs/{run}/cancel", {"reason": "r"})).json()["outcome"] == "cancelled"
        again = await hook(api, "instances/h/terminate")
        assert (again.status_code, again.json()["command_status"]) == (409, "rejected")
        both = await hook(api, "start/order/signals/pay", {"workflow_id": "b", "task_queue": "q", "signal_input": [1]})
        assert (both.status_code, both.json()["start_outcome"]) == (202, "started_new")
        described = await api.http.get("/webhooks/instances/b/describe", headers=AUTH)
        assert described.json()["workflow_id"] == "b"
        export = (await api.control("GET", f"/workflows/h/runs/{run}/history/export")).json()
        signal = next(c for c in export["commands"] if c["command_type"] == "signal")
        assert signal["context"]["request"]["route"] == "/webhooks/instances/h/signals/pay"
        assert signal["source"] == "webhook"


@pytest.mark.contract("HOOK-02", "HOOK-04")
async def test_every_command_to_an_instance_as_a_webhook_does_what_it_says() -> None:
    """Each reaches the current run, records its command, and leaves its events in that run."""
    async with serving() as api:
        await api.register()
        await hook(api, "start/order", {"workflow_id": "h", "task_queue": "q"})
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        run = (await api.describe("h"))["run_id"]
        await api.complete(await api.poll(), WAIT)
        for verb, body, status, outcome, event in (
            ("updates/rename", {"wait_for": "accepted"}, 202, "update_accepted", "UpdateAccepted"),
            ("signals/pay", {"input": [5]}, 202, "signal_received", "SignalReceived"),
            ("repair", {}, 200, "repair_not_needed", "RepairRequested"),
            ("archive", {}, 409, "rejected_run_not_closed", None),
            ("cancel", {"reason": "r"}, 200, "cancelled", "WorkflowCancelled"),
            ("archive", {}, 200, "archived", "WorkflowArchived"),
            ("terminate", {}, 409, "rejected_not_active", None),
        ):
            answer = await hook(api, f"instances/h/{verb}", body)
            said = answer.json()
            assert (answer.status_code, said["outcome"]) == (status, outcome), (verb, said)
            assert (said["run_id"], said["target_scope"], said["command_source"]) == (run, "instance", "webhook")
            types = await api.types("h")
            assert event is None or event in types, verb
            recorded = (await detail(api, "h"))["commands"][-1]
            assert (recorded["id"], recorded["source"]) == (said["command_id"], "webhook")
            assert recorded["status"] == ("rejected" if status == 409 else "accepted")
        assert (await api.describe("h"))["status"] == "cancelled"
        await hook(api, "start/order", {"workflow_id": "t", "task_queue": "q"})
        assert (await hook(api, "instances/t/terminate")).json()["outcome"] == "terminated"
        assert "WorkflowTerminated" in await api.types("t")
        for verb in ("signals/pay", "updates/rename", "repair", "cancel", "terminate", "archive"):
            assert (await hook(api, f"instances/nobody/{verb}")).status_code == 404, verb


@pytest.mark.contract("HOOK-01", "HOOK-04", "START-10")
async def test_a_webhook_says_of_both_commands_that_it_was_a_webhook() -> None:
    async with serving() as api:
        await api.register()
        body = {"workflow_id": "b", "task_queue": "q", "signal_input": [1]}
        said = (await hook(api, "start/order/signals/pay", body)).json()
        assert said["command_source"] == "webhook"
        commands = (await detail(api, "b"))["commands"]
        assert {command["source"] for command in commands} == {"webhook"}
        assert [command["command_type"] for command in commands] == ["start", "signal"]
        (intake,) = {tuple(sorted(command["context"]["intake"].items())) for command in commands}
        await api.control("POST", "/workflows/c/signal-with-start/pay", body | {"workflow_type": "order"})
        pair = [command["context"]["intake"] for command in (await detail(api, "c"))["commands"]]
        assert pair[0] == pair[1]
        assert pair[0].keys() == dict(intake).keys(), "the same linked pair as of the call"
        assert pair[0]["mode"] == dict(intake)["mode"] == "signal_with_start"
        assert pair[0]["group_id"] != dict(intake)["group_id"]
        over_api = await api.control("POST", "/workflows/b/signal/pay", {})
        assert over_api.json()["command_source"] == "http"


@pytest.mark.contract("HOOK-03", "HOOK-04")
async def test_every_command_may_name_the_run_that_it_is_for() -> None:
    async with serving() as api:
        await api.register()
        old = (await hook(api, "start/order", {"workflow_id": "h", "task_queue": "q"})).json()["run_id"]
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        run = (await api.describe("h"))["run_id"]
        await api.complete(await api.poll(), WAIT)
        for verb in ("signals/pay", "updates/rename", "repair", "cancel", "terminate"):
            refused = await hook(api, f"instances/h/runs/{old}/{verb}", {})
            said = refused.json()
            assert (refused.status_code, said["rejection_reason"]) == (409, "selected_run_not_current"), verb
            assert (said["outcome"], said["target_scope"]) == ("rejected_not_current", "run")
            assert said["command_status"] == "rejected"
        wait = {"wait_for": "accepted"}
        for verb, body, status, outcome in (
            ("updates/rename", wait, 202, "update_accepted"),
            ("repair", {}, 200, "repair_not_needed"),
            ("archive", {}, 409, "rejected_run_not_closed"),
            ("signals/pay", {}, 202, "signal_received"),
            ("cancel", {}, 200, "cancelled"),
            ("terminate", {}, 409, "rejected_not_active"),
            ("archive", {}, 200, "archived"),
            ("archive", {}, 200, "archive_not_needed"),
        ):
            answer = await hook(api, f"instances/h/runs/{run}/{verb}", body)
            said = answer.json()
            assert (answer.status_code, said["outcome"]) == (status, outcome), (verb, said)
            assert (said["run_id"], said["target_scope"]) == (run, "run")
            assert said["command_id"]
        archived = await hook(api, f"instances/h/runs/{old}/archive", {})
        assert (archived.status_code, archived.json()["outcome"]) == (200, "archived"), "any closed run can be"
        await api.start("stopped")
        terminated = await hook(api, f"instances/stopped/runs/{(await api.describe('stopped'))['run_id']}/terminate")
        assert terminated.json()["outcome"] == "terminated"
        elsewhere = await hook(api, f"instances/stopped/runs/{run}/cancel")
        assert elsewhere.status_code in (404, 409)


async def test_search_attributes_have_a_registry() -> None:
    async with serving() as api:
        made = await api.control("POST", "/search-attributes", {"name": "Customer", "type": "keyword"})
        assert (made.status_code, made.json()["outcome"]) == (201, "created")
        for body, status, reason in (
            ({"name": "Customer", "type": "keyword"}, 409, "attribute_already_exists"),
            ({"name": "Status", "type": "keyword"}, 409, "name_reserved"),
            ({"name": "1st", "type": "keyword"}, 422, "validation_failed"),
            ({"name": "x", "type": "blob"}, 422, "validation_failed"),
        ):
            answer = await api.control("POST", "/search-attributes", body)
            assert (answer.status_code, answer.json()["reason"]) == (status, reason)
        found = (await api.control("GET", "/search-attributes")).json()
        assert (found["custom_attributes"], found["system_attributes"]["StartTime"]) == (
            {"Customer": "keyword"},
            "datetime",
        )
        assert (await api.control("DELETE", "/search-attributes/Customer")).json()["outcome"] == "deleted"
        assert (await api.control("DELETE", "/search-attributes/Customer")).status_code == 404


@pytest.mark.contract("MATCH-09", "MATCH-14", "MATCH-15", "FLEET-06")
async def test_operators_see_backlog_stale_leases_and_missing_workers() -> None:
    async with serving() as api:
        await api.start()
        await api.world.advance(7)
        found = (await api.control("GET", "/system/health")).json()
        assert (found["status"], found["causes"][0]["name"]) == ("error", "no_worker")
        metrics = found["operator_metrics"]
        assert (metrics["backlog"]["runnable_tasks"], metrics["backlog"]["oldest_ready_age_ms"] >= 7000) == (1, True)
        assert metrics["matching_role"]["task_dispatch_mode"] == "long_poll"
        await api.register()
        await api.poll()
        metrics = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]
        assert (metrics["leases"]["active"], metrics["backlog"]["runnable_tasks"]) == (1, 0)
        assert (metrics["workers"]["active"], metrics["compatibility"]["gaps"]) == (1, [])


@pytest.mark.contract("MATCH-15", "MATCH-14", "FLEET-06")
async def test_slow_matching_is_told_from_a_missing_worker_by_age_gaps_and_wake() -> None:
    """The same task, ready for as long: without a worker that could take it, and with one that does not."""
    async with serving(v2_matching_role_queue_wake=False, wake_signal_ttl_seconds=30) as api:
        await api.start()
        ages: list[int] = []
        for _ in range(2):
            await api.world.advance(10)
            metrics = await _operator_metrics(api)
            ages.append(metrics["backlog"]["oldest_ready_age_ms"])
            assert [gap["task_queue"] for gap in metrics["compatibility"]["gaps"]] == ["q"], "a compatibility gap"
        assert [age // 1000 for age in ages] == [10, 20], "the age grows with the clock"
        await api.register()
        await api.world.advance(10)
        metrics = await _operator_metrics(api)
        assert (metrics["backlog"]["oldest_ready_age_ms"] // 1000, metrics["compatibility"]["gaps"]) == (30, [])
        # The wake state: who swept last, and until when that counts.
        await api.control("POST", "/system/repair/pass", {"sweep_owner": "matcher-1"})
        marker = (await _operator_metrics(api))["matching_role"]["wake_marker"]
        assert marker["owner"] == "matcher-1"
        await api.world.advance(31)
        assert (await _operator_metrics(api))["matching_role"]["wake_marker"] != marker
        await api.poll()
        backlog = (await _operator_metrics(api))["backlog"]
        assert (backlog["oldest_ready_age_ms"], backlog["runnable_tasks"]) == (0, 0)


async def _operator_metrics(api: Api) -> dict[str, Any]:
    return (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]


async def test_a_reader_who_follows_a_run_is_told_when_something_happens() -> None:
    async with serving() as api:
        await api.register()
        run = (await api.start())["run_id"]
        path = f"/workflows/o-1/runs/{run}/history?wait_new_event=1"
        first = (await api.control("GET", path)).json()
        assert len(first["events"]) == 2
        task = await api.poll()
        from backstay.protocol.tasks import page_token

        following = asyncio.create_task(api.control("GET", f"{path}&next_page_token={page_token(2)}"))
        await until(lambda: len(api.server.parked) == 1)
        await api.complete(task, {"type": "complete_workflow"})
        # The commit tells; nobody looks at the database meanwhile, and the clock stands still.
        assert [e["event_type"] for e in (await following).json()["events"]] == ["WorkflowCompleted"]
