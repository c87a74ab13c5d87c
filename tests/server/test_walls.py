"""A token that is bound to one namespace reaches nothing outside it: every route, every call, every kind of id.

`teamb` has one of everything; `teama` knows all the ids, and even has a worker of the same name. A route that is added is
asked with them, too: unless it is listed as one that names nothing of anybody (`OWN`), it has to refuse them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND, condition_wait_id
from backstay.protocol.native import client as calls
from backstay.protocol.native import worker as wire
from backstay.server.http.router import Route
from backstay.server.routes import ROUTES

from ..store.seam import connection_of
from .kit import Api, serving, until

MARK = "bsecret"
A, B = "teama", "teamb"
ME = "w"  # the name of a worker in either namespace
VERSIONS = {
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    calls.HEADER: str(calls.VERSION),
}
CONTRACT = {"queries": ["look"], "signals": ["poke"], "updates": ["amend"], "update_validators": ["amend"]}

OWN = {
    # What is there, of one's own.
    *("GET " + path for path in ("/api/workflows", "/api/activities", "/api/flows/{bucket}", "/api/saved-views")),
    *("GET " + path for path in ("/api/schedules", "/api/workers", "/api/worker-sessions", "/api/namespaces")),
    *("GET " + path for path in ("/api/tokens", "/api/sessions", "/api/search-attributes", "/api/task-queues")),
    *("GET " + path for path in ("/api/task-queues/{queue}", "/api/task-queues/{queue}/build-ids")),
    *("GET " + path for path in ("/api/task-queues/{queue}/tasks", "/api/overview", "/api/wakes", "/api/time-spent")),
    *("GET /api/system/" + name for name in ("operator-metrics", "metrics", "health", "repair", "retention")),
    *("GET /api/system/activity-timeouts", "GET /api/system/projections", "GET /api/system/liveness"),
    *("GET /api/cluster/info", "GET /api/audit"),
    "GET /metrics",
    *("GET " + path for path in ("/api/flows/definition", "/api/flows/{bucket}/count", "/api/suggest")),
    *("POST /api/call/" + verb for verb in ("list-workflows", "list-schedules", "search-runs", "count-runs")),
    "GET /api/stats",
    "GET /api/causes",
    "GET /api/capabilities",
    # Makes something of one's own, which may have the name that something has elsewhere.
    *("POST " + path for path in ("/api/workflows", "/api/activities", "/api/schedules", "/api/saved-views")),
    "POST /api/schedules/preview",
    *("POST " + path for path in ("/api/search-attributes", "/api/worker/register", "/api/worker/sessions")),
    "POST /api/reservations",
    "POST /api/workflows/{workflow_id}/signal-with-start/{name}",
    *("POST /webhooks/start/{workflow_type}" + more for more in ("", "/signals/{name}")),
    *("POST /api/call/" + verb for verb in ("start-workflow", "reserve-workflow", "run-workflow", "signal-with-start")),
    "POST /api/call/create-schedule",
    *(f"POST /api/task-queues/{{queue}}/build-ids/{verb}" for verb in ("drain", "resume", "promote")),
    *(f"POST /api/worker/{kind}-tasks/poll" for kind in ("workflow", "activity", "query", "update-validation")),
    "POST /api/worker/heartbeat",
    "POST /api/worker/station",
    "POST /api/worker/station/close",  # of one that is not there: it is closed
    # Answers for each id on its own: see `test_lists_of_ids`.
    "POST /api/system/projections/rebuild",
    *(f"POST /api/system/{name}/pass" for name in ("repair", "retention", "activity-timeouts")),
    "POST /api/calls",
    "POST /api/bulk",
    "GET /api/bulk",
}


class Tenants:
    """The ids of everything that there is in `teamb`, and requests by whoever is bound to `teama`."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.tokens: dict[tuple[str, str], str] = {}
        self.ids: dict[str, str] = {}
        self.tasks: dict[str, dict[str, Any]] = {}
        self.asked: list[asyncio.Task[httpx.Response]] = []

    async def send(
        self, who: str, role: str, method: str, path: str, body: Any = None, namespace: str | None = None
    ) -> httpx.Response:
        headers = VERSIONS | {"Authorization": f"Bearer {self.tokens[who, role]}", "X-Namespace": namespace or who}
        return await self.api.http.request(method, path, json=body, headers=headers, timeout=60)

    async def made(self, role: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self.send(B, role, method, path, body)
        assert answer.status_code in (200, 201, 202), answer.text
        return answer.json()

    async def polled(self, kind: str) -> dict[str, Any]:
        body = {"worker_id": ME, "task_queue": "q", "poll_request_id": f"poll-{kind}-{len(self.tasks)}"}
        task = (await self.made("worker", "POST", f"/api/worker/{kind}-tasks/poll", body))["task"]
        assert task is not None
        return task

    async def furnish(self) -> None:
        api = self.api
        for name in (A, B):
            await api.control("POST", "/namespaces", {"name": name, "description": f"{MARK if name == B else 'ours'}"})
            for role in ("worker", "operator", "admin"):
                body = {"role": role, "namespace": name, "note": MARK if name == B else None}
                made = (await api.control("POST", "/tokens", body)).json()
                self.tokens[name, role] = made["token"]
                self.ids["token_id"] = made["token_id"]
            register = {
                "worker_id": ME,
                "task_queue": "q",
                "supported_workflow_types": ["flow", "plain"],
                "supported_activity_types": ["act"],
                "workflow_command_contracts": {"flow": CONTRACT},
            }
            assert (await self.send(name, "worker", "POST", "/api/worker/register", register)).status_code == 201
        await self.made("worker", "POST", "/api/worker/register", register | {"worker_id": "only-b"})
        mine = {"workflow_id": "mine", "workflow_type": "flow", "task_queue": "elsewhere"}
        assert (await self.send(A, "operator", "POST", "/api/workflows", mine)).status_code == 201
        start = {
            "workflow_id": "flow-b",
            "workflow_type": "flow",
            "task_queue": "q",
            "input": [MARK],
            "memo": {"m": MARK},
        }
        run = (await self.made("operator", "POST", "/api/workflows", start))["run_id"]
        task = await self.polled("workflow")
        wait = {"type": "open_condition_wait", "condition_key": "x"}
        wait["condition_definition_fingerprint"] = "sha256:" + "0" * 64
        done = {"lease_owner": ME, "workflow_task_attempt": 1, "commands": [wait]}
        await self.made("worker", "POST", f"/api/worker/workflow-tasks/{task['task_id']}/complete", done)
        plain = {"workflow_id": "plain-b", "workflow_type": "plain", "task_queue": "q", "input": [MARK]}
        await self.made("operator", "POST", "/api/workflows", plain)
        self.tasks["workflow"] = await self.polled("workflow")
        job = {"activity_id": "job-b", "activity_type": "act", "task_queue": "q", "input": [MARK]}
        await self.made("operator", "POST", "/api/activities", job)
        self.tasks["activity"] = await self.polled("activity")
        await self.made("worker", "POST", "/api/worker/sessions", {"worker_id": ME, "session_id": "sess-b"})
        view = await self.made("operator", "POST", "/api/saved-views", {"name": f"{MARK}-view", "bucket": "running"})
        spec = {"spec": {"cron_expressions": ["0 0 1 1 *"]}, "action": {"workflow_type": "flow", "input": [MARK]}}
        await self.made("operator", "POST", "/api/schedules", {"schedule_id": "sched-b", "note": MARK, **spec})
        await self.made("operator", "POST", "/api/search-attributes", {"name": "attr_b", "type": "keyword"})
        many = {"action": "unpause", "ids": ["flow-b"], "reason": MARK}
        bulk = await self.made("operator", "POST", "/api/bulk", many)
        items = {"items": [{"payload": MARK}]}
        await self.made("operator", "POST", f"/api/workflows/flow-b/runs/{run}/streams/out/items", items)
        opening = {"worker_id": "own-b", "queues": ["own"], "activities": ["act"]}
        station = (await self.made("worker", "POST", wire.OPEN, opening))["station"]
        await self.ask("query", "/api/workflows/flow-b/query/look")
        await self.ask("validation", "/api/workflows/flow-b/update/amend")
        self.ids |= {
            "workflow_id": "flow-b",
            "node": "7",
            "run_id": run,
            "activity_id": "job-b",
            "view_id": view["view"]["id"] if "view" in view else view["id"],
            "schedule_id": "sched-b",
            "bulk_id": bulk["bulk_id"],
            "worker_id": "only-b",
            "session_id": "sess-b",
            "namespace": B,
            "name": "attr_b",
            "stream": "out",
            "update_id": f"{run}-u1.2",
            "wait_id": condition_wait_id(run, 1),
            "attempt_id": self.tasks["activity"]["activity_attempt_id"],
            "activity_execution_id": self.tasks["activity"]["activity_attempt_id"].rpartition("-")[0],
            "station": station,
            "bucket": "running",
            "queue": "q",
            "workflow_type": "flow",
        }

    async def ask(self, kind: str, path: str) -> None:
        """Somebody of `teamb` asks code, and its worker has been asked."""
        before = len(self.api.server.questions._open)
        request = self.send(B, "operator", "POST", path, {"input": [MARK], "wait_for": "accepted"})
        self.asked.append(asyncio.create_task(request))
        await until(lambda: len(self.api.server.questions._open) > before)
        self.tasks[kind] = await self.polled("query" if kind == "query" else "update-validation")

    # -- what is asked of each route

    def paths(self, route: Route) -> Iterator[str]:
        """With the ids of `teamb`; a run of its also under a workflow of one's own."""
        task = next((self.tasks[kind] for kind in ("activity", "query", "validation") if kind in route.path), None)
        ids = self.ids | {"n": "1", "task_id": (task or self.tasks["workflow"])["task_id"]}
        if "/signal" in route.path or "/quer" in route.path or "/update" in route.path:
            ids["name"] = next(name for part, name in NAMES.items() if part in route.path)
        names = ("made",) if _own(route) else ("flow-b", "mine") if "{run_id}" in route.path else ("flow-b",)
        for workflow_id in names:
            yield re.sub(r"{(\w+)}", lambda m: (ids | {"workflow_id": workflow_id})[m[1]], _asked(route))  # noqa: B023

    def bodies(self, route: Route) -> Iterator[dict[str, Any] | None]:
        if route.method == "GET":
            yield None
            return
        body = self.body(route)
        _check_covered(route, body)
        yield body
        if route.path.startswith("/api/call/") and hasattr(route.body, "run_id") and not _own(route):
            yield body | {"workflow_id": "mine"}  # which there is, in the caller's own namespace

    def body(self, route: Route) -> dict[str, Any]:
        activity = self.tasks["activity"]
        body: dict[str, Any] = {
            "namespace": B,
            "lease_owner": ME,
            "worker_id": ME,
            "station": self.ids["station"],
            "task_queue": "q",
            "queues": ["q"],
            "workflow_task_attempt": 1,
            "query_task_attempt": 1,
            "update_validation_attempt": 1,
            "activity_attempt_id": activity["activity_attempt_id"],
            "attempt": 1,
            "after": 0,
            "task_id": self.tasks["workflow"]["task_id"],
            "commands": [{"type": "complete_workflow", "result": "taken"}],
            "failure": {"message": "taken"},
            "holding": [[self.tasks[kind]["task_id"], 1] for kind in ("workflow", "activity")],
            "workflow_id": "flow-b",
            "activity_id": "job-a",
            "run_id": self.ids["run_id"],
            "schedule_id": "sched-b",
            "session_id": "sess-b",
            "update_id": self.ids["update_id"],
            "wait_id": self.ids["wait_id"],
            "message_id": "m",
            "stream_name": "out",
            "workflow_type": "flow",
            "activity_type": "act",
            "signal_name": "poke",
            "update_name": "amend",
            "query_name": "look",
            "run_ids": [self.ids["run_id"]],
            "instance_id": "flow-b",
            "execution_ids": [self.ids["activity_execution_id"]],
            "activity_execution_id": self.ids["activity_execution_id"],
            "build_id": "b1",
            "role": "admin",
            "name": "other",
            "type": "keyword",
            "bucket": "running",
            "changes": {"note": "taken"},
            "spec": {"cron_expressions": ["0 0 1 1 *"]},
            "action": {"workflow_type": "flow"},
            "start_time": "2027-01-01T00:00:00Z",
            "end_time": "2027-01-02T00:00:00Z",
            "wait_seconds": 0.1,
            "timeout_seconds": 0,
            "items": [{"payload": None}],
        }
        if route.path == "/api/bulk":  # takes no field that it does not know
            return {"action": "terminate", "ids": ["flow-b"]}
        made = {"workflow_id": "made", "schedule_id": "made", "session_id": "made"} if _own(route) else {}
        return body | made | BODIES.get(route.path, {})

    def rows(self) -> dict[str, list[str]]:
        """Everything of `teamb` that is on disk."""
        mine = f"select key from workflow where namespace like '{B}%'"
        tables = {
            "workflow": f"select * from workflow where namespace like '{B}%'",
            "run": f"select * from run where namespace like '{B}%'",
            "event": f"select * from event where run in (select key from run where namespace like '{B}%')",
            "task": f"select * from task where workflow in ({mine})",
            "command": f"select * from command where workflow in ({mine})",
            "registry": f"select * from registry where namespace = '{B}' or name = '{B}' or kind = 'token'",
        }
        reads = connection_of(self.api.server.engine.store)
        return {name: sorted(map(repr, reads.execute(query).fetchall())) for name, query in tables.items()}

    def waiting(self) -> list[Any]:
        """Everything of `teamb` that is in memory alone."""
        engine = self.api.server.engine
        leased = sorted((task.id, task.owner, task.attempt) for task in engine.leases if task.routing.namespace == B)
        asked = [
            (question.id, question.owner, question.attempt) for question in self.api.server.questions._open.values()
        ]
        desks = [desk.id for desk in self.api.server.worker_links if desk.worker.namespace == B]
        return [leased, asked, desks, [task.done() for task in self.asked]]


NAMES = {"/signal": "poke", "/quer": "look", "/update": "amend"}
PLAN = {"spec": {"cron_expressions": ["0 0 1 1 *"]}, "action": {"workflow_type": "flow", "routing": {"namespace": B}}}
STARTED = {"workflow_type": "flow", "workflow_id": "started", "namespace": B, "routing": {"namespace": B, "queue": "q"}}
BODIES: dict[str, dict[str, Any]] = {
    "/api/tokens": {"namespace": B},
    "/api/namespaces": {"name": "teamc"},
    "/api/namespaces/{namespace}": {"retention_days": 1},
    "/api/worker/station": {"worker_id": "own-a", "workflows": {}, "activities": []},
    "/api/worker/exchange": {"worker_id": "own-b"},
    "/api/worker/station/close": {"worker_id": "own-b"},
    "/api/workflows/{workflow_id}/message-streams/{stream}/messages": {"input": ["taken"]},
    "/api/call/run-workflow": {"start": STARTED | {"workflow_id": "mine"}},  # refused, or it would wait for its end
    "/api/call/signal-with-start": {"start": STARTED | {"workflow_id": "signalled"}},
    "/api/call/create-schedule": {"plan": PLAN},
    "/api/call/backfill-schedule": {"start": 0, "end": SECOND},
    "/api/call/append-stream": {"items": [{"payload": None, "payload_reference": "there"}]},
}
UNNAMED = {
    "new_id",
    "request_id",
    "process_id",
    "poll_request_id",
    "token_id",
    "sweep_id",
}  # an id that is the caller's own to choose


def _own(route: Route) -> bool:
    return f"{route.method} {route.path}" in OWN


def _asked(route: Route) -> str:
    if route.path == "/api/live":
        return "/api/live?topic=run:flow-b"
    return route.path + ("?lease_owner=w" if route.method == "GET" and "attempt_id" in route.path else "")


def _check_covered(route: Route, body: dict[str, Any]) -> None:
    """A field that names something by its id must be among those that are tried."""
    if route.body is not None:
        named = {field for field in route.body.__struct_fields__ if re.search("_ids?$", field)} - UNNAMED
        assert named <= body.keys(), f"{route.path}: say what {named - body.keys()} would be of another namespace"


@asynccontextmanager
async def tenants() -> AsyncIterator[Tenants]:
    async with serving() as api:
        both = Tenants(api)
        try:
            await both.furnish()
            yield both
        finally:
            for question in list(api.server.questions._open.values()):
                api.server.questions.refuse(question, Refused("query_rejected", "the test is over"))
            await asyncio.gather(*both.asked, return_exceptions=True)


def _role(route: Route) -> str:
    return "admin" if "admin" in route.roles else "worker"


def _refused(answer: httpx.Response) -> bool:
    """Not found, forbidden; our own calls keep the engine's reason, and a station that is not there is gone."""
    if answer.status_code == 409:
        return str(answer.json().get("reason", "")).endswith("_not_found")
    return answer.status_code in (403, 404, 410)


def _told(answer: httpx.Response) -> bool:
    return MARK in answer.text


@pytest.mark.contract("MATCH-10")
async def test_ids_of_another_namespace_open_nothing_on_any_route() -> None:
    async with tenants() as both:
        before = both.rows(), both.waiting()
        wrong: list[str] = []
        for route in ROUTES:
            if not route.needs_credential:
                continue
            role = _role(route)
            for path in both.paths(route):
                for body in both.bodies(route):
                    answer = await both.send(A, role, route.method, path, body)
                    if not (answer.status_code < 500 if _own(route) else _refused(answer)) or _told(answer):
                        wrong.append(f"{route.method} {path}: {answer.status_code} {answer.text[:200]}")
                    after = both.rows(), both.waiting()
                    if after != before:
                        wrong.append(f"{route.method} {path}: changed something of {B}")
                        before = after
        assert not wrong, "\n".join(wrong)


async def test_no_route_is_opened_by_naming_the_other_namespace() -> None:
    async with tenants() as both:
        before = both.rows(), both.waiting()
        wrong: list[str] = []
        for route in ROUTES:
            if not route.needs_credential or route.path in ("/api/cluster/info", "/metrics"):  # name no namespace
                continue
            path, body = next(both.paths(route)), next(both.bodies(route))
            headers = VERSIONS | {"Authorization": f"Bearer {both.tokens[A, _role(route)]}"}
            named: list[dict[str, Any]] = [
                {"headers": headers | {"X-Namespace": B}},
                {"headers": headers, "params": {"namespace": B}},
            ]
            for more in named:
                answer = await both.api.http.request(route.method, path, json=body, **more)
                if answer.status_code != 403 or _told(answer):
                    wrong.append(f"{route.method} {path}: {answer.status_code} {answer.text[:200]}")
        assert not wrong, "\n".join(wrong)
        assert (both.rows(), both.waiting()) == before


async def test_lists_of_ids_are_judged_one_by_one() -> None:
    """Routes that take many ids at once, or many calls."""
    async with tenants() as both:
        before = both.rows(), both.waiting()
        run = both.ids["run_id"]
        body = both.body(next(route for route in ROUTES if route.path == "/api/system/repair/pass"))
        repair = (await both.send(A, "admin", "POST", "/api/system/repair/pass", body)).json()
        assert [f["reason"] for f in repair["existing_task_failures"]] == ["run_not_found", "instance_not_found"]
        assert repair["dispatched_tasks"] == 0
        pruned = (await both.send(A, "admin", "POST", "/api/system/retention/pass", body)).json()
        assert pruned["results"] == [{"run_id": run, "outcome": "skipped", "reason": "run_not_found"}]
        timed = (await both.send(A, "admin", "POST", "/api/system/activity-timeouts/pass", body)).json()
        assert [result["reason"] for result in timed["results"]] == ["execution_not_found"]
        verbs = [
            [verb.name, both.body(route)]
            for verb in calls.VERBS.values()
            for route in ROUTES
            if route.path == calls.PATH + verb.name and not _own(route)
        ]
        many = await both.send(A, "operator", "POST", calls.MANY, {"calls": verbs})
        said = [part for line in many.text.splitlines() if line for part in msgspec.json.decode(line)]
        assert len(said) == len(verbs)
        for place, refusal, status in said:
            assert (status, refusal["reason"].endswith("_not_found")) == (409, True), (verbs[place][0], refusal)
        assert (both.rows(), both.waiting()) == before


async def test_reports_of_a_worker_of_our_own_reach_only_its_namespace() -> None:
    async with tenants() as both:
        before = both.rows(), both.waiting()
        opened = await both.send(A, "worker", "POST", wire.OPEN, {"worker_id": ME, "queues": ["q"]})
        task, activity = both.tasks["workflow"], both.tasks["activity"]
        keys = {entry.instance.workflow_id: key for key, entry in both.api.server.engine.cache._entries.items()}
        run_id, step, attempt = activity["activity_attempt_id"].split("-")
        reports = [
            ["task", keys["plain-b"], task["task_id"], 1, [{"type": "fail_workflow", "message": "taken"}]],
            ["activity", keys["job-b"], run_id, int(step), int(attempt), None],
            ["beat", keys["job-b"], run_id, int(step), int(attempt), None],
            ["told", both.tasks["query"]["task_id"], 1],
            ["told", both.tasks["validation"]["task_id"], 1],
        ]
        body = {"worker_id": ME, "station": opened.json()["station"], "reports": reports}
        for again in (False, True):
            answer = await both.send(A, "worker", "POST", wire.EXCHANGE, body | {"again": again})
            assert answer.status_code == 200, answer.text
            refused = [said[0]["reason"] for said in answer.json()["answers"] if said and said[0]]
            assert refused == ["task_not_found"] * 3, "and what was told of questions nobody asked is dropped"
            assert not _told(answer)
        assert (both.rows(), both.waiting()) == before


async def test_a_poll_that_is_repeated_elsewhere_is_another_poll() -> None:
    """Polls are repeated by an id that workers choose: two namespaces may choose alike."""
    async with tenants() as both:
        before = both.rows(), both.waiting()
        for kind in ("workflow", "activity"):
            for number in range(4):
                body = {"worker_id": ME, "task_queue": "q", "poll_request_id": f"poll-{kind}-{number}"}
                answer = await both.send(A, "worker", "POST", f"/api/worker/{kind}-tasks/poll", body)
                assert (answer.json()["task"], _told(answer)) == (None, False)
        assert (both.rows(), both.waiting()) == before
