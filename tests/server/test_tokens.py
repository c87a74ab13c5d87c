"""Tokens made at run time, and registries that another process has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backstay.cli.main import dw
from backstay.store.errors import Unavailable

from .kit import ME, TOKEN, Api, serving


async def made(api: Api, role: str, **more: Any) -> dict[str, Any]:
    answer = await api.control("POST", "/tokens", {"role": role, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def opens(api: Api, token: str) -> tuple[bool, bool, bool]:
    """Which of the three kinds of doors a token opens."""
    doors = [
        await api.worker("heartbeat", {"worker_id": "nobody"}, token=token),
        await api.control("GET", "/workflows", token=token),
        await api.control("GET", "/tokens", token=token),
    ]
    return tuple(door.status_code not in (401, 403) for door in doors)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("role", "doors"),
    [("worker", (True, False, False)), ("operator", (False, True, False)), ("admin", (False, True, True))],
)
async def test_a_token_works_as_soon_as_it_is_made_and_never_again_once_it_is_not(
    role: str, doors: tuple[bool, bool, bool]
) -> None:
    async with serving() as api:
        token = await made(api, role, note="for the test")
        assert await opens(api, token["token"]) == doors
        rotated = (await api.control("POST", f"/tokens/{token['token_id']}/rotate", {})).json()
        assert rotated["token"] != token["token"]
        assert await opens(api, token["token"]) == (False, False, False), "the old secret is refused at once"
        assert await opens(api, rotated["token"]) == doors
        listed = await api.control("GET", "/tokens")
        assert [(t["token_id"], t["role"], t["note"]) for t in listed.json()["tokens"]] == [
            (token["token_id"], role, "for the test")
        ]
        assert token["token"] not in listed.text
        assert rotated["token"] not in listed.text
        gone = await api.control("DELETE", f"/tokens/{token['token_id']}")
        assert gone.json()["outcome"] == "revoked"
        assert await opens(api, rotated["token"]) == (False, False, False)
        again = await api.control("DELETE", f"/tokens/{token['token_id']}")
        assert (again.status_code, again.json()["reason"]) == (404, "token_not_found")


async def test_a_token_of_one_namespace_opens_no_other() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "tenant"})
        token = (await made(api, "admin", namespace="tenant"))["token"]
        own = {"headers": {"X-Namespace": "tenant"}, "token": token}
        assert (await api.control("GET", "/workflows", **own)).status_code == 200
        for answer in (
            await api.control("GET", "/workflows", token=token),
            await api.control("GET", "/workflows", token=token, headers={"X-Namespace": "no-such"}),
            await api.control("DELETE", "/namespaces/default", **own),
            await api.control("POST", "/namespaces", {"name": "another"}, **own),
            await api.control("POST", "/tokens", {"role": "admin"}, **own),
        ):
            assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")
        assert [n["name"] for n in (await api.control("GET", "/namespaces", **own)).json()["namespaces"]] == ["tenant"]
        everywhere = (await made(api, "worker"))["token_id"]
        hidden = await api.control("DELETE", f"/tokens/{everywhere}", **own)
        assert hidden.status_code == 404


async def test_only_hashes_reach_the_disk(tmp_path: Path) -> None:
    database = tmp_path / "tokens.db"
    async with serving(store=f"sqlite:{database}") as api:
        token = (await made(api, "operator"))["token"]
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in written
    async with serving(store=f"sqlite:{database}") as api:
        assert (await opens(api, token))[1], "and they are still known after a restart"


@pytest.mark.parametrize(
    ("body", "field"), [({}, "role"), ({"role": "king"}, "role"), ({"role": "worker", "note": "x" * 1001}, "note")]
)
async def test_a_wrong_request_makes_no_token(body: dict[str, Any], field: str) -> None:
    async with serving() as api:
        wrong = await api.control("POST", "/tokens", body)
        assert (wrong.status_code, wrong.json()["field"]) == (422, field)
        unknown = await api.control("POST", "/tokens", {"role": "worker", "namespace": "nowhere"})
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "namespace_not_found")
        assert (await api.control("GET", "/tokens")).json()["tokens"] == []


async def until(true: Any) -> None:
    async with asyncio.timeout(8):
        while not await true():
            await asyncio.sleep(0.02)


async def test_the_command_line_makes_tokens_for_a_server_that_runs(tmp_path: Path) -> None:
    database = tmp_path / "tokens.db"
    async with serving(store=f"sqlite:{database}", still=False) as api:

        def run(*arguments: str) -> str:
            done = CliRunner().invoke(dw, ["token", *arguments, "--db", str(database)])
            assert done.exit_code == 0, done.output
            return done.stdout.strip()

        token = await asyncio.to_thread(run, "create", "--role", "operator", "--note", "cli")

        async def known() -> bool:
            return (await api.control("GET", "/workflows", token=token)).status_code == 200

        await until(known)
        id = (await asyncio.to_thread(run, "list")).split()[0]
        assert (await api.control("GET", "/tokens")).json()["tokens"][0]["token_id"] == id
        await asyncio.to_thread(run, "revoke", id)

        async def refused() -> bool:
            return (await api.control("GET", "/workflows", token=token)).status_code == 401

        await until(refused)
        missing = await asyncio.to_thread(CliRunner().invoke, dw, ["token", "revoke", "nobody", "--db", str(database)])
        assert (missing.exit_code, "there is no token nobody" in missing.output) == (1, True)


async def test_a_token_is_refused_soon_although_the_database_was_away_when_it_was_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "tokens.db"
    async with serving(store=f"sqlite:{database}", still=False) as api:
        token = await made(api, "operator")
        kept, away = api.server.store.kept, ["namespace", "token"]  # once at the first registry, once at the last

        def fails(kind: str) -> Any:
            if away and kind == away[0]:
                away.pop(0)
                raise Unavailable("the database is away")
            return kept(kind)

        monkeypatch.setattr(api.server.store, "kept", fails)
        revoke = ["token", "revoke", token["token_id"], "--db", str(database)]
        assert (await asyncio.to_thread(CliRunner().invoke, dw, revoke)).exit_code == 0

        async def refused() -> bool:
            return (await api.control("GET", "/workflows", token=token["token"])).status_code == 401

        await until(refused)
        assert not away


async def test_a_server_that_takes_over_knows_workers_rollouts_and_tokens(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'shared.db'}"
    first = serving(store=store, still=False)
    api = await first.__aenter__()
    async with serving(store=store, still=False) as guest:
        assert not guest.server.engine.holder
        await api.register(build_id="b1")
        await api.register("drained", build_id="b0")
        await api.control("POST", "/task-queues/q/build-ids/drain", {"build_id": "b0"})
        await api.control("POST", "/namespaces", {"name": "tenant"})
        token = (await made(api, "operator"))["token"]
        await api.worker("sessions", {"worker_id": ME, "session_id": "gpu"})
        await api.start()
        await first.__aexit__(None, None, None)

        async def taken_over() -> bool:
            return guest.server.engine.holder and (await guest.http.get("/api/ready")).status_code == 200

        await until(taken_over)
        assert (await guest.control("GET", "/workflows", token=token)).status_code == 200
        assert (await guest.poll())["workflow_id"] == "o-1", "without registering again"
        draining = await guest.worker("workflow-tasks/poll", {"worker_id": "drained", "task_queue": "q"})
        assert draining.json()["reason"] == "worker_draining"
        assert (await guest.control("GET", "/worker-sessions/gpu")).json()["lease_owner"] == ME
        tenant = await guest.control("GET", "/workflows", headers={"X-Namespace": "tenant"})
        assert tenant.status_code == 200
    assert TOKEN not in (tmp_path / "shared.db").read_bytes().decode("latin-1")
