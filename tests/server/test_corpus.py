"""Requests of the first version of the protocol, as small as they were allowed to be. They must be answered for ever.

A new minor version may add optional fields and commands; nothing of this file may have to change for it.
"""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, serving


async def first(api: Api, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = await api.worker(path, body, version="1.0")
    assert answer.status_code == status, answer.text
    assert answer.json()["protocol_version"] == answer.headers["X-Durable-Workflow-Protocol-Version"] == "1.0"
    return answer.json()


@pytest.mark.contract("PROTO-03")
async def test_a_worker_of_version_1_0_gets_through_a_whole_run() -> None:
    async with serving() as api:
        rule = (await api.control("GET", "/cluster/info")).json()["worker_protocol"]["evolution_rule"]
        assert rule == "additive_minor_breaking_major"
        poll = {"worker_id": "w", "task_queue": "q"}
        await first(api, "register", {**poll, "runtime": "php", "supported_activity_types": ["charge"]}, 201)
        await first(api, "heartbeat", {"worker_id": "w"})
        await api.start()
        task = (await first(api, "workflow-tasks/poll", poll))["task"]
        held = {"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]}
        await first(api, f"workflow-tasks/{task['task_id']}/heartbeat", held)
        page = await first(api, f"workflow-tasks/{task['task_id']}/history", held)
        assert [event["event_type"] for event in page["history_events"]] == ["StartAccepted", "WorkflowStarted"]
        commands = [
            {"type": "schedule_activity", "activity_type": "charge"},
            {"type": "start_timer", "delay_seconds": 5},
            {"type": "start_child_workflow", "workflow_type": "order"},
        ]
        await first(api, f"workflow-tasks/{task['task_id']}/complete", {**held, "commands": commands})
        child = (await first(api, "workflow-tasks/poll", poll))["task"]
        over = {"lease_owner": "w", "workflow_task_attempt": 1, "commands": [{"type": "complete_workflow"}]}
        await first(api, f"workflow-tasks/{child['task_id']}/complete", over)
        work = (await first(api, "activity-tasks/poll", poll))["task"]
        mine = {"lease_owner": "w", "activity_attempt_id": work["activity_attempt_id"]}
        await first(api, f"activity-tasks/{work['task_id']}/heartbeat", mine)
        await first(api, f"activity-tasks/{work['task_id']}/complete", {**mine, "result": 1})
        task = (await first(api, "workflow-tasks/poll", poll))["task"]
        failed = {"lease_owner": "w", "workflow_task_attempt": 1, "failure": {"message": "not now"}}
        await first(api, f"workflow-tasks/{task['task_id']}/fail", failed)
        await api.world.advance(5)
        task = (await first(api, "workflow-tasks/poll", poll))["task"]
        over["workflow_task_attempt"] = task["workflow_task_attempt"]
        await first(api, f"workflow-tasks/{task['task_id']}/complete", over)
        assert (await api.describe())["status"] == "completed"
        assert (await first(api, "query-tasks/poll", poll))["task"] is None
        for newer in ("1.99", "2.0"):
            refused = await api.worker("heartbeat", {"worker_id": "w"}, version=newer)
            assert (refused.status_code, refused.json()["reason"]) == (400, "unsupported_protocol_version")


async def ended(api: Api, command: dict[str, Any], fail: dict[str, Any] | None, advance: float) -> list[str]:
    """What history says after a first step that was let down in this way."""
    await api.register(supported_workflow_types=["order", "child"])
    await api.start()
    await api.complete(await api.poll(), command)
    child = command["type"] == "start_child_workflow"
    task = await api.poll() if child else await api.poll("activity")
    if fail is not None and child:
        await api.complete(task, {"type": "fail_workflow", **fail})
    elif fail is not None:
        await api.activity("fail", task, failure=fail)
    await api.world.advance(advance)
    return await api.types()


CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
CHILD = {"type": "start_child_workflow", "workflow_type": "child"}


@pytest.mark.contract("PROTO-07")
@pytest.mark.parametrize(
    ("capability", "command", "fail", "advance", "says"),
    [
        ("activity_retry_policy", CHARGE | {"retry_policy": {"max_attempts": 2}}, {"message": "no"}, 0, "Retry"),
        ("activity_timeouts", CHARGE | {"start_to_close_timeout": 5}, None, 6, "ActivityTimedOut"),
        (
            "non_retryable_failures",
            CHARGE | {"retry_policy": {"max_attempts": 9}},
            {"message": "no", "non_retryable": True},
            0,
            "ActivityFailed",
        ),
        ("child_workflow_timeouts", CHILD | {"run_timeout_seconds": 5}, None, 6, "ChildRunFailed"),
        (
            "child_workflow_retry_policy",
            CHILD | {"retry_policy": {"max_attempts": 2, "backoff_seconds": [1]}},
            {"message": "no"},
            2,
            "ChildRunStarted ChildRunStarted",
        ),
    ],
)
async def test_what_is_advertised_is_done(
    capability: str, command: dict[str, Any], fail: dict[str, Any] | None, advance: float, says: str
) -> None:
    async with serving() as api:
        info = (await api.control("GET", "/cluster/info")).json()
        advertised = info["worker_protocol"]["server_capabilities"]
        assert advertised[capability] is True
        assert (advertised["poll_status"], advertised["query_tasks"], advertised["parent_close_policy"]) == (True,) * 3
        assert says in " ".join(name for name in await ended(api, command, fail, advance) if name != "WorkflowStarted")


@pytest.mark.contract("CMD-09")
async def test_a_child_that_fails_is_started_again_after_its_backoff() -> None:
    async with serving() as api:
        policy = {"max_attempts": 2, "backoff_seconds": [2]}
        before = await ended(api, CHILD | {"retry_policy": policy}, {"message": "no"}, 1.9)
        assert "ChildRunFailed" not in before
        assert await api.poll() is None, "not yet"
        await api.world.advance(0.2)
        again = await api.poll()
        assert (again["workflow_type"], again["run_number"]) == ("child", 2)
        started = [e["payload"] for e in await api.history() if e["event_type"] == "ChildRunStarted"]
        assert [s["child_run_number"] for s in started] == [1, 2]
        assert started[1]["retry_backoff_seconds"] == 2
        await api.complete(again, {"type": "fail_workflow", "message": "no more"})
        assert "ChildRunFailed" in await api.types()


@pytest.mark.contract("CMD-11")
@pytest.mark.parametrize("timeout", ["execution_timeout_seconds", "run_timeout_seconds"])
async def test_the_timeouts_of_a_child_are_enforced(timeout: str) -> None:
    async with serving() as api:
        await ended(api, CHILD | {timeout: 5}, None, 4)
        assert "ChildRunFailed" not in await api.types()
        await api.world.advance(2)
        failed = next(e["payload"] for e in await api.history() if e["event_type"] == "ChildRunFailed")
        assert failed["failure_category"] == "timeout"
        assert (await api.poll())["workflow_event_type"] == "ChildRunFailed"


@pytest.mark.contract("RESUME-08")
async def test_a_signal_wait_that_times_out_names_the_wait_and_its_timer() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(
            await api.poll(), {"type": "open_signal_wait", "signal_name": "pay", "timeout_seconds": 5}, numbered=True
        )
        await api.world.advance(6)
        task = await api.poll()
        fired = next(e["payload"] for e in task["history_events"] if e["event_type"] == "TimerFired")
        assert (task["signal_wait_id"], task["timer_id"]) == (fired["signal_wait_id"], fired["timer_id"])
        assert task["signal_wait_id"]
        assert (task["workflow_wait_kind"], task["resume_source_kind"]) == ("signal", "timer")


@pytest.mark.contract("ACT-12")
async def test_the_verbs_of_activities_are_webhooks_too() -> None:
    async with serving(worker_token="w", operator_token="o") as api:
        await api.register()
        await api.start()
        policy = {"retry_policy": {"max_attempts": 2}}
        await api.complete(await api.poll(), CHARGE | policy, CHARGE)
        (one, two) = await api.server.engine.store.ready(10)

        async def hook(method: str, path: str, body: Any = None, token: str | None = "w") -> Any:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return await api.http.request(method, f"/webhooks/{path}", json=body, headers=headers)

        claim = f"activity-tasks/{one.id}/claim"
        assert (await hook("POST", claim, {"worker_id": "worker-1"}, None)).status_code == 401
        assert (await hook("POST", claim, {"worker_id": "worker-1"}, "o")).status_code == 403
        work = (await hook("POST", claim, {"worker_id": "worker-1"})).json()["task"]
        place, mine = f"activity-attempts/{work['activity_attempt_id']}", {"lease_owner": "worker-1"}
        for path, body in (("complete", mine), ("fail", mine | {"failure": {"message": "no"}}), ("heartbeat", mine)):
            assert (await hook("POST", f"{place}/{path}", body, None)).status_code == 401
        beat = (await hook("POST", f"{place}/heartbeat", mine | {"progress": {"current": 1}})).json()
        assert (beat["can_continue"], beat["heartbeat_recorded"]) == (True, True)
        seen = (await hook("GET", f"{place}?lease_owner=worker-1")).json()
        assert (seen["attempt_status"], seen["can_continue"]) == ("running", True)
        unsaid = await hook("GET", place)
        assert (unsaid.status_code, unsaid.json()["field"]) == (422, "lease_owner")
        failed = (await hook("POST", f"{place}/fail", mine | {"failure": {"message": "no"}})).json()
        assert failed["outcome"] == "retry_scheduled"
        stale = await hook("POST", f"{place}/complete", mine)
        assert stale.json()["outcome"] != "completed", "that attempt is over"
        other = (await hook("POST", f"activity-tasks/{two.id}/claim", {"worker_id": "worker-1"})).json()["task"]
        done = await hook("POST", f"activity-attempts/{other['activity_attempt_id']}/complete", mine | {"result": 7})
        assert (done.json()["outcome"], done.json()["recorded"]) == ("completed", True)


@pytest.mark.contract("REC-05")
async def test_a_start_from_workflow_code_records_where_it_came_from() -> None:
    async with serving() as api:
        run_id = (await api.start())["run_id"]
        await api.register(supported_workflow_types=["order", "child"])
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 99}, CHILD)

        async def started(task: dict[str, Any]) -> dict[str, Any]:
            path = f"/workflows/{task['workflow_id']}/runs/{task['run_id']}/history/export"
            (command,) = (await api.control("GET", path)).json()["commands"]
            assert (command["command_type"], command["source"]) == ("start", "workflow")
            return command["context"]["workflow"]

        child = await api.poll()
        came = await started(child)
        assert (came["parent_run_id"], came["parent_instance_id"], came["sequence"]) == (run_id, "o-1", 2)
        assert came["child_call_id"] == f"{run_id}-h2"
        await api.complete(child, {"type": "continue_as_new"})
        assert (await started(await api.poll()))["parent_run_id"] == child["run_id"]


@pytest.mark.contract("REC-07")
async def test_no_command_of_a_run_is_without_its_sequence() -> None:
    async with serving() as api:
        contract = {"order": {"signals": ["pay"], "signal_contracts": [{"name": "pay", "parameters": []}]}}
        await api.register(workflow_command_contracts=contract)
        await api.start()
        for path in ("signal/pay", "signal/unknown", "signal/pay", "repair", "cancel", "cancel", "archive"):
            await api.control("POST", f"/workflows/o-1/{path}", {})
        key = await api.server.engine.store.find("default", "o-1")
        assert key is not None
        commands = await api.server.engine.store.commands(key)
        assert [command.sequence for command in commands] == list(range(1, len(commands) + 1))
        assert {command.status for command in commands} == {"accepted", "rejected"}
        assert len(commands) >= 7
