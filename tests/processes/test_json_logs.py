"""JSON logs of a server, a worker and a program of its own: each record has the ids of its run, step, attempt and trace."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.logging import json_formatter, log_to_stderr

DW = (sys.executable, "-P", "-m", "backstay.cli.main")
PATIENCE = 30
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"

SHOP = """
import logging
from backstay import activity, logger, workflow

log = logging.getLogger("bank")

@activity(retries=1, backoff=0)
def charge(order_id: str) -> str:
    log.warning("a library logs")
    raise ConnectionError("the bank is closed")

@workflow
def order(order_id: str) -> str:
    logger().info("packing")
    log.warning("another library logs")
    return charge(order_id)
"""

EMBEDDED = (
    SHOP
    + """
from backstay import Backstay, WorkflowFailed
from backstay.logging import log_to_stderr

log_to_stderr(logging.INFO)
with Backstay("app.db", register=[order, charge]) as app:
    try:
        app.execute(order, "o-1", "o-1")
    except WorkflowFailed:
        print(app.handle(order, "o-1").describe().run.run_id)
"""
)


class Process:
    """A process whose stdout begins with one line, and whose stderr is a file of JSON lines."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._log = directory / f"{name}.log"
        with self._log.open("w") as log:
            self.popen = subprocess.Popen(
                [*DW, name, *arguments],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"DW_LOG_FORMAT": "json", "DW_TOKEN": "t"},
            )
        assert self.popen.stdout is not None
        self.first = self.popen.stdout.readline()

    def stop(self) -> None:
        self.popen.terminate()
        self.popen.communicate(timeout=PATIENCE)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path, "server", "--port", "0")
    yield made
    made.stop()


def control(url: str, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"Authorization": "Bearer t", "X-Durable-Workflow-Control-Plane-Version": "2", "traceparent": CALLER}
    return httpx.request(method, f"{url}/api{path}", json=body, headers=headers, timeout=PATIENCE)


def by_message(records: list[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    found = [record for record in records if part in record["message"]]
    assert found, f"no record says {part!r}: {[record['message'] for record in records]}"
    return found


def test_records_of_server_and_worker_have_the_ids_of_run_step_attempt_and_trace(
    server: Process, tmp_path: Path
) -> None:
    url = server.first.split()[-1]
    (tmp_path / "shop.py").write_text(SHOP)
    worker = Process(tmp_path, "worker", "shop.py", "--server", url)
    try:
        body = {"workflow_type": "order", "workflow_id": "o-1", "input": ["o-1"], "task_queue": "default"}
        run_id = control(url, "POST", "/workflows", body).json()["run_id"]
        while control(url, "GET", "/workflows/o-1").json()["status"] != "failed":
            pass
    finally:
        worker.stop()
    ids = {"namespace": "default", "workflow_id": "o-1", "run_id": run_id, "trace_id": TRACE}
    of_run = ids | {"workflow_type": "order"}
    of_step = ids | {"activity_type": "charge", "step": 1}

    (packed,) = by_message(worker.records(), "packing")
    assert packed == packed | of_run | {"level": "INFO", "logger": "backstay.workflow"}
    (other,) = by_message(worker.records(), "another library logs")
    assert other == other | of_run | {"logger": "bank"}
    tries = by_message(worker.records(), "a library logs")
    assert tries == [record | of_step | {"attempt": number} for number, record in enumerate(tries, 1)]
    failures = by_message(worker.records(), "activity 'charge' failed")
    assert [record["attempt"] for record in failures] == [1, 2]
    assert all(record == record | of_step and "ConnectionError" in record["exception"] for record in failures)

    with closing(sqlite3.connect(tmp_path / "backstay.db")) as file, file:
        assert file.execute("update event set body = x'00' where sequence = 2").rowcount
    assert control(url, "GET", "/workflows/o-1/runs/" + run_id + "/history").status_code == 409
    (damaged,) = by_message(server.records(), "is damaged at event 2")
    assert damaged == damaged | {"workflow_id": "o-1", "run_id": run_id, "trace_id": TRACE, "level": "ERROR"}


def test_an_embedded_program_logs_json_if_the_variable_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EMBEDDED)

    def ran(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", str(program)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={name: value for name, value in os.environ.items() if name != "DW_LOG_FORMAT"} | environment,
            check=True,
        )

    told = ran(DW_LOG_FORMAT="json")
    records = [json.loads(line) for line in told.stderr.splitlines()]
    assert all(record["run_id"] == told.stdout.strip() for record in by_message(records, "library logs"))
    assert [record.get("step") for record in by_message(records, "a library logs")] == [1, 1]
    (tmp_path / "app.db").unlink()
    assert re.search(r"^\d{4}-\d\d-\d\d .* WARNING bank: a library logs$", ran().stderr, re.MULTILINE)


def test_the_span_of_the_code_that_logs_is_named() -> None:
    from opentelemetry import trace

    span = trace.NonRecordingSpan(trace.SpanContext(int(TRACE, 16), 0xB7AD6B7169203331, is_remote=False))
    with trace.use_span(span):
        line = json.loads(json_formatter().format(logging.makeLogRecord({"msg": "hello"})))
    assert (line["trace_id"], line["span_id"]) == (TRACE, "b7ad6b7169203331")


def test_a_wrong_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DW_LOG_FORMAT", "jsno")
    with pytest.raises(ValueError, match="DW_LOG_FORMAT is 'jsno'; use text or json"):
        log_to_stderr()
