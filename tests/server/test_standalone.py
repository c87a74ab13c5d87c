"""Standalone activities over HTTP: jobs that no workflow asks for."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, blob, serving, value


async def begun(api: Api, id: str | None = "job-1", **more: Any) -> dict[str, Any]:
    body = {"activity_type": "charge", "task_queue": "q", **({} if id is None else {"activity_id": id}), **more}
    answer = await api.control("POST", "/activities", body)
    assert answer.status_code == 201, answer.text
    if api.moved is not None:
        await api.moved.advance(0.001)
    return answer.json()


async def shown(api: Api, id: str = "job-1") -> dict[str, Any]:
    return (await api.control("GET", f"/activities/{id}")).json()


async def test_a_job_is_tried_until_it_is_done_and_needs_no_workflow_worker() -> None:
    async with serving() as api:
        await api.register(supported_workflow_types=[])
        policy = {"max_attempts": 2, "backoff_seconds": [5]}
        started = await begun(api, input=["book", 1], retry_policy=policy, activity_class="Till", business_key="b")
        assert (started["activity_id"], started["activity_type"]) == ("job-1", "charge")
        first = await api.poll("activity")
        assert (value(first["arguments"]), first["activity_execution_id"]) == (
            ["book", 1],
            started["activity_execution_id"],
        )
        await api.activity("fail", first, failure={"message": "offline", "type": "Offline"})
        found = await shown(api)
        assert (found["status"], found["activity_status"], found["message"]) == ("waiting", "pending", "offline")
        await api.world.advance(6)
        await api.activity("complete", await api.poll("activity"), result=blob({"paid": 1}))
        found = await shown(api)
        assert (found["status"], found["activity_status"], found["attempt_count"]) == ("completed", "completed", 2)
        assert (value(found["result"]), value(found["input"])) == ({"paid": 1}, ["book", 1])
        assert (found["activity_class"], found["business_key"], found["task_queue"]) == ("Till", "b", "q")
        assert found["closed_at"] is not None
        workflow = await api.describe("job-1")
        assert (workflow["status"], workflow["output"], workflow["run_id"]) == (
            "completed",
            {"paid": 1},
            started["workflow_run_id"],
        )


async def test_a_standalone_activity_shows_its_deadlines_and_heartbeats() -> None:
    async with serving() as api:
        await api.register()
        limits: dict[str, Any] = {"schedule_to_start_timeout_seconds": 10, "schedule_to_close_timeout_seconds": 60}
        await begun(api, heartbeat_timeout_seconds=20, start_to_close_timeout_seconds=30, **limits)
        before = await shown(api)
        assert before["schedule_to_start_deadline_at"] < before["schedule_to_close_deadline_at"]
        task = await api.poll("activity")
        await api.activity("heartbeat", task, details={"message": "half"})
        found = await shown(api)
        assert (found["activity_status"], found["schedule_to_start_deadline_at"]) == ("running", None)
        assert found["last_heartbeat_at"] is not None
        await api.world.advance(21)
        found = await shown(api)
        assert (found["status"], found["activity_status"], found["schedule_to_close_deadline_at"]) == (
            "failed",
            "failed",
            None,
        )


async def test_a_standalone_activity_is_cancelled_as_a_workflow_is() -> None:
    async with serving() as api:
        await api.register()
        await begun(api)
        task = await api.poll("activity")
        assert (await api.control("POST", "/workflows/job-1/cancel", {"reason": "sold out"})).status_code == 200
        told = (await api.activity("heartbeat", task)).json()
        assert (told["can_continue"], told["cancel_requested"]) == (False, True)
        found = await shown(api)
        assert (found["status"], found["activity_status"], found["closed_reason"]) == (
            "cancelled",
            "cancelled",
            "cancelled",
        )


async def test_jobs_are_listed_newest_first_by_bucket_and_page() -> None:
    async with serving() as api:
        await api.register()
        await api.start("no-job")
        ids = [(await begun(api, None))["activity_id"] for _ in range(3)]
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        first = (await api.control("GET", "/activities?page_size=2")).json()
        assert [found["activity_id"] for found in first["activities"]] == [ids[2], ids[1]]
        rest = (await api.control("GET", f"/activities?next_page_token={first['next_page_token']}")).json()
        assert ([found["activity_id"] for found in rest["activities"]], rest["next_page_token"]) == ([ids[0]], None)
        done = (await api.control("GET", "/activities?status=completed")).json()
        assert ([found["activity_id"] for found in done["activities"]], done["activity_count"]) == ([ids[0]], 1)


@pytest.mark.parametrize(
    ("body", "status", "reason", "field"),
    [
        ({"task_queue": "q"}, 422, "validation_failed", "activity_type"),
        ({"activity_type": ""}, 422, "validation_failed", "activity_type"),
        ({"activity_type": "a", "activity_id": "no spaces"}, 422, "validation_failed", "activity_id"),
        ({"activity_type": "a", "input": {"x": 1}}, 422, "invalid_payload", "input"),
        ({"activity_type": "a", "input": {"codec": "json", "blob": ""}}, 422, "unsupported_payload_codec", "input"),
        ({"activity_type": "a", "retry_policy": {"max_attempts": 0}}, 422, "validation_failed", None),
        ({"activity_type": "a", "heartbeat_timeout_seconds": -1}, 422, "validation_failed", None),
        (
            {"activity_type": "a", "heartbeat_timeout_seconds": 9, "start_to_close_timeout_seconds": 1},
            422,
            "invalid_commands",
            "heartbeat_timeout",
        ),
        ({"activity_type": "a", "activity_id": "taken"}, 409, "instance_already_started", None),
    ],
)
async def test_a_job_that_cannot_be_is_refused(body: Any, status: int, reason: str, field: str | None) -> None:
    async with serving() as api:
        await api.start("taken")
        answer = await api.control("POST", "/activities", body)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        if field is not None:
            assert field in answer.text
        assert (await api.control("GET", "/activities")).json()["activities"] == []


async def test_an_activity_request_that_is_too_large_unknown_or_malformed_is_refused() -> None:
    async with serving() as api:
        large = await api.control("POST", "/activities", {"activity_type": "a", "input": ["x" * 2_100_000]})
        assert large.json()["reason"] in ("structural_limit_exceeded", "payload_too_large")
        await api.start("o-1")
        for id in ("o-1", "nobody"):
            answer = await api.control("GET", f"/activities/{id}")
            assert (answer.status_code, answer.json()["reason"]) == (404, "activity_not_found")
        taken = await api.control("POST", "/workflows", {"workflow_type": "backstay.activity"})
        assert (taken.status_code, taken.json()["reason"]) == (422, "invalid_workflow_type")
        bad = await api.control("GET", "/activities?status=cancelled")
        assert (bad.status_code, bad.json()["reason"]) == (422, "validation_failed")


async def test_a_standalone_activity_takes_no_signal_update_or_query() -> None:
    async with serving() as api:
        await begun(api)
        for verb, status in (("signal/go", 404), ("update/go", 409), ("query/go", 404)):
            answer = await api.control("POST", f"/workflows/job-1/{verb}", {})
            assert answer.status_code == status, answer.text
        assert (await shown(api))["status"] == "waiting"


async def test_a_worker_may_not_start_jobs() -> None:
    async with serving(token=None, worker_token="w", operator_token="o") as api:
        refused = await api.control("POST", "/activities", {"activity_type": "a"}, token="w")
        assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")
        assert (await api.control("POST", "/activities", {"activity_type": "a"}, token="o")).status_code == 201


async def test_the_server_says_that_it_can() -> None:
    async with serving() as api:
        info = (await api.control("GET", "/cluster/info")).json()
        assert info["capabilities"]["standalone_activities"] is True
