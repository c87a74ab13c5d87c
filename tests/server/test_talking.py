"""Signals, updates, queries and the operator's commands over HTTP, with a worker played by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from backstay.protocol.commands import QueryWorkflow
from backstay.protocol.history import iso

from .kit import ME, TOKEN, Api, blob, detail, serving, settle, until, value

DONE = {"type": "complete_workflow"}
WAIT = {"type": "open_condition_wait", "condition_key": "paid", "condition_definition_fingerprint": "sha256:1"}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
AMOUNT = {"name": "amount", "required": True, "type": "int", "allows_null": False}
CONTRACT = {
    "signals": ["pay"],
    "signal_contracts": [{"name": "pay", "parameters": [AMOUNT]}],
    "queries": ["state"],
    "query_contracts": [{"name": "state", "parameters": []}],
    "updates": ["rename", "check"],
    "update_contracts": [
        {"name": "rename", "parameters": [{"name": "name", "required": True, "type": "string"}]},
        {"name": "check", "parameters": []},
    ],
    "update_validators": ["check"],
}


async def running(api: Api, *commands: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run whose first task has been completed with these commands."""
    await api.register(workflow_command_contracts={"order": CONTRACT}, **more)
    started = await api.start()
    assert (await api.complete(await api.poll(), *(commands or (WAIT,)))).status_code == 200
    return started


async def test_a_query_waits_for_code_that_goes_on_though_its_workers_were_lost() -> None:
    """Twice in a row: then the code pauses for some seconds, and has not had the signal."""
    async with serving() as api:
        await running(api, CHARGE)
        assert (await post(api, "signal/pay", {"input": [1]})).status_code == 202
        for _ in range(2):
            assert await api.poll() is not None
            (lost,) = api.server.engine.leases
            api.server.release(lost)
            await api.server.engine.commits.settle()
        asked = asyncio.ensure_future(
            api.server.api.call(QueryWorkflow(workflow_id="o-1", query_name="state", after_signals=True))
        )
        await settle()
        assert not api.server.questions.waiting
        await api.world.advance(4)
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 60})
        await until(lambda: api.server.questions.waiting)
        asked.cancel()


async def post(api: Api, path: str, body: Any = None, workflow: str = "o-1") -> httpx.Response:
    return await api.control("POST", f"/workflows/{workflow}/{path}", {} if body is None else body)


# -- signals


@pytest.mark.contract("RESUME-05", "RESUME-07", "RESUME-09", "CODEC-12")
async def test_a_signal_wakes_the_run_and_says_so() -> None:
    async with serving() as api:
        await running(api)
        sent = await post(api, "signal/pay", {"input": blob([5])})
        body = sent.json()
        assert (sent.status_code, body["outcome"], body["command_status"]) == (202, "signal_received", "accepted")
        assert (body["signal_name"], body["control_plane"]["operation_name"]) == ("pay", "pay")
        task = await api.poll()
        assert (task["workflow_wait_kind"], task["signal_name"]) == ("signal", "pay")
        assert (task["workflow_command_id"], task["workflow_signal_id"]) == (body["command_id"], body["signal_id"])
        assert (task["resume_source_kind"], task["open_wait_id"]) == (
            "workflow_signal",
            f"signal-application:{body['signal_id']}",
        )
        received = next(e for e in task["history_events"] if e["event_type"] == "SignalReceived")["payload"]
        assert (received["arguments"], received["payload_codec"]) == (blob([5])["blob"], "avro")
        await api.complete(task, WAIT)
        types = await api.types()
        assert types.count("ConditionWaitOpened") == 1, "the same wait sent again is the open one"
        assert "ConditionWaitSatisfied" not in types
        await post(api, "signal/pay", {"input": [6]})
        await api.complete(await api.poll(), DONE)
        assert (await api.types())[-3:] == ["SignalApplied", "ConditionWaitSatisfied", "WorkflowCompleted"] or (
            "ConditionWaitSatisfied" in await api.types()
        )


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("signal/pai", {}, 404, "unknown_signal"),
        ("signal/pay", {}, 422, "invalid_signal_arguments"),
        ("signal/pay", {"input": ["five"]}, 422, "invalid_signal_arguments"),
        ("signal/pay", {"input": [1, 2]}, 422, "invalid_signal_arguments"),
        ("signal/pay", {"input": {"price": 1}}, 422, "invalid_signal_arguments"),
        ("signal/pay", {"input": "text"}, 422, "invalid_payload"),
        ("signal/pay", {"input": {"codec": "json", "blob": ""}}, 422, "unsupported_payload_codec"),
        ("signal/pay", {"input": [1], "request_id": ""}, 422, "validation_failed"),
        ("update/nothing", {}, 409, "update_rejected"),
        ("update/rename", {"input": [1]}, 422, "invalid_update_arguments"),
        ("update/rename", {"wait_for": "forever"}, 422, "validation_failed"),
        ("update/rename", {"wait_policy": "completed"}, 422, "validation_failed"),
        ("query/nothing", {}, 404, "query_not_found"),
        ("query/state", {"input": [1]}, 422, "invalid_query_arguments"),
        ("cancel", {"reason": "x" * 1001}, 422, "validation_failed"),
        ("archive", {}, 409, "run_not_closed"),
    ],
)
async def test_a_command_outside_of_the_declared_contract_is_refused(
    path: str, body: Any, status: int, reason: str
) -> None:
    async with serving() as api:
        await running(api)
        answer = await post(api, path, body)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        said = answer.json()["message"]
        assert said
        assert ("did you mean 'pay'?" in said) == (path == "signal/pai"), said
        assert ("cancel or terminate it first" in said) == (path == "archive"), said
        assert await api.poll() is None, "nothing woke the run"


