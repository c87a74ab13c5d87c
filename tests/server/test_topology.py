"""Where matching happens: in the server, or in a process of its own. Poll, claim, lease and redelivery are the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..interop.conftest import TOKEN as PROCESS_TOKEN
from ..interop.conftest import Running
from ..store.seam import connection_of
from .kit import Api, parked, serving, settle, until

DW = (sys.executable, "-P", "-m", "backstay.cli.main")
PATIENCE = 30


async def role(api: Api) -> dict[str, Any]:
    return (await api.control("GET", "/cluster/info")).json()["topology"]["matching_role"]


async def lose_the_task(api: Api, workflow_id: str) -> None:
    """Its row is gone, and so is everything that was remembered of it."""
    engine = api.server.engine
    key = await engine.store.find("default", workflow_id)
    assert key is not None
    connection_of(engine.store).execute("delete from task where workflow = ?", (key,))
    engine.matching.lanes.forget(lambda key: True)
    entry = engine.cache.get(key)
    if entry is not None:
        engine.discard_cached(entry)


@pytest.mark.contract("TOPO-04")
async def test_a_server_whose_own_wake_is_off_does_not_sweep_while_another_process_does() -> None:
    async with serving() as ordinary, serving(v2_matching_role_queue_wake=False, wake_signal_ttl_seconds=20) as quiet:
        assert ((await role(ordinary))["queue_wake_enabled"], (await role(ordinary))["wake_owner"]) == (True, "server")
        assert ((await role(quiet))["queue_wake_enabled"], (await role(quiet))["wake_owner"]) == (False, "repair_pass")
        for api in (ordinary, quiet):
            await api.register()
            await api.start("lost")
            await lose_the_task(api, "lost")
        await quiet.control("POST", "/system/repair/pass", {"instance_id": "nobody", "sweep_owner": "matcher-1"})
        await lose_the_task(quiet, "lost")
        for api in (ordinary, quiet):
            await api.world.advance(6)
            await settle()
        assert (await ordinary.poll())["workflow_id"] == "lost", "it looks by itself, every few seconds"
        assert await quiet.poll() is None
        done = (await quiet.control("POST", "/system/repair/pass", {"sweep_owner": "matcher-1"})).json()
        assert (done["repaired_missing_tasks"], done["wake_marker"]["owner"]) == (1, "matcher-1")
        assert (await quiet.poll())["workflow_id"] == "lost"


@pytest.mark.contract("MATCH-17", "TOPO-03")
async def test_a_wake_marker_is_visible_for_as_long_as_the_setting_says() -> None:
    async with serving(v2_matching_role_queue_wake=False, wake_signal_ttl_seconds=40) as api:
        await api.register()
        assert (await role(api))["wake_marker"]["owner"] == "backstay", "whoever becomes the engine looks at everything"
        await api.control("POST", "/system/repair/pass", {"sweep_owner": "matcher-1"})
        marker = (await role(api))["wake_marker"]
        assert (marker["owner"], marker["visible_until"] > marker["signalled_at"]) == ("matcher-1", True)
        metrics = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]
        assert metrics["matching_role"]["wake_marker"] == marker
        await api.start("lost")
        await lose_the_task(api, "lost")
        for _ in range(7):
            await api.world.advance(5)
            await settle()
        assert (await role(api))["wake_marker"] == marker
        assert await api.poll() is None, "as long as the marker is to be seen somebody else looks"
        for _ in range(3):
            await api.world.advance(5)
            await settle()
        assert (await role(api))["wake_marker"]["owner"] == "backstay", "the other one is gone"
        assert (await api.poll())["workflow_id"] == "lost", "later, not lost"


@pytest.mark.contract("MATCH-17")
async def test_how_long_a_poll_is_parked_is_a_matter_of_its_own_setting() -> None:
    async with serving(wake_signal_ttl_seconds=1) as api:
        await api.register()
        poll = {"worker_id": "worker-1", "task_queue": "q", "timeout_seconds": 45}
        waiting = asyncio.create_task(api.worker("workflow-tasks/poll", poll))
        await parked(api)
        await api.world.advance(44)
        assert len(api.server.engine.matching.polls.all()) == 1
        await api.world.advance(2)
        assert (await waiting).json()["poll_status"] == "empty"


async def test_a_pass_of_a_server_that_is_not_the_engine_says_so() -> None:
    async with serving() as api:
        api.server.engine.owned[:] = bytes(256)
        refused = await api.control("POST", "/system/repair/pass", {"sweep_owner": "matcher-1"})
        assert (refused.status_code, refused.json()["reason"]) == (503, "engine_elsewhere")
        api.server.engine.owned[:] = b"\1" * 256


async def test_a_server_that_is_not_the_engine_asks_no_worker() -> None:
    async with serving() as api:
        await api.register()
        await api.start("w")
        query = asyncio.create_task(api.control("POST", "/workflows/w/query/status", {}))
        poll = {"worker_id": "worker-1", "task_queue": "q", "timeout_seconds": 45}
        await until(lambda: len(api.server.questions.waiting) == 1)
        waiting = asyncio.create_task(api.worker("update-validation-tasks/poll", poll))
        await until(lambda: len(api.server.parked) == 1)
        api.server.engine.owned[:] = bytes(256)
        for lost in api.server.node.lifecycle.on_lost:
            lost()
        for refused in (await query, await api.control("POST", "/workflows/w/query/status", {})):
            assert (refused.status_code, refused.json()["reason"]) == (503, "engine_elsewhere")
            assert refused.headers["connection"] == "close"
        for refused in (await waiting, await api.worker("query-tasks/poll", poll)):
            assert (refused.status_code, refused.json()["reason"]) == (503, "backend_unavailable")
            assert refused.json()["operation"] in ("poll_query_task", "poll_update_validation_task")
        api.server.engine.owned[:] = b"\1" * 256


class Matcher:
    """`dw repair-pass --loop` in a process of its own."""

    def __init__(self, url: str, token: str = PROCESS_TOKEN) -> None:
        self.popen = subprocess.Popen(
            [*DW, "repair-pass", "--loop", "--every", "0.05", "--server", url, "--token", token],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.popen.stdout is not None
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(iter(self.popen.stdout.readline, "")))  # type: ignore[union-attr]
        self._reader.start()

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        code = self.popen.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        return code


@pytest.fixture
def execution_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("DW_V2_MATCHING_ROLE_QUEUE_WAKE", "0")
    running = Running(tmp_path / "dedicated.db")
    try:
        yield running
    finally:
        assert running.stop() == 0


def call(server: Running, method: str, path: str, body: Any = None) -> Any:
    headers = {
        "Authorization": f"Bearer {PROCESS_TOKEN}",
        "X-Durable-Workflow-Control-Plane-Version": "2",
        "X-Durable-Workflow-Protocol-Version": "1.20",
    }
    answer = httpx.request(method, f"{server.url}/api{path}", headers=headers, json=body, timeout=PATIENCE)
    assert answer.status_code < 300, answer.text
    return answer.json()


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"


@pytest.mark.contract("TOPO-03", "TOPO-04", "REPAIR-26")
def test_a_dedicated_process_owns_the_sweeps_and_work_goes_on_without_it(execution_only: Running) -> None:
    server = execution_only

    def marker() -> Any:
        return call(server, "GET", "/cluster/info")["topology"]["matching_role"]["wake_marker"]

    def work(workflow_id: str) -> None:
        started = {"workflow_type": "order", "workflow_id": workflow_id, "task_queue": "q"}
        call(server, "POST", "/workflows", started)
        poll = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 30}
        task = call(server, "POST", "/worker/workflow-tasks/poll", poll)["task"]
        assert task["workflow_id"] == workflow_id
        done = {
            "lease_owner": "w",
            "workflow_task_attempt": task["workflow_task_attempt"],
            "commands": [{"type": "complete_workflow"}],
        }
        call(server, "POST", f"/worker/workflow-tasks/{task['task_id']}/complete", done)
        assert call(server, "GET", f"/workflows/{workflow_id}")["status"] == "completed"

    assert marker()["owner"] == "backstay"
    call(server, "POST", "/worker/register", {"worker_id": "w", "task_queue": "q", "runtime": "python"})
    matcher = Matcher(server.url)
    try:
        wait_for(lambda: marker()["owner"].endswith(f"-{matcher.popen.pid}"), "the sweeps are the loop's")
        first = marker()["signalled_at"]
        wait_for(lambda: marker()["signalled_at"] > first, "it goes on")
        work("with-it")
        server.kill()
        server.restart()
        wait_for(lambda: marker()["owner"].endswith(f"-{matcher.popen.pid}"), "it has found the server again")
    finally:
        assert matcher.stop() == 0, matcher.lines
    assert "checks" in matcher.lines[0]
    assert any("trying again" in line for line in matcher.lines), "said once, and then patient"
    work("without-it")


@pytest.mark.contract("TOPO-03", "TOPO-04", "REPAIR-26", "MATCH-17")
def test_only_the_dedicated_process_restores_lost_work_while_its_marker_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks for nothing by itself for an hour, so what comes back came from the loop."""
    monkeypatch.setenv("DW_V2_MATCHING_ROLE_QUEUE_WAKE", "0")
    monkeypatch.setenv("DW_WAKE_SIGNAL_TTL_SECONDS", "3600")
    file = tmp_path / "dedicated.db"
    server = Running(file)
    try:
        call(server, "POST", "/worker/register", {"worker_id": "w", "task_queue": "q", "runtime": "python"})
        call(server, "POST", "/workflows", {"workflow_type": "order", "workflow_id": "lost", "task_queue": "q"})
        with closing(sqlite3.connect(file, isolation_level=None, timeout=PATIENCE)) as rows:
            assert rows.execute("delete from task").rowcount == 1

        def state() -> str:
            return call(server, "GET", "/workflows/lost/detail")["liveness_state"]

        assert state() == "repair_needed"
        matcher = Matcher(server.url)
        try:
            wait_for(lambda: state() == "workflow_task_ready", "the loop has restored it")
        finally:
            assert matcher.stop() == 0, matcher.lines
        assert "1 candidates, 1 repaired\n" in matcher.lines
        assert call(server, "GET", "/cluster/info")["topology"]["matching_role"]["wake_marker"]["owner"] != "backstay"
    finally:
        assert server.stop() == 0


@pytest.mark.contract("REPAIR-26")
def test_one_pass_and_what_is_wrong_with_it(execution_only: Running) -> None:
    def dw(*arguments: str) -> tuple[int, str]:
        command = [*DW, "repair-pass", *arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DW_")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=kept)
        return done.returncode, done.stdout + done.stderr

    server = ("--server", execution_only.url)
    assert dw(*server, "--token", PROCESS_TOKEN) == (0, "nothing to repair\n")
    code, said = dw(*server, "--token", "guess")
    assert (code, "token" in said) == (2, True)
    code, said = dw()
    assert (code, "--db" in said) == (2, True)
    code, said = dw("--server", "http://127.0.0.1:1", "--token", "x")
    assert (code, "nothing listens there" in said, said.count("\n")) == (2, True, 1)
