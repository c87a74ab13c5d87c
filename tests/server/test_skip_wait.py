"""Skip wait over HTTP: what can be skipped says so, the command is on record, and everything else is refused."""

from __future__ import annotations

from typing import Any

import httpx

from .kit import Api, serving

TIMER = {"type": "start_timer", "delay_seconds": 3600}
WAIT = {"type": "open_condition_wait", "condition_key": "paid", "timeout_seconds": 3600}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}


async def waiting(api: Api, *commands: dict[str, Any], id: str = "o-1") -> str:
    await api.register()
    started = await api.start(id)
    await api.complete(await api.poll(), *commands)
    return started["run_id"]


async def skip(api: Api, path: str = "", id: str = "o-1", **body: Any) -> httpx.Response:
    return await api.control("POST", f"/workflows/{id}{path}/skip-wait", body)


async def test_a_timer_is_skipped_once_with_who_and_why() -> None:
    async with serving() as api:
        run = await waiting(api, TIMER)
        dry = (await api.control("POST", "/workflows/o-1/skip-wait?dry_run=1", {})).json()
        assert [event["event_type"] for event in dry["would_write"]["events"]][:2] == ["WaitSkipped", "TimerFired"]
        assert "WaitSkipped" not in await api.types()
        done = await skip(api, f"/waits/{run}-t1", reason="she called", request_id="r1")
        said = done.json()
        assert (done.status_code, said["outcome"], said["wait_id"]) == (200, "wait_skipped", f"{run}-t1")
        again = (await skip(api, f"/waits/{run}-t1", reason="she called", request_id="r1")).json()
        assert (again["retained"], again["command_id"]) == (True, said["command_id"])
        event = next(one for one in await api.history() if one["event_type"] == "WaitSkipped")
        assert (event["payload"]["reason"], event["workflow_command_id"]) == ("she called", said["command_id"])
        entry = (await api.control("GET", "/audit?command_type=skip_wait")).json()["entries"][0]
        assert (entry["workflow_id"], entry["outcome"]) == ("o-1", "wait_skipped")
        assert (await api.poll())["workflow_id"] == "o-1", "its code goes on"


async def test_the_detail_says_what_can_be_skipped() -> None:
    async with serving() as api:
        run = await waiting(api, TIMER, WAIT, CHARGE)
        detail = (await api.control("GET", "/workflows/o-1/detail")).json()
        assert (detail["actions"]["can_skip"], detail["actions"]["skip_blocked_reason"]) == (False, "wait_ambiguous")
        assert {(wait["kind"], wait["can_skip"], wait["skip_blocked_reason"]) for wait in detail["waits"]} == {
            ("timer", True, None),
            ("condition", True, None),
            ("activity", False, "wait_not_timed"),
        }
        assert [timer["can_skip"] for timer in detail["timers"]] == [True, True]
        await skip(api, f"/waits/{run}-t1")
        waits = (await api.control("GET", "/workflows/o-1/waits")).json()["waits"]
        (ended,) = [wait for wait in waits if wait["kind"] == "timer"]
        assert (ended["can_skip"], ended["skip_blocked_reason"]) == (False, "wait_not_open")
        actions = (await api.control("GET", "/workflows/o-1/detail")).json()["actions"]
        assert (actions["can_skip"], actions["skip_blocked_reason"]) == (True, None)


async def test_what_cannot_be_skipped_is_refused_and_says_why() -> None:
    async with serving() as api:
        run = await waiting(api, TIMER, TIMER, CHARGE)
        several = await skip(api)
        said = several.json()
        assert (several.status_code, said["reason"], said["field"]) == (409, "wait_ambiguous", "wait_id")
        assert said["validation_errors"] == {"wait_id": [f"{run}-t1", f"{run}-t2"]}
        for wait_id, status, reason in [
            (f"{run}-3", 409, "wait_not_timed"),
            (f"{run}-t9", 404, "wait_not_found"),
            ("elsewhere", 404, "wait_not_found"),
        ]:
            refused = await skip(api, wait_id=wait_id)
            assert (refused.status_code, refused.json()["reason"]) == (status, reason), refused.text
        before = await api.types()
        assert "WaitSkipped" not in before
        await api.control("POST", "/namespaces", {"name": "other"})
        other = await api.control("POST", "/workflows/o-1/skip-wait", {}, headers={"X-Namespace": "other"})
        assert (other.status_code, other.json()["reason"]) == (404, "instance_not_found")
        viewer = (await api.control("POST", "/tokens", {"role": "viewer"})).json()["token"]
        assert (await api.control("POST", "/workflows/o-1/skip-wait", {}, token=viewer)).status_code == 403


async def test_many_runs_are_skipped_at_once() -> None:
    async with serving() as api:
        for id in ("o-1", "o-2"):
            await waiting(api, TIMER, id=id)
        await waiting(api, TIMER, TIMER, id="o-3")
        body = {"action": "skip_wait", "ids": ["o-1", "o-2", "o-3"], "reason": "spring"}
        begun = (await api.control("POST", "/bulk", body)).json()
        path = f"/bulk/{begun['bulk_id']}"
        while (found := (await api.control("GET", path)).json())["ended_at"] is None:
            pass
        assert found["outcomes"] == {"wait_skipped": 2, "rejected": 1}
        assert found["reasons"] == {"wait_ambiguous": 1}
