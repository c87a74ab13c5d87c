"""How an activity ends, as history tells it, and what of it operators and exports show."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, blob, detail, serving, settle, sql

POLICY = {"max_attempts": 3, "backoff_seconds": [1.5, 7], "non_retryable_error_types": ["declined"]}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
OPEN = {"ActivityScheduled", "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityRetryScheduled"}


async def working(api: Api, **command: Any) -> dict[str, Any]:
    await api.register()
    await api.start()
    assert (await api.complete(await api.poll(), CHARGE | command)).status_code == 200
    return await api.poll("activity")


@pytest.mark.contract("ACT-26")
@pytest.mark.parametrize("ending", ["complete", "fail", "cancel", "terminate"])
async def test_every_ending_of_an_activity_is_one_typed_event_and_the_only_one(ending: str) -> None:
    async with serving() as api:
        work = await working(api)
        match ending:
            case "complete":
                await api.activity("complete", work, result=blob(["r"]))
            case "fail":
                await api.activity("fail", work, failure={"message": "no", "type": "E", "non_retryable": True})
            case _:
                await api.control("POST", f"/workflows/o-1/{ending}", {})
                told = (await api.activity("heartbeat", work)).json()
                assert (told["can_continue"], told["cancel_requested"]) == (False, True)
        history = [event for event in await api.history() if event["event_type"].startswith("Activity")]
        ends = [event for event in history if event["event_type"] not in OPEN]
        kind = {"complete": "ActivityCompleted", "fail": "ActivityFailed"}.get(ending, "ActivityCancelled")
        assert [event["event_type"] for event in ends] == [kind], "observed twice, recorded once"
        (end,) = ends
        assert end["payload"]["activity_execution_id"] == work["activity_execution_id"]
        assert end["payload"]["activity_attempt_id"] == work["activity_attempt_id"]
        if ending in ("complete", "fail"):
            task = await api.poll()
            assert task["workflow_event_type"] == kind
            assert task["history_events"][-1]["event_type"] == kind, "what replay takes it from"
        if ending == "complete":
            assert end["payload"]["result"] == blob(["r"])["blob"]
        if ending == "fail":
            assert (end["payload"]["message"], end["payload"]["exception_type"]) == ("no", "E")
        (shown,) = (await detail(api))["activities"]
        assert shown["status"] == {"complete": "completed", "fail": "failed"}.get(ending, "cancelled")


@pytest.mark.contract("ACT-20")
async def test_the_policy_of_an_activity_is_the_same_in_its_event_its_detail_and_its_export() -> None:
    async with serving() as api:
        await working(api, retry_policy=POLICY, start_to_close_timeout=30)
        (event,) = [event for event in await api.history() if event["event_type"] == "ActivityScheduled"]
        snapped = event["payload"]["activity"]["retry_policy"]
        assert snapped | POLICY | {"start_to_close_timeout": 30} == snapped
        (shown,) = (await detail(api))["activities"]
        (exported,) = (await api.control("GET", "/workflows/o-1/history/export")).json()["activities"]
        assert shown["retry_policy"] == exported["retry_policy"]
        assert shown["retry_policy"] | snapped == shown["retry_policy"]
        assert shown["idempotency_key"] == exported["idempotency_key"] == shown["id"]


@pytest.mark.contract("CODEC-06")
async def test_the_details_of_a_failure_are_the_same_bytes_wherever_they_are_shown() -> None:
    odd = blob({"tries": [1, 1.0, None, "Zürich"]})
    async with serving() as api:
        work = await working(api)
        await api.activity("fail", work, failure={"message": "no", "non_retryable": True, "details": odd})
        (event,) = [event for event in await api.history() if event["event_type"] == "ActivityFailed"]
        exception = event["payload"]["exception"]
        assert (exception["details"], exception["details_payload_codec"]) == (odd["blob"], "avro")
        bundle = (await api.control("GET", "/workflows/o-1/history/export")).json()
        exported = [e for e in bundle["history_events"] if e["event_type"] == "ActivityFailed"]
        assert exported[0]["payload"]["exception"]["details"] == odd["blob"]
        (failure,) = bundle["failures"]
        assert (failure["exception"]["details"], failure["exception"]["details_payload_codec"]) == (odd, "avro")
        paths = [entry["path"] for entry in bundle["payload_manifest"]["entries"]]
        assert any("details" in path for path in paths)


@pytest.mark.contract("STREAM-08", "ACT-03")
@pytest.mark.parametrize("progress", [{"message": "half", "current": 5}, {"details": {"file": "a"}}])
@pytest.mark.parametrize("result", [None, 3, "text", ["list"], {"a": 1}, blob({"b": [1]})], ids=str)
async def test_a_lease_is_renewed_with_any_progress_and_ended_with_any_result(progress: Any, result: Any) -> None:
    async with serving() as api:
        work = await working(api)
        await api.world.advance(10)
        beat = (await api.activity("heartbeat", work, progress=progress)).json()
        assert (beat["task_id"], beat["can_continue"]) == (work["task_id"], True)
        assert beat["lease_expires_at"] > work["lease_expires_at"]
        ended = await api.activity("complete", work, result=result)
        said = ended.json()
        assert (ended.status_code, said["task_id"], said["outcome"]) == (200, work["task_id"], "completed")
        (event,) = [event for event in await api.history() if event["event_type"] == "ActivityCompleted"]
        expected = result["blob"] if isinstance(result, dict) and "blob" in result else blob(result)["blob"]
        assert event["payload"].get("result") == (None if result is None else expected)


@pytest.mark.contract("STREAM-08")
async def test_a_lease_is_ended_by_a_failure_of_its_owner_and_by_no_other_worker() -> None:
    async with serving() as api:
        work = await working(api)
        stranger = work | {"lease_owner": "thief"}
        told = (await api.activity("heartbeat", stranger)).json()
        assert (told["can_continue"], told["reason"], told["heartbeat_recorded"]) == (False, "stale_attempt", False)
        for verb, more in (("complete", {"result": 1}), ("fail", {"failure": {"message": "x"}})):
            refused = await api.activity(verb, stranger, **more)
            assert (refused.status_code, refused.json()["outcome"]) == (409, "ignored"), verb
        assert (await api.types())[-1] == "ActivityStarted"
        assert (await api.activity("fail", work, failure="x")).status_code == 422, "an object"
        failed = await api.activity("fail", work, failure={"message": "no", "non_retryable": True})
        assert (failed.status_code, failed.json()["task_id"]) == (200, work["task_id"])
        assert (await api.types()).count("ActivityFailed") == 1


@pytest.mark.contract("ACT-28")
@pytest.mark.parametrize("after", sorted(OPEN))
async def test_a_task_row_that_claims_to_be_done_ends_no_activity(after: str) -> None:
    """At each of the open events of an activity; the run and a query stay where history has them."""
    async with serving() as api:
        contract = {"signals": [], "queries": ["state"], "updates": []}
        await api.register(workflow_command_contracts={"order": contract})
        await api.start()
        await api.complete(await api.poll(), CHARGE | {"retry_policy": {"max_attempts": 2, "backoff_seconds": [60]}})
        if after != "ActivityScheduled":
            work = await api.poll("activity")
            if after == "ActivityHeartbeatRecorded":
                await api.activity("heartbeat", work, progress={"current": 1})
            if after == "ActivityRetryScheduled":
                await api.activity("fail", work, failure={"message": "no"})
        before = await api.history()
        assert before[-1]["event_type"] == after
        assert sql(api, "update task set state = 'completed'") == 1
        for entry in list(api.server.engine.cache):
            api.server.engine.discard_cached(entry)
        await settle()
        assert await api.poll() is None, "the workflow is not woken"
        found = await detail(api)
        assert (found["wait_kind"], found["status"]) == ("activity", "waiting")
        (activity,) = found["activities"]
        assert (activity["result"], activity["closed_at"]) == (None, None)
        assert await api.history() == before
