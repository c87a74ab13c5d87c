"""The stories of `tests/sdk/test_registered_names.py`, over HTTP; and what an operator and a worker of another kind may say."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from backstay import WorkflowFailed, activity
from backstay.codec.exceptions import RemoteFailure
from backstay.codec.values import dumps
from backstay.protocol.payloads import envelope

from ..sdk import test_registered_names as told
from .kit import TOKEN, remote, retold

globals().update(retold(told))


def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
        "X-Durable-Workflow-Control-Plane-Version": "2",
        "X-Durable-Workflow-Protocol-Version": "1.0",
    }
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/workflows", {"workflow_type": "durable-workflow.async"}),
        ("/webhooks/start/durable-workflow.async", {}),
    ],
)
async def test_an_operator_cannot_start_a_function_by_its_name(path: str, body: dict[str, Any]) -> None:
    told.ran.clear()
    asked = {**body, "workflow_id": "n", "input": envelope(dumps([f"{told.HERE}:quote", dumps(["tea"])]))}
    async with remote(told.calls) as app:
        status, reply = await asyncio.to_thread(post, app.house.url, path, asked)
    assert (status, reply["reason"]) == (422, "invalid_workflow_type")
    assert told.ran == []


@activity(type="pay", queue="foreign")
def pay() -> None: ...


async def test_a_worker_cannot_make_a_client_import_a_module() -> None:
    async with remote(told.calls) as app:

        async def ask(path: str, body: Any) -> Any:
            return (await asyncio.to_thread(post, app.house.url, f"/api/worker/{path}", body))[1]

        who = {"worker_id": "w", "task_queue": "foreign"}
        await ask("register", {**who, "runtime": "php", "supported_activity_types": ["pay"]})
        handle = await app.start_activity(pay, "p")
        task = (await ask("activity-tasks/poll", {**who, "timeout_seconds": 20}))["task"]
        failure = {"message": "boo", "type": "loot.X", "class": "antigravity:X"}
        held = {"activity_attempt_id": task["activity_attempt_id"], "lease_owner": "w"}
        await ask(f"activity-tasks/{task['task_id']}/fail", {**held, "failure": failure})
        with pytest.raises(WorkflowFailed, match=r"loot\.X: boo") as caught:
            await handle.result()
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteFailure)
    assert cause.exception_type == "loot.X"
    assert "antigravity" not in sys.modules
