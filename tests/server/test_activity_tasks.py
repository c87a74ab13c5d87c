"""Activity tasks over HTTP: attempts, retries, failures, heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import ME, Api, blob, detail, serving, value

DONE = {"type": "complete_workflow"}


async def working(api: Api, **command: Any) -> dict[str, Any]:
    await api.register()
    await api.start()
    answer = await api.complete(await api.poll(), {"type": "schedule_activity", "activity_type": "charge", **command})
    assert answer.status_code == 200, answer.text
    return await api.poll("activity")


@pytest.mark.contract("ACT-01", "ACT-11", "CODEC-11", "STREAM-12", "STREAM-13")
async def test_a_result_is_recorded_once_and_kept_byte_for_byte() -> None:
    async with serving() as api:
        work = await working(api, arguments=blob(["book", 1]))
        assert (value(work["arguments"]), work["activity_type"], work["attempt_number"]) == (["book", 1], "charge", 1)
        answers = [await api.activity("complete", work, result=blob({"paid": 1.0})) for _ in range(2)]
        for answer in answers:
            body = answer.json()
            assert (answer.status_code, body["outcome"], body["task_id"]) == (200, "completed", work["task_id"])
        late = await api.activity("fail", work, failure={"message": "late"})
        assert (late.status_code, late.json()["outcome"]) == (200, "completed"), "the recorded outcome"
        types = await api.types()
        assert types.count("ActivityCompleted") == 1
        recorded = next(e for e in await api.history() if e["event_type"] == "ActivityCompleted")["payload"]
        assert (recorded["result"], recorded["payload_codec"]) == (blob({"paid": 1.0})["blob"], "avro")
        stopped = (await api.activity("heartbeat", work)).json()
        assert (stopped["can_continue"], stopped["reason"]) == (False, "activity_closed")


@pytest.mark.contract("ACT-15", "ACT-16", "ACT-18", "CODEC-06", "CODEC-07", "CODEC-08")
async def test_failures_are_retried_as_the_policy_says_and_keep_their_details() -> None:
    async with serving() as api:
        policy = {"max_attempts": 3, "backoff_seconds": [10], "non_retryable_error_types": ["declined"]}
        work = await working(api, retry_policy=policy)
        failure = {
            "message": "offline",
            "type": "terminal.offline",
            "class": "shop.Terminal",
            "code": 17,
            "stack_trace": "line 1\nline 2",
            "details": blob({"try": 1}),
        }
        answer = await api.activity("fail", work, failure=failure)
        assert answer.json()["outcome"] == "retry_scheduled"
        assert await api.poll() is None, "the workflow stays parked"
        assert await api.poll("activity") is None, "the backoff is not over"
        await api.world.advance(11)
        second = await api.poll("activity")
        assert (second["attempt_number"], second["activity_execution_id"]) == (2, work["activity_execution_id"])
        assert second["activity_attempt_id"] != work["activity_attempt_id"]
        await api.activity("fail", second, failure=failure | {"type": "declined"})
        failed = next(e for e in await api.history() if e["event_type"] == "ActivityFailed")["payload"]
        assert (failed["exception_type"], failed["message"], failed["code"]) == ("declined", "offline", 17)
        assert (failed["failure_category"], failed["activity_type"], failed["non_retryable"]) == (
            "activity",
            "charge",
            False,
        )
        exception = failed["exception"]
        assert (exception["details"], exception["details_payload_codec"]) == (blob({"try": 1})["blob"], "avro")
        assert (exception["type"], exception["class"]) == ("declined", "shop.Terminal")
        assert (await api.poll())["workflow_event_type"] == "ActivityFailed"


@pytest.mark.contract("ACT-02", "ACT-03", "ACT-04", "ACT-24", "STREAM-08")
async def test_a_heartbeat_renews_the_lease_and_reports_progress() -> None:
    async with serving() as api:
        work = await working(api)
        await api.world.advance(100)
        seen = (await api.activity("status", work)).json()
        assert (seen["can_continue"], seen["lease_expires_at"]) == (True, work["lease_expires_at"])
        progress = {"message": "half", "current": 5, "total": 10, "unit": "pages", "details": {"file": "a"}}
        beat = (await api.activity("heartbeat", work, progress=progress)).json()
        assert (beat["can_continue"], beat["cancel_requested"], beat["reason"]) == (True, False, None)
        assert beat["lease_expires_at"] > work["lease_expires_at"]
        assert beat.keys() >= {"run_status", "attempt_status", "task_status", "last_heartbeat_at", "heartbeat_recorded"}
        recorded = next(e for e in await api.history() if e["event_type"] == "ActivityHeartbeatRecorded")
        assert recorded["payload"]["progress"] == progress
        await api.world.advance(2)
        await api.activity("heartbeat", work, details={"free": "form"})
        last = [e for e in await api.history() if e["event_type"] == "ActivityHeartbeatRecorded"][-1]
        assert last["payload"]["progress"]["details"] == {"free": "form"}


@pytest.mark.contract("ACT-24")
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"details": {"disk": {"used": {"gb": 5}, "free": 1}}}, {"details": {"disk.used.gb": 5, "disk.free": 1}}),
        ({"current": "five", "total": -1}, {"details": {"current": "five", "total": -1}}),
        ({"message": ["a", 1], "unit": 3}, {"details": {"message": '["a",1]', "unit": 3}}),
        ({"message": "half", "rows": 5}, {"message": "half", "details": {"rows": 5}}),
        ({"details": "all"}, {"details": {"details": "all"}}),
        ({"message": "x" * 1000}, {"message": "x" * 280}),
        ({"count": 10**30}, {"details": {"count": str(10**30)}}),
        ("half", {"message": "half"}),
        (7, {"current": 7}),
        ([1, 2], {"details": {"value": "[1,2]"}}),
        ({f"d{n:02}": n for n in range(50)}, {"details": {f"d{n:02}": n for n in range(20)}}),
    ],
)
@pytest.mark.parametrize("field", ["progress", "details"])
async def test_the_details_of_a_heartbeat_become_one_flat_object(field: str, said: Any, shown: dict[str, Any]) -> None:
    async with serving() as api:
        work = await working(api)
        assert (await api.activity("heartbeat", work, **{field: said})).status_code == 200
        found = await detail(api)
        (activity,) = found["activities"]
        everything = dict.fromkeys(("message", "current", "total", "unit", "details"))
        assert activity["last_heartbeat_progress"] == everything | shown
        assert activity["attempts"][0]["last_heartbeat_progress"] == everything | shown


@pytest.mark.contract("ACT-07", "ACT-08", "ACT-09", "ACT-10", "STREAM-10")
async def test_a_silent_worker_loses_its_attempt() -> None:
    async with serving() as api:
        late = await working(api)
        await api.register("next")
        await api.world.advance(301)
        work = await api.poll("activity", worker_id="next")
        assert (work["attempt_number"], work["activity_execution_id"]) == (2, late["activity_execution_id"])
        for verb, more in (("complete", {"result": 1}), ("fail", {"failure": {"message": "late"}})):
            answer = await api.activity(verb, late, **more)
            assert (answer.status_code, answer.json()["reason"], answer.json()["outcome"]) == (
                409,
                "stale_attempt",
                "ignored",
            )
        stolen = await api.activity("complete", work | {"lease_owner": ME}, result=1)
        assert stolen.json()["reason"] == "stale_attempt"
        assert (await api.activity("complete", work, result=1)).json()["outcome"] == "completed"


@pytest.mark.parametrize(
    ("verb", "change", "status", "reason", "field"),
    [
        ("complete", {"activity_attempt_id": None}, 422, "validation_failed", "activity_attempt_id"),
        ("complete", {"lease_owner": 7}, 422, "validation_failed", "lease_owner"),
        ("complete", {"activity_attempt_id": "RUN-1-1"}, 409, "task_mismatch", "activity_attempt_id"),
        ("complete", {"result": {"codec": "json", "blob": "MQ=="}}, 422, "unsupported_payload_codec", "result"),
        ("complete", {"result": {"codec": "avro", "blob": "MQ=="}}, 422, "invalid_payload_framing", "result.blob"),
        (
            "complete",
            {"result": {"codec": "avro", "external_storage": {}}},
            422,
            "external_payload_unsupported",
            "result",
        ),
        ("fail", {}, 422, "validation_failed", "failure"),
        ("fail", {"failure": {}}, 422, "validation_failed", "failure.message"),
        ("fail", {"failure": {"message": 1}}, 422, "validation_failed", "failure.message"),
        (
            "fail",
            {"failure": {"message": "m", "details": {"codec": "x", "blob": ""}}},
            422,
            "unsupported_payload_codec",
            "failure.details",
        ),
    ],
)
async def test_a_bad_report_is_refused_and_changes_nothing(
    verb: str, change: dict[str, Any], status: int, reason: str, field: str
) -> None:
    async with serving() as api:
        work = await working(api)
        before = await api.types()
        body = {"lease_owner": ME, "activity_attempt_id": work["activity_attempt_id"]} | change
        answer = await api.worker(f"activity-tasks/{work['task_id']}/{verb}", body)
        assert (answer.status_code, answer.json()["reason"], answer.json()["field"]) == (status, reason, field)
        assert await api.types() == before
        assert (await api.activity("complete", work, result="plain values are encoded")).status_code == 200


async def test_a_call_may_have_a_summary_which_the_detail_shows() -> None:
    async with serving() as api:
        await working(api, summary="order 17")
        (activity,) = (await detail(api))["activities"]
        assert activity["options"] == {"summary": "order 17"}
        (scheduled,) = [one for one in await api.history() if one["event_type"] == "ActivityScheduled"]
        assert scheduled["payload"]["activity"]["summary"] == "order 17"


async def test_a_call_without_options_shows_none() -> None:
    async with serving() as api:
        await working(api)
        (activity,) = (await detail(api))["activities"]
        assert "options" not in activity


@pytest.mark.parametrize(
    "command",
    [
        {"type": "schedule_activity", "activity_type": "charge"},
        {"type": "start_child_workflow", "workflow_type": "child"},
        {
            "type": "record_local_activity",
            "activity_type": "charge",
            "outcome": "completed",
            "attempts": [{"outcome": "completed"}],
        },
    ],
    ids=lambda command: command["type"],
)
async def test_a_summary_that_is_too_long_is_refused(command: dict[str, Any]) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        task = await api.poll()
        refused = await api.complete(task, {**command, "summary": "x" * 201})
        assert refused.status_code == 422, refused.text
        assert "at most 200" in refused.text
        accepted = await api.complete(task, {**command, "summary": "x" * 200})
        assert accepted.status_code == 200, accepted.text


async def test_a_standalone_activity_may_have_a_summary() -> None:
    async with serving() as api:
        await api.register()
        body = {"activity_type": "charge", "activity_id": "job-1", "summary": "order 17"}
        assert (await api.control("POST", "/activities", body)).status_code == 201
        (activity,) = (await detail(api, "job-1"))["activities"]
        assert activity["options"] == {"summary": "order 17"}
