"""Worker sessions: activities of several steps go to one worker, for as long as it holds the session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from .kit import ME, Api, parked, serving, settle

OTHER = "worker-2"


def step(session_id: str = "gpu", **options: Any) -> dict[str, Any]:
    return {
        "type": "schedule_activity",
        "activity_type": "charge",
        "worker_session": {"session_id": session_id, **options},
    }


async def scheduled(api: Api, *steps: dict[str, Any], workflow_id: str = "o-1") -> None:
    await api.start(workflow_id)
    await api.complete(await api.poll(), *steps)


async def two_workers(api: Api) -> None:
    for worker_id in (ME, OTHER):
        await api.register(worker_id, capabilities=["worker_sessions"])


async def create(api: Api, session_id: str = "gpu", worker_id: str = ME, **options: Any) -> httpx.Response:
    return await api.worker("sessions", {"worker_id": worker_id, "session_id": session_id, **options})


async def shown(api: Api, session_id: str = "gpu") -> dict[str, Any]:
    return (await api.control("GET", f"/worker-sessions/{session_id}")).json()


@pytest.mark.contract("PROTO-08", "PROTO-09")
async def test_the_activities_of_a_session_go_to_the_worker_that_had_the_first() -> None:
    async with serving() as api:
        await two_workers(api)
        await scheduled(api, step(max_concurrent_activities=2), step(max_concurrent_activities=2), step("other"))
        first = await api.poll("activity", worker_id=OTHER)
        assert first["worker_session"]["session_id"] == "gpu"
        held = await shown(api)
        assert (held["status"], held["lease_owner"], held["active_activity_count"]) == ("active", OTHER, 1)
        mine = await api.poll("activity")
        assert mine["worker_session"]["session_id"] == "other", "the rest of the session is not for this worker"
        assert await api.poll("activity") is None
        assert (await api.poll("activity", worker_id=OTHER))["worker_session"]["session_id"] == "gpu"


async def test_a_session_runs_as_many_activities_at_once_as_it_says() -> None:
    async with serving() as api:
        await two_workers(api)
        await scheduled(api, step(), step())
        first = await api.poll("activity")
        assert await api.poll("activity") is None, "one at a time, unless it says otherwise"
        assert (await shown(api))["waiting_activity_count"] == 1
        waiting = asyncio.create_task(api.poll("activity", timeout_seconds=30))
        await parked(api)
        await api.activity("complete", first)
        assert (await waiting)["activity_execution_id"] != first["activity_execution_id"]


@pytest.mark.contract("PROTO-08")
async def test_sessions_are_created_renewed_and_closed() -> None:
    async with serving() as api:
        await two_workers(api)
        described = (await api.control("GET", "/cluster/info")).json()["worker_protocol"]["server_capabilities"]
        assert described["worker_session_verbs"] == ["create", "heartbeat", "close"]
        assert set(described["worker_sessions"]["terminal_statuses"]) == {"closed", "expired", "failed", "orphaned"}
        assert "lease_seconds" in described["worker_sessions"]["activity_command_fields"]
        made = await create(api, lease_seconds=60)
        assert (made.status_code, made.json()["outcome"], made.json()["admitted"]) == (201, "created", True)
        assert (await create(api)).json()["outcome"] == "reused"
        taken = await create(api, worker_id=OTHER)
        assert (taken.status_code, taken.json()["reason"]) == (409, "session_owned_by_another_worker")
        await api.world.advance(100)
        renewed = (await api.worker("sessions/gpu/heartbeat", {"worker_id": ME, "lease_seconds": 60})).json()
        assert (renewed["outcome"], renewed["status"]) == ("heartbeat_recorded", "active")
        stranger = await api.worker("sessions/gpu/heartbeat", {"worker_id": OTHER})
        assert (stranger.status_code, stranger.json()["reason"]) == (409, "session_owner_mismatch")
        missing = await api.worker("sessions/none/heartbeat", {"worker_id": ME})
        assert (missing.status_code, missing.json()["reason"]) == (404, "session_not_found")
        unknown = await create(api, worker_id="nobody")
        assert (unknown.status_code, unknown.json()["reason"]) == (412, "worker_not_registered")
        closed = (await api.worker("sessions/gpu", {"worker_id": ME, "reason": "done"}, "DELETE")).json()
        assert (closed["outcome"], closed["session"]["status"]) == ("closed", "closed")
        again = (await api.worker("sessions/gpu", {"worker_id": ME}, "DELETE")).json()
        assert (again["outcome"], again["session"]["close_reason"]) == ("already_closed", "done")
        final = await create(api)
        assert (final.status_code, final.json()["reason"]) == (409, "session_closed")
        late = await api.worker("sessions/gpu/heartbeat", {"worker_id": ME})
        assert late.json()["reason"] == "session_not_active"
        listed = (await api.control("GET", "/worker-sessions?status=closed")).json()
        assert [session["session_id"] for session in listed["worker_sessions"]] == ["gpu"]
        assert (await api.control("GET", "/worker-sessions?status=active")).json()["worker_sessions"] == []


async def test_a_worker_must_meet_the_requirements_of_a_session_and_holds_a_bounded_number() -> None:
    async with serving() as api:
        await api.register(capabilities=["gpu:l4"], max_concurrent_worker_sessions=1)
        await api.register(OTHER)
        refused = await create(api, worker_id=OTHER, requirements=["gpu:l4", "disk"])
        assert refused.json()["reason"] == "session_requirements_not_met"
        assert refused.json()["missing_requirements"] == ["disk", "gpu:l4"]
        assert (await create(api, requirements=["gpu:l4"])).status_code == 201
        full = await create(api, "second", requirements=["gpu:l4"])
        assert (full.status_code, full.json()["reason"]) == (409, "worker_session_limit_exceeded")
        elsewhere = await create(api, "third", queue="far")
        assert elsewhere.json()["reason"] == "session_queue_mismatch"
        await scheduled(api, step("fourth", requirements=["gpu:l4"]))
        assert await api.poll("activity", worker_id=OTHER) is None, "it cannot do that"
        assert await api.poll("activity") is None, "and this one has no room"
        await api.worker("sessions/gpu", {"worker_id": ME}, "DELETE")
        assert (await api.poll("activity"))["worker_session"]["session_id"] == "fourth"


@pytest.mark.contract("PROTO-08", "PROTO-09")
@pytest.mark.parametrize("gone", ["lease", "worker"])
async def test_when_its_worker_is_gone_another_takes_the_session_over(gone: str) -> None:
    async with serving() as api:
        await two_workers(api)
        await scheduled(api, step(), step())
        first = await api.poll("activity")
        waiting = asyncio.create_task(api.poll("activity", worker_id=OTHER, timeout_seconds=60))
        await parked(api)
        await settle()
        assert not waiting.done(), "the session has its worker"
        if gone == "worker":
            await api.worker(f"registrations/{ME}", method="DELETE")
        else:
            await api.activity("complete", first)
            await api.world.advance(61)
            assert await waiting is None
            waiting = asyncio.create_task(api.poll("activity", worker_id=OTHER, timeout_seconds=60))
            await parked(api)
            await api.world.advance(58)
            assert not waiting.done()
            await api.world.advance(1.5)  # 120 seconds since the session had its last activity
        taken = await waiting
        assert taken["worker_session"]["session_id"] == "gpu"
        now = await shown(api)
        assert (now["status"], now["lease_owner"]) == ("active", OTHER)
        # From here on everything of the session goes there, also if the first worker is back.
        await api.activity("complete", taken)
        await api.register(ME)
        assert await api.poll("activity", worker_id=ME) is None or gone == "worker"


async def test_a_session_that_forbids_it_is_not_taken_over_and_says_why() -> None:
    async with serving() as api:
        await two_workers(api)
        await create(api, allow_reacquire_after_failure=False)
        await scheduled(api, step())
        await api.worker(f"registrations/{ME}", method="DELETE")
        assert await api.poll("activity", worker_id=OTHER) is None
        lost = await shown(api)
        assert (lost["status"], lost["failure_reason"], lost["waiting_activity_count"]) == (
            "orphaned",
            "worker_heartbeat_stale",
            1,
        )
        refused = await create(api, worker_id=OTHER)
        assert refused.json()["reason"] == "session_reacquire_disallowed"


async def test_activity_heartbeats_renew_the_session_until_its_time_is_over() -> None:
    async with serving(worker_stale_after_seconds=10_000) as api:
        await two_workers(api)
        await scheduled(api, step(ttl_seconds=300))
        first = await api.poll("activity")
        for _ in range(2):
            await api.world.advance(100)
            assert (await api.activity("heartbeat", first)).json()["can_continue"] is True
            assert (await shown(api))["status"] == "active"
        await api.world.advance(101)
        assert ((await shown(api))["status"], (await shown(api))["failure_reason"]) == ("expired", "ttl_expired")


async def test_sessions_survive_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'sessions.db'}"
    async with serving(store=store, still=False) as api:
        await two_workers(api)
        await create(api)
        await scheduled(api, step("lazy"))
        assert (await api.poll("activity"))["worker_session"]["session_id"] == "lazy"
    async with serving(store=store, still=False) as api:
        assert {s["session_id"] for s in (await api.control("GET", "/worker-sessions")).json()["worker_sessions"]} == {
            "gpu",
            "lazy",
        }
        assert (await create(api, worker_id=OTHER)).json()["reason"] == "session_owned_by_another_worker"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"session_id": ""}, "worker_session.session_id"),
        ({"session_id": "s", "lease_seconds": 0}, "worker_session.lease_seconds"),
        ({"session_id": "s", "requirements": ["a", "a"]}, "worker_session.requirements"),
    ],
)
async def test_a_wrong_session_refuses_the_completion(options: dict[str, Any], field: str) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        task = await api.poll()
        wrong = await api.complete(
            task, {"type": "schedule_activity", "activity_type": "charge", "worker_session": options}
        )
        assert (wrong.status_code, wrong.json()["reason"]) == (422, "invalid_worker_session")
        assert field in wrong.json()["field"]
        assert await api.types() == ["StartAccepted", "WorkflowStarted"]
