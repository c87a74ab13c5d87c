"""Events that are deleted or altered in the database of a running server: the run is stranded, and every surface counts it."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import asyncpg
import httpx
import pytest

from backstay.store.postgresql.connection import address

from .conftest import BOTH, Place
from .program import eventually
from .test_failover import HEADERS, TOKEN

DAMAGE = {
    "deleted": "delete from event where sequence = 2 and run = (select key from run where workflow_id = 'x-deleted')",
    "altered": "update event set at = at + 1 where sequence = 2 and run ="
    " (select key from run where workflow_id = 'x-altered')",
    "other-end": "update event set checksum = checksum - 1 where sequence = 3 and run ="
    " (select key from run where workflow_id = 'x-other-end')",
}


@pytest.fixture
def server(place: Place) -> Iterator[str]:
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
    store = str(place.database) if "://" in str(place.database) else f"sqlite:{place.database}"
    process = subprocess.Popen([*command, "--store", store], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def execute(place: Place, *statements: str) -> None:
    """Change rows behind the back of the server."""
    if "://" not in str(place.database):
        with closing(sqlite3.connect(place.database, isolation_level=None, timeout=30)) as file:
            for statement in statements:
                assert file.execute(statement).rowcount == 1
        return

    async def change() -> None:
        where = address(str(place.database))
        connection = await asyncpg.connect(where.dsn)
        try:
            await connection.execute(f'set search_path = "{where.schema}"')
            for statement in statements:
                assert (await connection.execute(statement)).endswith(" 1")
        finally:
            await connection.close()

    asyncio.run(change())


def dw(server: str, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "backstay.cli.main", *words, "--server", server, "--token", TOKEN]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


@BOTH
def test_runs_whose_events_are_damaged_are_stranded_and_counted(place: Place, server: str) -> None:
    versions = {"X-Durable-Workflow-Control-Plane-Version": "2", "X-Durable-Workflow-Protocol-Version": "1.0"}
    with httpx.Client(base_url=f"{server}/api", headers=HEADERS | versions, timeout=30) as http:

        def post(path: str, **body: Any) -> dict[str, Any]:
            answer = http.post(path, json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()

        def get(path: str) -> dict[str, Any]:
            answer = http.get(path)
            assert answer.status_code == 200, answer.text
            return answer.json()

        me = {"worker_id": "w", "task_queue": "q"}
        post("/worker/register", **me, runtime="python", supported_workflow_types=["A"])
        for name in (*DAMAGE, "sound"):
            post("/workflows", workflow_type="A", workflow_id=f"x-{name}", task_queue="q")
            task = post("/worker/workflow-tasks/poll", **me, timeout_seconds=10)["task"]
            post(
                f"/worker/workflow-tasks/{task['task_id']}/complete",
                lease_owner="w",
                workflow_task_attempt=task["workflow_task_attempt"],
                commands=[{"type": "start_timer", "delay_seconds": 900}],
            )
        execute(place, *DAMAGE.values())
        # A pass reads as many histories as fit into its time, which is one on a busy machine.
        proven = eventually("all are found", lambda: (one := get("/system/liveness?fresh=1"))["stranded"] == 3 and one)
        assert proven["open_runs"] == 4
        named = {(one["workflow_id"], one["reason"]) for one in proven["stranded_runs"]}
        assert named == {(f"x-{name}", "history_damaged") for name in DAMAGE}
        metrics = get("/system/operator-metrics")["operator_metrics"]
        assert (metrics["blocked"]["count"], metrics["runs"]["states"]["blocked"]) == (3, 3)
        assert sum(metrics["runs"]["states"].values()) == metrics["runs"]["running"] == 4
        assert [one["count"] for one in get("/system/health")["causes"] if one["name"] == "history_damaged"] == [3]
        assert [one["count"] for one in get("/overview")["causes"] if one["name"] == "history_damaged"] == [3]
        blocked = get("/flows/running?attention=blocked")["flows"]
        assert {flow["instance_id"] for flow in blocked} == {f"x-{name}" for name in DAMAGE}
        shown = dw(server, "overview")
        assert "3 open runs cannot go on" in shown, shown
        assert "3 blocked" in shown, shown
        assert "3 stranded" in dw(server, "system", "liveness")
