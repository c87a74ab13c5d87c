"""Dry runs: every route that changes something says what it would do, and changes no row."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from backstay.engine.requests import rehearsal as rehearsals
from backstay.server.http.router import Route
from backstay.server.operators.rehearsal import has_dry_run
from backstay.server.routes import ROUTES

from ..store.seam import connection_of
from .kit import Api, serving

MUTATING = [route for route in ROUTES if has_dry_run(route)]
SPEC = {"spec": {"intervals": [{"every": "PT1H"}]}, "action": {"workflow_type": "order"}}
WAIT = {"type": "open_signal_wait", "signal_name": "approve"}

# The body of a request that the route accepts, in the world that `world` makes. Others are asked with an empty body.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/api/workflows"): {"workflow_type": "order", "workflow_id": "new", "task_queue": "q"},
    ("POST", "/api/reservations"): {"workflow_type": "order", "workflow_id": "new"},
    ("POST", "/api/activities"): {"activity_type": "charge", "activity_id": "new"},
    ("POST", "/api/saved-views"): {"name": "mine"},
    ("DELETE", "/api/saved-views/{view_id}"): {},
    ("POST", "/api/workflows/{workflow_id}/cancel"): {"reason": "x"},
    ("POST", "/api/workflows/{workflow_id}/terminate"): {"reason": "x"},
    ("POST", "/api/workflows/{workflow_id}/pause"): {},
    ("POST", "/api/workflows/{workflow_id}/unpause"): {},
    ("POST", "/api/workflows/{workflow_id}/repair"): {},
    ("POST", "/api/workflows/{workflow_id}/signal/{name}"): {"input": [1]},
    ("POST", "/api/workflows/{workflow_id}/runs/{run_id}/signal/{name}"): {"input": [1]},
    ("POST", "/api/workflows/{workflow_id}/update/{name}"): {"wait_for": "completed"},
    ("POST", "/api/workflows/{workflow_id}/message-streams/{stream}/messages"): {"message_id": "m-1"},
    ("POST", "/api/workflows/{workflow_id}/signal-with-start/{name}"): {"workflow_type": "order", "task_queue": "q"},
    ("POST", "/api/workflows/{workflow_id}/runs/{run_id}/streams/{stream}/items"): {"items": [{"payload": 1}]},
    ("POST", "/api/workflows/{workflow_id}/runs/{run_id}/streams/{stream}/close"): {},
    ("POST", "/api/schedules"): SPEC | {"schedule_id": "new"},
    ("PUT", "/api/schedules/{schedule_id}"): {"note": "x"},
    ("DELETE", "/api/schedules/{schedule_id}"): {},
    ("POST", "/api/schedules/{schedule_id}/pause"): {},
    ("POST", "/api/schedules/{schedule_id}/trigger"): {},
    ("POST", "/api/schedules/{schedule_id}/backfill"): {
        "start_time": "2025-01-01T00:00:00Z",
        "end_time": "2025-01-01T03:00:00Z",
    },
    ("DELETE", "/api/workers/{worker_id}"): {},
    ("POST", "/api/task-queues/{queue}/build-ids/drain"): {"build_id": "b-1"},
    ("POST", "/api/task-queues/{queue}/build-ids/resume"): {"build_id": "b-1"},
    ("POST", "/api/task-queues/{queue}/build-ids/promote"): {"build_id": "b-1"},
    ("POST", "/api/namespaces"): {"name": "new"},
    ("PUT", "/api/namespaces/{namespace}"): {"description": "x"},
    ("DELETE", "/api/namespaces/{namespace}"): {},
    ("POST", "/api/tokens"): {"role": "operator"},
    ("POST", "/api/tokens/{token_id}/rotate"): {},
    ("DELETE", "/api/tokens/{token_id}"): {},
    ("POST", "/api/search-attributes"): {"name": "new", "type": "int"},
    ("DELETE", "/api/search-attributes/{name}"): {},
    ("POST", "/api/bulk"): {"action": "cancel", "filter": {"queue": "q"}},
    ("POST", "/webhooks/start/{workflow_type}"): {"workflow_id": "new"},
    ("POST", "/webhooks/start/{workflow_type}/signals/{name}"): {"workflow_id": "new"},
    ("POST", "/webhooks/instances/{workflow_id}/cancel"): {},
    ("POST", "/webhooks/instances/{workflow_id}/signals/{name}"): {},
}


async def world(api: Api) -> dict[str, str]:
    """A workflow that waits, another with a leased task, a schedule and an entry of each registry; their names."""
    await api.register(build_id="b-1")
    started = await api.start("o-1", build_id="b-1")
    await api.complete(await api.poll(build_id="b-1"), WAIT)
    await api.start("o-2", build_id="b-1")
    assert await api.poll(build_id="b-1") is not None
    assert (await api.control("POST", "/schedules", SPEC | {"schedule_id": "s-1"})).status_code == 201
    await api.control("POST", "/namespaces", {"name": "other"})
    await api.control("POST", "/search-attributes", {"name": "approve", "type": "int"})
    token = (await api.control("POST", "/tokens", {"role": "operator"})).json()
    view = (await api.control("POST", "/saved-views", {"name": "v"})).json()
    streams = f"/workflows/o-1/runs/{started['run_id']}/streams/log/items"
    await api.control("POST", streams, {"items": [{"payload": 1}]})
    return {
        "workflow_id": "o-1",
        "run_id": started["run_id"],
        "name": "approve",
        "stream": "log",
        "schedule_id": "s-1",
        "worker_id": "worker-1",
        "queue": "q",
        "namespace": "other",
        "token_id": token["token_id"],
        "view_id": view["id"],
        "workflow_type": "order",
    }


def rows(api: Api) -> dict[str, list[Any]]:
    """Every row of the database."""
    connection = connection_of(api.server.store)
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall()]
    return {table: sorted(map(repr, connection.execute(f"select * from {table}").fetchall())) for table in tables}


def registries(api: Api) -> list[Any]:
    """What the server has in memory beside the database."""
    server = api.server
    return [
        server.namespaces.all(),
        server.access.tokens.all(),
        server.control.attributes.all(),
        server.control.saved_views.all(),
        server.workers.everybody(),
        server.rollouts.on("default", "q"),
        len(server.engine.cache),
        [(task.id, task.owner) for task in server.engine.leases],
    ]


async def ask(api: Api, route: Route, names: dict[str, str], body: dict[str, Any]) -> httpx.Response:
    path = route.path.format_map({name: names.get(name, "x") for name in (*names, *_parameters(route.path))})
    headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "Authorization": "Bearer secret"}
    return await api.http.request(route.method, f"{path}?dry_run=1", headers=headers, json=body)


def _parameters(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


async def test_a_dry_run_of_any_route_changes_no_row() -> None:
    async with serving() as api:
        names = await world(api)
        before, held = rows(api), registries(api)
        for route in MUTATING:
            body = BODIES.get((route.method, route.path))
            answer = await ask(api, route, names, body or {})
            where = f"{route.method} {route.path}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code == 200, where
            told = answer.json()
            assert told["dry_run"] is True, where
            if body is not None:
                assert told["accepted"] is True, where
            assert rows(api) == before, where
            assert registries(api) == held, where
        assert {(route.method, route.path) for route in MUTATING} >= BODIES.keys()


async def test_a_dry_run_says_which_events_would_be_written() -> None:
    async with serving() as api:
        started = await api.start("o-1")
        told = (await api.control("POST", "/workflows/o-1/terminate?dry_run=1", {"reason": "why"})).json()
        assert (told["accepted"], told["status"], told["reason"]) == (True, 200, None)
        assert told["answer"]["outcome"] == "terminated"
        events = told["would_write"]["events"]
        assert [event["event_type"] for event in events] == ["TerminateRequested", "WorkflowTerminated"]
        assert {event["run_id"] for event in events} == {started["run_id"]}
        (command,) = told["would_write"]["commands"]
        assert (command["command_type"], command["status"], command["outcome"]) == (
            "terminate",
            "accepted",
            "terminated",
        )
        assert told["would_write"]["tasks"][0]["change"] == "removed"
        # The real thing writes just that.
        length = len(await api.history("o-1"))
        await api.control("POST", "/workflows/o-1/terminate", {"reason": "why"})
        assert (await api.types("o-1"))[length:] == [event["event_type"] for event in events]


async def test_a_dry_run_says_that_a_command_would_be_rejected_and_why() -> None:
    async with serving() as api:
        await api.start("o-1")
        await api.control("POST", "/workflows/o-1/terminate", {})
        before = rows(api)
        told = (await api.control("POST", "/workflows/o-1/signal/approve?dry_run=1", {})).json()
        assert (told["accepted"], told["status"], told["reason"]) == (False, 409, "run_not_active")
        assert [command["status"] for command in told["would_write"]["commands"]] == ["rejected"]
        missing = (await api.control("POST", "/workflows/nobody/cancel?dry_run=1", {})).json()
        assert (missing["accepted"], missing["status"], missing["reason"]) == (False, 404, "instance_not_found")
        wrong = (await api.control("POST", "/workflows?dry_run=1", {"workflow_type": 5})).json()
        assert (wrong["accepted"], wrong["status"], wrong["answer"]["field"]) == (False, 422, "workflow_type")
        again = (
            await api.control("POST", "/workflows?dry_run=1", {"workflow_type": "order", "workflow_id": "o-1"})
        ).json()
        assert (again["accepted"], again["reason"]) == (False, "instance_already_started")
        assert rows(api) == before


async def test_a_dry_run_of_a_long_run_is_folded_beside_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decided on the same state, which is read in pages."""

    def refused(*_: object) -> None:
        raise AssertionError("a long history was read at once")

    async with serving() as api:
        await api.register()
        await api.start("o-1")
        steps = [{"type": "record_side_effect", "result": number} for number in range(rehearsals.SHORT + 100)]
        assert (await api.complete(await api.poll(), *steps, WAIT)).status_code == 200
        monkeypatch.setattr(rehearsals.RehearsalStore, "load", refused)
        told = (await api.control("POST", "/workflows/o-1/signal/approve?dry_run=1", {})).json()
        assert told["accepted"] is True, told
        assert told["would_write"]["events"][0]["event_type"] == "SignalReceived"
        expected = [event["sequence"] for event in told["would_write"]["events"]]
        before = len(await api.history("o-1"))
        assert expected[0] == before + 1
        bulk = {"action": "terminate", "filter": {"queue": "q"}}
        assert (await api.control("POST", "/bulk?dry_run=1", bulk)).json()["examples"][0]["outcome"] == "terminated"
        await api.control("POST", "/workflows/o-1/signal/approve", {})
        written = (await api.history("o-1"))[before:]
        assert [event["event_type"] for event in written] == [e["event_type"] for e in told["would_write"]["events"]]


