"""A real server on a free port of this machine, spoken to over real HTTP; its clock stands still unless a test moves it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from backstay.codec import avro
from backstay.codec.values import dumps, loads
from backstay.server.http.app import App
from backstay.server.http.serve import HttpServer
from backstay.server.server import Server
from backstay.server.settings import Settings

from ..many_nodes import Chosen, ManyNodes, looks_inside, store_of
from ..sdk.kit import PATIENCE, StillWorld, settle
from ..store.seam import connection_of

TOKEN = "secret"
ME = "worker-1"


def blob(value: Any) -> dict[str, str]:
    return {"codec": "avro", "blob": avro.to_text(dumps(value))}


def value(envelope: dict[str, str]) -> Any:
    return loads(avro.from_text(envelope["blob"]))


class Api:
    """A caller. Every method gives the response as it came."""

    def __init__(self, app: App | None, http: httpx.AsyncClient, world: StillWorld | None) -> None:
        self._app = app  # None: there are several
        self.http = http
        self.moved = world

    @property
    def app(self) -> App:
        return self._app or looks_inside("the server")

    @property
    def server(self) -> Server:
        return self.app.server

    @property
    def world(self) -> StillWorld:
        if self._app is None:
            pytest.skip("moves the clock, which nodes share with their database")
        assert self.moved is not None
        return self.moved

    async def control(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self._call(method, path, body, {"X-Durable-Workflow-Control-Plane-Version": "2"}, **options)

    async def worker(self, path: str, body: Any = None, method: str = "POST", **options: Any) -> httpx.Response:
        version = options.pop("version", "1.20")
        return await self._call(
            method, f"/worker/{path}", body, {"X-Durable-Workflow-Protocol-Version": version}, **options
        )

    async def _call(
        self, method: str, path: str, body: Any, version: dict[str, str], *, token: str = TOKEN, **options: Any
    ) -> httpx.Response:
        headers = version | {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
        if body is not None:
            options["json"] = body
        return await self.http.request(method, f"/api{path}", headers=headers, **options)

    # -- the ordinary way through

    async def register(self, worker_id: str = ME, queue: str = "q", **more: Any) -> httpx.Response:
        body = {
            "worker_id": worker_id,
            "task_queue": queue,
            "runtime": "python",
            "supported_workflow_types": ["order"],
            "supported_activity_types": ["charge"],
            **more,
        }
        return await self.worker("register", body)

    async def start(self, workflow_id: str = "o-1", **more: Any) -> dict[str, Any]:
        body = {"workflow_type": "order", "workflow_id": workflow_id, "task_queue": "q", **more}
        response = await self.control("POST", "/workflows", body)
        assert response.status_code in (200, 201), response.text
        if self.moved is not None:
            await self.moved.advance(0.001)  # no two starts at the same moment: their order is what a test says
        return response.json()

    async def poll(self, kind: str = "workflow", worker_id: str = ME, queue: str = "q", **more: Any) -> Any:
        """The task, or None."""
        response = await self.worker(f"{kind}-tasks/poll", {"worker_id": worker_id, "task_queue": queue, **more})
        assert response.status_code == 200, response.text
        return response.json()["task"]

    async def complete(self, task: dict[str, Any], *commands: dict[str, Any], **more: Any) -> httpx.Response:
        body = {
            "lease_owner": task["lease_owner"],
            "workflow_task_attempt": task["workflow_task_attempt"],
            "commands": list(commands),
            **more,
        }
        return await self.worker(f"workflow-tasks/{task['task_id']}/complete", body)

    async def fail(self, task: dict[str, Any], **failure: Any) -> httpx.Response:
        body = {
            "lease_owner": task["lease_owner"],
            "workflow_task_attempt": task["workflow_task_attempt"],
            "failure": failure,
        }
        return await self.worker(f"workflow-tasks/{task['task_id']}/fail", body)

    async def activity(self, verb: str, task: dict[str, Any], **more: Any) -> httpx.Response:
        body = {"lease_owner": task["lease_owner"], "activity_attempt_id": task["activity_attempt_id"], **more}
        return await self.worker(f"activity-tasks/{task['task_id']}/{verb}", body)

    async def describe(self, workflow_id: str = "o-1") -> dict[str, Any]:
        return (await self.control("GET", f"/workflows/{workflow_id}")).json()

    async def history(self, workflow_id: str = "o-1") -> list[dict[str, Any]]:
        run_id = (await self.describe(workflow_id))["run_id"]
        found = await self.control("GET", f"/workflows/{workflow_id}/runs/{run_id}/history?page_size=1000")
        return found.json()["events"]

    async def types(self, workflow_id: str = "o-1") -> list[str]:
        return [event["event_type"] for event in await self.history(workflow_id)]


@asynccontextmanager
async def serving(*, still: bool = True, linked: bool = True, **settings: Any) -> AsyncIterator[Api]:
    """A server with its own database in memory unless one is named. `linked`: whether others can call it."""
    settings = {"token": TOKEN, "store": "sqlite::memory:", "host": "127.0.0.1"} | settings
    chosen = Settings(**settings)
    if Chosen.shape.many and chosen.store == "sqlite::memory:":
        several = msgspec.structs.replace(chosen, port=0, store=store_of(":memory:"))
        async with (
            ManyNodes(several, Chosen.shape) as nodes,
            httpx.AsyncClient(base_url=nodes.url, timeout=10) as http,
        ):
            yield Api(None, http, None)
        return
    worlds: list[StillWorld] = []

    def world() -> StillWorld:
        worlds.append(StillWorld())
        return worlds[0]

    # Named as TCP, or the loop does not switch Nagle off and every answer waits 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with Server(chosen, world if still else None, address=url if linked else None) as server:
            app = App(server)
            http_server = HttpServer(app)
            await http_server.listen([listening])
            try:
                async with httpx.AsyncClient(base_url=url, timeout=10) as http:
                    yield Api(app, http, worlds[0] if still else None)
            finally:
                http_server.drain()
                await http_server.close()


async def detail(api: Api, workflow_id: str = "o-1") -> dict[str, Any]:
    answer = await api.control("GET", f"/workflows/{workflow_id}/detail")
    assert answer.status_code == 200, answer.text
    return answer.json()


def untasked(waits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Waits without what task rows say of them: which task backs them, and whether it is open."""
    return [{name: value for name, value in wait.items() if not name.startswith("task_")} for wait in waits]


async def tampered(api: Api, *words: str) -> None:
    """Put one word for another in every task row, or delete them all, while the server runs."""
    replaced = "update task set body = cast(replace(cast(body as text), ?, ?) as blob)"
    assert sql(api, replaced if words else "delete from task", *words) or not words


def sql(api: Api, statement: str, *parameters: Any) -> int:
    """Change what is on disk while the server runs, which is told nothing of it. How many rows that touched."""
    return connection_of(api.server.engine.store).execute(statement, parameters).rowcount


async def parked(api: Api, count: int = 1) -> None:
    """Wait until so many polls are parked."""
    await until(lambda: len(api.server.engine.matching.polls.all()) == count)


async def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for _ in range(1000):
            if true():
                return
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)  # whoever it depends on may be another thread
    raise AssertionError("it never happened")


__all__ = [
    "ME",
    "TOKEN",
    "Api",
    "blob",
    "detail",
    "parked",
    "serving",
    "settle",
    "sql",
    "tampered",
    "untasked",
    "until",
    "value",
]
