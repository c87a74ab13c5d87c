"""Viewers read what operators read and change nothing; without `payloads` they read no payload, on any route."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from backstay.cli.main import dw
from backstay.protocol.hidden_payloads import HIDDEN
from backstay.protocol.redaction import FRAME
from backstay.server.access.auth import ADMIN, OPERATOR, READER
from backstay.server.http.router import Route
from backstay.server.routes import ROUTES

from .kit import Api, blob, serving

SECRET = "xyzzy-4711"  # in every payload, and nowhere else
CONTRACT = {"queries": ["look"], "signals": ["poke"], "updates": ["amend"]}
WAIT = {"type": "open_condition_wait", "condition_key": "x", "condition_definition_fingerprint": "sha256:1"}
VERSION = {"X-Durable-Workflow-Control-Plane-Version": "2"}


class Furnished:
    """A server with payloads everywhere, and the ids of what has them."""

    def __init__(self, api: Api, ids: dict[str, str], viewer: str, blind: str) -> None:
        self.api = api
        self.ids = ids
        self.viewer = viewer
        self.blind = blind

    async def get(self, route: Route, token: str) -> httpx.Response:
        path = re.sub(r"{(\w+)}", lambda m: self.ids.get(m[1], "1"), route.path)
        headers = VERSION | {"Authorization": f"Bearer {token}"}
        async with asyncio.timeout(10):
            async with self.api.http.stream("GET", path, headers=headers) as answer:
                if answer.headers["content-type"].startswith("text/event-stream"):
                    return answer  # it goes on for ever
                await answer.aread()
                return answer


@asynccontextmanager
async def furnished() -> AsyncIterator[Furnished]:
    async with serving() as api:
        await api.register(workflow_command_contracts={"order": CONTRACT})
        run = (await api.start(input=[SECRET], memo={"m": SECRET}))["run_id"]
        charge = {"type": "schedule_activity", "activity_type": "charge", "arguments": [SECRET]}
        memo = {"type": "upsert_memo", "entries": {"n": SECRET}}
        side = {"type": "record_side_effect", "result": blob(SECRET)}
        answer = await api.complete(await api.poll(), charge, charge, side, memo, WAIT)
        assert answer.status_code == 200, answer.text
        activity = await api.poll("activity")
        told = {"message": f"card {SECRET}", "details": {"pin": SECRET}}
        assert (await api.activity("heartbeat", activity, progress=told)).status_code == 200
        assert (await api.activity("heartbeat", activity, details={"at": SECRET})).status_code == 200
        assert (await api.activity("complete", activity, result=blob(SECRET))).status_code == 200
        failing = await api.poll("activity")
        failure = {"message": "declined", "type": "Declined", "details": {"card": SECRET}, "non_retryable": True}
        assert (await api.activity("fail", failing, failure=failure)).status_code == 200
        for path in ("signal/poke", "message-streams/s/messages"):
            body = {"input": [SECRET], "message_id": "m-1"} if "streams" in path else {"input": [SECRET]}
            assert (await api.control("POST", f"/workflows/o-1/{path}", body)).status_code == 202
        assert (await api.complete(await api.poll(), WAIT)).status_code == 200
        update = (await api.control("POST", "/workflows/o-1/update/amend", {"input": [SECRET]})).json()
        items = {"items": [{"payload": SECRET}, {"payload": {"deep": [SECRET]}}]}
        await api.control("POST", f"/workflows/o-1/runs/{run}/streams/out/items", items)
        job = {"activity_id": "job", "activity_type": "charge", "task_queue": "q", "input": [SECRET]}
        await api.control("POST", "/activities", job)
        job_task = await api.poll("activity")
        assert (await api.activity("complete", job_task, result=blob(SECRET))).status_code == 200
        done = await api.start("done", input=[SECRET])
        task = await api.poll()
        while task["workflow_id"] != "done":
            await api.complete(
                task, {"type": "complete_update", "update_id": update["update_id"], "result": blob(SECRET)}
            )
            task = await api.poll()
        assert (await api.complete(task, {"type": "complete_workflow", "result": blob(SECRET)})).status_code == 200
        spec = {"cron_expressions": ["0 0 1 1 *"]}
        action = {"workflow_type": "order", "input": [SECRET], "memo": {"m": SECRET}}
        made = await api.control("POST", "/schedules", {"schedule_id": "sched", "spec": spec, "action": action})
        assert made.status_code == 201, made.text
        view = (await api.control("POST", "/saved-views", {"name": "mine", "bucket": "running"})).json()
        tokens = [
            (await api.control("POST", "/tokens", {"role": "viewer", "payloads": payloads})).json()["token"]
            for payloads in (True, False)
        ]
        ids = {
            "workflow_id": "o-1",
            "run_id": run,
            "activity_id": "job",
            "schedule_id": "sched",
            "worker_id": "worker-1",
            "namespace": "default",
            "queue": "q",
            "bucket": "running",
            "stream": "out",
            "update_id": update["update_id"],
            "view_id": str(view.get("id") or view["view"]["id"]),
            "done": done["run_id"],
        }
        yield Furnished(api, ids, *tokens)


def reading() -> list[Route]:
    return [route for route in ROUTES if route.method == "GET" and "viewer" in route.roles]


async def test_a_viewer_without_payloads_reads_none_on_any_route() -> None:
    async with furnished() as here:
        seen: set[str] = set()
        for ids in (here.ids, here.ids | {"workflow_id": "done", "run_id": here.ids["done"]}):
            here.ids = ids
            for route in reading():
                full, less = await here.get(route, here.viewer), await here.get(route, here.blind)
                if less.headers["content-type"].startswith("text/event-stream"):
                    continue
                assert less.status_code < 500, (route.path, less.text)
                assert SECRET not in less.text, (route.path, less.text[max(less.text.find(SECRET) - 300, 0) :][:400])
                assert FRAME not in less.text, (route.path, less.text[max(less.text.find(FRAME) - 300, 0) :][:400])
                if SECRET in full.text or FRAME in full.text:
                    seen.add(route.path)
                    refused = (less.status_code, less.json().get("reason")) == (403, "payloads_not_readable")
                    assert refused or less.json()["payloads_hidden"], route.path
        # Or this test would look where nothing is to be found.
        place = "/api/workflows/{workflow_id}/runs/{run_id}"
        assert seen >= {
            "/api/workflows/{workflow_id}",
            place,
            f"{place}/detail",
            f"{place}/history",
            f"{place}/history/export",
            f"{place}/streams/{{stream}}/items",
            "/api/workflows/{workflow_id}/updates/{update_id}",
            "/api/activities/{activity_id}",
            "/api/schedules/{schedule_id}",
        }


async def test_a_search_finds_nothing_that_is_not_shown() -> None:
    """Or whoever may not read a payload guesses it letter by letter."""
    async with furnished() as here:

        async def found(text: str, token: str) -> list[dict[str, Any]]:
            answer = await here.api.control("GET", "/workflows/o-1/history", params={"text": text}, token=token)
            assert answer.status_code == 200, answer.text
            return answer.json()["events"]

        for text in (SECRET, SECRET[:3], SECRET[-3:], f"card {SECRET}", "4711", "pin", HIDDEN, "hidden"):
            assert await found(text, here.blind) == [], text
        assert "ActivityHeartbeatRecorded" in {event["event_type"] for event in await found(SECRET, here.viewer)}
        for text in ("declined", "charge", "ActivityFailed"):
            seen = await found(text, here.blind)
            assert seen, text
            assert all(text.lower() in str(event).lower() for event in seen), text


async def test_a_viewer_without_payloads_reads_the_metrics() -> None:
    async with furnished() as here:
        answer = await here.api.http.get("/metrics", headers={"Authorization": f"Bearer {here.blind}"})
        assert answer.status_code == 200
        assert "backstay_open_runs" in answer.text
        assert SECRET not in answer.text


async def test_what_is_no_payload_stays() -> None:
    async with furnished() as here:
        detail = (await here.api.control("GET", "/workflows/o-1/detail", token=here.blind)).json()
        assert (detail["workflow_id"], detail["input"], detail["memo"]) == ("o-1", HIDDEN, HIDDEN)
        assert "declined" in str(detail["failures"]), "what failed is what somebody on call needs to know"
        assert detail["output"] is None, "nothing is hidden where nothing is"


async def test_every_route_of_operators_is_open_to_viewers_if_it_reads_and_else_closed() -> None:
    for route in ROUTES:
        if route.roles in (ADMIN, READER, OPERATOR):
            reads = route.method == "GET" or route.path == "/api/schedules/preview"
            assert (route.roles == READER) is (reads and route.roles != ADMIN), route
    async with furnished() as here:
        for route in ROUTES:
            if "viewer" in route.roles or route.plane == "open":
                continue
            path = re.sub(r"{(\w+)}", lambda m: here.ids.get(m[1], "1"), route.path)
            headers = VERSION | {"Authorization": f"Bearer {here.viewer}"}
            answer = await here.api.http.request(route.method, path, headers=headers, content=b"{}")
            assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden"), (route.method, route.path)


@pytest.mark.parametrize("role", ["worker", "operator", "admin"])
async def test_only_viewers_are_kept_from_payloads(role: str) -> None:
    async with serving() as api:
        answer = await api.control("POST", "/tokens", {"role": role, "payloads": False})
        assert (answer.status_code, answer.json()["field"]) == (422, "payloads")
        assert (await api.control("GET", "/tokens")).json()["tokens"] == []


async def test_a_rotated_token_still_reads_no_payloads() -> None:
    async with serving() as api:
        token = (await api.control("POST", "/tokens", {"role": "viewer", "payloads": False})).json()
        rotated = (await api.control("POST", f"/tokens/{token['token_id']}/rotate", {})).json()
        me = (await api.control("GET", "/session", token=rotated["token"])).json()
        assert (me["role"], me["payloads"]) == ("viewer", False)


async def test_the_command_line_makes_viewers(tmp_path: Path) -> None:
    database = tmp_path / "tokens.db"
    async with serving(store=f"sqlite:{database}") as api:
        arguments = ["--role", "viewer", "--no-payloads", "--db", str(database)]
        done = await asyncio.to_thread(CliRunner().invoke, dw, ["token", "create", *arguments])
        assert done.exit_code == 0, done.output
        await api.server.access.tokens.load()
        me = (await api.control("GET", "/session", token=done.stdout.strip())).json()
        assert (me["role"], me["payloads"]) == ("viewer", False)
        listed = await asyncio.to_thread(CliRunner().invoke, dw, ["token", "list", "--db", str(database)])
        assert "viewer" in listed.stdout
        assert "no payloads" in listed.stdout
        wrong = ["token", "create", "--role", "operator", "--no-payloads", "--db", str(database)]
        refused = await asyncio.to_thread(CliRunner().invoke, dw, wrong)
        assert (refused.exit_code, "viewer" in refused.output) == (2, True)
