"""Retry now over HTTP: the backoff of an activity ends, the command is on record, and everything else is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .kit import Api, serving, settle

RETRY = {"max_attempts": 21, "backoff_seconds": [3600]}
CHARGE = {"type": "schedule_activity", "activity_type": "charge", "retry_policy": RETRY}


async def backing_off(api: Api) -> str:
    """A run whose activity failed once and waits an hour. Returns the id of the execution."""
    await api.register()
    await api.start()
    await api.complete(await api.poll(), CHARGE)
    task = await api.poll("activity")
    failed = await api.activity("fail", task, failure={"message": "the bank did not answer", "type": "Timeout"})
    assert failed.status_code == 200, failed.text
    return next(e for e in await api.history() if e["event_type"] == "ActivityScheduled")["payload"][
        "activity_execution_id"
    ]


async def retry(api: Api, path: str, **body: Any) -> httpx.Response:
    return await api.control("POST", f"/workflows/o-1{path}/retry-now", body)


async def test_the_next_attempt_is_handed_out_at_once() -> None:
    async with serving() as api:
        execution = await backing_off(api)
        assert await api.poll("activity", timeout_seconds=0) is None
        done = await retry(api, f"/activities/{execution}", reason="the bank is back", request_id="r1")
        said = done.json()
        assert (done.status_code, said["outcome"], said["command_status"]) == (200, "retry_dispatched", "accepted")
        assert (said["activity_execution_id"], said["target_scope"]) == (execution, "instance")
        again = await retry(api, f"/activities/{execution}", reason="the bank is back", request_id="r1")
        assert (again.json()["retained"], again.json()["command_id"]) == (True, said["command_id"])
        task = await api.poll("activity")
        assert task["attempt_number"] == 2
        assert (await api.types()).count("ActivityRetryRequested") == 1
        assert (await api.activity("complete", task)).status_code == 200


async def test_the_command_is_recorded_with_its_caller() -> None:
    async with serving() as api:
        execution = await backing_off(api)
        run_id = (await api.describe())["run_id"]
        await retry(api, f"/runs/{run_id}/activities/{execution}", reason="why not")
        export = (await api.control("GET", f"/workflows/o-1/runs/{run_id}/history/export")).json()
        (command,) = [one for one in export["commands"] if one["command_type"] == "retry_now"]
        assert (command["status"], command["outcome"], command["source"]) == ("accepted", "retry_dispatched", "http")
        route = f"/api/workflows/o-1/runs/{run_id}/activities/{execution}/retry-now"
        assert command["context"]["request"]["route"] == route


async def test_all_activities_of_a_run_and_a_restart_in_between(tmp_path: Any) -> None:
    async with serving(store=f"sqlite:{tmp_path / 'shop.db'}") as api:
        await backing_off(api)
        assert (await retry(api, "")).json()["outcome"] == "retry_dispatched"
    async with serving(store=f"sqlite:{tmp_path / 'shop.db'}") as api:
        await settle()
        assert (await api.poll("activity"))["attempt_number"] == 2, "that it is due is in the history"


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ("running", 409, "activity_running"),
        ("closed", 409, "activity_not_open"),
        ("unknown", 404, "activity_not_found"),
        ("no run", 404, "instance_not_found"),
        ("none", 409, "no_activity_backs_off"),
        ("run closed", 409, "run_not_active"),
    ],
)
async def test_what_does_not_back_off_is_refused_and_says_why(state: str, status: int, reason: str) -> None:
    async with serving() as api:
        execution = await backing_off(api)
        path = f"/activities/{execution}"
        if state in ("running", "closed", "none"):
            await retry(api, path)
            task = await api.poll("activity")
            if state == "closed":
                await api.activity("complete", task)
        if state == "run closed":
            await api.control("POST", "/workflows/o-1/terminate", {})
        before = len(await api.history()) if state != "no run" else 0
        if state == "no run":
            refused = await api.control("POST", f"/workflows/o-2{path}/retry-now", {})
        else:
            refused = await retry(api, {"unknown": "/activities/x-1", "none": ""}.get(state, path))
        said = refused.json()
        assert (refused.status_code, said["reason"]) == (status, reason), said
        assert said["message"]
        if state != "no run":
            assert len(await api.history()) == before
