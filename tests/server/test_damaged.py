"""A run whose history was damaged: shown as evidence, moved by nothing, repaired by nothing. Rows alone are never a wait."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import AsyncClient
from backstay.kernel.event import HistoryDamaged
from backstay.protocol.requests import DescribeWorkflow
from backstay.server.router import Route
from backstay.server.routes import ROUTES

from .kit import ME, TOKEN, Api, blob, detail, serving, sql

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


@pytest.mark.contract("REPAIR-17", "LIVE-06")
async def test_a_timer_without_its_events_wakes_nobody() -> None:
    async with serving() as api:
        await asking(api, TIMER)
        cut(api, "Timer")
        found = await unsupported(api)
        assert (found["waits"], found["tasks"], found["timers"]) == ([], [], [])
        assert found["history_damage"]["sequence"] > 0
        await api.world.advance(61)
        assert await api.poll() is None
        await unsupported(api)


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
        assert told["message"] == "no"
        assert sql(api, "update event set body = cast(replace(cast(body as text), 'no', 'on') as blob)")
        found = await detail(api)
        (guessed,) = found["exceptions"]
        assert (guessed["history_authority"], guessed["diagnostic_only"]) == ("failure_row_fallback", True)
        assert (guessed["message"], guessed["source_kind"], found["exception_count"]) == (None, "workflow_run", 1)


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
