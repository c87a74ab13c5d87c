"""The operator's lists: what each run says of itself, what they can be filtered by, and views that are kept."""

from __future__ import annotations

from typing import Any

import pytest

from ..store.seam import connection_of
from .kit import Api, detail, serving, sql

CONTRACT: dict[str, Any] = {"queries": [], "query_contracts": [], "signals": [], "signal_contracts": []}
CONTRACT |= {"updates": [], "update_contracts": []}


async def flows(api: Api, bucket: str = "all", **filters: Any) -> dict[str, Any]:
    answer = await api.control("GET", f"/flows/{bucket}", params=filters)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ids(api: Api, bucket: str = "all", **filters: Any) -> str:
    return " ".join(sorted(flow["instance_id"] for flow in (await flows(api, bucket, **filters))["flows"]))


async def asking(api: Api, id: str, *commands: dict[str, Any]) -> None:
    await api.start(id)
    await api.complete(await api.poll(), *commands)


@pytest.mark.contract("LIVE-01", "LIVE-02", "LIVE-04")
async def test_a_run_in_a_list_says_what_moves_it_next() -> None:
    charge = {"type": "schedule_activity", "activity_type": "charge"}
    async with serving(continue_as_new_event_threshold=4) as api:
        await api.register()
        await asking(api, "activity", charge)
        await asking(api, "timer", {"type": "start_timer", "delay_seconds": 60})
        await asking(api, "condition", {"type": "open_condition_wait", "condition_key": "paid"})
        await asking(api, "signal", {"type": "open_signal_wait", "signal_name": "go"})
        await asking(api, "child", {"type": "start_child_workflow", "workflow_type": "order"})
        await api.poll()
        await asking(api, "closed", {"type": "complete_workflow"})
        await api.start("task", business_key="k", visibility_labels={"team": "shop"})
        listed = {flow["instance_id"]: flow for flow in (await flows(api))["flows"]}
        for id in ("activity", "timer", "condition", "signal", "child", "task"):
            flow, run = listed[id], await detail(api, id)
            assert flow["wait_kind"] == ("workflow-task" if id == "task" else id)
            for name in ("liveness_state", "wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id"):
                assert flow[name] == run[name], (id, name)
            assert flow["history_event_count"] == len(run["timeline"])
            tasks = [task for task in run["tasks"] if task["type"] != "timer"]
            told = (flow["next_task_id"], flow["next_task_type"], flow["next_task_status"])
            assert told == ((tasks[0]["id"], tasks[0]["type"], "ready") if tasks else (None, None, None))
            assert (flow["is_terminal"], flow["repair_blocked_reason"]) == (False, "repair_not_needed")
            assert (flow["repair_attention"], flow["task_problem"]) == (False, False)
            assert flow["continue_as_new_recommended"] == (len(run["timeline"]) >= 4)
            assert flow["sort_key"] == f"{flow['sort_timestamp']}#{flow['run_id']}"
        assert (listed["task"]["business_key"], listed["task"]["visibility_labels"]) == ("k", {"team": "shop"})
        assert (listed["closed"]["is_terminal"], listed["closed"]["liveness_state"]) == (True, "closed")
        assert {flow["continue_as_new_recommended"] for flow in listed.values()} == {True, False}
        size = "select sum(length(type) + length(body)) from event where run = (select key from run where run_id = ?)"
        connection = connection_of(api.server.engine.store)
        stored = connection.execute(size, (listed["task"]["run_id"],)).fetchone()[0]
        assert listed["task"]["history_size_bytes"] == stored


