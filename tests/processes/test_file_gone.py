"""The database file is removed under a server: nothing is acknowledged that nobody will ever read, and it says why."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from backstay import Client

from ..interop.conftest import TOKEN, Running
from . import flows
from .program import eventually


def test_a_server_whose_file_is_gone_acknowledges_nothing_and_is_not_ready(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "server.db", tmp_path / "elsewhere.db"
    server = Running(path)

    def ready() -> int:
        return httpx.get(f"{server.url}/api/ready", timeout=30).status_code

    def start(id: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
        body = {"workflow_id": id, "workflow_type": "nap", "input": []}
        return httpx.post(f"{server.url}/api/workflows", json=body, headers=headers, timeout=30)

    try:
        with Client(server.url, token=TOKEN, namespace="default") as client:
            client.start(flows.nap, "before", str(tmp_path / "ledger"), 3600)
            assert ready() == 200
            path.rename(elsewhere)
            answer = start("lost")
            assert answer.status_code == 503, answer.text
            assert str(path) in answer.text
            eventually("it is not ready", lambda: ready() == 503)
            elsewhere.rename(path)
            eventually("it is ready again", lambda: ready() == 200)
            client.start(flows.nap, "after", str(tmp_path / "ledger"), 3600)
            assert {run.workflow_id for run in client.list()} == {"before", "after"}
    finally:
        server.stop()


def test_a_server_whose_log_was_cut_is_not_ready(tmp_path: Path) -> None:
    """Every start reads first, and fails there. Nothing is ever committed that would tell the engine."""
    path = tmp_path / "server.db"
    server = Running(path)
    try:
        with Client(server.url, token=TOKEN, namespace="default") as client:
            client.start(flows.nap, "before", str(tmp_path / "ledger"), 3600)
        assert httpx.get(f"{server.url}/api/ready", timeout=30).status_code == 200
        os.truncate(f"{path}-wal", 100)

        def says(route: str) -> tuple[int, str]:
            answer = httpx.get(f"{server.url}/api/{route}", timeout=30)
            return answer.status_code, answer.json()["checks"]["database"]

        eventually("it is not ready", lambda: says("ready") == (503, "unavailable"))
        eventually("it is not healthy", lambda: says("health") == (503, "unavailable"))
    finally:
        server.stop()