BOTH_PLANES = {"api": "/api/workflows/o-1", "webhook": "/webhooks/instances/o-1"}


@pytest.mark.contract("DECL-03", "SIG-01", "SIG-04", "SIG-05", "UPD-15", "UPD-16")
@pytest.mark.parametrize("plane", BOTH_PLANES)
@pytest.mark.parametrize("around", ["no worker", "a worker with another contract"])
async def test_arguments_are_checked_by_the_snapshot_of_the_run_with_every_connection(plane: str, around: str) -> None:
    async with serving() as api:
        await running(api)
        await api.worker(f"registrations/{ME}", method="DELETE")
        if around != "no worker":
            free = {"signals": ["pay", "other"], "updates": ["rename"], "queries": []}
            await api.register(workflow_command_contracts={"order": free})
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
        signals, updates = ("signal", "update") if plane == "api" else ("signals", "updates")
        for path, given, status, reason, named in (
            (f"{signals}/pay", {}, 422, "invalid_signal_arguments", "amount"),
            (f"{signals}/pay", {"input": ["five"]}, 422, "invalid_signal_arguments", "amount"),
            (f"{signals}/pay", {"input": [None]}, 422, "invalid_signal_arguments", "amount"),
            (f"{signals}/pay", {"input": [1, 2]}, 422, "invalid_signal_arguments", None),
            (f"{signals}/pay", {"arguments": {"prise": 1}}, 422, "invalid_signal_arguments", None),
            (f"{signals}/pay", {"arguments": {"amount": "five"}}, 422, "invalid_signal_arguments", "amount"),
            (f"{signals}/other", {}, 404, "unknown_signal", None),
            (f"{updates}/rename", {"input": [1]}, 422, "invalid_update_arguments", None),
        ):
            answer = await api.http.post(f"{BOTH_PLANES[plane]}/{path}", json=given, headers=headers)
            said = answer.json()
            assert (answer.status_code, said["reason"]) == (status, reason), (path, given, said)
            recorded = (await detail(api))["commands"][-1]
            assert (recorded["status"], recorded["id"]) == ("rejected", said["command_id"])
            assert bool(recorded["validation_errors"]) == (status == 422)
            assert named is None or named in recorded["validation_errors"], recorded["validation_errors"]
        assert "SignalReceived" not in await api.types()
        taken = await api.http.post(
            f"{BOTH_PLANES[plane]}/{signals}/pay", json={"arguments": {"amount": 7}}, headers=headers
        )
        assert (taken.status_code, taken.json()["outcome"]) == (202, "signal_received")


@pytest.mark.contract("UPD-17", "QRY-16")
@pytest.mark.parametrize("plane", BOTH_PLANES)
async def test_an_update_of_a_run_whose_class_no_live_worker_has_is_rejected_on_record(plane: str) -> None:
    async with serving() as api:
        await running(api)
        await api.worker(f"registrations/{ME}", method="DELETE")
        await api.register("stranger", supported_workflow_types=["other"], workflow_command_contracts={})
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
        verb = "update" if plane == "api" else "updates"
        answer = await api.http.post(
            f"{BOTH_PLANES[plane]}/{verb}/rename", json={"input": ["x"], "wait_for": "accepted"}, headers=headers
        )
        said = answer.json()
        assert (answer.status_code, said["outcome"], said["rejection_reason"]) == (
            409,
            "rejected_workflow_definition_unavailable",
            "workflow_definition_unavailable",
        )
        found = await detail(api)
        assert (found["can_update"], found["update_blocked_reason"]) == (False, "workflow_definition_unavailable")
        (update,) = found["updates"]
        assert (update["status"], update["rejection_reason"]) == ("rejected", "workflow_definition_unavailable")
        assert "rename" in found["declared_updates"], "the run declares it all the same"
        await api.register()
        again = await api.http.post(
            f"{BOTH_PLANES[plane]}/{verb}/rename", json={"input": ["x"], "wait_for": "accepted"}, headers=headers
        )
        assert again.status_code == 202, "the class is back"