@pytest.mark.contract("LIVE-01", "UPD-12")
async def test_a_run_in_a_list_says_how_its_next_task_stands_and_which_update_it_is_for() -> None:
    async with serving() as api:
        await api.register()
        await asking(api, "o-1", {"type": "open_condition_wait", "condition_key": "paid"})
        update = (await api.control("POST", "/workflows/o-1/update/rename", {})).json()["update_id"]

        async def told(*names: str) -> tuple[Any, ...]:
            (flow,) = (await flows(api))["flows"]
            return tuple(flow[name] for name in names)

        waits = ("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id")
        following = ("next_task_id", "next_task_type", "next_task_status", "liveness_state")
        assert await told(*waits) == ("update", f"update:{update}", "workflow_update", update)
        assert (await told(*following))[1:] == ("workflow", "ready", "workflow_task_ready")
        task = await api.poll()
        assert await told(*following) == (task["task_id"], "workflow", "leased", "workflow_task_leased")
        await api.fail(task, message="it differs", type="HistoryShapeMismatch")
        assert await told(*following) == (task["task_id"], "workflow", "failed", "workflow_replay_blocked")
        assert await told(*waits) == ("update", f"update:{update}", "workflow_update", update)
        await api.control("POST", "/workflows/o-1/repair", {})
        await api.complete(await api.poll(), {"type": "complete_update", "update_id": update})
        ordinary = await api.poll()
        await api.complete(ordinary, {"type": "schedule_activity", "activity_type": "charge"})
        work = await api.poll("activity")
        assert await told(*following) == (work["task_id"], "activity", "leased", "activity_task_leased")
        assert await told(*waits[:3]) == ("activity", f"activity:{work['activity_execution_id']}", "activity_execution")


@pytest.mark.contract("LIVE-05")
async def test_screens_of_ended_runs_go_by_their_status_and_the_bucket_has_all_three() -> None:
    async with serving() as api:
        await api.register()
        await asking(api, "failed", {"type": "fail_workflow", "message": "no"})
        for verb, id in (("cancel", "cancelled"), ("terminate", "terminated")):
            await api.start(id)
            await api.control("POST", f"/workflows/{id}/{verb}", {})
        await asking(api, "completed", {"type": "complete_workflow"})
        for status in ("failed", "cancelled", "terminated", "completed"):
            assert await ids(api, status) == status
        assert await ids(api, status_bucket="failed") == "cancelled failed terminated"
        assert await ids(api, status="cancelled") == "cancelled"


@pytest.mark.contract("ACTION-03", "ACTION-04", "VIS-10")
async def test_runs_that_need_attention_are_found() -> None:
    async with serving() as api:
        await api.register(build_id="b1")
        await api.start("healthy")
        await api.start("pinned", build_id="b9")  # nobody runs that
        await api.start("blocked")
        held = {task["workflow_id"]: task for task in [await api.poll(build_id="b1") for _ in range(2)]}
        await api.fail(held["blocked"], message="it differs", type="HistoryShapeMismatch", replay_blocked=True)
        await api.complete(held["healthy"], {"type": "start_timer", "delay_seconds": 60})
        await api.start("lost")
        assert sql(api, "delete from task where workflow = (select workflow from run where workflow_id = 'lost')") == 1
        found = {flow["instance_id"]: flow for flow in (await flows(api))["flows"]}
        assert found["pinned"]["repair_blocked_reason"] == "waiting_for_compatible_worker"
        assert found["pinned"]["liveness_state"] == "workflow_task_waiting_for_compatible_worker"
        assert found["healthy"]["repair_blocked_reason"] == "repair_not_needed"
        assert await ids(api, repair_attention="true") == "pinned"
        assert await ids(api, repair_attention="false") == "blocked healthy lost"
        assert await ids(api, task_problem="true") == "blocked lost"
        assert await ids(api, task_problem="false") == "healthy pinned"
        for view, expected in (
            ("system:running", "blocked healthy lost pinned"),
            ("system:running-task-problems", "blocked lost"),
            ("system:running-repair-blocked", "pinned"),
        ):
            assert await ids(api, "running", view=view) == expected
        echoed = (await flows(api, "running", view="system:running-repair-blocked"))["visibility_filters"]
        assert (echoed["applied"], echoed["saved_view"]["id"]) == (
            *({"repair_attention": True}, "system:running-repair-blocked"),
        )
        await api.register("late", build_id="b9")
        assert await ids(api, repair_attention="true") == "", "as soon as somebody does"


