"""Schedules over HTTP: every route, every refusal with its reason and field."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .kit import ME, Api, blob, serving

EVERY_HOUR: dict[str, Any] = {"intervals": [{"every": "PT1H"}]}
ACTION = {"workflow_type": "order", "task_queue": "q", "input": [1, "a"]}


def body(**more: Any) -> dict[str, Any]:
    return {"schedule_id": "hourly", "spec": EVERY_HOUR, "action": ACTION, **more}


async def made(api: Api, **more: Any) -> dict[str, Any]:
    answer = await api.control("POST", "/schedules", body(**more))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def shown(api: Api, id: str = "hourly") -> dict[str, Any]:
    answer = await api.control("GET", f"/schedules/{id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(api: Api, verb: str, sent: Any = None, status: int = 200, **options: Any) -> dict[str, Any]:
    answer = await api.control("POST", f"/schedules/hourly/{verb}", sent or {}, **options)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_schedule_is_created_and_shown() -> None:
    async with serving() as api:
        created = await made(
            api,
            spec={"cron_expressions": ["30 2 * * *"], "timezone": "Europe/Berlin"},
            action={**ACTION, "input": blob([1]), "execution_timeout_seconds": 60, "run_timeout_seconds": 30},
            overlap_policy="buffer_one",
            jitter_seconds=10,
            max_runs=5,
            memo={"who": "ada"},
            search_attributes={"team": "x"},
            note="why",
        )
        at = "2027-01-15T08:00:00.000000Z"
        assert created == {
            "schedule_id": "hourly",
            "outcome": "created",
            "namespace": "default",
            "status": "active",
            "created_at": at,
            "generated_at": at,
        }
        found = await shown(api)
        assert found["spec"] == {"cron_expressions": ["30 2 * * *"], "intervals": [], "timezone": "Europe/Berlin"}
        assert (found["action"]["input"], found["action"]["input_envelope"]) == ([1], blob([1]))
        assert (found["action"]["task_queue"], found["action"]["execution_timeout_seconds"]) == ("q", 60)
        assert found["next_fire_at"].startswith("2027-01-16T01:30:0")
        assert found["next_fire_at"] == found["next_fire"] == found["info"]["next_fire"]
        expected = {
            "status": "active",
            "paused": False,
            "workflow_type": "order",
            "overlap_policy": "buffer_one",
            "note": "why",
            "memo": {"who": "ada"},
            "search_attributes": {"team": "x"},
            "jitter_seconds": 10,
            "max_runs": 5,
            "remaining_actions": 5,
            "fires_count": 0,
            "failures_count": 0,
            "last_fired_at": None,
            "latest_workflow_instance_id": None,
            "paused_at": None,
            "created_at": at,
            "updated_at": at,
        }
        assert {name: found[name] for name in expected} == expected


async def test_a_schedule_fires_and_a_worker_runs_its_workflow() -> None:
    async with serving() as api:
        contract = {"order": {"signals": ["go"], "queries": [], "updates": []}}
        await made(api)
        await api.world.advance(3590)
        await api.register(workflow_command_contracts=contract, workflow_definition_fingerprints={"order": "f1"})
        await api.world.advance(10)
        task = await api.poll()
        id = "schedule:hourly:2027-01-15T09:00:00Z"
        assert task["workflow_id"] == id
        events = await api.history(id)
        assert [event["event_type"] for event in events] == ["StartAccepted", "WorkflowStarted", "ScheduleTriggered"]
        assert events[1]["payload"]["workflow_definition_fingerprint"] == "f1"
        assert events[1]["payload"]["declared_signals"] == ["go"]
        assert events[2]["payload"]["occurrence_time"] == "2027-01-15T09:00:00.000000Z"
        found = await shown(api)
        assert (found["fires_count"], found["latest_workflow_instance_id"]) == (1, id)
        assert found["info"]["running_workflow_ids"] == [id]
        await api.complete(task, {"type": "complete_workflow"})
        await api.world.advance(0)
        found = await shown(api)
        assert found["info"]["running_workflow_ids"] == []
        assert found["info"]["recent_actions"][0]["status"] == "completed"
        assert [row["workflow_id"] for row in (await api.control("GET", "/workflows")).json()["workflows"]] == [id]


async def test_pause_resume_trigger_backfill_update_delete() -> None:
    async with serving() as api:
        await made(api)
        paused = await post(api, "pause", {"note": "n"})
        assert (paused["outcome"], paused["paused"], paused["note"]) == ("paused", True, "n")
        assert (await shown(api))["paused_at"] is not None
        skipped = await post(api, "trigger")
        assert (skipped["outcome"], skipped["reason"]) == ("skipped", "status_not_triggerable")
        resumed = await post(api, "resume")
        assert (resumed["outcome"], resumed["paused"], resumed["note"]) == ("resumed", False, "n")
        fired = await post(api, "trigger")
        assert (fired["outcome"], fired["workflow_id"]) == ("triggered", "schedule:hourly:trigger:1")
        assert (await api.describe(fired["workflow_id"]))["run_id"] == fired["run_id"]
        buffered = await post(api, "trigger", {"overlap_policy": "buffer_one"})
        assert (buffered["outcome"], buffered["buffer_depth"]) == ("buffered", 1)
        full = await post(api, "trigger", {"overlap_policy": "buffer_one"})
        assert (full["outcome"], full["reason"]) == ("buffer_full", "buffer_full")
        times = {"start_time": "2027-01-15T00:00:00Z", "end_time": "2027-01-15T03:00:00+01:00"}
        filled = await post(api, "backfill", {**times, "overlap_policy": "allow_all"})
        assert (filled["outcome"], filled["fires_attempted"]) == ("backfill_started", 2)
        assert [(one["fire_time"], one["outcome"]) for one in filled["results"]] == [
            ("2027-01-15T00:00:00.000000Z", "started"),
            ("2027-01-15T01:00:00.000000Z", "started"),
        ]
        again = await post(api, "backfill", times)
        assert [one["reason"] for one in again["results"]] == ["already_started"] * 2
        updated = await api.control("PUT", "/schedules/hourly", {"spec": {"cron_expressions": ["@daily"]}, "note": "m"})
        assert (updated.status_code, updated.json()["outcome"]) == (200, "updated")
        found = await shown(api)
        assert (found["note"], found["next_fire_at"]) == ("m", "2027-01-16T00:00:00.000000Z")
        deleted = await api.control("DELETE", "/schedules/hourly")
        assert (deleted.status_code, deleted.json()["outcome"]) == (200, "deleted")
        for method, path in [
            ("GET", ""),
            ("PUT", ""),
            ("DELETE", ""),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/trigger"),
        ]:
            sent = {} if method in ("POST", "PUT") else None
            answer = await api.control(method, f"/schedules/hourly{path}", sent)
            assert (answer.status_code, answer.json()["reason"]) == (404, "schedule_not_found"), path
        answer = await api.control("POST", "/schedules/hourly/backfill", times)
        assert (answer.status_code, answer.json()["reason"]) == (404, "schedule_not_found")


async def test_history_is_paged_and_outlives_the_schedule() -> None:
    async with serving() as api:
        await made(api)
        await post(api, "trigger")
        await post(api, "pause")
        await api.control("DELETE", "/schedules/hourly")
        answer = (await api.control("GET", "/schedules/hourly/history?limit=3")).json()
        kinds = [event["event_type"] for event in answer["events"]]
        assert kinds == ["ScheduleCreated", "ScheduleTriggered", "SchedulePaused"]
        assert (answer["has_more"], answer["next_cursor"]) == (True, 3)
        assert answer["events"][0]["payload"]["next_fire_at"] == "2027-01-15T09:00:00.000000Z"
        assert answer["events"][0]["payload"]["command"]["source"] == "http"
        assert answer["events"][1]["workflow_instance_id"] == "schedule:hourly:trigger:1"
        rest = (await api.control("GET", "/schedules/hourly/history?after_sequence=3")).json()
        assert [event["event_type"] for event in rest["events"]] == ["ScheduleDeleted"]
        assert (rest["has_more"], rest["next_cursor"]) == (False, None)
        for wrong in ("-1", "x", "1" * 30):
            answer = await api.control("GET", f"/schedules/hourly/history?after_sequence={wrong}")
            assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_after_sequence")
        missing = await api.control("GET", "/schedules/nobody/history")
        assert (missing.status_code, missing.json()["reason"]) == (404, "schedule_not_found")


async def listed(api: Api, query: str = "", **options: Any) -> list[str]:
    answer = await api.control("GET", f"/schedules{query}", **options)
    assert answer.status_code == 200, answer.text
    return [schedule["schedule_id"] for schedule in answer.json()["schedules"]]


async def test_lists_filter_and_page() -> None:
    async with serving() as api:
        await api.control("POST", "/search-attributes", {"name": "Size", "type": "int"})
        for name in ("b", "a", "c"):
            await made(api, schedule_id=name, search_attributes={"Size": len(name)}, note=f"note {name}")
        await api.world.advance(1)
        await made(api, schedule_id="new", paused=True, action={"workflow_type": "other"})
        await made(api, schedule_id="gone")
        await api.control("DELETE", "/schedules/gone")
        assert await listed(api) == ["new", "a", "b", "c"]
        assert await listed(api, "?status=paused") == ["new"]
        assert await listed(api, "?status=deleted") == ["gone"]
        assert await listed(api, "?workflow_type=other") == ["new"]
        asked = {
            "ScheduleId = 'a'": ["a"],
            'WorkflowType = "order" AND Note="note b"': ["b"],
            "TaskQueue = default": ["new"],
            "Size = 1 AND Status=active": ["a", "b", "c"],
            "Size = 2": [],
            "Size = true": [],
            "ScheduleId = a AND ScheduleId = b": [],
        }
        for query, expected in asked.items():
            assert await listed(api, "", params={"query": query}) == expected, query
        answer = (await api.control("GET", "/schedules?page_size=3")).json()
        assert answer["schedule_count"] == 3
        token = answer["next_page_token"]
        assert await listed(api, f"?page_size=3&next_page_token={token}") == ["c"]
        last = (await api.control("GET", f"/schedules?next_page_token={token}")).json()
        assert last["next_page_token"] is None


@pytest.mark.parametrize(
    ("query", "status", "reason", "field"),
    [
        ("?status=asleep", 422, "validation_failed", "status"),
        ("?page_size=0", 422, "validation_failed", "page_size"),
        ("?colour=red", 422, "unsupported_schedule_list_filter", "colour"),
        ("?query=Status", 422, "invalid_schedule_visibility_query", "query"),
        ("?query=Status='active' AND ", 422, "invalid_schedule_visibility_query", "query"),
        ("?query=Status!='active'", 422, "unsupported_schedule_visibility_predicate", "query"),
        ("?query=Status='active' OR Note='x'", 422, "unsupported_schedule_visibility_predicate", "query"),
        ("?query=Colour='red'", 422, "unsupported_schedule_visibility_field", "query"),
        ("?next_page_token=nonsense", 400, "malformed_schedule_page_token", "next_page_token"),
        ("?next_page_token=WyJhIiwiYiIsOTIyMzM3MjAzNjg1NDc3NTgwNywiYyJd", 400, "malformed_schedule_page_token", None),
    ],
)
async def test_a_list_that_cannot_be_given(query: str, status: int, reason: str, field: str | None) -> None:
    async with serving() as api:
        answer = await api.control("GET", f"/schedules{query}")
        found = answer.json()
        assert (answer.status_code, found["reason"]) == (status, reason), answer.text
        assert field is None or (found["field"], list(found["validation_errors"])) == (field, [field])


async def test_a_token_belongs_to_its_list() -> None:
    async with serving() as api:
        for name in ("a", "b"):
            await made(api, schedule_id=name)
        token = (await api.control("GET", "/schedules?page_size=1")).json()["next_page_token"]
        other = await api.control("GET", f"/schedules?status=active&next_page_token={token}")
        assert (other.status_code, other.json()["reason"]) == (409, "schedule_page_token_filter_mismatch")
        assert other.json()["last_safe_cursor"]["schedule_id"] == "a"
        await api.control("POST", "/namespaces", {"name": "other"})
        elsewhere = await api.control(
            "GET", f"/schedules?page_size=1&next_page_token={token}", headers={"X-Namespace": "other"}
        )
        assert (elsewhere.status_code, elsewhere.json()["reason"]) == (403, "schedule_page_token_namespace_mismatch")


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"spec": None}, "validation_failed", "spec"),
        ({"spec": {}}, "invalid_schedule_spec", "spec"),
        ({"spec": {"cron_expressions": ["x"]}}, "invalid_schedule_spec", "spec.cron_expressions[0]"),
        ({"spec": {"cron_expressions": "x"}}, "validation_failed", "spec.cron_expressions"),
        ({"spec": {"intervals": [{}]}}, "validation_failed", "spec.intervals[0].every"),
        ({"spec": {"intervals": [{"every": "1h"}]}}, "invalid_schedule_spec", "spec.intervals[0].every"),
        ({"spec": {**EVERY_HOUR, "timezone": "Mars"}}, "invalid_schedule_spec", "spec.timezone"),
        ({"action": {}}, "validation_failed", "action.workflow_type"),
        ({"action": {"workflow_type": ""}}, "validation_failed", "action.workflow_type"),
        ({"action": {**ACTION, "input": "x"}}, "invalid_payload", "action.input"),
        ({"action": {**ACTION, "run_timeout_seconds": 0}}, "validation_failed", "action.run_timeout_seconds"),
        ({"overlap_policy": "never"}, "validation_failed", "overlap_policy"),
        ({"jitter_seconds": 3601}, "validation_failed", "jitter_seconds"),
        ({"jitter_seconds": 1.5}, "validation_failed", "jitter_seconds"),
        ({"max_runs": 0}, "validation_failed", "max_runs"),
        ({"note": 5}, "validation_failed", "note"),
        ({"paused": "yes"}, "validation_failed", "paused"),
        ({"search_attributes": {"a": {"b": 1}}}, "invalid_search_attributes", None),
        ({"schedule_id": "a b"}, "invalid_schedule_id", "schedule_id"),
        ({"schedule_id": ""}, "invalid_schedule_id", "schedule_id"),
    ],
)
async def test_a_schedule_that_cannot_be_created(change: dict[str, Any], reason: str, field: str | None) -> None:
    async with serving() as api:
        answer = await api.control("POST", "/schedules", body(**change))
        found = answer.json()
        assert (answer.status_code, found["reason"]) == (422, reason), answer.text
        assert field is None or found["field"] == field, answer.text
        assert await listed(api) == []


async def test_an_existing_schedule_refuses_a_second_create_and_malformed_changes() -> None:
    async with serving() as api:
        await made(api)
        twice = await api.control("POST", "/schedules", body())
        assert (twice.status_code, twice.json()["reason"]) == (409, "schedule_already_exists")
        wrong = await api.control("PUT", "/schedules/hourly", {"spec": {"cron_expressions": ["x"]}})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "spec.cron_expressions[0]")
        for start, end, field in [
            ("yesterday", "2027-01-15T00:00:00Z", "start_time"),
            ("2027-01-15T00:00:00", "2027-01-16T00:00:00Z", "start_time"),
            ("2027-01-15T00:00:00Z", "2027-01-14T00:00:00Z", "end_time"),
            ("2020-01-15T00:00:00Z", "2027-01-14T00:00:00Z", "end_time"),
            ("0001-01-01T00:00:00Z", "2027-01-14T00:00:00Z", "end_time"),
        ]:
            found = await post(api, "backfill", {"start_time": start, "end_time": end}, 422)
            assert (found["reason"], found["field"]) == ("invalid_time_range", field)
        assert (await shown(api))["fires_count"] == 0


async def test_a_request_that_is_repeated_is_done_once() -> None:
    async with serving() as api:
        same: dict[str, Any] = {"headers": {"X-Request-Id": "r-1"}}
        first = (await api.control("POST", "/schedules", body(), **same)).json()
        assert (await api.control("POST", "/schedules", body(), **same)).json() == first
        fired = [await post(api, "trigger", {"overlap_policy": "allow_all"}, **same) for _ in range(2)]
        assert fired[0] == fired[1]
        assert (await shown(api))["fires_count"] == 1


async def test_a_creation_without_an_id_that_is_repeated_makes_one_schedule() -> None:
    nameless = {name: value for name, value in body().items() if name != "schedule_id"}
    async with serving() as api:

        async def create(request_id: str, **more: Any) -> httpx.Response:
            return await api.control("POST", "/schedules", nameless | more, headers={"X-Request-Id": request_id})

        first = await create("r-1")
        assert first.status_code == 201, first.text
        assert (await create("r-1")).json() == first.json()
        assert (await create("r-2")).json()["schedule_id"] != first.json()["schedule_id"]
        assert len({(await api.control("POST", "/schedules", nameless)).json()["schedule_id"] for _ in range(2)}) == 2
        assert len((await api.control("GET", "/schedules")).json()["schedules"]) == 4
        other = await create("r-1", note="another one")
        assert other.status_code == 409, other.text


async def test_namespaces_and_roles_keep_schedules_apart() -> None:
    async with serving(worker_token="w", operator_token="o", admin_token="a") as api:
        refused = await api.control("GET", "/schedules", token="w")
        assert refused.status_code == 403
        assert (await api.control("POST", "/namespaces", {"name": "other"}, token="a")).status_code == 201
        assert (await api.control("POST", "/schedules", body(), token="o")).status_code == 201
        other = {"token": "o", "headers": {"X-Namespace": "other"}}
        assert (await api.control("GET", "/schedules/hourly", **other)).status_code == 404
        assert (await api.control("GET", "/schedules", **other)).json()["schedules"] == []
        assert (await api.control("POST", "/schedules", body(), **other)).status_code == 201
        fired = await api.control("POST", "/schedules/hourly/trigger", {}, **other)
        found = await api.control("GET", f"/workflows/{fired.json()['workflow_id']}", **other)
        assert found.json()["namespace"] == "other"
        hidden = await api.control("GET", "/workflows", token="o", headers={"X-Namespace": "default/schedules"})
        assert hidden.json()["reason"] == "namespace_not_found"


async def test_a_schedule_starts_the_promoted_build() -> None:
    async with serving() as api:
        for build in ("b1", "b2"):
            await api.register(f"{ME}-{build}", build_id=build)
        answer = await api.control("POST", "/task-queues/q/build-ids/promote", {"build_id": "b2"})
        assert answer.status_code == 200, answer.text
        await made(api)
        fired = await post(api, "trigger")
        assert (await api.describe(fired["workflow_id"]))["compatibility"] == "b2"


async def test_an_action_that_is_shown_can_be_sent_back() -> None:
    async with serving() as api:
        routing = {"connection": "c", "build_id": "b1", "priority": 2, "fairness_key": "k", "fairness_weight": 7}
        await made(api, action={**ACTION, **routing})
        before = (await shown(api))["action"]
        assert {name: before[name] for name in routing} == routing
        answer = await api.control(
            "PUT", "/schedules/hourly", {"action": {**before, "input": before["input_envelope"]}}
        )
        assert answer.status_code == 200, answer.text
        assert (await shown(api))["action"] == before


async def test_a_namespace_with_schedules_is_not_deleted() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "other"})
        there = {"headers": {"X-Namespace": "other"}}
        await api.control("POST", "/schedules", body(), **there)
        kept = await api.control("DELETE", "/namespaces/other")
        assert (kept.status_code, kept.json()["reason"]) == (409, "namespace_not_empty")
        await api.control("DELETE", "/schedules/hourly", **there)
        assert (await api.control("DELETE", "/namespaces/other")).status_code == 200