@pytest.mark.contract("CMD-13", "UPD-08", "UPD-11")
async def test_a_failed_update_keeps_what_its_worker_said_and_a_lookup_says_that_it_is_one() -> None:
    async with serving() as api:
        await running(api)
        update_id = (await post(api, "update/rename", {"input": ["b"]})).json()["update_id"]
        path = f"/workflows/o-1/updates/{update_id}"
        looked = (await api.control("GET", path)).json()
        assert (looked["wait_for"], looked["update_status"], looked["update_id"]) == ("status", "accepted", update_id)
        fields = {"message": "taken", "exception_class": "shop:Taken", "exception_type": "E", "non_retryable": True}
        task = await api.poll()
        whole = {"type": "fail_update", "update_id": update_id, **fields}
        for missing in ("update_id", "message"):
            refused = await api.complete(task, {name: whole[name] for name in whole if name != missing})
            assert refused.status_code == 422, missing
        assert (await api.complete(task, whole)).status_code == 200
        found = await detail(api)
        (update,) = found["updates"]
        assert (update["status"], update["failure_message"], update["update_id"]) == ("failed", "taken", update_id)
        assert update["update_id"] != update["command_id"]
        (failure,) = found["exceptions"]
        assert {name: failure[name] for name in fields} == fields
        assert (failure["source_kind"], failure["source_id"]) == ("workflow_update", update_id)
        looked = (await api.control("GET", path)).json()
        assert (looked["wait_for"], looked["update_status"]) == ("status", "failed")


@pytest.mark.contract("UPD-06", "UPD-07")
async def test_an_update_waits_for_its_end_on_webhooks_and_for_acceptance_elsewhere() -> None:
    async with serving() as api:
        await running(api)
        for path in ("/api/workflows/o-1/update/rename", "/webhooks/instances/o-1/updates/rename"):
            headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
            for wrong in ("status", "never", ""):
                refused = await api.http.post(path, json={"input": ["a"], "wait_for": wrong}, headers=headers)
                assert (refused.status_code, refused.json()["field"]) == (422, "wait_for"), refused.text
        accepted = (await post(api, "update/rename", {"input": ["a"]})).json()
        assert (accepted["wait_for"], accepted["update_status"]) == ("accepted", "accepted")
        hooked = asyncio.create_task(
            api.http.post("/webhooks/instances/o-1/updates/rename", json={"input": ["b"]}, headers=headers)
        )
        for answer in ("a", "b"):
            task = None
            while task is None:
                task = await api.poll()
                if task is not None and task["workflow_update_id"] is None:
                    await api.complete(task, WAIT)
                    task = None
            done = {"type": "complete_update", "update_id": task["workflow_update_id"], "result": blob(answer)}
            await api.complete(task, done)
        ended = (await hooked).json()
        assert (ended["wait_for"], ended["update_status"], ended["result"]) == ("completed", "completed", "b")


async def test_a_request_id_makes_a_retry_harmless_and_a_lie_visible() -> None:
    async with serving() as api:
        await running(api)
        first = (await post(api, "signal/pay", {"input": [1], "request_id": "r"})).json()
        again = (await post(api, "signal/pay", {"input": [1], "request_id": "r"})).json()
        assert (again["command_id"], again["retained"], again["intent_verified"]) == (first["command_id"], True, True)
        assert (await api.types()).count("SignalReceived") == 1
        other = await post(api, "signal/pay", {"input": [2], "request_id": "r"})
        assert (other.status_code, other.json()["reason"]) == (409, "request_id_conflict")
        assert other.json()["retained_command_type"] == "signal"


