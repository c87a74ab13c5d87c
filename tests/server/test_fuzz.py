"""Whatever is sent to whatever route: an answer, never a 500, never a hang."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from backstay.server.http.documents import openapi
from backstay.server.http.router import Route
from backstay.server.routes import ROUTES

from .kit import ME, TOKEN, Api, blob, serving

VALUES: list[Any] = [
    *(None, True, 0, -1, 2**63, 1e308, "", "x", "a" * 300, "\x00", "\u2028", [], {}, [1], {"codec": "avro"}, ME, "q"),
    *(
        blob([1]),
        {"codec": "avro", "blob": None},
        {"codec": "avro", "external_payload": {}},
        [[[[]]]],
        {"a": {"b": []}},
    ),
]
HEADERS = {
    "Authorization": f"Bearer {TOKEN}",
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Backstay-Protocol": "1",
}


def body_for(schema: dict[str, Any], components: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """An object with some of the right names and mostly wrong values."""
    while "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    names = list(schema.get("properties", {}))
    chosen = [name for name in names if name in schema.get("required", []) or chance.random() < 0.4]
    body = {name: chance.choice(VALUES) for name in chosen}
    # What comes first in every handler is right most of the time, or nothing behind it would be reached.
    likely = {"worker_id": ME, "task_queue": "q", "lease_owner": ME, "workflow_type": "order", "timeout_seconds": 0}
    likely |= {
        "workflow_id": "o-1",
        "workflow_task_attempt": 1,
        "query_task_attempt": 1,
        "update_validation_attempt": 1,
        "wait_for": "accepted",
        "spec": {"intervals": [{"every": "PT1H"}]},
        "action": {"workflow_type": "order", "task_queue": "q"},
        "start_time": "2027-01-15T00:00:00Z",
        "end_time": "2027-01-15T09:00:00Z",
    }
    body |= {name: right for name, right in likely.items() if name in chosen and chance.random() < 0.8}
    if isinstance(body.get("timeout_seconds"), int | float):
        body["timeout_seconds"] = min(body["timeout_seconds"], 0)  # a long poll is no hang, and takes its time
    return body | {"wait_seconds": 0} if "wait_seconds" in names else body


async def call(api: Api, route: Route, path: str, body: Any) -> None:
    content = None if body is None else msgspec.json.encode(body)
    headers = HEADERS | ({} if body is None else {"Content-Type": "application/json"})
    answer = await api.http.request(route.method, path, content=content, headers=headers)
    assert answer.status_code < 500 or answer.status_code == 504, (route.path, path, body, answer.text)
    wanted = route.answers if answer.status_code < 400 else "application/json"
    assert answer.headers["content-type"] == wanted
    if answer.status_code >= 400:
        assert answer.json()["reason"], (route.path, answer.text)


async def test_nonsense_is_answered_on_every_route() -> None:
    document = openapi(ROUTES)
    components = document["components"]["schemas"]
    chance = random.Random(20_261_115)
    async with serving(query_timeout_seconds=0.001, still=False) as api:
        await api.register()
        run = (await api.start())["run_id"]
        task = await api.poll()
        await api.worker("sessions", {"worker_id": ME, "session_id": "gpu"})
        token = (await api.control("POST", "/tokens", {"role": "worker"})).json()["token_id"]
        made = {"spec": {"cron_expressions": ["@daily"]}, "action": {"workflow_type": "order", "task_queue": "q"}}
        await api.control("POST", "/schedules", {**made, "schedule_id": "nightly"})
        known = {
            "schedule_id": ["nightly", "nightly", "nobody", "%00"],
            "workflow_id": ["o-1", "nobody", "%00", "..", "o-1%2F"],
            "run_id": [run, "NORUN", "%E2%80%A8"],
            "task_id": [task["task_id"], f"{run}-a1.1", "x", f"{run}-w999999999999999999999"],
            "worker_id": ["nobody", ME],
            "queue": ["q", "%20"],
            "name": ["pay", "x" * 300],
            "session_id": ["gpu", "none", "%0A"],
            "token_id": [token, "x"],
            "attempt_id": [f"{run}-1-1", "x", f"{run}-1-99999999999999999999"],
            "namespace": ["default", "nowhere"],
        }
        for route in ROUTES:
            operation = document["paths"][route.path][route.method.lower()]
            for turn in range(3):
                path = "/".join(
                    chance.choice(known.get(part[1:-1], ["x"])) if part.startswith("{") else part
                    for part in route.path.split("/")
                )
                body = None
                if "requestBody" in operation:
                    schema = operation["requestBody"]["content"]["application/json"]["schema"]
                    body = body_for(schema, components, chance) if turn else chance.choice([[], "x", 1, True, [{}]])
                elif chance.random() < 0.5:
                    path += f"?page_size={chance.choice(['1', '-1', 'x', '1e3'])}&next_page_token={chance.choice(['', 'x', 'MA=='])}"
                    path += f"&query={chance.choice(['', 'x', 'Status%20%3D%201', 'WorkflowId%3D%27%27', '%00'])}&lease_owner=w"
                await call(api, route, path, body)
        assert (await api.http.get("/api/health")).json()["status"] == "serving"
