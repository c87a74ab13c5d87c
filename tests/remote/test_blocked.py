"""A run whose code does not fit its history says so in everything that it offers: queries, updates, detail, why."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, query, sleep, update, wait, workflow

from ..sdk.kit import eventually
from .kit import TOKEN, House

HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}


class Counted:
    def __init__(self) -> None:
        self.count = 0

    @query
    def shown(self) -> int:
        return self.count

    @update
    def bump(self) -> int:
        self.count += 1
        return self.count


@workflow(type="desk")
class Desk(Counted):
    def handle(self) -> int:
        wait(lambda: self.count > 1)
        return self.count


@workflow(type="desk")
class Sleeping(Counted):
    """Another first step."""

    def handle(self) -> int:
        sleep("1h")
        return self.count


@workflow(type="desk")
class Judging(Counted):
    """Another first step, and a validator that has to be asked."""

    @update
    def bump(self) -> int:
        return 0

    @bump.validator
    def judge(self) -> None: ...

    def handle(self) -> int:
        sleep("1h")
        return self.count


class Caller:
    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def get(self, path: str) -> dict[str, Any]:
        return (await self._http.get(f"{self._url}/api/workflows/{path}", headers=HEADERS)).json()

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        answer = await self._http.post(f"{self._url}/api/workflows/{path}", json=body, headers=HEADERS)
        return answer.status_code, answer.json()


@pytest.mark.contract("UPD-17", "QRY-16", "QRY-17")
async def test_a_run_whose_code_does_not_fit_says_so_in_all_its_actions() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client, httpx.AsyncClient() as http:
        caller = Caller(house.url, http)
        async with AsyncWorker(house.url, [Desk], token=TOKEN, worker_id="old"):
            run = await client.start(Desk, "d")
            await eventually(lambda: _waits(caller, "d"), "it waits")
            assert await run.query(Desk.shown) == 0
        async with AsyncWorker(house.url, [Sleeping], token=TOKEN, worker_id="new"):
            status, refused = await caller.post("d/query/shown")  # no task has failed yet
            assert (status, refused["reason"]) == (409, "query_rejected")
            assert refused["query_blocked_reason"] == "workflow_replay_blocked"
            status, _ = await caller.post("d/update/bump", wait_for="accepted")  # nothing is known of its code yet
            assert status == 202
            await eventually(lambda: _is_blocked(caller, "d"), "it is blocked")
            detail = await caller.get("d/detail")
            assert (detail["can_query"], detail["query_blocked_reason"]) == (False, "workflow_replay_blocked")
            assert (detail["can_update"], detail["update_blocked_reason"]) == (False, "workflow_definition_unavailable")
            assert (detail["can_signal"], detail["can_repair"], detail["can_cancel"]) == (False, True, True)
            assert detail["replay_block"]["worker_id"] == "new"
            status, refused = await caller.post("d/query/shown")
            assert status == 409
            assert refused["query_blocked_reason"] == "workflow_replay_blocked"
            assert refused["replay_blocked_reason"] == "history_shape_mismatch"
            assert (refused["workflow_sequence"], refused["recorded_event_types"]) == (1, ["ConditionWaitOpened"])
            status, refused = await caller.post("d/update/bump", wait_for="accepted")
            assert status == 409
            assert refused["outcome"] == "rejected_workflow_definition_unavailable"
            assert refused["rejection_reason"] == "workflow_definition_unavailable"
        detail = await eventually(lambda: _without_workers(caller), "no worker is alive")
        status, refused = await caller.post("d/query/shown")
        assert detail["query_blocked_reason"] == refused["query_blocked_reason"] == "workflow_replay_blocked"
        assert (detail["can_update"], detail["update_blocked_reason"]) == (False, "workflow_definition_unavailable")
        async with AsyncWorker(house.url, [Desk], token=TOKEN, worker_id="old again"):
            assert await run.update(Desk.bump) == 2  # the first one was accepted, and waited for code that fits
            assert await run.result() == 2


async def test_a_validator_that_cannot_be_replayed_is_no_consent() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client, httpx.AsyncClient() as http:
        caller = Caller(house.url, http)
        async with AsyncWorker(house.url, [Desk], token=TOKEN):
            await client.start(Desk, "d")
            await eventually(lambda: _waits(caller, "d"), "it waits")
        async with AsyncWorker(house.url, [Judging], token=TOKEN):
            status, refused = await caller.post("d/update/bump", wait_for="accepted")
            assert (status, refused["outcome"]) == (409, "rejected_workflow_definition_unavailable")
            assert (await caller.get("d"))["liveness_state"] == "waiting_for_condition"


async def _waits(caller: Caller, name: str) -> bool:
    return (await caller.get(name))["wait_kind"] == "condition"


async def _without_workers(caller: Caller) -> dict[str, Any] | None:
    workers = (await caller.get("../workers?status=active"))["workers"]
    return None if workers else await caller.get("d/detail")


async def _is_blocked(caller: Caller, name: str) -> bool:
    return (await caller.get(name))["liveness_state"] == "workflow_replay_blocked"