TABLE: list[tuple[dict[str, str], str]] = [
    ({}, "again again done one two"),
    ({"instance_id": "one"}, "one"),
    ({"instance_id": "on"}, ""),
    ({"workflow_type": "order"}, "again again done one two"),
    ({"workflow_type": "orde"}, ""),
    ({"business_key": "k-1"}, "one"),
    ({"business_key": "k"}, ""),
    ({"compatibility": "b1"}, "two"),
    ({"compatibility": "b"}, ""),
    ({"queue": "far"}, "two"),
    ({"queue": "fa"}, ""),
    ({"connection": "redis"}, "two"),
    ({"connection": "redi"}, ""),
    ({"declared_entry_mode": "canonical"}, "again again done one"),
    ({"declared_entry_mode": "canon"}, ""),
    ({"declared_contract_source": "unavailable"}, "two"),
    ({"declared_contract_source": "durable_history"}, "again again done one"),
    ({"status": "completed"}, "again done"),
    ({"status": "waiting"}, "one"),
    ({"status_bucket": "running"}, "again one two"),
    ({"closed_reason": "continued"}, "again"),
    ({"wait_kind": "timer"}, "one"),
    ({"wait_kind": "time"}, ""),
    ({"liveness_state": "timer_scheduled"}, "one"),
    ({"liveness_state": "closed"}, "again done"),
    ({"repair_blocked_reason": "run_closed"}, "done"),
    ({"repair_blocked_reason": "selected_run_not_current"}, "again"),
    ({"repair_attention": "true"}, "two"),
    ({"task_problem": "true"}, ""),
    ({"is_current_run": "true"}, "again done one two"),
    ({"is_current_run": "no"}, "again"),
    ({"continue_as_new_recommended": "yes"}, "done"),
    ({"continue_as_new_recommended": "0"}, "again again one two"),
    ({"archived": "true"}, "done"),
    ({"archived": "false"}, "again again one two"),
    ({"is_terminal": "1"}, "again done"),
    ({"is_terminal": "false"}, "again one two"),
    ({"label[team]": "shop"}, "one two"),
    ({"labels[team]": "shop", "label[tier]": "gold"}, "two"),
    ({"labels[team]": "sho"}, ""),
    ({"label[team]": "shop", "wait_kind": "timer"}, "one"),
]


@pytest.mark.contract("VIS-03", "VIS-04", "VIS-05", "VIS-06")
async def test_a_filter_matches_exactly() -> None:
    async with serving(continue_as_new_event_threshold=4) as api:
        await api.register(workflow_command_contracts={"order": CONTRACT})
        await api.start("one", business_key="k-1", visibility_labels={"team": "shop"})
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 60})
        labels = {"team": "shop", "tier": "gold"}
        await api.start("two", task_queue="far", connection="redis", build_id="b1", visibility_labels=labels)
        await asking(api, "done", {"type": "complete_workflow"})
        await api.control("POST", "/workflows/done/archive", {})
        await asking(api, "again", {"type": "continue_as_new"})
        for filters, found in TABLE:
            assert await ids(api, **filters) == found, filters
        one = (await detail(api, "one"))["run_id"]
        assert await ids(api, run_id=one) == "one"
        assert await ids(api, run_id=one[:-1]) == ""
        first = await flows(api, page_size=2)
        second = await flows(api, page_size=3, next_page_token=first["next_page_token"])
        shown = [flow["run_id"] for page in (first, second) for flow in page["flows"]]
        assert shown == [flow["run_id"] for flow in (await flows(api))["flows"]], "in pages as in one piece"
        for filters, field in (({"wait": "timer"}, "wait"), ({"archived": "maybe"}, "archived")):
            wrong = await api.control("GET", "/flows/all", params=filters)
            assert (wrong.status_code, wrong.json()["field"]) == (422, field)
        assert (await api.control("GET", "/flows/some")).status_code == 422