@pytest.mark.contract("START-10", "START-11", "HOOK-01")
async def test_a_signal_can_bring_its_own_start() -> None:
    async with serving() as api:
        await api.register(workflow_command_contracts={"order": CONTRACT})
        body = {"workflow_type": "order", "task_queue": "q", "input": ["book"], "signal_input": [5]}
        for outcome in ("started_new", "returned_existing_active"):
            answer = await api.control("POST", "/workflows/s-1/signal-with-start/pay", body)
            assert (answer.status_code, answer.json()["start_outcome"]) == (202, outcome), answer.text
        types = await api.types("s-1")
        assert types.index("SignalReceived") < len(types)
        assert types.count("SignalReceived") == 2
        assert not [t for t in types if t.startswith("Activity")]


# -- updates


@pytest.mark.contract("CMD-12", "CMD-13", "RESUME-06")
async def test_an_update_is_accepted_applied_and_answered() -> None:
    async with serving() as api:
        await running(api)
        accepted = await post(api, "update/rename", {"input": ["a"]})
        body = accepted.json()
        assert (accepted.status_code, body["update_status"], body["wait_timed_out"]) == (202, "accepted", False)
        task = await api.poll()
        assert (task["workflow_wait_kind"], task["workflow_update_id"]) == ("update", body["update_id"])
        assert task["open_wait_id"] == f"update:{body['update_id']}"
        waiting = asyncio.create_task(
            api.control("GET", f"/workflows/o-1/updates/{body['update_id']}?wait_timeout_seconds=60")
        )
        await settle()
        done = {"type": "complete_update", "update_id": body["update_id"], "result": blob({"name": "a"})}
        await api.complete(task, done)
        found = await waiting
        assert (found.status_code, found.json()["update_status"], found.json()["result"]) == (
            200,
            "completed",
            {"name": "a"},
        )
        await api.complete(await api.poll(), WAIT)  # the ordinary task behind it
        failing = asyncio.create_task(post(api, "update/rename", {"input": ["b"], "wait_for": "completed"}))
        await until(lambda: bool(api.server.engine.matching.lanes.waiting_since()))
        task = await api.poll()
        wrong = {
            "type": "fail_update",
            "update_id": task["workflow_update_id"],
            "message": "taken",
            "exception_type": "E",
        }
        await api.complete(task, wrong)
        failed = await failing
        assert (failed.status_code, failed.json()["update_status"]) == (422, "failed")
        assert (failed.json()["failure_message"], failed.json()["exception_type"]) == ("taken", "E")


@pytest.mark.contract("HOOK-03")
async def test_an_update_is_found_under_the_runs_that_had_it_and_under_no_other() -> None:
    async with serving() as api:
        first = (await running(api))["run_id"]
        update = (await post(api, "update/rename", {"input": ["a"]})).json()["update_id"]
        headers = {"Authorization": f"Bearer {TOKEN}"}

        async def found(run_id: str, update_id: str = update, status: int = 202) -> list[Any]:
            hook = f"/webhooks/instances/o-1/runs/{run_id}/updates/{update_id}"
            answers = [
                await api.control("GET", f"/workflows/o-1/runs/{run_id}/updates/{update_id}"),
                await api.http.get(hook, headers=headers),
            ]
            assert [answer.status_code for answer in answers] == [status, status]
            return [answer.json() for answer in answers]

        assert {answer["update_status"] for answer in await found(first)} == {"accepted"}
        apart = await api.poll()
        await api.complete(apart, {"type": "complete_update", "update_id": update, "result": blob("ok")})
        again = (await post(api, "update/rename", {"input": ["b"]})).json()["update_id"]
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        second = (await api.describe())["run_id"]
        for answer in await found(first, status=200):
            assert (answer["update_status"], answer["result"], answer["wait_for"]) == ("completed", "ok", "status")
        for run_id in (first, second):
            assert {answer["update_status"] for answer in await found(run_id, again)} == {"accepted"}, "carried along"
        for answer in await found(second, status=404):
            assert answer["reason"] == "update_not_found"
        for answer in await found("01JUNKNOWN", status=404):
            assert answer["reason"] == "run_not_found"


@pytest.mark.contract("UPD-09")
@pytest.mark.parametrize(
    ("asked", "seconds"), [({}, 2), ({"wait_timeout_seconds": 3}, 3), ({"wait_timeout_seconds": 1e9}, 60)]
)
async def test_an_update_that_takes_too_long_answers_where_it_stands(asked: dict[str, Any], seconds: float) -> None:
    async with serving(update_wait_completion_timeout_seconds=2) as api:
        await running(api)
        body = {"input": ["a"], "wait_for": "completed"} | asked
        waiting = asyncio.create_task(post(api, "update/rename", body))
        while not waiting.done():
            await api.world.advance(0.1)
        answer = await waiting
        assert answer.json()["wait_timeout_seconds"] == seconds
        assert (answer.status_code, answer.json()["update_status"], answer.json()["wait_timed_out"]) == (
            202,
            "accepted",
            True,
        )


