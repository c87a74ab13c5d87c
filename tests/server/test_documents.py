"""The published documents describe what the server really does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator, ValidationError

from backstay.protocol.native import client as calls
from backstay.server.http.documents import openapi, stream_document
from backstay.server.routes import ROUTES

from .kit import ME, TOKEN, serving

STREAM: dict[str, Any] = json.loads(stream_document())


def conforms(message: str, body: Any) -> None:
    pointer = STREAM["components"]["messages"][message]["payload"]
    Draft7Validator({**pointer, "components": STREAM["components"]}).validate(body)


@pytest.mark.contract("STREAM-01")
async def test_the_stream_document_has_its_identity_and_is_served() -> None:
    assert (STREAM["id"], STREAM["info"]["version"]) == ("durable-workflow.v2.worker-protocol-stream", "5")
    assert STREAM["x-durable-workflow-catalog-entry"] == "worker_protocol_stream"
    assert (STREAM["x-durable-workflow-catalog-version"], STREAM["defaultContentType"]) == (13, "application/json")
    assert STREAM["x-durable-workflow-owner-symbol"] == (
        "App\\Support\\WorkerProtocol and Workflow\\V2\\Support\\WorkerCompatibilityFleet"
    )
    families = STREAM["x-durable-workflow-object-families"]
    assert [family["name"] for family in families] == [
        "worker_poll_stream",
        "worker_task_lease",
        "worker_task_heartbeat",
    ]
    for family in families:
        assert family["owner_repo"] == "durable-workflow/server"
        assert family["version_authority"] == "Workflow\\V2\\Support\\WorkerProtocolVersion::VERSION"
        assert family["schema_authority"].startswith("App\\")
    assert list(STREAM["channels"]) == ["worker.workflow_tasks", "worker.activity_tasks", "worker.query_tasks"]
    async with serving() as api:
        answer = await api.http.get("/api/asyncapi.json")
        assert (answer.json(), answer.headers["content-type"]) == (STREAM, "application/json")


@pytest.mark.contract("STREAM-01", "STREAM-05")
async def test_the_additions_of_the_stream_document_are_named_and_change_nothing_of_the_published_one() -> None:
    schemas = STREAM["components"]["schemas"]

    def words(schema: str) -> list[str]:
        return schemas[schema]["allOf"][1]["properties"]["poll_status"]["enum"]

    assert words("PollTerminal") == ["timeout", "empty", "draining"]
    assert words("PollWithheld") == ["throttled", "unavailable"]
    added = STREAM["x-backstay-additions"]
    assert schemas.keys() - set(added["schemas"]) == {
        *("ProtocolEnvelope", "TaskLeased", "PollTerminal", "LeaseEvent", "LeaseTerminalEvent"),
    }
    assert set(added["messages"]) <= STREAM["components"]["messages"].keys()
    for channel in STREAM["channels"].values():
        assert {"$ref": "#/components/messages/PollWithheld"} in channel["subscribe"]["message"]["oneOf"]
    async with serving(workflow_task_max_active_leases_per_queue=1) as api:
        await api.register()
        await api.start("first")
        await api.start("second")
        poll = {"worker_id": ME, "task_queue": "q"}
        await api.worker("workflow-tasks/poll", poll)
        throttled = (await api.worker("workflow-tasks/poll", poll, version="1.0")).json()
        conforms("PollWithheld", throttled)
        with pytest.raises(ValidationError):
            conforms("PollTimedOut", throttled)


@pytest.mark.contract("STREAM-03", "STREAM-05")
async def test_polls_of_a_first_version_worker_conform_to_the_stream_document() -> None:
    async with serving() as api:
        await api.register(build_id="b")
        await api.start()
        poll = {"worker_id": ME, "task_queue": "q"}
        task = (await api.worker("workflow-tasks/poll", poll, version="1.0")).json()
        conforms("WorkflowTaskLeased", task)
        await api.complete(task["task"], {"type": "schedule_activity", "activity_type": "charge"})
        conforms("ActivityTaskLeased", (await api.worker("activity-tasks/poll", poll, version="1.0")).json())
        asked = asyncio.create_task(api.control("POST", "/workflows/o-1/query/state", {}))
        question = (await api.worker("query-tasks/poll", poll | {"timeout_seconds": 30}, version="1.0")).json()
        conforms("QueryTaskLeased", question)
        answer = {"lease_owner": ME, "query_task_attempt": 1, "result": 1}
        await api.worker(f"query-tasks/{question['task']['task_id']}/complete", answer)
        await asked
        for kind in ("workflow", "activity", "query"):
            conforms("PollTimedOut", (await api.worker(f"{kind}-tasks/poll", poll, version="1.0")).json())
        await api.control("POST", "/task-queues/q/build-ids/drain", {"build_id": "b"})
        conforms("WorkerDraining", (await api.worker("workflow-tasks/poll", poll, version="1.0")).json())


async def test_every_route_is_described_and_every_body_has_a_schema() -> None:
    document = openapi(ROUTES)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None), route.path
        assert route.body is not None or route.method not in ("POST", "PUT"), route.path
    operations = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(operations) == len(set(operations))
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    async with serving() as api:
        assert (await api.http.get("/api/openapi.json")).json() == document


async def test_calls_that_share_a_request_are_answered_in_the_form_that_the_document_names() -> None:
    said = openapi(ROUTES)["paths"][calls.MANY]["post"]["responses"]["2XX"]["content"]
    async with serving() as api:
        headers = {"Authorization": f"Bearer {TOKEN}", calls.HEADER: str(calls.VERSION)}
        reply = await api.http.post(calls.MANY, json={"calls": [["list-workflows", {}]]}, headers=headers)
    assert reply.status_code == 200
    assert list(said) == [reply.headers["content-type"]]


async def test_real_requests_conform_to_the_document() -> None:
    document = openapi(ROUTES)

    def valid(path: str, body: Any) -> bool:
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return Draft202012Validator({**schema, "components": document["components"]}).is_valid(body)

    complete = "/api/worker/workflow-tasks/{task_id}/complete"
    lease = {"lease_owner": ME, "workflow_task_attempt": 1}
    async with serving() as api:
        await api.register()
        for number, commands in enumerate(
            (
                [{"type": "start_timer"}],
                [{"type": "start_timer", "delay_seconds": "1"}],
                [{"type": "nothing"}],
                [],
                [{"type": "start_timer", "delay_seconds": 1}],
            )
        ):
            await api.start(f"o-{number}")
            task = await api.poll()
            answer = await api.complete(task, *commands)
            assert valid(complete, lease | {"commands": commands}) == (answer.status_code == 200), commands


async def test_answers_are_described_field_by_field_and_are_what_the_document_says() -> None:
    document = openapi(ROUTES)
    schemas = document["components"]["schemas"]
    assert schemas["BulkAnswer"]["properties"]["total"] == {"type": "integer", "description": "Runs that it takes."}
    assert "total" in schemas["BulkAnswer"]["required"]
    begun = document["paths"]["/api/namespaces"]["post"]["responses"]["2XX"]["content"]["application/json"]["schema"]
    assert begun["anyOf"][0] == {"$ref": "#/components/schemas/NamespaceAnswer"}
    async with serving() as api:
        await api.register()
        await api.start()
        begun = (await api.control("POST", "/bulk", {"action": "pause", "ids": ["o-1"]})).json()
        for path, asked in (
            ("/api/namespaces", "/namespaces"),
            ("/api/namespaces/{namespace}", "/namespaces/default"),
            ("/api/workers", "/workers"),
            ("/api/worker-sessions", "/worker-sessions"),
            ("/api/saved-views", "/saved-views"),
            ("/api/saved-views/{view_id}", "/saved-views/system:running"),
            ("/api/bulk", "/bulk"),
            ("/api/bulk/{bulk_id}", f"/bulk/{begun['bulk_id']}"),
            ("/api/session", "/session"),
        ):
            answer = await api.control("GET", asked)
            assert answer.status_code == 200, answer.text
            said = document["paths"][path]["get"]["responses"]["2XX"]["content"]["application/json"]["schema"]
            assert "$ref" in said, f"{path} says no shape"
            Draft202012Validator({**said, "components": document["components"]}).validate(answer.json())
