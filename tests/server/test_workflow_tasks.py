"""Workflow tasks over HTTP: leases are fenced, commands are applied all or none, terminal calls may be repeated."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from backstay.kernel.task import Resume

from .kit import ME, Api, blob, detail, serving, settle, value

DONE = {"type": "complete_workflow"}
NAP = {"type": "start_timer", "delay_seconds": 5}
PART = {"type": "start_child_workflow", "workflow_type": "part"}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
NOTED = {"type": "record_side_effect", "result": blob(1)["blob"]}


async def leased(api: Api, **more: Any) -> dict[str, Any]:
    await api.register()
    await api.start(**more)
    return await api.poll()


@pytest.mark.contract("CMD-01", "CMD-04", "CMD-05", "CMD-06", "CMD-14", "CMD-15", "CMD-16", "CMD-17", "CODEC-12")
async def test_commands_are_applied_in_order() -> None:
    async with serving() as api:
        task = await leased(api)
        policy = {"max_attempts": 3, "backoff_seconds": [1, 2], "non_retryable_error_types": ["bad"]}
        timeouts = {
            "start_to_close_timeout": 30,
            "schedule_to_start_timeout": 60,
            "schedule_to_close_timeout": 90,
            "heartbeat_timeout": 5,
        }
        marker = {
            "type": "record_version_marker",
            "change_id": "c",
            "version": 2,
            "min_supported": 1,
            "max_supported": 2,
        }
        answer = await api.complete(
            task,
            {"type": "record_side_effect", "result": blob(6)["blob"]},
            marker,
            {"type": "upsert_search_attributes", "attributes": {"customer": "ada"}},
            {"type": "upsert_memo", "entries": blob({"note": "x"})},
            CHARGE | {"arguments": blob([1]), "retry_policy": policy} | timeouts,
            NAP,
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["outcome"], body["recorded"], body["run_status"]) == ("completed", True, "waiting")
        events = (await api.history())[2:]
        assert [(e["event_type"], e["payload"]["sequence"]) for e in events] == [
            ("SideEffectRecorded", 1),
            ("VersionMarkerRecorded", 2),
            ("SearchAttributesUpserted", 3),
            ("MemoUpserted", 4),
            ("ActivityScheduled", 5),
            ("TimerScheduled", 6),
        ]
        snapped = events[4]["payload"]["activity"]
        assert snapped["retry_policy"] | policy | timeouts == snapped["retry_policy"]
        assert (snapped["arguments"], snapped["payload_codec"]) == (blob([1])["blob"], "avro")
        assert value(events[3]["payload"]["merged"]) == {"note": "x"}
        described = await api.describe()
        assert (described["search_attributes"], described["memo"]) == ({"customer": "ada"}, {"note": "x"})
        work = await api.poll("activity")
        assert work["retry_policy"]["backoff_seconds"] == [1, 2]
        assert work["deadlines"]["start_to_close"] is not None
        await api.world.advance(6)
        await api.complete(await api.poll(), DONE | {"result": blob("ok")})
        finished = await api.describe()
        assert (finished["status"], finished["output"], finished["output_envelope"]) == ("completed", "ok", blob("ok"))


@pytest.mark.contract("CMD-02", "CMD-03", "LEASE-06")
@pytest.mark.parametrize(
    ("commands", "field"),
    [
        ([], "commands"),
        ([DONE, {"type": "fail_workflow", "message": "no"}], "commands[0]"),
        ([DONE, NAP], "commands[0]"),
        ([CHARGE, {"type": "start_timer"}], "commands[1].delay_seconds"),
        ([CHARGE, {"type": "start_timer", "delay_seconds": -1}], "commands[1].delay_seconds"),
        ([CHARGE, {"type": "start_timer", "delay_seconds": "5"}], "commands[1].delay_seconds"),
        ([CHARGE, {"type": "start_timer", "delay_seconds": 1e300}], "commands[1].delay_seconds"),
        ([CHARGE, {"type": "no such thing"}], "commands[1].type"),
        ([CHARGE, {}], "commands[1].type"),
        ([CHARGE, "start_timer"], "commands[1]"),
        ([CHARGE, {"type": "schedule_activity"}], "commands[1].activity_type"),
        ([CHARGE, {"type": "schedule_activity", "activity_type": ""}], "commands[1].activity_type"),
        ([CHARGE, CHARGE | {"retry_policy": {"max_attempts": 0}}], "commands[1].retry_policy.max_attempts"),
        ([CHARGE, CHARGE | {"retry_policy": {"backoff_seconds": [-1]}}], "commands[1].retry_policy.backoff_seconds[0]"),
        ([CHARGE, CHARGE | {"heartbeat_timeout": 9, "start_to_close_timeout": 5}], "commands[1].heartbeat_timeout"),
        ([CHARGE, CHARGE | {"start_to_close_timeout": "soon"}], "commands[1].start_to_close_timeout"),
        ([CHARGE, CHARGE | {"arguments": {"codec": "json", "blob": "W10="}}], "commands[1].arguments"),
        ([CHARGE, CHARGE | {"arguments": {"codec": "avro", "blob": "!"}}], "commands[1].arguments.blob"),
        ([CHARGE, {"type": "record_side_effect"}], "commands[1].result"),
        ([CHARGE, {"type": "record_side_effect", "result": "not a blob"}], "commands[1].result"),
        ([CHARGE, NOTED | {"workflow_stream": {"operation": "append"}}], "commands[1].workflow_stream.stream_name"),
        ([CHARGE, {"type": "record_version_marker", "change_id": "c", "version": 1}], "commands[1].min_supported"),
        ([CHARGE, {"type": "upsert_search_attributes"}], "commands[1].attributes"),
        ([CHARGE, {"type": "upsert_memo", "entries": [1]}], "commands[1].entries"),
        ([CHARGE, {"type": "fail_workflow"}], "commands[1].message"),
        ([CHARGE, {"type": "start_child_workflow"}], "commands[1].workflow_type"),
        ([CHARGE, PART | {"parent_close_policy": "kill"}], "commands[1].parent_close_policy"),
        ([CHARGE, PART | {"retry_policy": {"max_attempts": 0}}], "commands[1].retry_policy.max_attempts"),
        ([CHARGE, PART | {"run_timeout_seconds": 0}], "commands[1].run_timeout_seconds"),
    ],
)
async def test_one_wrong_command_refuses_the_whole_completion(commands: list[Any], field: str) -> None:
    async with serving() as api:
        task = await leased(api)
        answer = await api.complete(task, *commands)
        body = answer.json()
        assert (answer.status_code, body["field"]) == (422, field), answer.text
        assert body["reason"]
        assert body["validation_errors"] == {field: [body["message"]]}
        assert await api.types() == ["StartAccepted", "WorkflowStarted"]
        assert (await api.complete(task, DONE)).status_code == 200, "the lease is as it was"


@pytest.mark.contract("CMD-18", "CMD-19")
async def test_a_run_fails_or_continues_as_a_new_one() -> None:
    async with serving() as api:
        task = await leased(api, input=[1])
        await api.complete(task, {"type": "continue_as_new", "arguments": blob([2])})
        second = await api.poll()
        assert second["run_id"] != task["run_id"]
        assert (second["workflow_id"], value(second["arguments"])) == ("o-1", [2])
        exception = {"type": "shop.declined", "class": "shop:Declined", "message": "no", "code": 7}
        await api.complete(
            second,
            {"type": "fail_workflow", "message": "no", "exception_type": "shop.declined", "exception": exception},
        )
        last = (await api.history())[-1]
        assert (last["event_type"], last["payload"]["message"]) == ("WorkflowFailed", "no")
        assert last["payload"]["exception"] | exception == last["payload"]["exception"]
        runs = (await api.control("GET", "/workflows/o-1/runs")).json()
        assert [(r["run_id"], r["status"], r["closed_reason"]) for r in runs["runs"]] == [
            (task["run_id"], "completed", "continued"),
            (second["run_id"], "failed", "failed"),
        ]
        chosen = {"fields": "run_number,is_current_run,closed_reason"}
        slim = (await api.control("GET", "/workflows/o-1/runs", params=chosen)).json()
        assert slim["runs"] == [
            {"run_number": 1, "is_current_run": False, "closed_reason": "continued"},
            {"run_number": 2, "is_current_run": True, "closed_reason": "failed"},
        ]
        refused = await api.control("GET", "/workflows/o-1/runs", params={"fields": "inputs"})
        assert (refused.status_code, refused.json()["field"]) == (422, "fields")
        first = (await api.control("GET", f"/workflows/o-1/runs/{task['run_id']}")).json()
        assert (first["input"], first["is_current_run"], first["is_terminal"]) == ([1], False, True)


@pytest.mark.contract("LEASE-07", "LEASE-08", "LEASE-09", "LEASE-10", "STREAM-10")
async def test_only_the_holder_of_the_lease_is_heard() -> None:
    async with serving() as api:
        task = await leased(api)
        await api.register("thief")
        path = f"workflow-tasks/{task['task_id']}"
        good = {"lease_owner": ME, "workflow_task_attempt": 1}
        extra: dict[str, dict[str, Any]] = {
            "heartbeat": {},
            "history": {},
            "complete": {"commands": [NAP, CHARGE, DONE]},
            "fail": {"failure": {"message": "no"}},
        }
        for verb, more in extra.items():
            for wrong, reason in (
                ({"lease_owner": "thief"}, "lease_owner_mismatch"),
                ({"workflow_task_attempt": 2}, "workflow_task_attempt_mismatch"),
            ):
                answer = await api.worker(f"{path}/{verb}", {**good, **more, **wrong})
                assert (answer.status_code, answer.json()["reason"]) == (409, reason)
            for field in good:
                partial = {key: part for key, part in (good | more).items() if key != field}
                answer = await api.worker(f"{path}/{verb}", partial)
                assert (answer.status_code, answer.json()["field"]) == (422, field)
            answer = await api.worker(f"{path}/{verb}", {**good, **more, "workflow_task_attempt": 0})
            assert (answer.status_code, answer.json()["field"]) == (422, "workflow_task_attempt")
            lost = await api.worker(f"workflow-tasks/NOSUCHRUN-w2/{verb}", {**good, **more})
            assert (lost.status_code, lost.json()["reason"]) == (404, "task_not_found")
        for failure in ({}, {"failure": {}}, {"failure": {"message": ""}}):
            assert (await api.worker(f"{path}/fail", {**good, **failure})).status_code == 422
        assert await api.types() == ["StartAccepted", "WorkflowStarted"]
        await api.world.advance(100)
        beat = (await api.worker(f"{path}/heartbeat", good)).json()
        assert {key: beat[key] for key in ("task_id", "lease_owner", "workflow_task_attempt", "renewed")} == {
            "task_id": task["task_id"],
            "lease_owner": ME,
            "workflow_task_attempt": 1,
            "renewed": True,
        }
        assert (beat["run_status"], beat["lease_expires_at"] > task["lease_expires_at"]) == ("pending", True)


@pytest.mark.contract("LEASE-14", "STREAM-13", "MATCH-05")
async def test_an_expired_lease_is_delivered_again_and_late_reports_change_nothing() -> None:
    async with serving() as api:
        late = await leased(api)
        await api.register("next")
        await api.world.advance(301)
        assert (await api.complete(late, NAP)).json()["reason"] in ("lease_expired", "task_not_leased")
        task = await api.poll(worker_id="next")
        assert (task["task_id"], task["workflow_task_attempt"]) == (late["task_id"], 2)
        assert (await api.complete(late, NAP)).status_code == 409
        first, again = await api.complete(task, NAP), await api.complete(task, NAP)
        assert [answer.json()["outcome"] for answer in (first, again)] == ["completed", "completed"]
        assert await api.types() == ["StartAccepted", "WorkflowStarted", "TimerScheduled"]


@pytest.mark.contract("LEASE-11")
async def test_a_failed_task_never_fails_its_run() -> None:
    async with serving() as api:
        task = await leased(api)
        for failure in ({"message": "no workflow registered"}, {"message": "mismatch", "type": "DeterminismFailed"}):
            answer = await api.fail(task, **failure)
            assert (answer.status_code, answer.json()["outcome"]) == (200, "failed")
            assert await api.types() == ["StartAccepted", "WorkflowStarted"]
            await api.world.advance(61)
            task = await api.poll()
        assert task is None, "replay is blocked: the same code would not do better"
        assert (await api.describe())["liveness_state"] == "workflow_replay_blocked"
        repaired = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert repaired["outcome"] == "repair_dispatched"
        await settle()
        assert (await api.complete(await api.poll(), DONE)).status_code == 200


async def test_new_code_for_a_blocked_type_is_tried_by_itself() -> None:
    async with serving() as api:
        await api.register(workflow_definition_fingerprints={"order": "sha256:1"})
        await api.start()
        await api.fail(await api.poll(), message="mismatch", type="NonDeterministicReplayError")
        await api.register("same", workflow_definition_fingerprints={"order": "sha256:1"})
        await settle()
        assert await api.poll(worker_id="same") is None
        await api.register("newer", workflow_definition_fingerprints={"order": "sha256:2"})
        await settle()
        assert await api.poll(worker_id="newer") is not None
        changed = await api.register("newer", workflow_definition_fingerprints={"order": "sha256:3"})
        assert (changed.status_code, changed.json()["reason"]) == (409, "workflow_definition_changed")


async def test_waiting_for_history_is_an_acknowledgement() -> None:
    async with serving() as api:
        task = await leased(api)
        await api.complete(task, CHARGE, NAP)
        work = await api.poll("activity")
        await api.activity("complete", work, result=blob(1))
        woken = await api.poll()
        answer = await api.fail(woken, message="waiting", type="WorkflowTaskWaitingForHistory")
        assert (answer.status_code, answer.json()["run_status"]) == (200, "waiting")
        assert await api.poll() is None
        assert (await api.describe())["liveness_state"] == "timer_scheduled"


@pytest.mark.contract("HIST-01", "HIST-02", "HIST-03", "HIST-05", "HIST-06")
async def test_history_comes_in_pages_and_packed_when_asked() -> None:
    async with serving() as api:
        task = await leased(api)
        effects = [{"type": "record_side_effect", "result": blob(n)["blob"]} for n in range(900)]
        await api.complete(task, *effects, {"type": "start_timer", "delay_seconds": 1})
        await api.world.advance(2)
        body = {"worker_id": ME, "task_queue": "q"}
        task = (await api.worker("workflow-tasks/poll", body)).json()["task"]
        total = task["total_history_events"]
        assert (total, len(task["history_events"]), task["last_history_sequence"]) == (904, 500, 904)
        lease = {"lease_owner": ME, "workflow_task_attempt": task["workflow_task_attempt"]}
        path = f"workflow-tasks/{task['task_id']}/history"
        found, token = list(task["history_events"]), task["next_history_page_token"]
        while token is not None:
            page = (await api.worker(path, lease | {"next_history_page_token": token})).json()
            found += page["history_events"]
            token = page["next_history_page_token"]
        assert [event["sequence"] for event in found] == list(range(1, 905))
        assert [(e["sequence"], e["event_type"]) for e in found] == [
            (e["sequence"], e["event_type"]) for e in await api.history()
        ]
        whole = (await api.worker(path, lease | {"next_history_page_token": "MA==", "history_page_size": 5000})).json()
        assert (len(whole["history_events"]), whole["has_more"], whole["next_after_sequence"]) == (904, False, None)
        part = (await api.worker(path, lease | {"after_sequence": 10, "history_page_size": 5})).json()
        assert (part["has_more"], part["next_after_sequence"], part["history_events"][0]["sequence"]) == (True, 15, 11)
        for encoding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
            asked = lease | {"accept_history_encoding": encoding}
            packed = (await api.worker(path, asked | {"history_page_size": 51})).json()
            assert (packed["history_events"], packed["history_events_encoding"]) == ([], encoding)
            events = json.loads(unpack(base64.b64decode(packed["history_events_compressed"])))
            assert events == found[:51]
            plain = (await api.worker(path, asked | {"history_page_size": 50})).json()
            assert (len(plain["history_events"]), "history_events_compressed" in plain) == (50, False)
        for token in ("x", "!!", "LTE=", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk="):
            bad = await api.worker(path, lease | {"next_history_page_token": token})
            assert (bad.status_code, bad.json()["reason"]) == (400, "invalid_page_token")


@pytest.mark.contract("HIST-02", "HIST-03")
@pytest.mark.parametrize("name", ["history_page_size", "page_size", "limit"])
async def test_no_page_of_a_history_has_more_than_a_thousand_events(name: str) -> None:
    async with serving() as api:
        task = await leased(api)
        effects = [{"type": "record_side_effect", "result": blob(n)["blob"]} for n in range(900)]
        await api.complete(task, *effects, {"type": "start_timer", "delay_seconds": 1})
        await api.world.advance(2)
        await api.complete(await api.poll(), *effects[:300], {"type": "start_timer", "delay_seconds": 1})
        await api.world.advance(2)
        size: dict[str, Any] = {name: 5000} if name == "history_page_size" else {}
        task = await api.poll(**size)
        assert len(task["history_events"]) == (1000 if name == "history_page_size" else 500)
        lease = {"lease_owner": ME, "workflow_task_attempt": task["workflow_task_attempt"], "after_sequence": 0}
        path = f"workflow-tasks/{task['task_id']}/history"
        for asked, given in ((5000, 1000), (1001, 1000), (1000, 1000), (999, 999), (7, 7)):
            page = (await api.worker(path, lease | {name: asked})).json()
            assert (len(page["history_events"]), page["has_more"], page["next_after_sequence"]) == (given, True, given)
        rest = (await api.worker(path, lease | {name: 5000, "after_sequence": 1000})).json()
        assert (len(rest["history_events"]), rest["has_more"]) == (task["total_history_events"] - 1000, False)
        events = f"/workflows/o-1/runs/{task['run_id']}/history"
        assert len((await api.control("GET", f"{events}?page_size=1000")).json()["events"]) == 1000
        assert len((await api.control("GET", f"{events}?page_size=1001")).json()["events"]) == 1000
        assert (await api.control("GET", f"{events}?limit=5")).json()["reason"] == "unknown_parameter"


@pytest.mark.contract("UPD-01")
async def test_the_pages_of_an_update_have_the_answers_to_those_before_it() -> None:
    async with serving() as api:
        await api.complete(await leased(api), NAP)
        for name in ("first", "second"):
            await api.control("POST", f"/workflows/o-1/update/{name}", {"input": [], "wait_for": "accepted"})
        first = await api.poll()
        await api.complete(first, {"type": "complete_update", "update_id": first["workflow_update_id"]})
        task = await api.poll()
        shown = [(event["sequence"], event["event_type"]) for event in task["history_events"]]
        assert [type for _, type in shown[-3:]] == ["UpdateAccepted", "UpdateApplied", "UpdateCompleted"]
        lease = {"lease_owner": ME, "workflow_task_attempt": task["workflow_task_attempt"]}
        for size in (1, 3, 500):
            found: list[tuple[int, str]] = []
            token = "MA=="
            while token is not None:
                asked = lease | {"next_history_page_token": token, "history_page_size": size}
                page = (await api.worker(f"workflow-tasks/{task['task_id']}/history", asked)).json()
                assert len(page["history_events"]) <= size
                found += [(event["sequence"], event["event_type"]) for event in page["history_events"]]
                token = page["next_history_page_token"]
            assert found == shown


@pytest.mark.contract("RESUME-02", "RESUME-03", "RESUME-10", "RESUME-12", "RESUME-14")
async def test_a_task_says_why_it_exists() -> None:
    async with serving() as api:
        task = await leased(api)
        assert {name: task[name] for name in Resume.__struct_fields__} == dict.fromkeys(Resume.__struct_fields__)
        await api.complete(task, CHARGE, NAP)
        work = await api.poll("activity")
        await api.activity("complete", work, result=blob(1))
        resumed = await api.poll()
        assert (resumed["activity_execution_id"], resumed["activity_attempt_id"], resumed["activity_type"]) == (
            work["activity_execution_id"],
            work["activity_attempt_id"],
            "charge",
        )
        completed = next(e for e in await api.history() if e["event_type"] == "ActivityCompleted")
        assert (resumed["workflow_sequence"], resumed["workflow_event_type"]) == (
            completed["sequence"],
            "ActivityCompleted",
        )
        await api.fail(resumed, message="waiting", type="WorkflowTaskWaitingForHistory")
        await api.world.advance(6)
        timed = await api.poll()
        assert (timed["workflow_wait_kind"], timed["resume_source_kind"]) == ("timer", "timer")
        assert timed["open_wait_id"] == f"timer:{timed['timer_id']}"


@pytest.mark.contract("LEASE-01", "LEASE-04")
async def test_a_task_can_be_claimed_by_its_id() -> None:
    async with serving() as api:
        await api.register(build_id="b1")
        await api.register("other", build_id="b2")
        run = (await api.start(build_id="b1"))["run_id"]
        path = f"workflow-tasks/{run}-w2/claim"
        refused = await api.worker(path, {"worker_id": "other"})
        assert (refused.status_code, refused.json()["reason"]) == (409, "compatibility_blocked")
        stranger = await api.worker(path, {"worker_id": "stranger"})
        assert (stranger.status_code, stranger.json()["reason"]) == (412, "worker_not_registered")
        claimed = (await api.worker(path, {"worker_id": ME})).json()
        assert (claimed["poll_status"], claimed["task"]["workflow_task_attempt"]) == ("leased", 1)
        twice = await api.worker(path, {"worker_id": ME})
        assert twice.json()["reason"] == "task_not_claimable"


@pytest.mark.contract("CMD-07", "CMD-08", "CMD-10", "RESUME-11")
async def test_a_child_is_started_by_a_valid_command_and_its_end_wakes_the_parent() -> None:
    async with serving() as api:
        task = await leased(api)
        await api.register("part-worker", supported_workflow_types=["part"])
        options = {
            "arguments": blob([7]),
            "retry_policy": {"max_attempts": 1, "backoff_seconds": [2]},
            "execution_timeout_seconds": 60,
            "run_timeout_seconds": 30,
        }
        assert (await api.complete(task, PART | options | {"parent_close_policy": "kill"})).status_code == 422
        assert (await api.complete(task, PART | options | {"parent_close_policy": "terminate"})).status_code == 200
        await settle()
        child = await api.poll(worker_id="part-worker")
        assert (child["workflow_type"], value(child["arguments"])) == ("part", [7])
        started = (await api.history(child["workflow_id"]))[1]["payload"]
        assert (started["execution_timeout_seconds"], started["run_timeout_seconds"]) == (60, 30)
        scheduled = next(e for e in await api.history() if e["event_type"] == "ChildWorkflowScheduled")["payload"]
        assert scheduled["parent_close_policy"] == "terminate"
        body = {"lease_owner": "part-worker", "workflow_task_attempt": 1, "commands": [DONE | {"result": blob("ok")}]}
        assert (await api.worker(f"workflow-tasks/{child['task_id']}/complete", body)).status_code == 200
        await settle()
        resumed = await api.poll()
        assert (resumed["workflow_wait_kind"], resumed["resume_source_kind"]) == ("child", "child_workflow_run")
        assert (resumed["child_call_id"], resumed["child_workflow_run_id"]) == (
            scheduled["child_call_id"],
            child["run_id"],
        )


@pytest.mark.contract("ACT-14", "ACT-15")
async def test_replies_name_the_tasks_that_a_report_has_made() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        charge = {"type": "schedule_activity", "activity_type": "charge"}
        policy = {"max_attempts": 2, "backoff_seconds": [0]}
        first = await api.poll()
        failed = (await api.fail(first, message="oops")).json()
        assert (failed["created_task_ids"], failed["next_task_id"]) == ([], first["task_id"]), "tried again"
        await api.world.advance(10)
        first = await api.poll()
        done = (await api.complete(first, charge | {"retry_policy": policy}, charge)).json()
        activities = [await api.poll("activity") for _ in range(2)]
        assert done["created_task_ids"] == [task["task_id"] for task in activities]

        oops = {"message": "oops"}
        again = (await api.activity("fail", activities[0], failure=oops)).json()
        retried = await api.poll("activity")
        assert (again["outcome"], again["next_task_id"]) == ("retry_scheduled", retried["task_id"])
        ended = (await api.activity("complete", activities[1], result=blob(1))).json()
        woken = await api.poll()
        assert ended["next_task_id"] == woken["task_id"]
        late = (await api.activity("complete", retried, result=blob(1))).json()
        assert late["next_task_id"] is None, "a task of the run is held: no other is made until it ends"

        acknowledged = await api.fail(woken, message="nothing", type="WorkflowTaskWaitingForHistory")
        following = await api.poll()
        assert acknowledged.json()["next_task_id"] == following["task_id"]
        assert acknowledged.json()["created_task_ids"] == [following["task_id"]]

        continued = (await api.complete(following, {"type": "continue_as_new"})).json()
        next_run = await api.poll()
        assert continued["created_task_ids"] == [next_run["task_id"]]
        closed = (await api.complete(next_run, charge, {"type": "complete_workflow"})).json()
        assert closed["created_task_ids"] == [], "what was asked for went with the run"


async def test_a_leaf_that_a_bounded_group_lets_go_is_not_what_comes_next_of_a_step() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        group = {"parallel_group_kind": "activity", "parallel_group_id": "g", "parallel_group_base_sequence": 1}
        group |= {"parallel_group_size": 3, "parallel_group_limit": 1}
        leaves = [
            {
                "type": "schedule_activity",
                "activity_type": "charge",
                "parallel_group_path": [group | {"parallel_group_index": index}],
            }
            for index in range(3)
        ]
        done = (await api.complete(await api.poll(), *leaves)).json()
        assert len(done["created_task_ids"]) == 1, "the others are held back"
        for number in range(3):
            ended = (await api.activity("complete", await api.poll("activity"), result=blob(number))).json()
            assert (ended["next_task_id"] is None) == (number < 2), "the last one wakes the run"


async def test_a_completion_that_is_refused_is_the_error_of_its_task() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        for number in (1, 2):
            task = await api.poll()
            assert task["workflow_task_attempt"] == number
            wrong = {"type": "schedule_activity", "activity_type": "charge", "sequence": 7}
            assert (await api.complete(task, wrong)).json()["reason"] == "invalid_commands"
            (shown,) = (await detail(api))["tasks"]
            assert (shown["status"], shown["attempt_count"]) == ("leased", number)
            assert "the next step of this run is 1" in shown["last_error"]
            await api.world.advance(301)  # it does not correct itself
            (shown,) = (await detail(api))["tasks"]
            assert (shown["status"], shown["attempt_count"], shown["repair_count"]) == ("failed", number, number)
            assert "the next step of this run is 1" in shown["last_error"]
            assert await api.poll() is None, "it waits for its next try"
            await api.world.advance(10)
        task = await api.poll()
        await api.complete(task, {"type": "schedule_activity", "activity_type": "charge", "sequence": 7})
        done = await api.complete(task, {"type": "complete_workflow"})
        assert done.status_code == 200, "a worker that knows better may say so under its lease"
        assert (await api.describe())["status"] == "completed"