async def test_a_server_that_drains_answers_calls_that_wait_for_a_worker() -> None:
    """The clock stands still: no time is over. What was accepted is said to be, so that nobody asks for it twice."""
    async with serving() as api:
        await running(api)
        waiting = asyncio.create_task(post(api, "update/rename", {"input": ["a"], "wait_for": "completed"}))
        while "UpdateAccepted" not in await api.types():
            pass
        asked = asyncio.create_task(post(api, "query/state"))
        await until(lambda: api.server.questions.waiting)
        api.server.drain()
        answer = (await waiting).json()
        assert (answer["update_status"], answer["wait_timed_out"]) == ("accepted", True)
        for refused in (await asked, await post(api, "query/state")):
            assert (refused.status_code, refused.json()["reason"]) == (503, "server_draining")
            assert refused.headers["retry-after"] == "1"


async def test_a_validator_is_asked_before_an_update_is_accepted() -> None:
    async with serving() as api:
        await running(api)
        for before, (verdict, status) in enumerate((("approve", 202), ("reject", 422))):
            asked = asyncio.create_task(post(api, "update/check", {}))
            poll = {
                "worker_id": ME,
                "task_queue": "q",
                "timeout_seconds": 30,
                "task_kinds": ["workflow", "update_validation"],
            }
            task = (await api.worker("workflow-tasks/poll", poll)).json()["task"]
            assert (task["task_kind"], task["update_name"]) == ("update_validation", "check")
            assert [e["event_type"] for e in task["history_events"]].count("UpdateAccepted") == before
            body: dict[str, Any] = {"lease_owner": ME, "update_validation_attempt": 1}
            if verdict == "reject":
                body["failure"] = {"message": "not now", "reason": "update_validator_rejected"}
            path = f"update-validation-tasks/{task['update_validation_task_id']}/{verdict}"
            assert (await api.worker(path, body)).status_code == 200
            answer = await asked
            assert answer.status_code == status, answer.text
            if verdict == "approve":
                applied = await api.poll()
                await api.complete(applied, {"type": "complete_update", "update_id": applied["workflow_update_id"]})
                await api.complete(await api.poll(), WAIT)
            else:
                assert answer.json()["reason"] == "update_validator_rejected"
            again = await api.worker(path, body)
            assert (again.status_code, again.json()["reason"]) == (200, "already_recorded")
            other = await api.worker(path, body | {"update_validation_attempt": 2})
            assert (other.status_code, other.json()["reason"]) == (404, "update_validation_task_not_found")


# -- queries


@pytest.mark.contract("QRY-01", "QRY-02", "QRY-04", "QRY-05", "QRY-07", "STREAM-04", "STREAM-07")
async def test_a_query_is_answered_by_a_worker_from_committed_history() -> None:
    async with serving() as api:
        started = await running(api)
        before = await api.types()
        asked = asyncio.create_task(post(api, "query/state"))
        task = await api.poll("query", timeout_seconds=30)
        assert {
            *("query_task_id", "query_task_attempt", "workflow_id", "run_id", "workflow_type", "query_name"),
            *("payload_codec", "workflow_arguments", "query_arguments", "history_events", "task_queue"),
            *("lease_owner", "lease_expires_at"),
        } <= task.keys()
        assert (task["query_task_attempt"], task["workflow_id"], task["workflow_type"]) == (1, "o-1", "order")
        assert (task["task_queue"], task["lease_expires_at"] > iso_of(api)) == ("q", True)
        assert (task["task_type"], task["task_id"], task["lease_owner"]) == ("query", task["query_task_id"], ME)
        assert (task["query_name"], task["run_id"], task["payload_codec"]) == ("state", started["run_id"], "avro")
        assert [e["event_type"] for e in task["history_events"]][-1] == "ConditionWaitOpened"
        assert await api.poll("query") is None, "leased once"
        path = f"query-tasks/{task['query_task_id']}"
        good = {"lease_owner": ME, "query_task_attempt": 1, "result": None, "result_envelope": blob({"n": 1})}
        for change, reason in (
            ({"lease_owner": "thief"}, "lease_owner_mismatch"),
            ({"query_task_attempt": 2}, "query_task_attempt_mismatch"),
        ):
            refused = await api.worker(f"{path}/complete", good | change)
            assert (refused.status_code, refused.json()["reason"]) == (409, reason)
        assert (await api.worker(f"{path}/complete", good)).status_code == 200
        answer = (await asked).json()
        assert (answer["result"], value(answer["result_envelope"])) == ({"n": 1}, {"n": 1})
        assert await api.types() == before
        unknown = await api.worker(f"{path}/heartbeat", good)
        assert unknown.status_code == 404


