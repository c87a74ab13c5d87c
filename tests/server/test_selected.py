"""A selected run, whatever became of the rows beside its history: timers, family, lost transport, drifted code."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, blob, detail, serving, sql, tampered, value

CONTRACT = {"queries": [], "query_contracts": [], "signals": [], "signal_contracts": [], "updates": []}
CONTRACT |= {"update_contracts": []}
QUERYING = CONTRACT | {"queries": ["state"], "query_contracts": [{"name": "state", "parameters": []}]}


async def of_run(api: Api, workflow_id: str, run_id: str) -> dict[str, Any]:
    return (await api.control("GET", f"/workflows/{workflow_id}/runs/{run_id}/detail")).json()


async def doing(api: Api, *commands: dict[str, Any]) -> dict[str, Any]:
    """A workflow `o-1` whose first task has asked for this."""
    await api.register()
    started = await api.start()
    done = await api.complete(await api.poll(), *commands)
    assert done.status_code == 200, done.text
    return started


@pytest.mark.contract("TIMER-03", "TIMER-04", "REPAIR-09")
async def test_a_timer_is_what_history_says_whatever_its_row_says() -> None:
    async with serving() as api:
        await doing(api, {"type": "start_timer", "delay_seconds": 60})
        (timer,) = (await detail(api))["timers"]
        assert (timer["status"], timer["source_status"], timer["row_status"]) == ("pending", "pending", "pending")
        assert sql(api, "update workflow set next_wake = next_wake + 1000000") == 1  # as if it had fired
        (drifted,) = (await detail(api))["timers"]
        assert drifted == timer | {"row_status": "fired"}
        assert sql(api, "update workflow set next_wake = null") == 1
        (gone,) = (await detail(api))["timers"]
        assert gone == timer | {"row_status": None}
        assert gone["history_authority"] == "typed_history"
        repaired = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert repaired["outcome"] == "repair_dispatched"
        requested = next(e for e in await api.history() if e["event_type"] == "RepairRequested")
        assert (requested["payload"]["task_id"], requested["payload"]["task_type"]) == (timer["id"], "timer")
        assert (await detail(api))["timers"] == [timer], "with its old deadline"
        await api.world.advance(61)
        (fired,) = (await detail(api))["timers"]
        assert (fired["status"], fired["source_status"], fired["row_status"]) == ("fired", "fired", None)
        assert fired["fired_at"] >= timer["fire_at"]


@pytest.mark.contract("CHILD-03", "CHILD-19")
@pytest.mark.parametrize("ending", ["complete_workflow", "fail_workflow", "cancel", "terminate"])
async def test_a_call_has_one_id_from_its_scheduling_to_its_end_whatever_becomes_of_link_rows(ending: str) -> None:
    async with serving() as api:
        start = {"type": "start_child_workflow", "workflow_type": "order"}
        await doing(api, start, start)
        links = {link["child_call_id"]: link for link in (await detail(api))["children"]}
        assert len(links) == 2, "two calls, two ids"
        await api.world.advance(1)  # links are stored
        assert sql(api, "delete from workflow_run_lineage_entries")
        sql(api, "delete from workflow_run_waits")
        told = await detail(api)
        assert {link["child_call_id"]: link for link in told["children"]} == links, "from the parent's own events"
        open_waits = [wait["child_call_id"] for wait in told["waits"] if wait["status"] == "open"]
        assert sorted(open_waits) == sorted(links)
        child = await api.poll()
        (call,) = [id for id, link in links.items() if link["workflow_instance_id"] == child["workflow_id"]]
        if ending.endswith("workflow"):
            await api.complete(child, {"type": ending, "message": "no"})
        else:
            await api.control("POST", f"/workflows/{child['workflow_id']}/{ending}", {})
        told_of = [e for e in await api.history() if e["payload"].get("child_call_id") == call]
        end = {"complete_workflow": "Completed", "fail_workflow": "Failed", "cancel": "Cancelled"}
        resolved = f"ChildRun{end.get(ending, 'Terminated')}"
        assert [e["event_type"] for e in told_of] == ["ChildWorkflowScheduled", "ChildRunStarted", resolved]
        task = await api.poll()
        while task["workflow_id"] != "o-1":
            task = await api.poll()
        assert (task["child_call_id"], task["child_workflow_run_id"]) == (call, child["run_id"])
        sql(api, "delete from workflow_run_lineage_entries")
        found = await detail(api)
        assert [link["child_call_id"] for link in found["children"]] == list(links), "one entry each, in their order"
        (wait,) = [wait for wait in found["waits"] if wait["child_call_id"] == call]
        assert wait["status"] == "resolved"
        exported = (await api.control("GET", "/workflows/o-1/history/export")).json()
        assert exported["links"]["children"] == found["children"]


@pytest.mark.contract("CHILD-19", "CHILD-23", "PCP-11", "CAN-05")
async def test_lineage_comes_from_the_runs_own_history() -> None:
    async with serving() as api:
        await doing(
            api,
            {"type": "start_child_workflow", "workflow_type": "order", "parent_close_policy": "request_cancel"},
        )
        child = await api.poll()
        parent = await detail(api)
        (link,) = parent["children"]
        assert parent["continuedWorkflows"] == parent["children"]
        assert (link["link_type"], link["status"], link["status_bucket"]) == ("child_workflow", "waiting", "running")
        assert link["parent_close_policy"] == "request_cancel"
        (scheduled,) = [point for point in parent["timeline"] if point["type"] == "ChildWorkflowScheduled"]
        assert (scheduled["parent_close_policy"], scheduled["child_call_id"]) == (
            *("request_cancel", link["child_call_id"]),
        )
        (up,) = (await detail(api, child["workflow_id"]))["parents"]
        assert (up["child_call_id"], up["workflow_instance_id"]) == (link["child_call_id"], "o-1")
        assert (up["workflow_run_id"], up["is_primary_parent"]) == (parent["run_id"], True)

        await api.complete(child, {"type": "continue_as_new"})
        again = await api.poll()
        assert again["run_id"] != child["run_id"]
        (after,) = (await detail(api))["children"]
        assert (after["child_call_id"], after["workflow_run_id"]) == (link["child_call_id"], again["run_id"])
        first = await of_run(api, child["workflow_id"], child["run_id"])
        second = await detail(api, child["workflow_id"])
        assert [(one["link_type"], one["workflow_run_id"]) for one in first["continuedWorkflows"]] == [
            ("continue_as_new", again["run_id"])
        ]
        assert [(one["link_type"], one["workflow_run_id"]) for one in second["parents"]] == [
            ("child_workflow", parent["run_id"]),
            ("continue_as_new", child["run_id"]),
        ]
        assert {one["current_run_id"] for one in (first, second)} == {again["run_id"]}
        assert {one["current_run_source"] for one in (first, second)} == {"continue_as_new_lineage"}

        # The row of the child names its first run again.
        key = "(select workflow from run where run_id = ?)"
        drift = f"update workflow set run = (select key from run where run_id = ?) where key = {key}"
        assert sql(api, drift, child["run_id"], child["run_id"]) == 1
        drifted = await detail(api, child["workflow_id"])
        assert (drifted["run_id"], drifted["current_run_source"]) == (again["run_id"], "run_order_fallback")
        assert drifted["parents"] == second["parents"]
        assert (await api.complete(again, {"type": "complete_workflow"})).status_code == 200
        mended = await detail(api, child["workflow_id"])
        assert (mended["status"], mended["current_run_source"]) == ("completed", "continue_as_new_lineage")
        sql(api, "delete from run where workflow_id = ?", child["workflow_id"])
        told = await detail(api)
        (closed,) = told["children"]
        assert (closed["status"], closed["closed_reason"], closed["run_number"]) == ("completed", "completed", 2)
        assert [wait["status"] for wait in told["waits"] if wait["kind"] == "child"] == ["resolved"]


@pytest.mark.contract("CHILD-23", "EXPORT-09")
async def test_links_along_a_chain_say_which_run_of_what_type_and_how_it_is() -> None:
    async with serving() as api:
        await api.register(supported_workflow_types=[])
        runs = [(await api.start())["run_id"]]
        for type in ("refund", "order"):
            await api.complete(await api.poll(), {"type": "continue_as_new", "workflow_type": type})
            runs.append((await api.describe())["run_id"])
        shown = [await of_run(api, "o-1", run) for run in runs]

        def ends(link: dict[str, Any]) -> tuple[Any, ...]:
            names = ("workflow_run_id", "run_number", "workflow_type", "status", "status_bucket", "closed_reason")
            return tuple(link[name] for name in names)

        assert [ends(link) for link in shown[0]["children"]] == [
            (runs[1], 2, "refund", "completed", "completed", "continued")
        ]
        assert [ends(link) for link in shown[1]["parents"]] == [
            (runs[0], 1, "order", "completed", "completed", "continued")
        ]
        assert [ends(link) for link in shown[1]["children"]] == [(runs[2], 3, "order", "pending", "running", None)]
        assert [ends(link) for link in shown[2]["parents"]] == [
            (runs[1], 2, "refund", "completed", "completed", "continued")
        ]
        await api.control("POST", "/workflows/o-1/terminate", {})
        middle = await of_run(api, "o-1", runs[1])
        assert ends(middle["children"][0])[3:] == ("terminated", "failed", "terminated")
        exported = (await api.control("GET", f"/workflows/o-1/runs/{runs[1]}/history/export")).json()
        assert (exported["links"]["parents"], exported["links"]["children"]) == (middle["parents"], middle["children"])


async def listed(api: Api, run_id: str) -> dict[str, Any]:
    (flow,) = (await api.control("GET", "/flows/all", params={"run_id": run_id})).json()["flows"]
    return flow


@pytest.mark.contract("DECL-04", "DECL-06", "DECL-07")
@pytest.mark.parametrize(
    ("contract", "source", "queries"),
    [
        (CONTRACT, "durable_history", []),
        (QUERYING, "durable_history", ["state"]),
        (CONTRACT | {"queries": ["state"]}, "unavailable", []),
        (None, "unavailable", []),
    ],
)
async def test_list_detail_and_export_agree_on_where_a_contract_comes_from(
    contract: dict[str, Any] | None, source: str, queries: list[str]
) -> None:
    async with serving() as api:
        await api.register(workflow_command_contracts={} if contract is None else {"order": contract})
        first = (await api.start())["run_id"]
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        for run_id in (first, (await api.describe())["run_id"]):
            found = await of_run(api, "o-1", run_id)
            exported = (await api.control("GET", f"/workflows/o-1/runs/{run_id}/history/export")).json()
            for shown in (found, exported["selected_run"], await listed(api, run_id)):
                assert shown["declared_contract_source"] == source
            for shown in (found, exported["selected_run"]):
                assert [target["name"] for target in shown["declared_query_targets"]] == queries
                assert (shown["declared_signal_targets"], shown["declared_update_targets"]) == ([], [])


@pytest.mark.contract("ACTION-01")
async def test_an_undeclared_signal_update_or_query_is_refused_and_the_detail_says_why() -> None:
    async with serving() as api:
        await api.register(workflow_command_contracts={"order": CONTRACT})
        await api.start("silent")
        await api.complete(await api.poll(), {"type": "open_condition_wait", "condition_key": "paid"})
        told = (await detail(api, "silent"))["actions"]
        for verb, path in (("signal", "signal/go"), ("update", "update/change"), ("query", "query/state")):
            assert told[f"can_{verb}"] is False
            plural = "queries" if verb == "query" else f"{verb}s"
            assert told[f"{verb}_blocked_reason"] == f"no_declared_{plural}"
            refused = await api.control("POST", f"/workflows/silent/{path}", {})
            assert refused.status_code in (404, 409), refused.text
        await api.register("worker-2", queue="other")
        await api.start("open", task_queue="other")
        told = (await detail(api, "open"))["actions"]
        assert (told["can_signal"], told["can_update"]) == (True, True), "a contract that is not known takes anything"


@pytest.mark.contract("CHILD-12", "FAIL-01")
async def test_a_handled_failure_of_a_child_outlives_the_child() -> None:
    async with serving() as api:
        await doing(api, {"type": "start_child_workflow", "workflow_type": "order"})
        child = await api.poll()
        gone = {"type": "fail_workflow", "message": "no bolts", "exception_type": "OutOfStock"}
        await api.complete(child, gone)
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 60})

        async def shown() -> tuple[dict[str, Any], dict[str, Any]]:
            found = await detail(api)
            path = f"/workflows/o-1/runs/{found['run_id']}/history/export"
            return found, (await api.control("GET", path)).json()

        before, exported = await shown()
        (failure,) = before["exceptions"]
        assert (failure["message"], failure["exception_type"], failure["handled"]) == ("no bolts", "OutOfStock", True)
        assert (failure["source_kind"], failure["source_id"]) == ("child_workflow_run", child["run_id"])
        assert (before["exception_count"], exported["failures"]) == (1, before["exceptions"])
        points = {point["type"]: point for point in before["timeline"]}
        assert points["ChildRunFailed"]["message"] == "no bolts"
        assert points["FailureHandled"]["failure_id"] == points["ChildRunFailed"]["failure_id"] == failure["failure_id"]

        key = "(select key from workflow where workflow_id = ?)"
        for table, which in (
            ("event", f"run in (select key from run where workflow = {key})"),
            ("command", f"workflow = {key}"),
            ("run", f"workflow = {key}"),
            ("workflow", f"key = {key}"),
        ):
            assert sql(api, f"delete from {table} where {which}", child["workflow_id"]), table
        assert (await api.control("GET", f"/workflows/{child['workflow_id']}")).status_code == 404
        after, again = await shown()
        for part in ("exceptions", "exception_count", "timeline", "children", "waits"):
            assert after[part] == before[part], part
        for part in ("failures", "timeline", "links", "history_events"):
            assert again[part] == exported[part], part


async def lost(api: Api) -> dict[str, Any]:
    """The one task that is missing once every row is gone."""
    await tampered(api)
    sql(api, "update workflow set next_wake = null")
    api.server.engine.matching.lanes.forget(lambda key: True)
    found = await detail(api)
    assert found["liveness_state"] == "repair_needed"
    (task,) = found["tasks"]
    assert (task["status"], task["transport_state"], task["task_missing"]) == ("missing", "missing", True)
    assert task["expected_task_id"]
    return task


async def restored(api: Api, task: dict[str, Any]) -> None:
    """A repair brings back the very task that was said to be missing."""
    answer = (await api.control("POST", "/workflows/o-1/repair", {})).json()
    assert answer["outcome"] == "repair_dispatched"
    found = await detail(api)
    assert task["expected_task_id"] in [one["id"] for one in found["tasks"]]
    assert not [one for one in found["tasks"] if one["task_missing"]]


@pytest.mark.contract("REPAIR-16")
async def test_a_lost_activity_task_is_shown_by_its_execution_and_retry() -> None:
    policy = {"max_attempts": 3, "backoff_seconds": [5]}
    async with serving() as api:
        await doing(api, {"type": "schedule_activity", "activity_type": "charge", "retry_policy": policy})
        first = await lost(api)
        (activity,) = (await detail(api))["activities"]
        assert first["id"] == f"missing:activity:{activity['id']}"
        assert (first["activity_execution_id"], first["activity_type"]) == (activity["id"], "charge")
        await restored(api, first)
        await api.activity("fail", await api.poll("activity"), failure={"message": "declined"})
        second = await lost(api)
        assert (second["retry_after_attempt"], second["retry_available_at"]) == (1, second["available_at"])
        await restored(api, second)


@pytest.mark.contract("REPAIR-16")
async def test_a_lost_timer_is_shown_by_its_id_and_what_it_is_for() -> None:
    async with serving() as api:
        await doing(api, {"type": "open_condition_wait", "condition_key": "paid", "timeout_seconds": 60})
        (wait,) = (await detail(api))["waits"]
        task = await lost(api)
        assert (task["id"], task["type"]) == (f"missing:timer:{wait['resume_source_id']}", "timer")
        assert (task["condition_wait_id"], task["condition_key"]) == (wait["wait_id"], "paid")
        assert task["available_at"] == wait["deadline_at"]
        await restored(api, task)
        await api.world.advance(61)
        fired = await lost(api)
        assert (fired["type"], fired["workflow_wait_kind"]) == ("workflow", "condition")
        assert fired["timer_id"] == wait["resume_source_id"]
        await restored(api, fired)


@pytest.mark.contract("REPAIR-16")
async def test_a_lost_workflow_task_is_shown_by_what_it_was_to_apply() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        generic = await lost(api)
        assert (generic["id"], generic["type"]) == (f"missing:workflow:{(await detail(api))['run_id']}", "workflow")
        await restored(api, generic)
        await api.complete(await api.poll(), {"type": "open_condition_wait", "condition_key": "paid"})
        sent = (await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})).json()
        signal = await lost(api)
        assert (signal["workflow_wait_kind"], signal["workflow_signal_id"]) == ("signal", sent["signal_id"])
        assert (signal["signal_name"], signal["workflow_command_id"]) == ("note", sent["command_id"])
        await restored(api, signal)
        await api.complete(await api.poll(), {"type": "open_condition_wait", "condition_key": "paid"})
        asked = (
            await api.control("POST", "/workflows/o-1/update/change", {"input": [], "wait_for": "accepted"})
        ).json()
        update = await lost(api)
        assert (update["workflow_wait_kind"], update["workflow_update_id"]) == ("update", asked["update_id"])
        await restored(api, update)


@pytest.mark.contract("VER-06")
async def test_code_that_is_not_the_runs_own_any_more_is_no_source_of_findings() -> None:
    async with serving() as api:
        known: dict[str, Any] = {"workflow_command_contracts": {"order": CONTRACT}}
        await api.register(workflow_definition_fingerprints={"order": "first"}, **known)
        await api.start()
        assert (await detail(api))["workflow_determinism_source"] == "live_definition"
        await api.world.advance(1)
        await api.register("worker-2", workflow_definition_fingerprints={"order": "second"}, **known)
        assert (await detail(api))["workflow_determinism_source"] == "definition_drift"
        await api.start("o-2")
        assert (await detail(api, "o-2"))["workflow_determinism_source"] == "live_definition"
        await api.world.advance(600)  # nobody is heard of any more
        assert (await detail(api))["workflow_determinism_source"] == "unavailable"


@pytest.mark.contract("UPD-21")
async def test_forms_can_be_built_from_declared_targets() -> None:
    parameter = {"name": "amount", "position": 0, "type": "int", "required": True, "allows_null": False}
    contract = CONTRACT | {
        "signals": ["note"],
        "updates": ["change"],
        "update_contracts": [{"name": "change", "parameters": [parameter]}],
    }
    async with serving() as api:
        await api.register(workflow_command_contracts={"order": contract})
        await api.start()
        found = await detail(api)
        assert found["declared_contract_source"] == "durable_history"
        (change,) = found["declared_update_targets"]
        assert (change["name"], change["has_contract"]) == ("change", True)
        assert [one["name"] for one in change["parameters"]] == ["amount"]
        assert found["declared_signal_targets"] == [{"name": "note", "has_contract": False, "parameters": []}]
        assert (found["declared_signals"], found["declared_signal_contracts"]) == (["note"], [])
        assert found["declared_updates"] == ["change"]
        assert [one["name"] for one in found["declared_update_contracts"]] == ["change"]


@pytest.mark.contract("DETAIL-01", "DETAIL-02", "DETAIL-03")
async def test_a_run_that_used_everything_is_told_whole_and_as_it_was_recorded() -> None:
    async with serving() as api:
        await doing(
            api,
            {"type": "record_side_effect", "result": blob("dice")["blob"]},
            {"type": "record_version_marker", "change_id": "c", "version": 1, "min_supported": 1, "max_supported": 1},
            {"type": "start_timer", "delay_seconds": 1},
            {"type": "start_child_workflow", "workflow_type": "order"},
            {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([7])},
        )
        child = await api.poll()
        await api.complete(child, {"type": "complete_workflow", "result": blob("done")})
        await api.world.advance(2)
        await api.activity("fail", await api.poll("activity"), failure={"message": "no", "non_retryable": True})
        await api.control("POST", "/workflows/o-1/signal/note", {"input": ["x"]})
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 60})
        accepted = await api.control("POST", "/workflows/o-1/update/change", {"input": [], "wait_for": "accepted"})
        update = accepted.json()["update_id"]
        await api.complete(await api.poll(), {"type": "complete_update", "update_id": update, "result": blob(1)})
        before = await detail(api)
        for part in ("commands", "signals", "updates", "waits", "tasks", "timeline", "activities", "timers"):
            assert before[part], part
        for part in ("exceptions", "continuedWorkflows", "logs", "chartData"):
            assert before[part], part
        assert before["activities"][0]["attempts"]
        for point in before["timeline"]:
            assert point["entry_kind"] == "point"
            assert (point["kind"], point["source_kind"], point["source_id"]) != (None, None, None)
            assert all(point[name] for name in ("kind", "source_kind", "source_id")), point
        assert {"activity", "child", "command", "signal", "side_effect", "timer", "update", "version", "workflow"} <= {
            point["kind"] for point in before["timeline"]
        }
        # Every row beside history says something else now, of the run and of its child.
        sql(api, "update command set body = cast(replace(cast(body as text), 'note', 'oops') as blob)")
        sql(
            api,
            "update run set status = 'failed', closed_reason = 'failed' where workflow_id = ?",
            child["workflow_id"],
        )
        sql(api, "update workflow set next_wake = next_wake + 1")
        await tampered(api)
        after = await detail(api)
        assert after["timeline"] == before["timeline"]
        failed = next(point for point in after["timeline"] if point["type"] == "ActivityFailed")
        assert (failed["message"], failed["task"]["lease_owner"]) == ("no", "worker-1")
        closed = next(point for point in after["timeline"] if point["type"] == "ChildRunCompleted")
        assert (closed["child_status"], value({"blob": closed["output"]})) == ("completed", "done")
        # The same of a run that is not the current one.
        await api.world.advance(61)
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        earlier = await of_run(api, "o-1", before["run_id"])
        assert earlier["timeline"][: len(before["timeline"])] == before["timeline"]
        for part in ("commands", "signals", "updates", "activities", "exceptions", "logs", "continuedWorkflows"):
            assert len(earlier[part]) >= len(before[part]), part
