"""`GET /api/audit`: who did what, newest first, in pages, within a bound, on both stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backstay.cli.main import dw
from backstay.server.operators import audit, system_actions
from backstay.server.operators.system_actions import ACTIONS
from backstay.server.routes import ROUTES
from backstay.store.sql import queries as sqlite_queries

from ..store.seam import connection_of
from .kit import TOKEN, Api, blob, serving


async def later(api: Api) -> None:
    await api.world.advance(1)


async def entries(api: Api, query: str = "", **options: Any) -> list[dict[str, Any]]:
    answer = await api.control("GET", f"/audit?{query}", **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


async def all_pages(api: Api, query: str = "", size: int = 2) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token = ""
    for _ in range(200):
        body = (await api.control("GET", f"/audit?page_size={size}&{query}&next_page_token={token}")).json()
        assert len(body["entries"]) <= size
        found += body["entries"]
        token = body["next_page_token"]
        if token is None:
            assert body["looked_at"]["complete"]
            return found
    raise AssertionError("it never ends")


@pytest.mark.parametrize("store", ["memory", "file", "postgresql"])
async def test_who_did_what_newest_first(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = "sqlite::memory:" if store == "memory" else f"sqlite:{tmp_path / 'audit.db'}"
    if store == "postgresql":
        place = request.getfixturevalue("postgresql_url")
    async with serving(store=place, still=store == "memory") as api:
        token = (await api.control("POST", "/tokens", {"role": "operator", "note": "till"})).json()
        options: dict[str, Any] = {"token": token["token"], "headers": {"X-Workflow-Caller-Label": "till-7"}}
        start = {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q", "input": blob(["x" * 50])}
        await api.control("POST", "/workflows", start, **options)
        await api.control("POST", "/workflows", start, **options)
        await api.start("o-2")
        await api.control("POST", "/workflows/o-1/cancel", {"reason": "no"}, **options)
        plan = {"spec": {"cron_expressions": ["0 0 1 1 *"]}, "action": {"workflow_type": "order"}}
        await api.control("POST", "/schedules", {"schedule_id": "s", **plan})
        found = await entries(api)
        assert [(e["kind"], e["command_type"], e["status"]) for e in found] == [
            ("command", "create_schedule", "accepted"),
            ("command", "cancel", "accepted"),
            ("command", "start", "accepted"),
            ("command", "start", "rejected"),
            ("command", "start", "accepted"),
            ("system", "token.create", "accepted"),
        ]
        assert [e.get("workflow_id") or e.get("schedule_id") for e in found[:5]] == ["s", "o-1", "o-2", "o-1", "o-1"]
        cancel, made = found[1], found[5]
        assert (cancel["token_id"], cancel["caller_label"], cancel["address"]) == (
            token["token_id"],
            "till-7",
            "127.0.0.1",
        )
        assert (cancel["request_route"], cancel["source"]) == ("/api/workflows/o-1/cancel", "http")
        assert cancel["request_fingerprint"].startswith("sha256:")
        assert (made["target_name"], made["token_id"]) == (token["token_id"], "setting:token")
        assert made["about"] == {"role": "operator", "payloads": True, "note": "till"}
        assert found[4]["payload_bytes"] > 50
        times = [e["recorded_at"] for e in found]
        assert times == sorted(times, reverse=True)
        assert await all_pages(api) == found
        assert await all_pages(api, size=1) == found
        for query, expected in (
            ("command_type=cancel", [1]),
            ("command_type=token.create", [5]),
            ("status=rejected", [3]),
            (f"token_id={token['token_id']}", [1, 3, 4]),
            ("caller=till-7", [1, 3, 4]),
            ("caller=nobody", []),
            ("workflow_id=o-1", [1, 3, 4]),
            ("workflow_id=s", [0]),
            ("workflow_id=none", []),
            ("source=http", [0, 1, 2, 3, 4, 5]),
            ("source=python", []),
        ):
            assert await entries(api, query) == [found[n] for n in expected], query
            assert await all_pages(api, query) == [found[n] for n in expected], query


async def test_a_range_of_time_begins_in_the_middle_without_reading_what_is_newer() -> None:
    async with serving() as api:
        moments: list[str] = []
        for n in range(40):
            moments.append((await api.control("GET", "/session")).json()["generated_at"])
            await api.start(f"o-{n}")
            await api.world.advance(600)
        answer = (await api.control("GET", f"/audit?from={moments[10]}&to={moments[13]}")).json()
        assert [e["workflow_id"] for e in answer["entries"]] == ["o-12", "o-11", "o-10"]
        assert answer["looked_at"]["commands"] <= 5
        assert (answer["next_page_token"], answer["looked_at"]["complete"]) == (None, True)
        later = await entries(api, f"from={moments[39]}")
        assert [e["workflow_id"] for e in later] == ["o-39"]
        assert await entries(api, f"to={moments[0]}") == []


async def test_a_page_says_how_far_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LOOKED_AT", 10)
    monkeypatch.setattr(audit, "CHUNK", 4)
    async with serving() as api:
        await api.start("first", workflow_type="rare")
        await api.control("POST", "/workflows/first/cancel", {})
        for n in range(30):
            await api.start(f"o-{n}")
        page = (await api.control("GET", "/audit?command_type=cancel")).json()
        assert (page["entries"], page["looked_at"]["commands"]) == ([], 12)
        assert page["looked_at"]["until"] is not None
        assert not page["looked_at"]["complete"]
        assert [e["workflow_id"] for e in await all_pages(api, "command_type=cancel")] == ["first"]
        assert len(await all_pages(api, size=3)) == 32


async def test_commands_with_large_payloads_are_read_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        for n in range(5):
            await api.start(f"o-{n}", input=["x" * 200_000])
        asked: list[int] = []
        log = api.server.store.command_log

        def noted(before: int, limit: int, workflow: int | None) -> Any:
            asked.append(limit)
            return log(before, limit, workflow)

        monkeypatch.setattr(api.server.store, "command_log", noted)
        assert len(await entries(api)) == 5
        assert max(asked) == 1


async def test_the_audit_of_a_namespace_is_its_own() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "tenant"})
        there = {"X-Namespace": "tenant"}
        await later(api)
        mine = (await api.control("POST", "/tokens", {"role": "viewer", "namespace": "tenant"})).json()
        await api.control("POST", "/tokens", {"role": "worker"})
        await api.control("POST", "/workflows", {"workflow_type": "order", "workflow_id": "t-1"}, headers=there)
        await api.start()
        bound = await entries(api, headers=there, token=mine["token"])
        assert [(e["command_type"], e.get("workflow_id")) for e in bound] == [
            ("start", "t-1"),
            ("token.create", None),
            ("namespace.create", None),
        ]
        assert bound[1]["target_name"] == mine["token_id"]
        refused = await api.control("GET", "/audit", token=mine["token"])
        assert refused.status_code == 403
        assert [e["command_type"] for e in await entries(api)] == ["start", "token.create"]


async def test_sessions_namespaces_and_tokens_are_in_the_audit_and_no_secret_is() -> None:
    async with serving() as api:
        headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "Sec-Fetch-Site": "same-origin"}
        opened = await api.http.post("/api/session", json={"token": TOKEN}, headers=headers)
        await later(api)
        wrong = await api.http.post("/api/session", json={"token": "guess"}, headers=headers)
        assert wrong.status_code == 401
        await later(api)
        await api.http.delete("/api/session", headers=headers)
        await later(api)
        await api.control("POST", "/namespaces", {"name": "other"})
        await api.control("DELETE", "/namespaces/other")
        token = (await api.control("POST", "/tokens", {"role": "viewer"})).json()
        await later(api)
        await api.control("POST", f"/tokens/{token['token_id']}/rotate", {})
        await later(api)
        await api.control("DELETE", f"/tokens/{token['token_id']}")
        await api.control("DELETE", "/tokens/none")  # refused, so nothing was done
        found = await entries(api)
        assert [e["command_type"] for e in found] == [
            *("token.revoke", "token.rotate", "token.create"),
            *("session.end", "session.refuse", "session.open"),
        ]
        assert [e["status"] for e in found] == [*["accepted"] * 4, "rejected", "accepted"]
        refused = (await api.control("GET", "/audit?status=rejected")).json()["entries"]
        assert [(e["command_type"], e["address"]) for e in refused] == [("session.refuse", "127.0.0.1")]
        text = (await api.control("GET", "/audit")).text
        assert token["token"] not in text
        assert opened.cookies["dw"] not in text
        assert (found[-1]["token_id"], found[-1]["session_id"]) == ("setting:token", opened.json()["session_id"])
        other = await api.control("GET", "/audit", headers={"X-Namespace": "default"})
        assert other.status_code == 200


async def test_old_actions_make_room_and_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_actions, "MOST", 3)
    store = f"sqlite:{tmp_path / 'audit.db'}"
    async with serving(store=store) as api:
        ids = []
        for _ in range(5):
            ids.append((await api.control("POST", "/tokens", {"role": "viewer"})).json()["token_id"])
            await api.world.advance(1)
    async with serving(store=store) as api:
        assert [e["target_name"] for e in await entries(api)] == ids[:1:-1]


async def test_a_caller_that_repeats_what_it_may_do_pushes_out_its_own_entries_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_actions, "MOST", 20)
    headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "Sec-Fetch-Site": "same-origin"}
    async with serving(viewer_token="v") as api:
        made = (await api.control("POST", "/tokens", {"role": "admin", "note": "backdoor"})).json()
        await api.http.post("/api/session", json={"token": TOKEN}, headers=headers)
        for _ in range(50):
            await later(api)
            assert (await api.http.post("/api/session", json={"token": "v"}, headers=headers)).status_code == 201
            await api.http.post("/api/session", json={"token": "guess"}, headers=headers)
        kinds = [(e["command_type"], e.get("token_id")) for e in await entries(api)]
        assert kinds.count(("token.create", "setting:token")) == 1
        assert kinds.count(("session.open", "setting:token")) == 1
        assert len(kinds) == 20
        assert made["token_id"] in {e["target_name"] for e in await entries(api)}


def test_every_route_that_changes_the_server_is_in_the_audit() -> None:
    """Or leaves a record of its own, or changes nothing that anybody would ask about."""
    commands = ("/api/workflows", "/api/activities", "/api/schedules", "/api/reservations", "/webhooks/", "/api/call")
    elsewhere = ("/api/worker/",)
    for route in ROUTES:
        if route.changes and not route.path.startswith((*commands, *elsewhere)):
            assert (route.method, route.path) in ACTIONS, f"say what {route.method} {route.path} does, or why not"
    known = {(route.method, route.path) for route in ROUTES}
    assert ACTIONS.keys() <= known


async def test_the_log_of_commands_is_read_in_its_order_and_never_sorted() -> None:
    async with serving() as api:
        statements = sqlite_queries("backstay.store.sqlite")
        for name, given in (("command_log", (9, 9)), ("command_log_of", (1, 9, 9)), ("command_sizes", (9, 9))):
            plan = connection_of(api.server.store).execute(f"explain query plan {statements[name]}", given).fetchall()
            assert "TEMP B-TREE" not in str(plan), (name, plan)
            assert "SCAN workflow" not in str(plan), (name, plan)


@pytest.mark.parametrize(
    ("query", "field", "reason"),
    [
        ("comand_type=start", "comand_type", "unknown_parameter"),
        ("from=yesterday", "from", "validation_failed"),
        ("to=2026-13-01", "to", "validation_failed"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "to", "invalid_range"),
        ("status=maybe", "status", "validation_failed"),
        ("page_size=0", "page_size", "validation_failed"),
        ("next_page_token=zzz", "next_page_token", "invalid_page_token"),
        ("next_page_token=WzEsIiIsIngiXQ==", "next_page_token", "invalid_page_token"),
    ],
)
async def test_bad_questions_are_refused(query: str, field: str, reason: str) -> None:
    async with serving() as api:
        answer = await api.control("GET", f"/audit?{query}")
        assert (answer.status_code in (400, 422), answer.json()["reason"]) == (True, reason)
        assert answer.json()["field"] == field
        if reason == "unknown_parameter":
            assert "did you mean 'command_type'?" in answer.json()["message"]


async def test_a_page_token_of_another_list_is_refused() -> None:
    async with serving() as api:
        await api.start()
        await api.start("o-2")
        token = (await api.control("GET", "/audit?page_size=1")).json()["next_page_token"]
        other = await api.control("GET", f"/audit?page_size=1&status=accepted&next_page_token={token}")
        assert (other.status_code, other.json()["reason"]) == (400, "invalid_page_token")


async def test_the_command_line_prints_it(tmp_path: Path) -> None:
    database = tmp_path / "audit.db"
    async with serving(store=f"sqlite:{database}", still=False) as api:
        await api.start()
        await api.control("POST", "/workflows/o-1/cancel", {}, headers={"X-Workflow-Caller-Label": "till-7"})

        def run(*arguments: str) -> str:
            done = CliRunner().invoke(dw, list(arguments))
            assert done.exit_code == 0, done.output
            return done.stdout

        made = await asyncio.to_thread(run, "token", "create", "--role", "viewer", "--db", str(database))
        assert made.strip() not in await asyncio.to_thread(run, "audit", "--db", str(database))
        here = (await asyncio.to_thread(run, "audit", "--db", str(database))).splitlines()
        assert [line.split()[2] for line in here] == ["token.create", "cancel", "start"]
        assert "dw:" in here[0]
        assert "http: till-7, setting:token, 127.0.0.1" in here[1]
        server = ("--server", str(api.http.base_url).rstrip("/"), "--token", TOKEN)
        only = await asyncio.to_thread(run, "audit", "--type", "cancel", "--id", "o-1", *server)
        assert only == here[1] + "\n"
        lines = await asyncio.to_thread(run, "audit", "--json", "--from", "2020-01-01T00:00:00Z", "--db", str(database))
        assert len(lines.splitlines()) == 3
        wrong = await asyncio.to_thread(CliRunner().invoke, dw, ["audit", "--from", "then", "--db", str(database)])
        assert (wrong.exit_code, "must be a time" in wrong.output) == (2, True)


async def test_automatic_starts_are_left_out_on_request() -> None:
    async with serving() as api:
        await api.start()
        plan = {"spec": {"cron_expressions": ["0 2 * * *"]}, "action": {"workflow_type": "order"}}
        await api.control("POST", "/schedules", {"schedule_id": "nightly", **plan})
        await api.control("POST", "/schedules/nightly/trigger", {})
        while not await entries(api, "source=schedule"):
            await later(api)  # the schedule starts its run with a message of its own
        people = [(e["command_type"], e["source"]) for e in await entries(api, "automatic_starts=0")]
        assert people == [("trigger_schedule", "http"), ("create_schedule", "http"), ("start", "http")]
        assert [e["source"] for e in await entries(api, "automatic_starts=1&source=schedule")] == ["schedule"]
        wrong = await api.control("GET", "/audit?automatic_starts=perhaps")
        assert (wrong.status_code, wrong.json()["field"]) == (422, "automatic_starts")
