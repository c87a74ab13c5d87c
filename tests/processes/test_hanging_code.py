"""Workflow code that hangs, in real processes: a fleet of workers, and an engine that is killed while it hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Client, workflow

from ..interop.conftest import TOKEN, Running

DW = (sys.executable, "-P", "-m", "backstay.cli.main")
PATIENCE = 60.0

APP = """
import os
from backstay import activity, sleep, workflow

@activity
def quick(n: int) -> int:
    return n

@workflow
def good(n: int) -> int:
    sleep("1ms")
    return quick(n)

@workflow(unchecked=True)
def hangs() -> None:
    sleep("1ms")
    with open("hanging", "a") as mark:
        mark.write(f"{os.getpid()}\\n")
    while True:
        pass
"""

EMBEDDED = """
import sys
from backstay import Backstay
import app

with Backstay("app.db", [app.quick, app.good, app.hangs], workflow_deadline=float(sys.argv[1])) as backstay:
    if sys.argv[2] == "first":
        backstay.start(app.hangs, "bad")
    print("good", backstay.execute(app.good, sys.argv[2], 7), flush=True)
"""


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} never happened")


@workflow(type="good")
def good(n: int) -> int: ...


@workflow(type="hangs")
def hangs() -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "embedded.py").write_text(EMBEDDED)
    return tmp_path


@pytest.fixture
def fleet(place: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    server = Running(place / "server.db")
    command = [*DW, "worker", "app.py", "--server", server.url, "--token", TOKEN, "--workflow-deadline", "0.5"]
    workers: list[subprocess.Popen[bytes]] = []
    for number in range(2):
        with (place / f"{number}.log").open("wb") as log:
            workers.append(subprocess.Popen(command, cwd=place, stdout=log, stderr=subprocess.STDOUT))
    try:
        until(lambda: all("works for" in (place / f"{n}.log").read_text() for n in range(2)), "the workers' start")
        yield server.url, workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        server.stop()


def test_a_fleet_goes_on_and_the_run_is_set_aside(fleet: Any, place: Path) -> None:
    url, workers = fleet
    with Client(url, token=TOKEN) as client:
        client.start(hangs, "bad")
        until(lambda: client.describe("bad").status == "blocked", "the end of hanging")
        for number in range(4):
            assert client.execute(good, f"g{number}", number) == number
        (block,) = [view.task.block for view in client.describe("bad").tasks if view.task.block]
        assert block.reason == "workflow_deadline_exceeded"
        before = (place / "hanging").read_text()
        client.handle(hangs, "bad").repair()
        until(lambda: (place / "hanging").read_text() != before, "another try")
        until(lambda: client.describe("bad").status == "blocked", "the end of hanging again")
    assert all(worker.poll() is None for worker in workers)
    assert any("It hangs here" in (place / f"{n}.log").read_text() for n in range(2))


def test_an_engine_that_is_killed_while_it_hangs_sets_the_run_aside_at_its_next_start(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "embedded.py"]
    first = subprocess.Popen([*command, "1000", "first"], cwd=place, env=environment, stdout=subprocess.PIPE)
    until(lambda: (place / "hanging").exists(), "hanging")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    for number in ("second", "third"):
        done = subprocess.run(
            [*command, "0.5", number], cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.stdout == "good 7\n", done.stderr
    pids = (place / "hanging").read_text().split()
    assert len(pids) == 2  # not again at the third start
    with Backstay(place / "app.db", client_only=True) as backstay:
        assert backstay.describe("bad").status == "blocked"
