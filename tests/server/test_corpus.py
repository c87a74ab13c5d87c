"""Requests of the first version of the protocol, as small as they were allowed to be. They must be answered for ever.

A new minor version may add optional fields and commands; nothing of this file may have to change for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .kit import TOKEN, Api, blob, serving, value


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
async def test_every_advertised_capability_works(
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


async def charging(api: Api, *commands: dict[str, Any], **how: Any) -> list[str]:
    """A workflow that asked for activities; the ids of their tasks."""
    await api.register("coordinator", build_id=how.get("build_id"))
    await api.start(**how)
    done = await api.complete(await api.poll(worker_id="coordinator"), *(commands or (CHARGE,)))
    return done.json()["created_task_ids"]


async def hook(api: Api, method: str, path: str, body: Any = None, token: str | None = TOKEN, **headers: str) -> Any:
    known = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await api.http.request(method, f"/webhooks/{path}", json=body, headers=known | headers)


@pytest.mark.contract("ACT-11", "ACT-12", "ACT-13")
async def test_an_adapter_that_never_registered_runs_activities_by_the_attempt_alone() -> None:
    async with serving(worker_token="w", operator_token="o") as api:
        policy = {"retry_policy": {"max_attempts": 2, "backoff_seconds": [0]}, "arguments": blob([1])}
        one, two = await charging(api, CHARGE | policy, CHARGE)
        claim = f"activity-tasks/{one}/claim"
        for token, status in ((None, 401), ("o", 403)):
            assert (await hook(api, "POST", claim, {}, token)).status_code == status
        claimed = await hook(api, "POST", claim, {}, "w")
        work = claimed.json()["task"]
        assert (claimed.status_code, work["activity_type"], value(work["arguments"])) == (200, "charge", [1])
        twice = await hook(api, "POST", claim, {}, "w")
        assert (twice.status_code, twice.json()["reason"]) == (409, "task_not_ready")
        attempt = f"activity-attempts/{work['activity_attempt_id']}"
        wrong = {"lease_owner": "somebody-else"}
        for path in ("complete", "heartbeat", "fail"):
            body = {"failure": {"message": "no"}} if path == "fail" else {}
            for token, status in ((None, 401), ("o", 403)):
                assert (await hook(api, "POST", f"{attempt}/{path}", body, token)).status_code == status
            refused = (await hook(api, "POST", f"{attempt}/{path}", body | wrong, "w")).json()
            assert refused["reason"] == "stale_attempt", "whoever says whose lease it is must be right"

        await api.world.advance(100)
        seen = (await hook(api, "GET", attempt, None, "w")).json()
        assert (seen["attempt_status"], seen["can_continue"]) == ("running", True)
        assert (seen["task_id"], seen["lease_expires_at"]) == (one, work["lease_expires_at"])
        beat = (await hook(api, "POST", f"{attempt}/heartbeat", {"progress": {"current": 1}}, "w")).json()
        assert (beat["can_continue"], beat["heartbeat_recorded"]) == (True, True)
        assert beat["lease_expires_at"] > seen["lease_expires_at"]
        failed = (await hook(api, "POST", f"{attempt}/fail", {"failure": {"message": "no"}}, "w")).json()
        assert failed["outcome"] == "retry_scheduled"
        again = (await hook(api, "POST", f"{attempt}/fail", {"failure": {"message": "no"}}, "w")).json()
        assert (again["outcome"], again["reason"]) == ("retry_scheduled", "already_recorded")
        assert (await hook(api, "POST", f"{attempt}/complete", {}, "w")).json()["outcome"] == "retry_scheduled"

        retry = (await hook(api, "POST", f"activity-tasks/{failed['next_task_id']}/claim", {}, "w")).json()["task"]
        second = f"activity-attempts/{retry['activity_attempt_id']}"
        assert (await hook(api, "GET", second, None, "w")).json()["task_id"] == failed["next_task_id"]
        other = (await hook(api, "POST", f"activity-tasks/{two}/claim", {"lease_owner": "mine"}, "w")).json()["task"]
        assert other["lease_owner"] == "mine"
        for place in (second, f"activity-attempts/{other['activity_attempt_id']}"):
            done = (await hook(api, "POST", f"{place}/complete", {"result": 7}, "w")).json()
            assert (done["outcome"], done["recorded"]) == ("completed", True)
        assert (await hook(api, "GET", second, None, "w")).json()["reason"] == "activity_closed"
        types = await api.types()
        assert [types.count(f"Activity{what}") for what in ("Started", "RetryScheduled", "Completed")] == [3, 1, 2]


@pytest.mark.contract("ACT-12", "ACT-13")
async def test_an_adapter_is_kept_to_its_namespace_and_to_the_build_of_the_run() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "elsewhere"})
        (pinned,) = await charging(api, build_id="b1")
        blocked = await hook(api, "POST", f"activity-tasks/{pinned}/claim", {})
        assert (blocked.status_code, blocked.json()["reason"]) == (409, "compatibility_unsupported")
        away = {"X-Namespace": "elsewhere"}
        unseen = await hook(api, "POST", f"activity-tasks/{pinned}/claim", {"build_id": "b1"}, **away)
        assert unseen.status_code == 404
        work = (await hook(api, "POST", f"activity-tasks/{pinned}/claim", {"build_id": "b1"})).json()["task"]
        attempt = f"activity-attempts/{work['activity_attempt_id']}"
        for method, path, body in (
            ("GET", attempt, None),
            ("POST", f"{attempt}/heartbeat", {}),
            ("POST", f"{attempt}/fail", {"failure": {"message": "no"}}),
            ("POST", f"{attempt}/complete", {"result": 1}),
        ):
            assert (await hook(api, method, path, body, **away)).status_code == 404, path
        for bogus in ("nothing", "01JAAAAAAAAAAAAAAAAAAAAAAA-1-1"):
            assert (await hook(api, "GET", f"activity-attempts/{bogus}")).status_code == 404
        assert (await hook(api, "POST", f"{attempt}/complete", {"result": 1})).json()["outcome"] == "completed"


@pytest.mark.contract("ACT-12")
async def test_an_adapter_keeps_its_attempt_over_a_restart_of_the_server(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'd.db'}"
    async with serving(store=store) as api:
        (task,) = await charging(api)
        work = (await hook(api, "POST", f"activity-tasks/{task}/claim", {})).json()["task"]
    async with serving(store=store) as api:
        await api.world.advance(120)
        assert await api.poll("activity", worker_id="coordinator") is None
        attempt = f"activity-attempts/{work['activity_attempt_id']}"
        assert (await hook(api, "POST", f"{attempt}/heartbeat", {})).json()["can_continue"] is True
        assert (await hook(api, "POST", f"{attempt}/complete", {"result": 1})).json()["outcome"] == "completed"


@pytest.mark.contract("ACT-12")
async def test_a_run_that_was_stopped_tells_its_adapter_so() -> None:
    async with serving() as api:
        (task,) = await charging(api)
        work = (await hook(api, "POST", f"activity-tasks/{task}/claim", {})).json()["task"]
        await api.control("POST", "/workflows/o-1/terminate", {})
        attempt = f"activity-attempts/{work['activity_attempt_id']}"
        beat = (await hook(api, "POST", f"{attempt}/heartbeat", {})).json()
        assert (beat["can_continue"], beat["cancel_requested"], beat["run_closed_reason"]) == (
            False,
            True,
            "terminated",
        )
        late = await hook(api, "POST", f"{attempt}/complete", {"result": 1})
        assert (late.status_code, late.json()["outcome"], late.json()["reason"]) == (409, "ignored", "run_terminated")
        assert (await api.types()).count("ActivityCancelled") == 1


@pytest.mark.contract("REC-05")
async def test_a_start_from_workflow_code_records_where_it_came_from() -> None:
    async with serving() as api:
        run_id = (await api.start())["run_id"]
        await api.register(supported_workflow_types=["order", "child"])
        tries = {"retry_policy": {"max_attempts": 2, "backoff_seconds": [0]}}
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 99}, CHILD | tries)

        async def started(task: dict[str, Any]) -> dict[str, Any]:
            path = f"/workflows/{task['workflow_id']}/runs/{task['run_id']}/history/export"
            (command,) = (await api.control("GET", path)).json()["commands"]
            assert (command["command_type"], command["source"]) == ("start", "workflow")
            return command["context"]["workflow"]

        child = await api.poll()
        came = await started(child)
        assert (came["parent_run_id"], came["parent_instance_id"], came["sequence"]) == (run_id, "o-1", 2)
        assert came["child_call_id"] == f"{run_id}-h2"
        await api.complete(child, {"type": "start_timer", "delay_seconds": 0})
        await api.complete(await api.poll(timeout_seconds=10), {"type": "continue_as_new"})
        continued = await api.poll()
        came = await started(continued)
        assert (came["parent_run_id"], came["parent_instance_id"]) == (child["run_id"], child["workflow_id"])
        assert (came["sequence"], came["child_call_id"]) == (2, f"{run_id}-h2"), "its own step, and its parent's call"
        # The next try of a child that has failed is called by the same step of the parent.
        await api.complete(continued, {"type": "fail_workflow", "message": "no"})
        again = await api.poll()
        assert again["run_id"] not in (child["run_id"], continued["run_id"])
        came = await started(again)
        assert (came["parent_run_id"], came["sequence"], came["child_call_id"]) == (run_id, 2, f"{run_id}-h2")


@pytest.mark.contract("REC-05")
async def test_a_run_that_is_no_child_continues_without_a_call() -> None:
    async with serving() as api:
        await api.register()
        run_id = (await api.start())["run_id"]
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        (command,) = (await api.control("GET", "/workflows/o-1/history/export")).json()["commands"]
        came = command["context"]["workflow"]
        assert came == {"parent_instance_id": "o-1", "parent_run_id": run_id, "sequence": 1}


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
