"""A bulk operation whose server is killed in the middle, and `dw bulk` in a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .test_process import PATIENCE, Process

HEADERS = {"Authorization": "Bearer t", "X-Durable-Workflow-Control-Plane-Version": "2"}
COUNT = 400


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgresql_url") if request.param == "postgresql" else "sqlite:here.db"


def start(process: Process, count: int, **more: Any) -> None:
    with httpx.Client(base_url=process.url, headers=HEADERS, timeout=PATIENCE) as client:
        for number in range(count):
            body = {"workflow_type": "order", "workflow_id": f"o-{number}", "task_queue": "q", **more}
            assert client.post("/api/workflows", json=body).status_code == 201


def look(process: Process, bulk_id: str) -> dict[str, Any]:
    return process.call("GET", f"/bulk/{bulk_id}", "t").json()


def test_an_operation_goes_on_at_the_next_server_when_its_own_is_killed(tmp_path: Path, store: str) -> None:
    first = Process(tmp_path, "--token", "t", "--store", store)
    second = Process(tmp_path, "--token", "t", "--store", store)
    try:
        start(first, COUNT)
        body = {"action": "terminate", "filter": {"queue": "q"}, "expected_count": COUNT}
        begun = first.call("POST", "/bulk", "t", body).json()
        while (seen := look(first, begun["bulk_id"]))["done"] < 20:
            assert seen["status"] == "running"
        assert seen["done"] < COUNT
        first.popen.kill()
        first.popen.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + 3 * PATIENCE
        while (seen := look(second, begun["bulk_id"]))["ended_at"] is None:
            assert time.monotonic() < deadline, seen
        assert (seen["status"], seen["outcomes"]) == ("completed", {"terminated": COUNT})
        listed = second.call("GET", "/flows/terminated?page_size=200", "t").json()
        assert len(listed["flows"]) == 200
        again = second.call("POST", "/bulk?dry_run=1", "t", {"action": "terminate", "filter": {"queue": "q"}}).json()
        assert again["count"] == 0
    finally:
        first.popen.kill()
        first.popen.communicate()
        assert second.stop()[0] == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, "--token", "t")
    yield process
    process.stop()


def dw(process: Process, *arguments: str, typed: str = "") -> tuple[int, str, str]:
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "bulk", *arguments, "--server", process.url]
    done = subprocess.run([*command, "--token", "t"], input=typed, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_dw_bulk_looks_first_asks_and_follows(server: Process) -> None:
    start(server, 15)
    code, said, _ = dw(server, "cancel", "--filter", "workflow_type=order", "--dry-run")
    assert code == 0
    assert "cancel: 15 runs" in said
    assert "CancelRequested, WorkflowCancelled" in said
    assert said.count("o-") == 10
    code, said, _ = dw(server, "cancel", "--filter", "workflow_type=order", typed="n\n")
    assert code == 130
    assert "15 runs?" in said
    assert server.call("GET", "/bulk", "t").json()["bulk_count"] == 0
    code, said, _ = dw(server, "terminate", "--filter", "workflow_type=order", "--reason", "why", "--yes")
    assert code == 0, said
    assert "15 of 15, completed" in said
    assert "15 terminated" in said
    (bulk,) = server.call("GET", "/bulk", "t").json()["bulk_operations"]
    assert bulk["reason"] == "why"
    code, said, _ = dw(server, "list")
    assert (code, bulk["bulk_id"] in said) == (0, True)
    code, said, _ = dw(server, "show", "--all", bulk["bulk_id"])
    assert (code, said.count("o-")) == (0, 15)
    code, said, _ = dw(server, "stop", bulk["bulk_id"])
    assert (code, "completed" in said) == (0, True)


def test_dw_bulk_signals_named_workflows(server: Process) -> None:
    start(server, 2)
    code, said, wrong = dw(server, "signal", "go", "7", "--id", "o-0", "--id", "nobody", "--yes")
    assert code == 0, wrong
    assert "1 because instance_not_found" in said
    history = server.call("GET", "/workflows/o-0", "t").json()
    events = server.call("GET", f"/workflows/o-0/runs/{history['run_id']}/history", "t").json()["events"]
    assert "SignalReceived" in [event["event_type"] for event in events]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cancel",), "--filter FIELD=VALUE or with --id"),
        (("cancel", "--filter", "queue"), "a filter is FIELD=VALUE"),
        (("cancel", "--filter", "quue=q"), "did you mean 'queue'"),
        (("show", "nothing"), "no bulk operation"),
        (("signal", "go", "x", "--id", "o-1"), "is not JSON"),
    ],
)
def test_dw_bulk_says_what_is_wrong_in_one_line(server: Process, arguments: tuple[str, ...], said: str) -> None:
    code, _, wrong = dw(server, *arguments)
    assert code in (1, 2)
    assert said in wrong
    assert len(wrong.splitlines()) == 1