async def test_a_dry_run_is_decided_on_what_is_on_disk() -> None:
    """The state in memory may say otherwise, for instance after rows were lost."""
    async with serving() as api:
        await api.start("o-1")
        assert (await api.describe("o-1"))["status"]
        connection_of(api.server.store).execute("delete from task")
        told = (await api.control("POST", "/workflows/o-1/repair?dry_run=1", {})).json()
        assert told["answer"]["outcome"] == "repair_dispatched"
        assert [task["change"] for task in told["would_write"]["tasks"]] == ["created"]
        assert connection_of(api.server.store).execute("select count(*) from task").fetchone() == (0,)


async def test_a_dry_run_of_a_start_names_its_first_task_and_starts_nothing() -> None:
    async with serving() as api:
        await api.register()
        body = {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q"}
        told = (await api.control("POST", "/workflows?dry_run=1", body)).json()
        assert (told["status"], told["answer"]["outcome"]) == (201, "started_new")
        assert [event["event_type"] for event in told["would_write"]["events"]][:2] == [
            "StartAccepted",
            "WorkflowStarted",
        ]
        (task,) = told["would_write"]["tasks"]
        assert (task["change"], task["task_status"], task["task_queue"]) == ("created", "ready", "q")
        assert await api.poll(timeout_seconds=0) is None
        assert (await api.control("GET", "/workflows/o-1")).status_code == 404


async def test_a_dry_run_of_a_registry_says_what_would_change_and_shows_no_secret() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "other", "retention_days": 7})
        told = (await api.control("PUT", "/namespaces/other?dry_run=1", {"retention_days": 9})).json()
        (entry,) = told["would_write"]["registry"]
        assert (entry["kind"], entry["name"], entry["change"]) == ("namespace", "other", "changed")
        assert entry["fields"]["retention_days"] == {"from": 7, "to": 9}
        assert (await api.control("GET", "/namespaces/other")).json()["retention_days"] == 7
        token = await api.control("POST", "/tokens?dry_run=1", {"role": "operator"})
        assert token.json()["would_write"]["registry"][0]["change"] == "created"
        assert "digest" not in token.text
        assert "token" not in token.json()["answer"]