@pytest.mark.contract("QRY-06", "QRY-08", "QRY-09")
async def test_the_failure_of_a_query_at_its_worker_is_told_to_the_caller() -> None:
    async with serving() as api:
        await running(api)
        for said, status, reason in (
            ("rejected_unknown_query", 404, "rejected_unknown_query"),
            ("query_rejected", 409, "query_rejected"),
            ("query_payload_decode_failed", 409, "query_rejected"),
        ):
            asked = asyncio.create_task(post(api, "query/state"))
            task = await api.poll("query", timeout_seconds=30)
            failure = {"reason": said, "message": "cannot", "type": "QueryFailed"}
            body = {"lease_owner": ME, "query_task_attempt": 1, "failure": failure}
            await api.worker(f"query-tasks/{task['query_task_id']}/fail", body)
            answer = await asked
            assert (answer.status_code, answer.json()["reason"]) == (status, reason)


@pytest.mark.contract("STREAM-13", "QRY-07")
async def test_closing_a_query_task_again_tells_how_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.server.workers.remote_queries.REMEMBERED", 2)
    async with serving() as api:
        await running(api)
        failed = {"failure": {"message": "cannot", "reason": "query_rejected"}}
        closed: list[tuple[str, str]] = []
        for verb, outcome in (("complete", "completed"), ("fail", "failed"), ("complete", "completed")):
            asked = asyncio.create_task(post(api, "query/state"))
            task = await api.poll("query", timeout_seconds=30)
            path = f"query-tasks/{task['task_id']}"
            lease: dict[str, Any] = {"lease_owner": ME, "query_task_attempt": 1}
            first = await api.worker(f"{path}/{verb}", lease | failed)
            assert (first.status_code, first.json()["outcome"], first.json()["reason"]) == (200, outcome, None)
            told = (await asked).json()
            for repeated in ("complete", "fail"):
                again = await api.worker(f"{path}/{repeated}", lease | failed | {"result": "another"})
                assert (again.status_code, again.json()["reason"]) == (200, "already_recorded")
                assert again.json() == first.json() | {"reason": "already_recorded"}
            for stranger in ({"lease_owner": "thief"}, {"query_task_attempt": 2}):
                assert (await api.worker(f"{path}/{verb}", lease | failed | stranger)).status_code == 404
            assert (told.get("result"), told.get("reason")) == (None, None if verb == "complete" else "query_rejected")
            closed.append((path, outcome))
        oldest = await api.worker(f"{closed[0][0]}/complete", lease)
        assert (oldest.status_code, oldest.json()["reason"]) == (404, "query_task_not_found"), "memory is bounded"
        assert (await api.worker(f"{closed[1][0]}/complete", lease)).json()["outcome"] == "failed"


@pytest.mark.contract("QRY-03", "QRY-10", "QRY-11")
async def test_a_query_without_an_answer_ends_with_its_caller() -> None:
    async with serving() as api:
        await running(api)
        asked = asyncio.create_task(post(api, "query/state"))
        task = await api.poll("query", timeout_seconds=30)
        await api.world.advance(11)
        answer = await asked
        assert (answer.status_code, answer.json()["reason"]) == (504, "query_worker_timeout")
        assert await api.poll("query") is None
        body = {"lease_owner": ME, "query_task_attempt": 1, "result": 1}
        late = await api.worker(f"query-tasks/{task['query_task_id']}/complete", body)
        assert late.json()["reason"] == "query_task_not_found"
        await api.worker(f"registrations/{ME}", method="DELETE")
        alone = await post(api, "query/state")
        assert (alone.status_code, alone.json()["reason"]) == (409, "query_worker_unavailable")


