"""Requests nobody should send: each gets a clear answer with a stable reason, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pytest

from backstay.kernel.message import Refused
from backstay.logging import LogFormatter
from backstay.server.http.errors import refusal_error
from backstay.server.routes import ROUTES

from .kit import ME, TOKEN, blob, serving
from .test_http_protocol import line

CONTROL = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "status", "reason"),
    [
        (b"", JSON, 422, "validation_failed"),
        (b"{", JSON, 400, "malformed_json"),
        (b"[]", JSON, 422, "validation_failed"),
        (b"null", JSON, 422, "validation_failed"),
        (b'"text"', JSON, 422, "validation_failed"),
        (b'{"workflow_type": "order"}{}', JSON, 400, "malformed_json"),
        (b"\xff\xfe", JSON, 400, "malformed_json"),
        (b'{"workflow_type": "\xff"}', JSON, 400, "malformed_json"),
        (b'{"workflow_type": "\\ud800"}', JSON, 400, "malformed_json"),
        (b'{"workflow_type": "order", "input": ' + b"[" * 100_000, JSON, 400, "malformed_json"),
        (b'{"workflow_type": "order", "input": [NaN]}', JSON, 400, "malformed_json"),
        (b"workflow_type=order", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        (b"<x/>", {"Content-Type": "text/xml"}, 415, "unsupported_media_type"),
    ],
)
async def test_a_body_that_is_not_what_was_asked_for(
    content: bytes, headers: dict[str, str], status: int, reason: str
) -> None:
    async with serving() as api:
        answer = await api.http.post("/api/workflows", content=content, headers=CONTROL | headers)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        assert answer.json()["message"]
        assert (await api.control("GET", "/workflows")).json()["workflows"] == []


@pytest.mark.contract("START-02", "START-03", "CODEC-05")
@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"workflow_type": None}, "workflow_type", "validation_failed"),
        ({"workflow_type": ""}, "workflow_type", "validation_failed"),
        ({"workflow_type": 7}, "workflow_type", "validation_failed"),
        ({"workflow_type": "x" * 256}, "workflow_type", "validation_failed"),
        ({"workflow_id": ""}, "workflow_id", "validation_failed"),
        ({"workflow_id": "with space"}, "workflow_id", "validation_failed"),
        ({"workflow_id": "a/b"}, "workflow_id", "validation_failed"),
        ({"workflow_id": "\u00fc"}, "workflow_id", "validation_failed"),
        ({"workflow_id": "x" * 192}, "workflow_id", "validation_failed"),
        ({"task_queue": ""}, "task_queue", "validation_failed"),
        ({"input": "text"}, "input", "invalid_payload"),
        ({"input": {"a": 1}}, "input", "invalid_payload"),
        ({"input": [2**64]}, "input", "invalid_payload"),
        ({"input": {"codec": "json", "blob": "W10="}}, "input", "unsupported_payload_codec"),
        ({"input": {"codec": "avro", "blob": "W10="}}, "input.blob", "invalid_payload_framing"),
        ({"input": {"codec": "avro", "blob": "%%%"}}, "input.blob", "invalid_payload_framing"),
        ({"input": {"codec": "avro", "blob": "wwEAAAAAAAAAAAA="}}, "input.blob", "unsupported_payload_schema"),
        ({"input": {"codec": "avro", "blob": 5}}, "input.blob", "invalid_payload_framing"),
        ({"input": {"codec": "avro", "blob": "wwHioz3/VYAiNwACAAA="}}, "input", "invalid_payload"),
        ({"payload_codec": "json"}, "payload_codec", "unsupported_payload_codec"),
        ({"duplicate_policy": "use_existing"}, "duplicate_policy", "validation_failed"),
        ({"run_timeout_seconds": 0}, "run_timeout_seconds", "validation_failed"),
        ({"run_timeout_seconds": 1e300}, "run_timeout_seconds", "invalid_timeout"),
        ({"execution_timeout_seconds": "1h"}, "execution_timeout_seconds", "validation_failed"),
        ({"priority": 10}, "priority", "validation_failed"),
        ({"fairness_weight": 0}, "fairness_weight", "validation_failed"),
        ({"memo": [1]}, "memo", "validation_failed"),
        ({"memo": {"1": 1}}, "memo.1", "invalid_memo"),
        ({"search_attributes": {"a b": 1}}, "search_attributes.a b", "invalid_search_attributes"),
        ({"search_attributes": {"a": {"b": 1}}}, "search_attributes.a", "invalid_search_attributes"),
        ({"business_key": "x" * 256}, "business_key", "validation_failed"),
        ({"retry_policy": {}}, "retry_policy", "validation_failed"),
        ({"request_id": "r"}, "request_id", "validation_failed"),
        ({"workflow_task_timeout": 1}, "workflow_task_timeout", "validation_failed"),
    ],
)
async def test_a_start_with_one_wrong_field_names_it_and_stores_nothing(
    change: dict[str, Any], field: str, reason: str
) -> None:
    async with serving() as api:
        body = {"workflow_type": "order", "workflow_id": "o-1"} | change
        answer = await api.control("POST", "/workflows", {k: v for k, v in body.items() if v is not None})
        found = answer.json()
        assert (answer.status_code, found["field"], found["reason"]) == (422, field, reason), answer.text
        assert found["validation_errors"] == {field: [found["message"]]}
        assert found["control_plane"]["operation"] == "start"
        assert (await api.control("GET", "/workflows")).json()["workflows"] == []


FAR = 10**20  # beyond what databases count to


@pytest.mark.parametrize(
    ("verb", "body", "status", "reason"),
    [
        ("list-workflows", b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "malformed_json"),
        ("describe-workflow", b'{"workflow_id":"\xff"}', 400, "malformed_json"),
        ("list-workflows", {"before": FAR}, 422, "validation_failed"),
        ("list-workflows", {"searches": [["x", FAR]]}, 422, "validation_failed"),
        ("list-workflows", {"search": ["x", {"a": 1}]}, 422, "validation_failed"),
        ("get-history", {"workflow_id": "o-1", "after": FAR}, 422, "validation_failed"),
        ("get-history", {"workflow_id": "o-1", "after": -FAR}, 422, "validation_failed"),
        ("get-update", {"workflow_id": "o-1", "update_id": f"RUN-u1.{FAR}"}, 409, "update_not_found"),
    ],
)
@pytest.mark.parametrize("together", [False, True])
async def test_a_call_that_cannot_be_is_refused(
    verb: str, body: dict[str, Any] | bytes, status: int, reason: str, together: bool
) -> None:
    async with serving() as api:
        run = (await api.start())["run_id"]
        text = body if isinstance(body, bytes) else json.dumps(body).replace("RUN", run).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Backstay-Protocol": "1"} | JSON
        if not together:
            answer = await api.http.post(f"/api/call/{verb}", content=text, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
            return
        many = b'{"calls":[["%b",%b]]}' % (verb.encode(), text)
        answer = await api.http.post("/api/calls", content=many, headers=headers)
        if answer.status_code == 200:
            [[_, said, code]] = answer.json()
            assert (code, said["reason"]) == (status, reason)
        else:
            assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text


@pytest.mark.parametrize("number", ["99999999999999999999", "-99999999999999999999", "1" + "0" * 400 + ".5"])
async def test_a_query_with_a_number_beyond_all_is_refused(number: str) -> None:
    async with serving() as api:
        await api.control("POST", "/search-attributes", {"name": "x", "type": "int"})
        answer = await api.control("GET", "/workflows", params={"query": f"x = {number}"})
        assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_visibility_query")


async def test_a_page_token_beyond_all_is_none_of_ours() -> None:
    async with serving() as api:
        token = b64encode(b"9999999999999999999").decode()
        answer = await api.control("GET", "/workflows", params={"next_page_token": token})
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_page_token")


SEGMENTS = [
    "{}",
    "{workflow_id}",
    "x\nERROR root: admin logged in",
    "\x1b[2J",
    "\u2028",
    "%00",
    "..",
    "",
    "\U0001f600",
]


@pytest.mark.parametrize("segment", SEGMENTS)
async def test_a_path_is_never_logged_whatever_it_says(segment: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as api:
        for route in ROUTES:
            path = re.sub(r"{\w+}", quote(segment, safe=""), route.path)
            answer = await api.http.request(route.method, path)
            allowed = (200, 401, 404, 405) if route.needs_credential or route.plane == "open" else (400, 401)
            assert answer.status_code in allowed, (path, answer.text)
            assert answer.json()
    assert caplog.records == []


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"GET /api/health HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"GET /api/health HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_a_request_that_is_not_http_is_answered_and_not_logged(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as api, line(api) as ours:
        ours.send(said)
        first = await asyncio.wait_for(ours.reader.readline(), 10)
        assert first.split()[1] in (b"200", b"400")
    assert caplog.records == []


def test_a_record_in_the_log_is_one_record() -> None:
    record = logging.LogRecord("n", logging.ERROR, "", 0, "%s failed", ("a\nERROR root: b\x1b[2J\r\x85",), None)
    assert LogFormatter("%(levelname)s %(name)s: %(message)s").format(record) == (
        "ERROR n: a\n    ERROR root: b\\x1b[2J\\x0d\\x85 failed"
    )


async def test_a_body_larger_than_allowed_is_refused_however_it_comes() -> None:
    async with serving(max_body_bytes=1000) as api:

        async def parts() -> Any:
            for _ in range(100):
                yield b"x" * 100

        bodies: list[Any] = [b"x" * 1001, parts()]
        for content in bodies:
            answer = await api.http.post("/api/workflows", content=content, headers=CONTROL | JSON)
            assert (answer.status_code, answer.json()["reason"]) == (413, "payload_too_large")
            assert answer.json()["configured_limit"] == 1000
        good = json.dumps({"workflow_type": "order"}).ljust(1000).encode()
        assert (await api.http.post("/api/workflows", content=good, headers=CONTROL | JSON)).status_code == 201


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    async with serving(body_seconds=0.05) as api:
        host, port = api.http.base_url.host, api.http.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        head = "".join(f"{name}: {value}\r\n" for name, value in (CONTROL | JSON).items())
        writer.write(f"POST /api/workflows HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 100\r\n\r\n{{".encode())
        line = await reader.readline()
        assert b"408" in line
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/api", 404, "route_not_found"),
        ("GET", "/api/nothing", 404, "route_not_found"),
        ("GET", "/api/workflows//runs", 404, "route_not_found"),
        ("DELETE", "/api/workflows", 405, "method_not_allowed"),
        ("GET", "/api/worker/register", 405, "method_not_allowed"),
        ("GET", "/api/workflows/nobody", 404, "instance_not_found"),
        ("GET", "/api/workflows/no%00body", 404, "instance_not_found"),
        ("GET", "/api/workflows/nobody/runs", 404, "instance_not_found"),
        ("GET", "/api/workflows/nobody/runs/NORUN", 404, "run_not_found"),
        ("GET", "/api/workflows/nobody/runs/NORUN/history", 404, "run_not_found"),
        ("POST", "/api/workflows/nobody/repair", 404, "instance_not_found"),
        ("GET", "/api/workers/nobody", 404, "worker_not_found"),
        ("GET", "/api/namespaces/nobody", 404, "namespace_not_found"),
        ("GET", "/api/workflows?page_size=0", 422, "validation_failed"),
        ("GET", "/api/workflows?page_size=many", 422, "validation_failed"),
        ("GET", "/api/workflows?status=cancelled", 422, "validation_failed"),
        ("GET", "/api/workflows?next_page_token=x", 400, "invalid_page_token"),
        ("GET", "/api/workers?status=gone", 422, "validation_failed"),
        ("POST", "/api/task-queues/q/build-ids/drain", 422, "validation_failed"),
        ("DELETE", "/api/namespaces/default", 409, "namespace_is_default"),
    ],
)
async def test_an_unknown_path_method_or_id_is_refused_with_its_reason(
    method: str, path: str, status: int, reason: str
) -> None:
    async with serving() as api:
        answer = await api.http.request(method, path, headers=CONTROL)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        assert answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("register", {"task_queue": None}, "task_queue"),
        ("register", {"max_concurrent_workflow_tasks": 0}, "max_concurrent_workflow_tasks"),
        ("register", {"supported_workflow_types": "order"}, "supported_workflow_types"),
        ("register", {"workflow_command_contracts": {"order": 1}}, "workflow_command_contracts[...]"),
        ("heartbeat", {"worker_id": None}, "worker_id"),
        ("heartbeat", {"task_slots": {"a": "b"}}, "task_slots[...]"),
        ("workflow-tasks/poll", {"worker_id": None}, "worker_id"),
        ("workflow-tasks/poll", {"task_queue": 5}, "task_queue"),
        ("workflow-tasks/poll", {"timeout_seconds": "long"}, "timeout_seconds"),
        ("workflow-tasks/poll", {"accept_history_encoding": "zip"}, "accept_history_encoding"),
        ("activity-tasks/poll", {"history_page_size": 0}, "history_page_size"),
    ],
)
async def test_a_worker_call_with_one_wrong_field_names_it(path: str, change: dict[str, Any], field: str) -> None:
    async with serving() as api:
        await api.register()
        body = {"worker_id": ME, "task_queue": "q"} | change
        answer = await api.worker(path, {key: part for key, part in body.items() if part is not None})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
        assert answer.json()["protocol_version"] == "1.20", "also a refusal keeps the envelope"


@pytest.mark.contract("STREAM-09")
async def test_unknown_keys_on_worker_calls_are_ignored() -> None:
    async with serving() as api:
        assert (await api.register(colour="blue")).status_code == 201
        await api.start()
        task = await api.poll(mood="good")
        assert task is not None
        lease = {"lease_owner": ME, "workflow_task_attempt": 1, "weather": "fine"}
        assert (await api.worker(f"workflow-tasks/{task['task_id']}/heartbeat", lease)).status_code == 200
        charge = {"type": "schedule_activity", "activity_type": "charge", "why": "because"}
        assert (await api.complete(task, charge, charge, sticky_cache={"x": 1})).status_code == 200
        for verb, more in (("complete", {"result": None}), ("fail", {"failure": {"message": "no", "mood": "bad"}})):
            work = await api.poll("activity", mood="good")
            for path in ("heartbeat", verb):
                assert (await api.activity(path, work, weather="fine", **more)).status_code == 200, path
        task = await api.poll(mood="good")
        failure = {"failure": {"message": "no", "mood": "bad"}}
        refused = await api.worker(
            f"workflow-tasks/{task['task_id']}/fail",
            failure | {"lease_owner": ME, "workflow_task_attempt": task["workflow_task_attempt"], "weather": "fine"},
        )
        assert refused.status_code == 200


@pytest.mark.parametrize("size", [3 << 20])
async def test_a_payload_above_the_structural_limit_is_refused(size: int) -> None:
    async with serving() as api:
        answer = await api.control("POST", "/workflows", {"workflow_type": "order", "input": blob(["x" * size])})
        body = answer.json()
        assert (answer.status_code, body["reason"], body["limit_kind"]) == (
            422,
            "structural_limit_exceeded",
            "payload_size",
        )
        assert body["current_value"] > body["configured_limit"] == 2 << 20


async def test_unreadable_arguments_are_refused_between_our_own_processes_too() -> None:
    async with serving() as api:
        own = {"Authorization": f"Bearer {TOKEN}", "X-Backstay-Protocol": "1"}
        started = {"workflow_type": "order", "workflow_id": "o-1", "routing": {"queue": "q"}}
        asked = {"start": started, "signal_name": "pay", "arguments": ""}
        answer = await api.http.post("/api/call/signal-with-start", json=asked, headers=own)
        assert (answer.status_code, answer.json()["reason"]) == (409, "invalid_payload"), answer.text
        assert answer.json()["fields"]["field"] == "arguments"
        assert (await api.control("GET", "/workflows")).json()["workflows"] == []


def test_a_refusal_may_have_fields_of_any_name() -> None:
    """Workers name them when they refuse a query."""
    fields = dict.fromkeys(("self", "status", "reason", "message"), "x")
    assert refusal_error(Refused("query_rejected", "no", **fields)).fields == fields