@pytest.mark.contract("VIS-01", "VIS-02", "VIS-11")
async def test_views_are_kept_and_go_together_with_what_is_asked() -> None:
    async with serving() as api:
        await api.register()
        await api.start("one", business_key="k-1", visibility_labels={"team": "shop"})
        await api.start("two", business_key="k-1", visibility_labels={"team": "bank"})
        await api.start("three", business_key="k-2", visibility_labels={"team": "shop"})
        saved: dict[int, str] = {}
        for version in range(1, 6):
            view = {"name": f"v{version}", "version": version, "filters": {"business_key": "k-1"}}
            made = await api.control("POST", "/saved-views", view | {"labels": {"team": "shop"}})
            assert made.status_code == 201, made.text
            saved[version] = made.json()["id"]
            assert await ids(api, "running", view=saved[version]) == "one"
        refused = await api.control("POST", "/saved-views", {"name": "v6", "version": 6})
        assert (refused.status_code, refused.json()["reason"]) == (422, "unsupported_visibility_version")
        newer = """insert into registry (kind, namespace, name, body) values ('saved_view', 'default', 'newer', ?)"""
        sql(api, newer, b'{"id":"newer","name":"newer","bucket":"running","version":6}')
        await api.server.control.saved_views.load()
        listed = {view["id"]: view for view in (await api.control("GET", "/saved-views")).json()["saved_views"]}
        assert (listed["newer"]["status"], listed[saved[1]]["status"]) == ("unsupported", "supported")
        used = await api.control("GET", "/flows/running", params={"view": "newer"})
        assert (used.status_code, used.json()["reason"]) == (422, "unsupported_visibility_version")

        both = await flows(api, "running", view=saved[5], business_key="k-2", status="pending")
        assert [flow["instance_id"] for flow in both["flows"]] == ["three"], "what is asked for now counts"
        echoed = both["visibility_filters"]
        assert (echoed["version"], echoed["bucket"]) == (5, "running")
        assert echoed["applied"] == {"business_key": "k-2", "status": "pending", "labels": {"team": "shop"}}
        assert (echoed["saved_view"]["id"], echoed["saved_view"]["name"]) == (saved[5], "v5")
        assert {field["field"] for field in echoed["definition"]["fields"]} >= {"business_key", "task_problem"}
        assert (await api.control("DELETE", f"/saved-views/{saved[5]}")).status_code == 200
        gone = await api.control("GET", "/flows/running", params={"view": saved[5]})
        assert (gone.status_code, gone.json()["reason"]) == (404, "saved_view_not_found")


@pytest.mark.contract("VIS-07", "VIS-08")
async def test_forms_and_badges_can_be_drawn_from_the_definition() -> None:
    async with serving() as api:
        found = (await flows(api))["visibility_filters"]["definition"]
        fields = {field["field"]: field for field in found["fields"]}
        assert [field["order"] for field in found["fields"]] == list(range(21))
        assert all(field["label"] and field["query_parameter"] == field["field"] for field in fields.values())
        assert {field["input"] for field in fields.values()} == {"text", "select", "boolean_select"}
        for name in ("status", "wait_kind", "liveness_state", "repair_blocked_reason", "archived"):
            assert fields[name]["options"], name
        assert (found["labels"]["input"], found["labels"]["separator"]) == ("key_value_textarea", "=")
        triage = {reason["value"]: reason for reason in found["repair_triage"]}
        assert {reason for reason, said in triage.items() if said["badge_visible"]} == {
            *("unsupported_history", "waiting_for_compatible_worker"),
        }
        assert all(said["description"] and said["tone"] for said in triage.values())
        assert [option["value"] for option in fields["repair_blocked_reason"]["options"]] == list(triage)
