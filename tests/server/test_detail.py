"""The detail of a run: everything in it comes from typed events, whatever becomes of task rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..store.seam import connection_of
from .kit import Api, blob, detail, serving, sql, tampered, untasked, value

RETRIED = {"max_attempts": 3, "backoff_seconds": [5]}


async def scheduled(api: Api, **options: Any) -> None:
    await api.register()
    await api.start()
    command = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob(["ann", 4200]), **options}
    await api.complete(await api.poll(), command)


@pytest.mark.contract("ACT-28", "ACT-29")
@pytest.mark.parametrize("claim", ["completed", "failed", "cancelled"])
async def test_a_task_row_that_claims_an_end_is_no_result_and_no_time_of_an_end(claim: str) -> None:
    async with serving() as api:
        await scheduled(api)
        work = await api.poll("activity")
        body = "cast(json_set(cast(body as text), '$.result', 'c2VjcmV0', '$.closed_at', 1) as blob)"
        assert sql(api, f"update task set state = ?, body = {body} where id = ?", claim, work["task_id"]) == 1
        for shown in (
            (await detail(api))["activities"],
            (await api.control("GET", "/workflows/o-1/activities")).json()["activities"],
            (await api.control("GET", "/workflows/o-1/history/export")).json()["activities"],
        ):
            (activity,) = shown
            assert (activity["status"], activity["result"], activity["closed_at"]) == ("running", None, None)
        assert (await detail(api))["status"] == "waiting"
        assert await api.poll() is None, "the code of the run is not told either"
        await api.activity("complete", work, result=blob("paid"))
        (activity,) = (await detail(api))["activities"]
        assert (activity["status"], value(activity["result"])) == ("completed", "paid")
        assert activity["closed_at"] is not None
        assert (await api.poll())["workflow_event_type"] == "ActivityCompleted"


@pytest.mark.contract("ACT-22")
async def test_an_activity_is_told_with_every_attempt_from_its_events() -> None:
    async with serving() as api:
        await scheduled(api, retry_policy=RETRIED)
        first = await api.poll("activity")
        await api.world.advance(2)
        await api.activity("heartbeat", first, progress={"message": "half", "current": 1, "total": 2, "unit": "files"})
        await api.activity("fail", first, failure={"message": "declined"})
        (waiting,) = (await detail(api))["activities"]
        assert (waiting["status"], waiting["attempt_count"], waiting["message"]) == ("pending", 1, "declined")
        assert waiting["available_at"] > waiting["started_at"]
        await api.world.advance(6)
        await api.register("worker-2")
        second = await api.poll("activity", "worker-2")
        await api.world.advance(301)  # its worker is never heard of again
        third = await api.poll("activity")
        before = await detail(api)
        (activity,) = before["activities"]
        assert (activity["activity_type"], activity["status"]) == ("charge", "running")
        assert (activity["id"], activity["idempotency_key"]) == (first["activity_execution_id"],) * 2
        assert value(activity["arguments"]) == ["ann", 4200]
        assert activity["retry_policy"]["max_attempts"] == 3
        assert (activity["attempt_count"], activity["current_attempt_id"]) == (3, third["activity_attempt_id"])
        assert activity["last_heartbeat_progress"]["message"] == "half"
        told = [
            (a["id"], a["attempt_number"], a["task_id"], a["lease_owner"], a["status"], a["closed_at"] is not None)
            for a in activity["attempts"]
        ]
        assert told == [
            (first["activity_attempt_id"], 1, first["task_id"], "worker-1", "failed", True),
            (second["activity_attempt_id"], 2, second["task_id"], "worker-2", "expired", True),
            (third["activity_attempt_id"], 3, third["task_id"], "worker-1", "running", False),
        ]
        assert activity["attempts"][0]["last_heartbeat_at"] == activity["last_heartbeat_at"]
        assert activity["attempts"][2]["lease_expires_at"] > activity["attempts"][2]["started_at"]
        await tampered(api, "worker-1", "mallory")
        assert (await detail(api))["activities"] == before["activities"]
        await tampered(api)
        assert (await detail(api))["activities"] == before["activities"]


@pytest.mark.contract("ACT-23")
async def test_heartbeats_and_cancellations_are_points_of_the_timeline() -> None:
    async with serving() as api:
        await scheduled(api)
        task = await api.poll("activity")
        await api.world.advance(2)
        await api.activity("heartbeat", task, progress={"message": "begun"})
        await api.world.advance(2)
        await api.control("POST", "/workflows/o-1/cancel", {"reason": "enough"})
        assert (await api.activity("heartbeat", task)).json()["cancel_requested"] is True
        await tampered(api)
        timeline = (await detail(api))["timeline"]
        assert [point["sequence"] for point in timeline] == list(range(1, len(timeline) + 1))
        by_type = {point["type"]: point for point in timeline}
        beat, cancelled = by_type["ActivityHeartbeatRecorded"], by_type["ActivityCancelled"]
        for point in (beat, cancelled):
            assert (point["kind"], point["entry_kind"], point["source_kind"]) == (
                *("activity", "point", "activity_execution"),
            )
            assert point["source_id"] == task["activity_execution_id"]
            assert point["activity_attempt_id"] == task["activity_attempt_id"]
        assert (beat["progress"]["message"], beat["task_id"]) == ("begun", task["task_id"])
        assert cancelled["cancelled_at"] > beat["heartbeat_at"]
        assert by_type["CancelRequested"]["kind"] == "command"
        assert (by_type["WorkflowCancelled"]["kind"], by_type["WorkflowCancelled"]["source_kind"]) == (
            *("workflow", "workflow_run"),
        )


@pytest.mark.contract("ACT-25", "ACT-32")
async def test_logs_bars_waits_and_labels_follow_history_and_not_rows() -> None:
    async with serving() as api:
        await scheduled(api)
        task = await api.poll("activity")
        before = await detail(api)
        (log,) = before["logs"]
        assert (log["id"], log["class"], log["status"], log["result"]) == (
            *(task["activity_execution_id"], "charge", "running", None),
        )
        run, bar = before["chartData"]
        assert (run["type"], bar["type"], bar["x"]) == ("Workflow", "Activity", "charge")
        assert bar["y"][0] >= run["y"][0]
        assert (bar["y"][1], bar["source_id"]) == (None, task["activity_execution_id"])
        (wait,) = before["waits"]
        assert (wait["kind"], wait["status"], wait["resume_source_id"]) == ("activity", "open", log["id"])
        assert before["open_wait_count"] == 1
        assert [t["label"] for t in before["tasks"]] == ["activity charge, attempt 1"]
        assert before["liveness_state"] == "activity_task_leased"
        for shown in (log, run, bar, wait, before["activities"][0]):
            assert (shown["history_authority"], shown["history_unsupported_reason"], shown["diagnostic_only"]) == (
                *("typed_history", None, False),
            )
        await tampered(api, '"charge"', '"refund"')
        drifted = await detail(api)
        for part in ("logs", "chartData", "waits", "liveness_state", "wait_kind", "open_wait_id"):
            assert drifted[part] == before[part], part
        assert [t["label"] for t in drifted["tasks"]] == ["activity charge, attempt 1"]
        await tampered(api)
        gone = await detail(api)
        assert gone["liveness_state"] == "activity_running_without_task"
        for part in ("logs", "chartData", "wait_kind", "open_wait_id"):
            assert gone[part] == before[part], part
        assert untasked(gone["waits"]) == untasked(before["waits"])
        assert [(wait["task_backed"], wait["task_status"]) for wait in gone["waits"]] == [(False, "missing")]
        await api.activity("complete", task, result=blob("paid"))
        done = await detail(api)
        assert value(done["logs"][0]["result"]) == "paid"
        assert done["chartData"][1]["y"][1] is not None
        assert done["open_wait_count"] == 0


@pytest.mark.contract("CHILD-18", "VER-05")
async def test_children_and_versions_are_on_the_timeline() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        version = {"change_id": "fix-1", "version": 2, "min_supported": 1, "max_supported": 3}
        await api.complete(
            await api.poll(),
            {"type": "record_version_marker", **version},
            {"type": "start_child_workflow", "workflow_type": "order"},
        )
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        timeline = (await detail(api))["timeline"]
        (marker,) = [point for point in timeline if point["kind"] == "version"]
        assert {name: marker[name] for name in version} == version
        assert marker["source_id"] == "fix-1"
        children = [point for point in timeline if point["kind"] == "child"]
        assert [point["type"] for point in children] == [
            "ChildWorkflowScheduled",
            "ChildRunStarted",
            "ChildRunCompleted",
        ]
        assert len({point["child_call_id"] for point in children}) == 1
        refused = await api.complete(
            await api.poll(), {"type": "record_version_marker", **version, "version": 9, "change_id": "fix-2"}
        )
        assert refused.status_code == 422
        after = (await detail(api))["timeline"]
        assert [point["change_id"] for point in after if point["kind"] == "version"] == ["fix-1"]


async def test_an_earlier_run_is_told_as_it_was() -> None:
    async with serving() as api:
        await scheduled(api)
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        await api.control("POST", "/workflows/o-1/signal/hello", {"input": ["x"]})
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        runs = (await api.control("GET", "/workflows/o-1/runs")).json()["runs"]
        first = (await api.control("GET", f"/workflows/o-1/runs/{runs[0]['run_id']}/detail")).json()
        assert [activity["status"] for activity in first["activities"]] == ["completed"]
        assert first["timeline"][-1]["type"] == "WorkflowContinuedAsNew"
        assert [(task["type"], task["status"]) for task in first["tasks"]] == [
            ("workflow", "completed"),
            ("activity", "completed"),
            ("workflow", "completed"),
        ]
        assert first["open_wait_count"] == 0
        now = await detail(api)
        assert (now["run_id"], now["activities"]) == (runs[1]["run_id"], [])
        missing = await api.control("GET", "/workflows/nobody/detail")
        assert (missing.status_code, missing.json()["reason"]) == (404, "instance_not_found")


@pytest.mark.contract("COND-10")
async def test_the_timeout_of_a_condition_is_known_from_history() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(
            await api.poll(), {"type": "open_condition_wait", "condition_key": "paid", "timeout_seconds": 60}
        )
        before = await detail(api)
        (wait,) = before["waits"]
        assert (wait["kind"], wait["status"], wait["condition_key"]) == ("condition", "open", "paid")
        assert (wait["resume_source_kind"], wait["resume_source_id"]) == ("timer", before["resume_source_id"])
        assert wait["deadline_at"] > wait["opened_at"]
        engine = api.server.engine
        connection_of(engine.store).execute("update workflow set next_wake = null")
        await tampered(api)
        after = await detail(api)
        for part in ("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id"):
            assert after[part] == before[part], part
        assert untasked(after["waits"]) == untasked(before["waits"])
        assert [(wait["task_backed"], wait["task_status"]) for wait in (*before["waits"], *after["waits"])] == [
            (True, "ready"),
            (False, "missing"),
        ]


@pytest.mark.contract("COND-11", "SIG-10")
async def test_the_wait_of_a_run_stays_while_a_signal_is_applied_and_the_signal_keeps_its_own_facts() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(await api.poll(), {"type": "open_condition_wait", "condition_key": "paid"})
        waits = (await detail(api))["open_wait_id"]
        sent = (await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})).json()
        during = await detail(api)
        assert [task["type"] for task in during["tasks"]] == ["workflow"]
        assert (during["wait_kind"], during["open_wait_id"]) == ("condition", waits)
        await api.complete(await api.poll(), {"type": "open_condition_wait", "condition_key": "paid"})
        connection = connection_of(api.server.engine.store)
        connection.execute("update command set body = cast(replace(cast(body as text), 'note', 'oops') as blob)")
        await tampered(api)
        timeline = (await detail(api))["timeline"]
        received, applied = (
            next(p for p in timeline if p["type"] == name) for name in ("SignalReceived", "SignalApplied")
        )
        assert (received["signal_name"], received["command_id"]) == ("note", sent["command_id"])
        assert value({"blob": received["arguments"]}) == ["hello"]
        assert (received["command"]["source"], received["command"]["sequence"]) == (
            *("http", received["command_sequence"]),
        )
        for point in (received, applied):
            assert (point["command"]["id"], point["command"]["target_name"]) == (sent["command_id"], "note")
        assert received["command"]["payload_preview"] == '["hello"]'
        told = next(e for e in await api.history() if e["event_type"] == "SignalReceived")
        assert told["payload"]["command"] == received["command"]
        assert (applied["source_id"], applied["signal_name"]) == (sent["signal_id"], "note")
        assert applied["task"]["lease_owner"] == "worker-1"


@pytest.mark.contract("SIG-10")
async def test_a_preview_of_a_payload_is_short_whatever_the_payload_is() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        for said in ("x" * 1000, "y" * 100_000):
            await api.control("POST", "/workflows/o-1/signal/note", {"input": [said]})
        previews = [
            point["command"]["payload_preview"]
            for point in (await detail(api))["timeline"]
            if point["type"] == "SignalReceived"
        ]
        assert previews[0] == '["' + "x" * 198 + "…"
        assert previews[1].endswith("bytes)")


@pytest.mark.contract("ACT-25")
async def test_the_bar_of_a_run_says_how_the_run_ended() -> None:
    async with serving() as api:
        await api.register()
        for id in ("done", "failed", "cancelled", "terminated", "open"):
            await api.start(id)
            if id in ("done", "failed"):
                ends = {"done": {"type": "complete_workflow"}, "failed": {"type": "fail_workflow", "message": "no"}}
                await api.complete(await api.poll(), ends[id])
            elif id != "open":
                await api.control("POST", f"/workflows/{id}/{id.removesuffix('led').removesuffix('d')}", {})
        for id in ("done", "failed", "cancelled", "terminated", "open"):
            found = await detail(api, id)
            (bar,) = found["chartData"]
            assert bar["status"] == found["status"]
            assert found["status"] == {"done": "completed", "open": "pending"}.get(id, id)
            assert (bar["y"][1] is None) == (id == "open")


@pytest.mark.contract("REPLAY-10")
async def test_there_are_three_types_of_tasks_and_a_child_is_none() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(
            await api.poll(),
            {"type": "schedule_activity", "activity_type": "charge"},
            {"type": "start_timer", "delay_seconds": 60},
            {"type": "start_child_workflow", "workflow_type": "order"},
        )
        await api.control("POST", "/workflows/o-1/signal/note", {"input": []})
        found = await detail(api)
        assert sorted(wait["kind"] for wait in found["waits"] if wait["status"] == "open") == [
            *("activity", "child", "timer"),
        ]
        assert sorted(task["type"] for task in found["tasks"]) == ["activity", "timer", "workflow"]


@pytest.mark.contract("FAIL-02")
async def test_an_exception_is_told_with_everything_it_had() -> None:
    async with serving() as api:
        await scheduled(api)
        failure = {
            "message": "declined",
            "type": "card.declined",
            "class": "shop.CardDeclined",
            "code": 7,
            "stack_trace": "File shop.py, line 3",
            "details": blob({"cents": 4200}),
            "non_retryable": True,
        }
        await api.activity("fail", await api.poll("activity"), failure=failure)
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 1})
        (told,) = (await detail(api))["exceptions"]
        assert (told["message"], told["exception_type"], told["exception_class"]) == (
            *("declined", "card.declined", "shop.CardDeclined"),
        )
        assert (told["source_kind"], told["propagation_kind"], told["handled"]) == (
            "activity_execution",
            "activity",
            True,
        )
        assert told["failure_id"]
        assert told["non_retryable"] is True
        assert value(told["exception"]["details"]) == {"cents": 4200}
        assert "shop.py" in str(told["exception"]["diagnostics"])
        await api.start("o-2")
        await api.complete(await api.poll(), {"type": "schedule_activity", "activity_type": "charge"})
        await api.activity("fail", await api.poll("activity"), failure=failure)
        await api.complete(await api.poll(), {"type": "fail_workflow", "message": "declined"})
        assert [told["handled"] for told in (await detail(api, "o-2"))["exceptions"]] == [False, False]
        run_id = (await api.describe())["run_id"]
        export = (await api.control("GET", f"/workflows/o-1/runs/{run_id}/history/export")).json()
        assert [exported["failure_id"] for exported in export["failures"]] == [told["failure_id"]]


@pytest.mark.contract("DECL-08")
async def test_metrics_and_health_know_nothing_of_contracts_to_be_normalized() -> None:
    async with serving() as api:
        await scheduled(api)
        for path in ("/system/operator-metrics", "/system/health"):
            assert "contract" not in (await api.control("GET", path)).text.replace('"response_contract"', "")


@pytest.mark.contract("REPAIR-02", "REPAIR-05", "CHILD-21")
async def test_a_repair_dispatches_what_is_overdue_and_what_is_lost() -> None:
    async with serving() as api:
        await api.register()
        await api.start("parent")
        await api.complete(await api.poll(), {"type": "start_child_workflow", "workflow_type": "order"})
        child = await api.poll()
        await api.complete(child, {"type": "complete_workflow"})
        assert "ChildRunCompleted" in await api.types("parent")
        await tampered(api)
        api.server.engine.matching.lanes.forget(lambda key: True)
        lost = await detail(api, "parent")
        assert lost["liveness_state"] == "repair_needed"
        (missing,) = lost["tasks"]
        assert (missing["transport_state"], missing["workflow_wait_kind"]) == ("missing", "child")
        assert missing["child_workflow_run_id"] == child["run_id"]
        assert missing["child_call_id"] == lost["children"][0]["child_call_id"]
        repaired = (await api.control("POST", "/workflows/parent/repair", {})).json()
        assert repaired["outcome"] == "repair_dispatched"
        task = await api.poll()
        assert (task["workflow_wait_kind"], task["child_workflow_run_id"]) == ("child", child["run_id"])
        await api.complete(task, {"type": "complete_workflow"})
        await api.start("overdue")
        api.server.engine.matching.lanes.forget(lambda key: True)  # ready, and nobody was told
        await api.world.advance(4)
        assert await api.poll() is None
        repaired = (await api.control("POST", "/workflows/overdue/repair", {})).json()
        assert repaired["outcome"] == "repair_dispatched"
        healthy = (await api.control("POST", "/workflows/overdue/repair", {})).json()
        assert healthy["outcome"] == "repair_not_needed", "it only waits for a worker now"
        assert (await api.poll())["workflow_id"] == "overdue"


@pytest.mark.contract("REPLAY-10", "DETAIL-03", "REPAIR-16")
async def test_every_task_has_the_same_fields_whatever_it_is_told_from() -> None:
    """Of a row, missing, a timer without a row, and of a closed run from its history; in details and in exports."""
    async with serving() as api:
        await api.register()
        await api.start()
        commands = [
            {"type": "schedule_activity", "activity_type": "charge"},
            {"type": "start_timer", "delay_seconds": 60},
        ]
        await api.complete(await api.poll(), *commands)
        shapes: list[tuple[str, frozenset[str]]] = []

        async def look(why: str) -> None:
            found = (await detail(api))["tasks"]
            exported = (await api.control("GET", "/workflows/o-1/history/export")).json()["tasks"]
            assert [task.keys() - {"task_type"} for task in exported] == [task.keys() for task in found]
            shapes.extend((f"{task['type']}, {why}", frozenset(task)) for task in found)

        await look("rows")
        await api.poll("activity")
        await look("leased")
        await tampered(api)
        sql(api, "update workflow set next_wake = null")
        await look("missing")
        await api.control("POST", "/workflows/o-1/cancel", {})
        await look("closed")
        assert {kind.split(",")[0] for kind, _ in shapes} == {"workflow", "activity", "timer"}
        assert len({fields for _, fields in shapes}) == 1, [(kind, sorted(shapes[0][1] ^ f)) for kind, f in shapes]


@pytest.mark.contract("FAIL-02")
async def test_a_failure_says_flat_where_it_happened() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(await api.poll(), {"type": "schedule_activity", "activity_type": "charge"})
        failure = {"message": "no", "type": "Declined", "stack_trace": "a.py:3\nb.py:7"}
        await api.activity("fail", await api.poll("activity"), failure=failure | {"non_retryable": True})
        found = await detail(api)
        (shown,) = found["exceptions"]
        assert (shown["trace"], shown["exception_type"]) == (["a.py:3", "b.py:7"], "Declined")
        assert {"file", "line"} <= shown.keys()
        assert (shown["history_authority"], shown["diagnostic_only"]) == ("typed_history", False)
        exported = (await api.control("GET", "/workflows/o-1/history/export")).json()["failures"]
        listed = (await api.control("GET", "/workflows/o-1/failures", params={"payloads": "blob"})).json()["failures"]
        assert exported == listed == found["failures"] == found["exceptions"]


@pytest.mark.contract("CANCEL-03")
@pytest.mark.parametrize(
    ("verb", "status", "requested"),
    [("cancel", "cancelled", "CancelRequested"), ("terminate", "terminated", "TerminateRequested")],
)
async def test_a_run_that_was_stopped_has_the_command_and_both_events_over_a_restart(
    verb: str, status: str, requested: str, tmp_path: Path
) -> None:
    store = f"sqlite:{tmp_path / 'stopped.db'}"
    async with serving(store=store) as api:
        await scheduled(api)
        said = (await api.control("POST", f"/workflows/o-1/{verb}", {"reason": "enough"})).json()
        assert (said["outcome"], said["command_sequence"]) == (status, 2)
    async with serving(store=store) as api:
        found = await detail(api)
        assert (found["status"], found["closed_reason"]) == (status, status)
        command = found["commands"][-1]
        assert (command["id"], command["command_type"]) == (said["command_id"], verb)
        assert (command["status"], command["outcome"], command["command_sequence"]) == ("accepted", status, 2)
        told = [event for event in await api.history() if event["payload"].get("workflow_command_id") == command["id"]]
        assert [event["event_type"] for event in told] == [requested, f"Workflow{status.capitalize()}"]
        assert [event["payload"]["reason"] for event in told] == ["enough"] * 2


@pytest.mark.contract("CANCEL-05", "TIMER-05")
@pytest.mark.parametrize("verb", ["cancel", "terminate"])
async def test_what_was_open_is_cancelled_with_the_run_and_no_worker_gets_it(verb: str) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        charge = {"type": "schedule_activity", "activity_type": "charge"}
        await api.complete(await api.poll(), charge, charge, {"type": "start_timer", "delay_seconds": 60})
        held = await api.poll("activity")
        await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})
        assert (await api.control("POST", f"/workflows/o-1/{verb}", {})).status_code == 200
        found = await detail(api)
        assert {activity["status"] for activity in found["activities"]} == {"cancelled"}
        (timer,) = found["timers"]
        assert (timer["status"], timer["row_status"]) == ("cancelled", None)
        assert {wait["status"] for wait in found["waits"]} == {"cancelled"}
        assert all(task["closed_at"] for task in found["tasks"])
        assert {task["status"] for task in found["tasks"]} <= {"completed", "cancelled"}
        assert await api.poll() is None
        assert await api.poll("activity") is None
        length = len(await api.history())
        late = await api.activity("complete", held, result=blob(1))
        assert (late.status_code, late.json()["can_continue"]) == (409, False)
        await api.world.advance(120)
        assert (await api.poll(), await api.poll("activity")) == (None, None)
        assert len(await api.history()) == length, "a late timer reopens nothing"


@pytest.mark.contract("COND-07", "COND-11", "LIVE-01")
async def test_a_condition_with_a_timeout_is_a_condition_and_its_timer_only_the_transport() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        wait = {"type": "open_condition_wait", "condition_key": "paid", "timeout_seconds": 60}
        await api.complete(await api.poll(), wait | {"condition_definition_fingerprint": "sha256:1"})
        found = await detail(api)
        (timer,) = found["timers"]
        assert (found["wait_kind"], found["liveness_state"]) == ("condition", "waiting_for_condition")
        assert (found["resume_source_kind"], found["resume_source_id"]) == ("timer", timer["id"])
        (shown,) = [wait for wait in found["waits"] if wait["status"] == "open"]
        assert (shown["kind"], shown["condition_key"], shown["deadline_at"]) == ("condition", "paid", timer["fire_at"])
        (task,) = found["tasks"]
        assert (task["type"], task["timer_id"], task["condition_wait_id"]) == ("timer", timer["id"], shown["wait_id"])
        await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})
        told = await detail(api)
        for name in ("wait_kind", "open_wait_id", "resume_source_id"):
            assert told[name] == found[name], "an unrelated task does not replace it"
