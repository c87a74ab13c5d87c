"""Starts a server, gives it something to be asked about, and lets schemathesis loose on it.

    python -m tests.fuzz --seconds 60 --seed 7

No answer may be a 500, none may take longer than forty seconds (some calls wait up to thirty), and each has the shape that
the document says. The server must still serve afterwards, and stop when told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from ..interop.conftest import TOKEN, Running

# What the document does not name, a 500 above all, does not conform. The two 5xx it names are no mistakes.
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
HEADERS = {
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Backstay-Protocol": "1",
    "X-Namespace": "default",
}


def main() -> int:
    asked = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    asked.add_argument("--seconds", type=int, default=60, help="how long")
    asked.add_argument("--seed", type=int, default=1, help="the same requests for the same seed")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["DW_QUERY_TIMEOUT_SECONDS"] = "0.05"
        server = Running(Path(directory) / "fuzz.db")
        try:
            found = _run(directory, server.url, _prepare(server.url), options.seconds, options.seed)
            alive = httpx.get(f"{server.url}/api/health", timeout=30).json()["status"]
        finally:
            code = server.stop()
    if alive != "serving" or code != 0:
        print(f"afterwards the server was {alive} and ended with {code}", file=sys.stderr)
        return 1
    return found


def _prepare(url: str) -> dict[str, list[str]]:
    """A worker, runs in several states, a schedule, a session, a token; the ids of all of them, by parameter."""
    http = httpx.Client(base_url=f"{url}/api", headers={**HEADERS, "Authorization": f"Bearer {TOKEN}"}, timeout=30)

    def post(path: str, body: Any) -> Any:
        answer = http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    types = {"supported_workflow_types": ["order"], "supported_activity_types": ["charge"]}
    post("/worker/register", {"worker_id": "fuzzer", "task_queue": "q", "runtime": "python", **types})
    ids = [f"o-{number}" for number in range(4)]
    runs = [
        post("/workflows", {"workflow_type": "order", "workflow_id": id, "task_queue": "q"})["run_id"] for id in ids
    ]
    tasks: list[str] = []
    for command in (
        {"type": "schedule_activity", "activity_type": "charge"},
        {"type": "open_signal_wait", "signal_name": "pay"},
        {"type": "complete_workflow"},
    ):
        task = post("/worker/workflow-tasks/poll", {"worker_id": "fuzzer", "task_queue": "q"})["task"]
        tasks.append(task["task_id"])
        attempt = {"lease_owner": "fuzzer", "workflow_task_attempt": task["workflow_task_attempt"]}
        post(f"/worker/workflow-tasks/{task['task_id']}/complete", {**attempt, "commands": [command]})
    activity = post("/worker/activity-tasks/poll", {"worker_id": "fuzzer", "task_queue": "q"})["task"]
    left = post("/worker/workflow-tasks/poll", {"worker_id": "fuzzer", "task_queue": "q"})["task"]
    post("/worker/sessions", {"worker_id": "fuzzer", "session_id": "gpu"})
    token = post("/tokens", {"role": "worker"})["token_id"]
    plan = {"spec": {"cron_expressions": ["@daily"]}, "action": {"workflow_type": "order", "task_queue": "q"}}
    post("/schedules", {**plan, "schedule_id": "nightly"})
    return {
        "workflow_id": ids,
        "run_id": runs,
        "task_id": [*tasks, left["task_id"], activity["task_id"]],
        "query_task_id": ["nobody"],
        "attempt_id": [activity["activity_attempt_id"]],
        "worker_id": ["fuzzer", "nobody"],
        "session_id": ["gpu"],
        "schedule_id": ["nightly"],
        "queue": ["q"],
        "token_id": [token],
        "name": ["pay", "status"],
        "namespace": ["default"],
        "workflow_type": ["order"],
    }


def _run(directory: str, url: str, known: dict[str, list[str]], seconds: int, seed: int) -> int:
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}/api/openapi.json"),
        *("--checks", CHECKS, "--seed", str(seed), "--max-time", str(seconds), "--phases", "coverage,fuzzing"),
        *("--request-timeout", "40", "--header", f"Authorization: Bearer {TOKEN}"),
        # It waits for the end of what it starts. Starting and waiting are under test each by itself.
        *("--exclude-path", "/api/call/run-workflow"),
        *("--suppress-health-check", "all", "--warnings", "off", "--generation-database", "none"),
    ]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks",
        "FUZZ_KNOWN": json.dumps(known),
        "FUZZ_HEADERS": json.dumps(HEADERS),
    }
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.run(command, cwd=directory, env=environment, check=False).returncode  # it leaves files behind


if __name__ == "__main__":
    raise SystemExit(main())