async def test_passes_have_a_dry_run_of_their_own() -> None:
    async with serving(retention_interval_seconds=0) as api:
        await api.start("o-1")
        connection_of(api.server.store).execute("delete from task")
        before = rows(api)
        told = (await api.control("POST", "/system/repair/pass?dry_run=1", {})).json()
        assert (told["dry_run"], told["would_reconcile"], told["selected_missing_task_candidates"]) == (
            True,
            ["o-1"],
            1,
        )
        run_id = (await api.describe("o-1"))["run_id"]
        kept = (await api.control("POST", "/system/retention/pass?dry_run=1", {"run_ids": [run_id]})).json()
        assert (kept["dry_run"], kept["results"][0]["reason"]) == (True, "not_expired")
        assert rows(api) == before
        await api.control("POST", "/workflows/o-1/terminate", {})
        await api.world.advance(40 * 86_400)
        before = rows(api)
        gone = (await api.control("POST", "/system/retention/pass?dry_run=1", {})).json()
        assert (gone["would_be_pruned"], gone["results"][0]["outcome"]) == (1, "would_be_pruned")
        assert rows(api) == before


@pytest.mark.parametrize("path", ["/worker/register", "/worker/heartbeat"])
async def test_a_route_of_workers_has_no_dry_run_and_does_nothing_instead(path: str) -> None:
    async with serving() as api:
        before = rows(api)
        body = {"worker_id": "w", "task_queue": "q", "runtime": "python"}
        answer = await api.worker(f"{path.removeprefix('/worker/')}?dry_run=1", body)
        assert (answer.status_code, answer.json()["reason"]) == (422, "dry_run_unsupported")
        assert rows(api) == before


async def test_a_dry_run_needs_the_same_role() -> None:
    async with serving(operator_token="op", worker_token="wk") as api:
        assert (await api.control("POST", "/namespaces?dry_run=1", {"name": "x"}, token="op")).status_code == 403
        assert (await api.control("POST", "/workflows/o-1/cancel?dry_run=1", {}, token="wk")).status_code == 403
