"""Who may call what: credentials, roles, versions, namespaces, in this order."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from backstay.protocol.native.client import HEADER, VERSION
from backstay.server.http.router import Route
from backstay.server.routes import ROUTES

from .kit import Api, serving
from .test_http_protocol import line, request

ROLES: dict[str, Any] = {
    "worker_token": "w",
    "viewer_token": "v",
    "operator_token": "o",
    "admin_token": "a",
    "token": "all",
}


@pytest.mark.contract("PROTO-12")
@pytest.mark.parametrize(
    ("token", "worker", "viewer", "operator", "admin"),
    [
        ("w", True, False, False, False),
        ("v", False, True, False, False),
        ("o", False, True, True, False),
        ("a", False, True, True, True),
        ("all", True, True, True, True),
    ],
)
async def test_a_token_opens_the_doors_of_its_role_and_no_other(
    token: str, worker: bool, viewer: bool, operator: bool, admin: bool
) -> None:
    async with serving(**ROLES) as api:
        assert (await api.control("GET", "/cluster/info", token=token)).status_code == 200
        doors: list[tuple[bool, Any]] = [
            (worker, await api.worker("heartbeat", {"worker_id": "nobody"}, token=token)),
            (viewer, await api.control("GET", "/workflows", token=token)),
            (operator, await api.control("POST", "/workflows/none/cancel", {}, token=token)),
            (admin, await api.control("POST", "/namespaces", {"name": "fresh"}, token=token)),
        ]
        for opens, answer in doors:
            assert (answer.status_code != 403) is opens, answer.text
            if not opens:
                assert answer.json()["reason"] == "forbidden"
                assert answer.json()["allowed_roles"]


# Who may call a route is written down here once more, so that a new one is not open to everybody by mistake.
FOR_WORKERS = ("/api/worker/", "/webhooks/activity-")
FOR_ADMINS = {
    ("DELETE", "/api/workers/{worker_id}"),
    ("POST", "/api/namespaces"),
    ("PUT", "/api/namespaces/{namespace}"),
    ("DELETE", "/api/namespaces/{namespace}"),
    ("POST", "/api/nodes/{node}/drain"),
    ("POST", "/api/nodes/{node}/resume"),
    ("POST", "/api/nodes/{node}/forget"),
}
LOOKS_AHEAD = "/api/schedules/preview"  # a POST that changes nothing
OF_ADMINS = ("/api/tokens", "/api/sessions")
FOR_ALL = ("/api/cluster/info", "/api/session")
FOR_ANYBODY = ("/api/health", "/api/ready", "/api/openapi.json", "/api/asyncapi.json")


def allowed(route: Route) -> str:
    """The tokens that open a route."""
    if route.path in FOR_ALL:
        return "wvoa"
    if route.path.startswith(FOR_WORKERS):
        return "w"
    system = route.path.startswith("/api/system/") and route.method != "GET"  # what a system says of itself may be read
    if system or (route.method, route.path) in FOR_ADMINS or route.path.startswith(OF_ADMINS):
        return "a"
    return "voa" if route.method == "GET" or route.path == LOOKS_AHEAD else "oa"


async def test_every_route_is_for_its_roles_alone_on_both_ways() -> None:
    tokens: dict[str, Any] = {"worker_token": "w", "viewer_token": "v", "operator_token": "o", "admin_token": "a"}
    async with serving(**tokens) as api, line(api) as ours:
        for route in ROUTES:
            path = re.sub(r"\{\w+\}", "zz", route.path)
            if route.path in FOR_ANYBODY:
                assert (await api.http.request(route.method, path)).status_code == 200
                continue
            if route.path == "/api/session" and route.method != "GET":
                continue  # brings its credential along, or ends it: see test_browser.py
            for token in (None, "nope", "w", "v", "o", "a"):
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                expected = 401 if token not in ("w", "v", "o", "a") else None if token in allowed(route) else 403
                bad = "[" if route.method in ("POST", "PUT") else None  # nobody who is let in gets any further
                answer = await api.http.request(route.method, path, headers=headers, content=bad)
                statuses = [answer.status_code]
                if not inspect.iscoroutinefunction(route.handler):
                    told = {"X-Namespace": "default", HEADER: str(VERSION), "Content-Type": "application/json"}
                    statuses.append((await ours.ask(request(path, b"[", told | headers)))[0])
                for status in statuses:
                    if expected is None:
                        assert status not in (401, 403), (route.method, route.path, token)
                        assert status < 500, (route.method, route.path, token, answer.text)
                    else:
                        assert status == expected, (route.method, route.path, token)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer secret2"])
async def test_without_a_valid_credential_there_is_nothing_to_learn(header: str | None) -> None:
    async with serving() as api:
        for path in ("/api/cluster/info", "/api/workflows/o-1", "/api/worker/register"):
            method = "POST" if path.endswith("register") else "GET"
            headers = {} if header is None else {"Authorization": header}
            answer = await api.http.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (401, "unauthorized")
            assert "secret" not in answer.text


async def test_the_role_is_judged_before_version_and_namespace() -> None:
    async with serving(**ROLES) as api:
        elsewhere = {"X-Namespace": "unknown"}
        wrong = await api.control("GET", "/workflows", token="w", headers=elsewhere)
        assert wrong.status_code == 403
        versionless = await api.http.get("/api/workflows", headers={"Authorization": "Bearer o"} | elsewhere)
        assert (versionless.status_code, versionless.json()["reason"]) == (400, "missing_control_plane_version")
        lost = await api.control("GET", "/workflows", token="o", headers=elsewhere)
        assert (lost.status_code, lost.json()["reason"]) == (404, "namespace_not_found")
        newer = {"X-Durable-Workflow-Control-Plane-Version": "3"}
        other = await api.control("GET", "/workflows", token="o", headers=newer)
        assert other.json()["reason"] == "unsupported_control_plane_version"


@pytest.mark.contract("MATCH-10", "MATCH-02")
async def test_a_namespace_is_a_wall() -> None:
    async with serving() as api:
        there: dict[str, Any] = {"headers": {"X-Namespace": "Other"}}  # names are lower-cased
        made = await api.control("POST", "/namespaces", {"name": "other"})
        assert made.status_code == 201
        body = {"workflow_type": "order", "workflow_id": "same", "task_queue": "q"}
        here_run = (await api.start("same"))["run_id"]
        there_run = (await api.control("POST", "/workflows", body, **there)).json()["run_id"]
        assert here_run != there_run
        await api.register()
        register = {"worker_id": "w", "task_queue": "q", "supported_workflow_types": ["order"]}
        assert (await api.worker("register", register, **there)).status_code == 201
        poll = {"worker_id": "w", "task_queue": "q"}
        task = (await api.worker("workflow-tasks/poll", poll, **there)).json()["task"]
        assert (task["run_id"], task["namespace"]) == (there_run, "other")
        again = (await api.worker("workflow-tasks/poll", poll, **there)).json()
        assert again["task"] is None, "the other one's task is not to be had"
        stolen = await api.worker(
            f"workflow-tasks/{task['task_id']}/complete",
            {"lease_owner": "w", "workflow_task_attempt": 1, "commands": [{"type": "complete_workflow"}]},
        )
        assert (stolen.status_code, stolen.json()["reason"]) == (404, "task_not_found")
        peek = await api.control("GET", f"/workflows/same/runs/{there_run}")
        assert peek.json()["reason"] == "run_not_found"
        assert await _listed(api) == ["same"]


async def _listed(api: Api) -> list[str]:
    found = await api.control("GET", "/workflows")
    return [workflow["workflow_id"] for workflow in found.json()["workflows"]]
