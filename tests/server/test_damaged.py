"""A run whose history was damaged: shown as evidence, moved by nothing, repaired by nothing. Rows alone are never a wait."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import AsyncClient
from backstay.kernel.event import HistoryDamaged
from backstay.protocol.bundle_check import ExportBundle, check_bundle
from backstay.protocol.requests import DescribeWorkflow
from backstay.server.http.router import Route
from backstay.server.routes import ROUTES

from .kit import ME, TOKEN, Api, blob, detail, serving, sql
from .test_exports import without_actions
from .test_projections import projected

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


@pytest.mark.contract("REPAIR-17", "REPAIR-27", "LIVE-06", "EXPORT-08")
@pytest.mark.parametrize("stored", [False, True], ids=["only the wake is left", "its stored view is left"])
async def test_an_open_timer_without_its_events_is_evidence_only_and_wakes_no_run(stored: bool) -> None:
    async with serving() as api:
        await asking(api, TIMER)
        if stored:
            await projected(api)
        (before,) = (await detail(api))["timers"]
        if not stored:
            forget_views(api)
        cut(api, "Timer")
        found = await unsupported(api)
        assert found["tasks"] == []
        assert found["history_damage"]["sequence"] > 0
        for shown in (found["waits"], found["timers"]):
            (timer,) = shown
            assert (timer["kind"], timer["status"], timer["row_status"]) == ("timer", "open", "pending")
            assert (timer["history_authority"], timer["diagnostic_only"]) == ("mutable_open_fallback", True)
            assert (timer["resume_source_kind"], timer["resume_source_id"]) == (None, None)
            assert timer["deadline_at"] == before["fire_at"]
            assert timer["timer_id"] == (before["id"] if stored else None)
        await api.world.advance(61)
        assert await api.poll() is None
        await unsupported(api)


@pytest.mark.contract("REPAIR-27")
@pytest.mark.parametrize("why", ["the lease of a task", "the deadline of the run"])
async def test_a_wake_for_something_else_is_no_evidence_of_a_timer(why: str) -> None:
    async with serving() as api:
        await api.register()
        limits: dict[str, Any] = {"run_timeout_seconds": 600} if why == "the deadline of the run" else {}
        await api.start(**limits)
        effect = {"type": "record_side_effect", "result": blob(2)}
        await api.complete(await api.poll(), effect, CHARGE if why == "the lease of a task" else CHILD)
        if why == "the lease of a task":
            await api.poll("activity")
        forget_views(api)
        cut(api, "SideEffect")
        assert "timer" not in [wait["kind"] for wait in (await unsupported(api))["waits"]]


@pytest.mark.contract("REPAIR-27", "LIVE-06", "CHILD-25", "EXPORT-09")
@pytest.mark.parametrize("stored", [False, True], ids=["only a count is left", "its stored view is left"])
async def test_an_open_child_without_its_events_is_evidence_only(stored: bool) -> None:
    async with serving() as api:
        await asking(api, CHILD)
        if stored:
            await projected(api)
        (link,) = (await detail(api))["children"]
        if not stored:
            forget_views(api)
        cut(api, "Child")
        found = await unsupported(api)
        (wait,) = found["waits"]
        assert (wait["kind"], wait["status"], wait["row_status"]) == ("child", "open", "waiting")
        assert (wait["history_authority"], wait["diagnostic_only"]) == ("mutable_open_fallback", True)
        assert (wait["resume_source_kind"], wait["resume_source_id"]) == (None, None)
        assert (wait["target_name"], wait["child_call_id"]) == (
            (link["workflow_instance_id"], link["child_call_id"]) if stored else (None, None)
        )
        if stored:
            (child,) = found["children"]
            assert child["workflow_instance_id"] == link["workflow_instance_id"]
            assert (child["history_authority"], child["diagnostic_only"]) == ("mutable_open_fallback", True)


def forget_views(api: Api) -> None:
    """Remove what is stored beside history and the rows of the instance: views of all runs."""
    for table in ("summaries", "waits", "timeline_entries", "timer_entries", "lineage_entries"):
        sql(api, f"delete from workflow_run_{table}")


@pytest.mark.contract("REPAIR-27", "EXPORT-08")
async def test_what_the_events_before_the_damage_tell_stands() -> None:
    async with serving() as api:
        await asking(api, CHARGE)
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        await api.complete(await api.poll(), TIMER, {"type": "record_side_effect", "result": blob(2)})
        before = await detail(api)
        cut(api, "SideEffect")
        found = await unsupported(api)
        no_actions = {"can_retry_now": False, "retry_now_blocked_reason": "unsupported_history"}
        assert found["activities"] == [one | no_actions for one in before["activities"]], (
            "it has ended before the damage"
        )
        (timer,) = found["timers"]
        assert (timer["id"], timer["history_authority"]) == (before["timers"][0]["id"], "mutable_open_fallback")
        assert [wait["kind"] for wait in found["waits"]] == ["timer", "activity"]
        assert [wait["diagnostic_only"] for wait in found["waits"]] == [True, False]
        assert [point["type"] for point in found["timeline"]] == [point["type"] for point in before["timeline"][:-1]]


DAMAGES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "open activity": ([CHARGE], "Activity"),
    "open timer": ([TIMER], "Timer"),
    "open child": ([CHILD], "Child"),
    "everything": ([CHARGE, TIMER, CHILD], ""),
}


@pytest.mark.contract("EXPORT-08", "EXPORT-15", "EXPORT-12")
@pytest.mark.parametrize("case", DAMAGES)
async def test_a_damaged_run_is_exported_with_the_same_evidence_as_its_detail(case: str) -> None:
    commands, prefix = DAMAGES[case]
    async with serving() as api:
        await asking(api, *commands)
        await projected(api)
        cut(api, prefix)
        found = await detail(api)
        answer = await api.control("GET", "/workflows/o-1/history/export")
        assert answer.status_code == 200, answer.text
        bundle = answer.json()
        for section in ("activities", "timers", "waits", "failures", "commands", "timeline"):
            assert bundle[section] == [without_actions(entry) for entry in found[section]], section
        assert bundle["links"]["children"] == found["children"]
        assert bundle["waits"]
        assert all(wait["diagnostic_only"] for wait in bundle["waits"])
        assert bundle["history_damage"] == bundle["selected_run"]["history_damage"] == found["history_damage"]
        assert bundle["history_complete"] is False
        assert len(bundle["history_events"]) == found["history_damage"]["sequence"] - 1
        chosen = bundle["selected_run"]
        for name in ("liveness_state", "repair_blocked_reason", "wait_kind", "open_wait_id", "can_repair"):
            assert chosen[name] == found[name], name
        # It is a whole file that anybody can check, and none that a run could be made of.
        report = check_bundle(ExportBundle(answer.content))
        assert [rule for rule, _ in report.findings] == ["bundle.history_damaged"]


@pytest.mark.contract("EXPORT-15")
async def test_the_end_of_an_activity_and_of_a_timer_without_events_is_exported_as_no_result() -> None:
    async with serving() as api:
        await asking(api, CHARGE, TIMER | {"delay_seconds": 1})
        await api.activity("complete", await api.poll("activity"), result=blob("secret"))
        await api.world.advance(2)
        await projected(api)
        cut(api, "")
        bundle = (await api.control("GET", "/workflows/o-1/history/export")).json()
        for section, reason, status in (("activities", "activity", "completed"), ("timers", "timer", "fired")):
            (entry,) = bundle[section]
            assert (entry["status"], entry["row_status"], entry["diagnostic_only"]) == ("unsupported", status, True)
            assert entry["history_authority"] == "unsupported_terminal_without_history"
            assert entry["history_unsupported_reason"] == f"terminal_{reason}_row_without_typed_history"
            assert (entry["result"], entry["closed_at"]) == (None, None)


@pytest.mark.contract("EXPORT-15")
async def test_what_was_cancelled_with_its_run_is_exported_as_no_result_without_its_events() -> None:
    async with serving() as api:
        await asking(api, CHARGE, TIMER)
        await api.poll("activity")
        await api.control("POST", "/workflows/o-1/cancel", {})
        await projected(api)
        cut(api, "")
        bundle = (await api.control("GET", "/workflows/o-1/history/export")).json()
        for section, reason in (("activities", "activity"), ("timers", "timer")):
            (entry,) = bundle[section]
            assert (entry["status"], entry["row_status"], entry["diagnostic_only"]) == (
                "unsupported",
                "cancelled",
                True,
            )
            assert entry["history_authority"] == "unsupported_terminal_without_history"
            assert entry["history_unsupported_reason"] == f"terminal_{reason}_row_without_typed_history"
            assert (entry["result"], entry["closed_at"]) == (None, None)


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
        assert (wait["target_name"], wait["row_status"]) == (child["workflow_id"], "completed")
        assert wait["diagnostic_only"]


@pytest.mark.contract("ACT-31", "REPAIR-17")
@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_an_activity_that_ended_without_its_events_is_unsupported(verb: str) -> None:
    async with serving() as api:
        await asking(api, CHARGE)
        work = await api.poll("activity")
        await api.activity(verb, work, **({"failure": {"message": "no"}} if verb == "fail" else {"result": blob(1)}))
        cut(api, "Activity")
        found = await unsupported(api)
        for shown in (found["waits"][0], found["activities"][0]):
            assert (shown["kind"], shown["status"], shown["target_name"]) == ("activity", "unsupported", "charge")
            assert shown["history_authority"] == "unsupported_terminal_without_history"
            assert shown["history_unsupported_reason"] == "terminal_activity_row_without_typed_history"
            assert shown["row_status"] == ("completed" if verb == "complete" else "failed")
            assert (shown["resume_source_kind"], shown["resume_source_id"]) == (None, None)
            assert shown["diagnostic_only"]
        (activity,) = found["activities"]
        assert (activity["id"], activity["result"], activity["closed_at"]) == (
            work["activity_execution_id"],
            None,
            None,
        )


@pytest.mark.contract("TIMER-06", "REPAIR-17")
async def test_a_timer_that_fired_without_its_events_is_unsupported() -> None:
    async with serving() as api:
        await asking(api, TIMER)
        await api.world.advance(61)
        cut(api, "Timer")
        found = await unsupported(api)
        for shown in (found["waits"][0], found["timers"][0]):
            assert (shown["kind"], shown["status"], shown["row_status"]) == ("timer", "unsupported", "fired")
            assert shown["history_unsupported_reason"] == "terminal_timer_row_without_typed_history"
            assert (shown["resume_source_kind"], shown["resume_source_id"]) == (None, None)
        assert await api.poll() is None


@pytest.mark.contract("FAIL-11")
async def test_a_failure_that_only_the_index_knows_of_is_marked_so() -> None:
    async with serving() as api:
        await asking(api, {"type": "fail_workflow", "message": "no"})
        (told,) = (await detail(api))["exceptions"]
        assert (told["message"], told["history_authority"], told["diagnostic_only"]) == ("no", "typed_history", False)
        failed = (await api.history())[-1]
        assert told["failure_id"] == failed["payload"]["failure_id"], "it is named by its event"
        assert sql(api, "update event set body = cast(replace(cast(body as text), 'no', 'on') as blob)")
        found = await detail(api)
        (guessed,) = found["exceptions"]
        assert (guessed["history_authority"], guessed["diagnostic_only"]) == ("failure_row_fallback", True)
        assert (guessed["message"], guessed["source_kind"], found["exception_count"]) == (None, "workflow_run", 1)
        bundle = (await api.control("GET", "/workflows/o-1/history/export")).json()
        assert bundle["failures"] == found["failures"] == [guessed]


def filled(route: Route, known: dict[str, str]) -> str:
    path = route.path
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    return path


async def test_every_request_about_a_damaged_run_is_refused_by_name() -> None:
    async with serving() as api:
        await asking(api, CHARGE, TIMER)
        work = await api.poll("activity")
        known = {"workflow_id": "o-1", "run_id": work["run_id"], "name": "x", "stream": "s", "task_id": work["task_id"]}
        known |= {"attempt_id": work["activity_attempt_id"], "update_id": f"{work['run_id']}-u1.1"}
        cut(api, "Timer")
        await detail(api)  # whoever looks finds it out
        everything = {
            "lease_owner": ME,
            "worker_id": ME,
            "activity_attempt_id": work["activity_attempt_id"],
            "workflow_task_attempt": 1,
            "commands": [{"type": "complete_workflow"}],
            "failure": {"message": "no"},
            "workflow_type": "order",
            "message_id": "m",
        }
        headers = {
            "Authorization": f"Bearer {TOKEN}",
            "X-Durable-Workflow-Control-Plane-Version": "2",
            "X-Durable-Workflow-Protocol-Version": "1.20",
        }
        refused: set[str] = set()
        for route in ROUTES:
            path = filled(route, known)
            of_the_run = ("/o-1" in path or work["run_id"] in path) and "{" not in path and "streams/s" not in path
            if not of_the_run or "query-tasks" in path or "update-validation" in path:
                continue
            body = everything if route.method == "POST" else None
            answer = await api.http.request(route.method, path, json=body, headers=headers)
            if answer.status_code == 200:
                continue  # the evidence, and a forced repair that does nothing
            said = answer.json()
            assert (answer.status_code, said["reason"], said["retryable"]) == (409, "history_damaged", False), path
            assert (said["workflow_id"], said["run_id"]) == ("o-1", work["run_id"])
            assert said["sequence"] > 0
            assert said["replay_blocked_reason"] == "history_shape_mismatch"
            assert said["recorded_event_types"] == ["no typed history"]
            assert "backup" in said["remediation"]
            refused.add(route.path)
        assert len(refused) > 40
        for verb in ("cancel", "signal/{name}", "query/{name}"):
            assert f"/api/workflows/{{workflow_id}}/{verb}" in refused
        url = str(api.http.base_url).rstrip("/")
        async with AsyncClient(url, token=TOKEN) as client:
            with pytest.raises(HistoryDamaged) as damage:
                await client.describe("o-1")
            assert (damage.value.workflow_id, damage.value.run_id) == ("o-1", work["run_id"])
            assert damage.value.sequence > 0


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


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("x''", False),
        ("x'7b226964223a22ff227d'", False),  # a text that is no UTF-8
        ("cast('[1]' as blob)", False),
        ("""cast(replace(cast(body as text), '"at"', '"when"') as blob)""", True),
    ],
)
async def test_a_command_whose_row_cannot_be_read_is_named_beside_those_that_can(body: str, known: bool) -> None:
    async with serving() as api:
        await api.register()
        run_id = (await api.start())["run_id"]
        told = {"input": ["hello"], "request_id": "r-1"}
        sent = (await api.control("POST", "/workflows/o-1/signal/note", told)).json()
        assert sql(api, f"update command set body = {body} where command_type = 'signal'") == 1
        shown = (await detail(api))["commands"]
        exported = (await api.control("GET", f"/workflows/o-1/runs/{run_id}/history/export")).json()["commands"]
        described = await api.server.api.call(DescribeWorkflow(workflow_id="o-1"))
        for start, signal in (shown, exported):
            assert (start["command_type"], start["status"], start["unreadable"]) == ("start", "accepted", None)
            assert (signal["command_type"], signal["sequence"]) == ("signal", sent["command_sequence"])
            assert (signal["status"], signal["at"], signal["request_id"]) == ("unreadable", None, "r-1")
            assert signal["unreadable"]
            assert (signal["id"] == sent["command_id"]) is known
        assert [command.status for command in described.commands] == ["accepted", "unreadable"]
        assert (await api.control("GET", "/workflows/o-1")).status_code == 200
        refused = await api.control("POST", "/workflows/o-1/signal/note", told)
        assert (refused.status_code, refused.json()["reason"]) == (409, "command_unreadable")
        assert (await api.control("POST", "/workflows/o-1/signal/note", {"input": ["on"]})).status_code == 202