@pytest.mark.contract("QRY-12", "QRY-13")
async def test_a_query_sees_what_the_code_has_seen_of_the_run_it_names() -> None:
    async with serving() as api:
        first = await running(api, {"type": "continue_as_new"})
        await api.complete(await api.poll(), WAIT)
        await post(api, "signal/pay", {"input": [1]})
        asked = asyncio.create_task(post(api, "query/state"))
        task = await api.poll("query", timeout_seconds=30)
        assert "SignalReceived" not in [e["event_type"] for e in task["history_events"]], "not applied yet"
        done = {"lease_owner": ME, "query_task_attempt": 1, "result": "now"}
        await api.worker(f"query-tasks/{task['query_task_id']}/complete", done)
        await asked
        earlier = asyncio.create_task(post(api, f"runs/{first['run_id']}/query/state"))
        old = await api.poll("query", timeout_seconds=30)
        assert old["run_id"] == first["run_id"] != task["run_id"]
        await api.worker(f"query-tasks/{old['query_task_id']}/complete", done | {"result": "then"})
        assert (await earlier).json()["result"] == "then"


# -- stopping


@pytest.mark.contract("LEASE-12", "LEASE-13", "ACT-05", "ACT-06")
@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
async def test_workers_are_told_that_the_run_was_closed(verb: str, status: str) -> None:
    async with serving() as api:
        await running(api, CHARGE, WAIT)
        work = await api.poll("activity")
        await post(api, "signal/pay", {"input": [1]})
        task = await api.poll()
        stopped = await post(api, verb, {"reason": "enough"})
        assert (stopped.status_code, stopped.json()["outcome"], stopped.json()["reason"]) == (200, status, "enough")
        described = await api.describe()
        assert (described["status"], described["status_bucket"]) == (status, "failed")
        lease = {"lease_owner": ME, "workflow_task_attempt": task["workflow_task_attempt"]}
        for call, more in (
            ("history", {}),
            ("heartbeat", {}),
            ("complete", {"commands": [DONE]}),
            ("fail", {"failure": {"message": "x"}}),
        ):
            answer = await api.worker(f"workflow-tasks/{task['task_id']}/{call}", lease | more)
            body = answer.json()
            assert (answer.status_code, body["reason"], body["can_continue"]) == (409, "run_closed", False)
            assert (body["cancel_requested"], body["stop_reason"]) == (True, f"run_{status}")
            assert (body["run_closed_reason"], body["run_closed_at"]) == (status, described["closed_at"])
            assert body["protocol_version"] == "1.20"
        beat = (await api.activity("heartbeat", work)).json()
        assert (beat["can_continue"], beat["cancel_requested"], beat["reason"]) == (False, True, f"run_{status}")
        assert (beat["run_closed_reason"], beat["run_closed_at"]) == (status, described["closed_at"])
        for call, more in (("complete", {"result": 1}), ("fail", {"failure": {"message": "x"}})):
            answer = await api.activity(call, work, **more)
            assert (answer.status_code, answer.json()["outcome"]) == (409, "ignored")
            assert answer.json()["run_closed_reason"] == status
            assert answer.json()["run_closed_at"] == described["closed_at"]
        assert (await api.types()).count("ActivityCancelled") == 1
        again = await post(api, verb)
        assert (again.status_code, again.json()["reason"]) == (409, "run_not_active")
        assert again.json()["outcome"] == "rejected_not_active"


@pytest.mark.contract("REC-06", "HOOK-04")
async def test_commands_to_a_run_reach_that_run_or_no_run() -> None:
    async with serving() as api:
        first = await running(api, {"type": "continue_as_new"})
        second = (await api.describe())["run_id"]
        old = await post(api, f"runs/{first['run_id']}/signal/pay", {"input": [1]})
        assert (old.status_code, old.json()["target_scope"]) == (409, "run")
        assert old.json()["rejection_reason"] == "selected_run_not_current"
        lost = await post(api, "runs/NORUN/cancel")
        assert (lost.status_code, lost.json()["reason"]) == (404, "run_not_found")
        assert (await post(api, f"runs/{first['run_id']}/archive")).json()["outcome"] == "archived"
        current = await post(api, f"runs/{second}/terminate")
        assert (current.status_code, current.json()["outcome"]) == (200, "terminated")


async def test_a_paused_run_gives_nothing_out() -> None:
    async with serving() as api:
        await running(api, CHARGE)
        assert (await post(api, "pause")).status_code == 200
        assert await api.poll("activity") is None
        assert (await post(api, "unpause")).status_code == 200
        await settle()
        assert await api.poll("activity") is not None


