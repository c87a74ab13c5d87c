"""`dw server` as a process: it says where it is, keeps what it was given, drains and leaves with 0."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

DW = (sys.executable, "-P", "-m", "backstay.cli.main", "server")
PATIENCE = 20


class Process:
    def __init__(self, directory: Path, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [*DW, "--port", "0", *arguments], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.popen.stdout is not None
        self.lines = [self.popen.stdout.readline()]
        while "is gone; other processes take over" in self.lines[-1]:  # of a process that was killed
            self.lines = [self.popen.stdout.readline()]
        self.url = self.lines[0].split()[-1]

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def call(self, method: str, path: str, token: str, body: Any = None) -> httpx.Response:
        headers = {
            "Authorization": f"Bearer {token}",
            "X-Durable-Workflow-Control-Plane-Version": "2",
            "X-Durable-Workflow-Protocol-Version": "1.20",
        }
        return httpx.request(method, f"{self.url}/api{path}", headers=headers, json=body, timeout=PATIENCE)

    def stop(self) -> tuple[int, str]:
        self.popen.terminate()
        rest, _ = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, rest


def test_a_token_is_made_and_shown_once_and_the_database_is_in_this_directory(tmp_path: Path) -> None:
    process = Process(tmp_path)
    try:
        token = process.line().split()[-1]
        assert len(token) >= 32
        assert process.call("GET", "/cluster/info", token).status_code == 200
        assert process.call("GET", "/cluster/info", "guess").status_code == 401
    finally:
        code, rest = process.stop()
    assert (code, rest) == (0, "")
    assert (tmp_path / "backstay.db").exists()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgresql_url") if request.param == "postgresql" else "sqlite:here.db"


def test_draining_answers_who_waits_and_keeps_what_was_registered(tmp_path: Path, store: str) -> None:
    process = Process(tmp_path, "--token", "t", "--store", store)
    register = {"worker_id": "w", "task_queue": "q", "supported_workflow_types": ["order"]}
    poll = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 60}
    assert process.call("POST", "/worker/register", "t", register).status_code == 201
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(process.call("POST", "/worker/workflow-tasks/poll", "t", poll))
    )
    waiting.start()
    while not process.call("GET", "/system/operator-metrics", "t").json()["operator_metrics"]["workers"][
        "parked_polls"
    ]:
        pass
    assert process.call("POST", "/workflows", "t", {"workflow_type": "other", "workflow_id": "x"}).status_code == 201
    code, _ = process.stop()
    waiting.join(PATIENCE)
    assert code == 0
    assert [answer.json()["poll_status"] for answer in answers] == ["empty"]
    again = Process(tmp_path, "--token", "t", "--store", store)
    try:
        assert again.call("GET", "/workflows/x", "t").json()["status"] == "pending"
        probe = again.call("POST", "/worker/workflow-tasks/poll", "t", poll | {"timeout_seconds": 0})
        assert probe.json()["poll_status"] == "empty", "a worker does not have to register again"
    finally:
        again.stop()


@pytest.mark.contract("MATCH-01")
def test_a_second_server_takes_over_from_one_that_was_killed(tmp_path: Path, store: str) -> None:
    """Workers have registered with the first one only, and go on with the second."""
    first = Process(tmp_path, "--token", "t", "--store", store)
    second = Process(tmp_path, "--token", "t", "--store", store)
    register = {"worker_id": "w", "task_queue": "q", "supported_workflow_types": ["order"]}
    start = {"workflow_type": "order", "workflow_id": "x", "task_queue": "q"}
    poll = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 5}
    try:
        assert first.call("POST", "/worker/register", "t", register).status_code == 201
        assert first.call("POST", "/workflows", "t", start).status_code == 201
        assert second.call("GET", "/workflows/x", "t").json()["status"] == "pending", "it reads beside the engine"
        first.popen.kill()
        first.popen.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (polled := second.call("POST", "/worker/workflow-tasks/poll", "t", poll).json()).get("task") is None:
            assert time.monotonic() < deadline, polled
        task = polled["task"]
        assert task["workflow_id"] == "x"
        done = second.call(
            "POST",
            f"/worker/workflow-tasks/{task['task_id']}/complete",
            "t",
            {
                "lease_owner": task["lease_owner"],
                "workflow_task_attempt": task["workflow_task_attempt"],
                "commands": [{"type": "complete_workflow"}],
            },
        )
        assert done.status_code == 200, done.text
        assert second.call("GET", "/workflows/x", "t").json()["status"] == "completed"
    finally:
        first.popen.kill()
        first.popen.communicate()
        assert second.stop()[0] == 0


@pytest.mark.contract("SIG-02", "REC-01")
def test_signals_that_were_answered_have_their_records_after_a_kill(tmp_path: Path, store: str) -> None:
    process = Process(tmp_path, "--token", "t", "--store", store)
    contract = {"order": {"signals": ["pay"], "queries": [], "updates": []}}
    register = {"worker_id": "w", "task_queue": "q", "supported_workflow_types": ["order"]}
    start = {"workflow_type": "order", "workflow_id": "x", "task_queue": "q"}
    try:
        register |= {"workflow_command_contracts": contract}
        assert process.call("POST", "/worker/register", "t", register).status_code == 201
        assert process.call("POST", "/workflows", "t", start).status_code == 201
        taken = process.call("POST", "/workflows/x/signal/pay", "t", {"input": [1]})
        refused = process.call("POST", "/workflows/x/signal/pya", "t", {"input": [1]})
        process.popen.kill()
        process.popen.communicate(timeout=PATIENCE)
        assert (taken.status_code, refused.status_code) == (202, 404)
        process = Process(tmp_path, "--token", "t", "--store", store)
        found = process.call("GET", "/workflows/x/detail", "t").json()
        records = [(one["signal_name"], one["status"], one["command_id"]) for one in found["signals"]]
        assert records == [
            ("pay", "received", taken.json()["command_id"]),
            ("pya", "rejected", refused.json()["command_id"]),
        ]
        _, *commands = found["commands"]
        assert [one["signal_id"] for one in commands] == [one["signal_id"] for one in found["signals"]]
        assert [one["command_sequence"] for one in commands] == [2, 3]
    finally:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "many"], "--port is 'many'"),
        (["--store", "mysql://x"], "sqlite:PATH"),
        (["--store", "sqlite:/nowhere/at/all.db"], "does not exist"),
        (["--store", "postgresql://ann:secret@/db?host=/nowhere"], "postgresql://ann@/db: "),
        (["--prot", "1"], "No such option"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [*DW, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_address_that_is_taken_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", port, "--store", "sqlite:x.db"]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    said = (
        f"dw: cannot listen at 127.0.0.1:{port}: Address already in use; see what runs there, or choose another address"
    )
    assert found.stderr == f"{said} with --host and --port\n"
    assert not (tmp_path / "x.db").exists(), "a server that nobody can reach does not become the engine"
