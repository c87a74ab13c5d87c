"""The record of every command says who gave it: on every way in, and never with a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay import AsyncClient
from backstay.protocol.native import client as calls

from .kit import TOKEN, Api, blob, serving
from .test_browser import cookie, sign_in

LABEL = {"X-Workflow-Caller-Label": "till-7"}
WAIT = {"type": "open_condition_wait", "condition_key": "paid", "condition_definition_fingerprint": "sha256:1"}
CONTRACT = {"signals": ["pay"], "queries": [], "updates": ["rename"]}


async def operator(api: Api) -> tuple[str, str]:
    made = (await api.control("POST", "/tokens", {"role": "operator"})).json()
    return made["token_id"], made["token"]


async def recorded(api: Api, workflow_id: str = "o-1") -> list[dict[str, Any]]:
    """The commands of a workflow as they are stored."""
    key = await api.server.store.find("default", workflow_id)
    assert key is not None
    return [msgspec.to_builtins(command) for command in await api.server.store.commands(key)]


def about(command: dict[str, Any]) -> dict[str, Any]:
    return command["context"]["request"]


def check(command: dict[str, Any], route: str, token_id: str | None, source: str = "http") -> None:
    request = about(command)
    assert (request["route"], request["token_id"], command["source"]) == (route, token_id, source)
    assert (request["address"], request["auth_outcome"]) == ("127.0.0.1", "accepted")
    assert command["fingerprint"].startswith("sha256:")


@pytest.mark.contract("REC-03")
async def test_every_command_of_the_control_plane_says_who_gave_it() -> None:
    async with serving() as api:
        token_id, token = await operator(api)
        options: dict[str, Any] = {"token": token, "headers": LABEL}
        await api.register(workflow_command_contracts={"order": CONTRACT})
        start = {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q", "input": [1]}
        await api.control("POST", "/workflows", start, **options)
        await api.control("POST", "/workflows", start, **options)
        await api.complete(await api.poll(), WAIT)
        signalling = start | {"signal_input": [5]}
        await api.control("POST", "/workflows/o-1/signal-with-start/pay", signalling, **options)
        for verb in (
            "signal/pay",
            "signal/unknown",
            "update/rename",
            "pause",
            "unpause",
            "repair",
            "cancel",
            "archive",
        ):
            await api.control("POST", f"/workflows/o-1/{verb}", {"input": [5]}, **options)
        commands = await recorded(api)
        # A start, a duplicate, the pair of signal-with-start, and eight verbs.
        assert len(commands) == 12
        assert {command["status"] for command in commands} == {"accepted", "rejected"}
        for command in commands:
            check(command, about(command)["route"], token_id)
            assert about(command)["caller"] == "till-7"
            assert about(command)["auth"] == ["operator"]
            assert about(command)["auth_method"] == "token"
        assert [about(command)["route"] for command in commands[:3]] == [
            "/api/workflows",
            "/api/workflows",
            "/api/workflows/o-1/signal-with-start/pay",
        ]
        pair = [command["context"]["intake"] for command in commands[2:4]]
        assert pair[0] == pair[1]
        assert pair[0]["mode"] == "signal_with_start"


@pytest.mark.contract("HOOK-05", "REC-03")
async def test_webhooks_say_that_they_are_webhooks() -> None:
    async with serving() as api:
        token_id, token = await operator(api)
        headers = LABEL | {"Authorization": f"Bearer {token}"}
        await api.register()
        body = {"workflow_id": "o-1", "task_queue": "q", "input": [1]}
        assert (await api.http.post("/webhooks/start/order", json=body)).status_code == 401
        await api.http.post("/webhooks/start/order", json=body, headers=headers)
        await api.http.post("/webhooks/start/order/signals/pay", json=body | {"signal_input": [1]}, headers=headers)
        await api.http.post("/webhooks/instances/o-1/signals/pay", json={"input": [5]}, headers=headers)
        commands = await recorded(api)
        assert [(command["command_type"], about(command)["route"]) for command in commands] == [
            ("start", "/webhooks/start/order"),
            ("start", "/webhooks/start/order/signals/pay"),
            ("signal", "/webhooks/start/order/signals/pay"),
            ("signal", "/webhooks/instances/o-1/signals/pay"),
        ]
        for command in commands:
            check(command, about(command)["route"], token_id, "webhook")
        export = await api.control("GET", f"/workflows/o-1/runs/{commands[0]['resolved_run_id']}/history/export")
        assert [c["context"]["request"]["token_id"] for c in export.json()["commands"]] == [token_id] * 4


async def test_schedules_and_standalone_activities_say_who_made_them() -> None:
    async with serving() as api:
        token_id, token = await operator(api)
        job = {"activity_id": "job", "activity_type": "charge", "task_queue": "q"}
        await api.control("POST", "/activities", job, token=token)
        check((await recorded(api, "job"))[0], "/api/activities", token_id)
        plan = {"spec": {"cron_expressions": ["0 0 1 1 *"]}, "action": {"workflow_type": "order"}}
        await api.control("POST", "/schedules", {"schedule_id": "s", **plan}, token=token)
        await api.control("POST", "/schedules/s/pause", {}, token=token)
        key = await api.server.store.find("default/schedules", "s")
        assert key is not None
        commands = [msgspec.to_builtins(command) for command in await api.server.store.commands(key)]
        assert [about(command)["route"] for command in commands] == ["/api/schedules", "/api/schedules/s/pause"]
        for command in commands:
            check(command, about(command)["route"], token_id)


@pytest.mark.contract("REC-03")
async def test_our_own_client_is_known_by_its_token_and_cannot_claim_to_be_another() -> None:
    async with serving() as api:
        token_id, token = await operator(api)
        forged = {"request": {"token_id": "somebody", "route": "/nowhere"}}
        headers = {calls.HEADER: str(calls.VERSION), "Authorization": f"Bearer {token}"} | LABEL
        start = {"workflow_type": "order", "workflow_id": "o-1", "context": forged, "source": "http"}
        signal = {"workflow_id": "o-1", "signal_name": "pay", "context": forged}
        both = {"start": start, "signal_name": "pay"}
        for verb, body in (("start-workflow", start), ("signal-workflow", signal), ("signal-with-start", both)):
            assert (await api.http.post(calls.PATH + verb, json=body, headers=headers)).status_code == 200
        batch = {"calls": [["signal-workflow", signal], ["start-workflow", start | {"workflow_id": "o-2"}]]}
        assert (await api.http.post(calls.MANY, json=batch, headers=headers)).status_code == 200
        commands = [*await recorded(api), *await recorded(api, "o-2")]
        assert len(commands) == 6
        for command in commands:
            assert about(command)["route"].startswith("/api/call")
            check(command, about(command)["route"], token_id, "python")
            assert about(command)["caller"] == "till-7"


async def test_the_client_of_the_library_is_recorded_too() -> None:
    async with serving(still=False) as api:
        token_id, token = await operator(api)
        async with AsyncClient(str(api.http.base_url), token=token) as client:
            handle = await client.start("order", "o-1", 5)
            await handle.cancel()
        for command in await recorded(api):
            check(command, about(command)["route"], token_id, "python")


async def test_a_command_from_a_page_names_its_session() -> None:
    async with serving() as api:
        token_id, token = await operator(api)
        signed_in = await sign_in(api, token)
        api.http.cookies.clear()
        headers = {
            "X-Durable-Workflow-Control-Plane-Version": "2",
            "Sec-Fetch-Site": "same-origin",
            "Cookie": f"dw={cookie(signed_in).value}",
        }
        body = {"workflow_type": "order", "workflow_id": "o-1"}
        assert (await api.http.post("/api/workflows", json=body, headers=headers)).status_code == 201
        (command,) = await recorded(api)
        check(command, "/api/workflows", token_id)
        assert about(command)["session_id"] == signed_in.json()["session_id"]
        assert about(command)["auth_method"] == "session"


async def test_a_server_that_asks_for_nothing_says_so() -> None:
    async with serving(auth="none") as api:
        await api.start()
        (command,) = await recorded(api)
        assert (about(command)["auth_outcome"], about(command)["auth_method"]) == ("not_required", "none")
        assert "token_id" not in about(command)


async def test_the_same_request_has_the_same_fingerprint_with_or_without_an_id() -> None:
    async with serving() as api:
        await api.start(input=blob([1]))
        await api.start("o-2", input=blob([1]))
        await api.start("o-3", input=blob([2]))
        await api.control("POST", "/workflows", {"workflow_type": "order", "workflow_id": "o-4", "input": blob([1])})
        found = [(await recorded(api, f"o-{n}"))[0]["fingerprint"] for n in range(1, 5)]
        assert found[0] == found[1] == found[3] != found[2]


async def test_labels_are_cut_and_no_secret_is_stored(tmp_path: Path) -> None:
    async with serving(store=f"sqlite:{tmp_path / 'records.db'}") as api:
        _, token = await operator(api)
        label = {"X-Workflow-Caller-Label": "x" * 5000}
        body = {"workflow_type": "order", "workflow_id": "o-1"}
        await api.control("POST", "/workflows", body, token=token, headers=label)
        await api.control("POST", "/workflows/o-1/cancel", {})
        assert about((await recorded(api))[0])["caller"] == "x" * 255
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in written
    assert f"Bearer {TOKEN}".encode() not in written
    assert b"setting:token" in written
