"""A published worker polls for a question at one node, and its answer reaches another: a load balancer is in between."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from .kit import ME, Api, blob, until
from .test_polls_elsewhere import two

CONTRACTS = {"order": {"queries": ["total"], "updates": ["add"], "update_validators": ["add"]}}


async def asked(at: Api, path: str, kind: str) -> tuple[asyncio.Task[httpx.Response], dict[str, Any]]:
    """A request that needs an answer of the worker, and the task that the worker has got for it."""
    caller = asyncio.create_task(at.control("POST", f"/workflows/o-1/{path}", {}))
    await until(lambda: at.server.questions.waiting)
    return caller, await at.poll(kind)


@pytest.mark.parametrize(
    ("verb", "said", "status", "answer"),
    [
        ("complete", {"result_envelope": blob(7)}, 200, {"result": 7}),
        ("fail", {"failure": {"message": "cannot say", "reason": "query_rejected"}}, 409, {"reason": "query_rejected"}),
    ],
)
async def test_a_query(postgresql_url: str, verb: str, said: Any, status: int, answer: dict[str, Any]) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register(workflow_command_contracts=CONTRACTS)
        await nodes.owner.start("o-1")
        caller, task = await asked(nodes.owner, "query/total", "query")
        body = {"lease_owner": ME, "query_task_attempt": task["query_task_attempt"], **said}
        told = await nodes.front.worker(f"query-tasks/{task['query_task_id']}/{verb}", body)
        assert (told.status_code, told.json()["recorded"]) == (200, True), told.text
        found = await caller
        assert (found.status_code, found.json()) == (status, found.json() | answer)
        again = await nodes.front.worker(f"query-tasks/{task['query_task_id']}/{verb}", body)
        assert again.json()["reason"] == "already_recorded"


async def test_a_validator(postgresql_url: str) -> None:
    async with two(postgresql_url) as nodes:
        await nodes.owner.register(workflow_command_contracts=CONTRACTS)
        await nodes.owner.start("o-1")
        caller, task = await asked(nodes.owner, "update/add", "update-validation")
        body = {
            "lease_owner": ME,
            "update_validation_attempt": task["update_validation_attempt"],
            "failure": {"message": "not this one", "reason": "update_rejected"},
        }
        told = await nodes.front.worker(f"update-validation-tasks/{task['task_id']}/reject", body)
        assert told.status_code == 200, told.text
        assert "not this one" in (await caller).text


@pytest.mark.parametrize(
    ("reason", "status", "told"),
    [("rejected_unknown_query", 404, "rejected_unknown_query"), ("bad_state", 409, "query_rejected")],
)
async def test_a_refusal_of_a_worker_that_polls_at_another_node(
    postgresql_url: str, reason: str, status: int, told: str
) -> None:
    """The caller is told what the worker has said. The query is not asked once more, when no worker polls for it."""
    async with two(postgresql_url) as nodes:
        await nodes.owner.register(workflow_command_contracts=CONTRACTS)
        await nodes.owner.start("o-1")
        polling = asyncio.create_task(nodes.front.poll("query", timeout_seconds=30))
        await until(lambda: nodes.front.server.questions._askers)
        caller = asyncio.create_task(nodes.owner.control("POST", "/workflows/o-1/query/total", {}))
        task = await polling
        await nodes.front.control("POST", "/search-attributes", {"name": "stage", "type": "keyword"})  # another version
        failed = {"lease_owner": ME, "query_task_attempt": 1, "failure": {"message": "not this", "reason": reason}}
        done = await nodes.front.worker(f"query-tasks/{task['query_task_id']}/fail", failed)
        assert done.status_code == 200, done.text
        found = await caller
        assert (found.status_code, found.json()["reason"], found.json()["worker_reason"]) == (status, told, reason)
        assert not nodes.owner.server.questions.waiting