@pytest.mark.contract("QRY-04")
@pytest.mark.parametrize("given", ["values", "an envelope"])
async def test_the_arguments_of_a_run_and_of_a_query_come_to_the_worker_as_they_were_encoded(given: str) -> None:
    async with serving() as api:
        contract = {"queries": ["state"], "query_contracts": [{"name": "state", "parameters": [AMOUNT]}]}
        await api.register(workflow_command_contracts={"order": contract})
        values, asked = ["book", 2], [7]
        await api.start(input=values if given == "values" else blob(values))
        await api.complete(await api.poll(), WAIT)
        body = {"input": asked if given == "values" else blob(asked)}
        caller = asyncio.create_task(post(api, "query/state", body))
        task = await api.poll("query", timeout_seconds=30)
        assert (task["workflow_arguments"], task["query_arguments"]) == (blob(values), blob(asked))
        done = {"lease_owner": ME, "query_task_attempt": 1, "result": "ok", "result_envelope": blob("ok")}
        await api.worker(f"query-tasks/{task['query_task_id']}/complete", done)
        assert (await caller).json()["result"] == "ok"


@pytest.mark.contract("UPD-19")
@pytest.mark.parametrize("plane", BOTH_PLANES)
async def test_an_update_behind_a_signal_that_is_not_applied_yet_is_rejected_until_it_is(plane: str) -> None:
    async with serving() as api:
        await running(api)
        assert (await post(api, "signal/pay", {"input": [1]})).status_code == 202  # no worker takes its task
        verb = "update" if plane == "api" else "updates"
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}

        async def rename() -> httpx.Response:
            body = {"input": ["x"], "wait_for": "accepted"}
            return await api.http.post(f"{BOTH_PLANES[plane]}/{verb}/rename", json=body, headers=headers)

        for number in (1, 2):
            answer = await rename()
            said = answer.json()
            assert (answer.status_code, said["outcome"]) == (409, "rejected_pending_signal")
            assert said["rejection_reason"] == "earlier_signal_pending"
            assert (await api.types()).count("UpdateRejected") == number
        recorded = (await detail(api))["commands"][-1]
        assert (recorded["status"], recorded["outcome"]) == ("rejected", "rejected_pending_signal")
        assert "UpdateAccepted" not in await api.types()
        await api.complete(await api.poll(), WAIT)
        assert "SignalApplied" in await api.types()
        assert (await rename()).status_code == 202, "the signal is applied"


@pytest.mark.contract("ARCH-04")
async def test_an_open_run_is_not_archived_whether_it_is_named_or_not() -> None:
    async with serving() as api:
        run_id = (await running(api))["run_id"]
        before = await api.types()
        for path in ("o-1", f"o-1/runs/{run_id}"):
            refused = await api.control("POST", f"/workflows/{path}/archive", {})
            said = refused.json()
            assert (refused.status_code, said["outcome"]) == (409, "rejected_run_not_closed")
            assert said["rejection_reason"] == "run_not_closed"
        found = await detail(api)
        assert (found["can_archive"], found["archive_blocked_reason"]) == (False, "run_not_closed")
        assert [one["outcome"] for one in found["commands"][-2:]] == ["rejected_run_not_closed"] * 2
        assert (await api.types(), found["archived_at"]) == (before, None)


@pytest.mark.contract("COND-08")
@pytest.mark.parametrize("busy", [False, True], ids=["no task is open", "a task is open"])
async def test_an_update_that_makes_a_condition_hold_leaves_one_task_and_no_timer(busy: bool) -> None:
    async with serving() as api:
        await running(api, WAIT | {"timeout_seconds": 60}, CHARGE)

        async def tasks() -> list[str]:
            open_states = ("ready", "leased")
            found = (await detail(api))["tasks"]
            return [one["id"] for one in found if one["type"] == "workflow" and one["status"] in open_states]

        if busy:
            await api.activity("complete", await api.poll("activity"), result=1)
            assert len(await tasks()) == 1
        update_id = (await post(api, "update/rename", {"input": ["x"], "wait_for": "accepted"})).json()["update_id"]
        task = await api.poll()
        while task["workflow_update_id"] is None:
            await api.complete(task, WAIT | {"timeout_seconds": 60})
            task = await api.poll()
        await api.complete(task, {"type": "complete_update", "update_id": update_id})
        assert len(await tasks()) == 1, "one, whoever else wanted it"
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 600})
        types = await api.types()
        assert types.count("ConditionWaitSatisfied") == 1
        assert types.index("TimerCancelled") < types.index("ConditionWaitSatisfied")
        length = len(types)
        await api.world.advance(120)
        assert "ConditionWaitTimedOut" not in await api.types()
        assert len(await api.types()) == length, "the timeout comes no more"
        assert await tasks() == []


def iso_of(api: Api) -> str:
    return iso(api.server.now)
