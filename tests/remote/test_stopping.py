"""A worker that is told to stop: it drains, or hurries, or ends there and then, whatever its code is doing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backstay import AsyncClient, AsyncWorker, Client, activity, workflow

from ..interop.conftest import TOKEN, Running
from ..sdk.kit import eventually

PROGRAM = """
import os
import time
from pathlib import Path

from backstay import activity, workflow
from backstay.sdk.remote import worker

worker.DRAIN_GRACE = 0.1


@activity
def gated(directory: str) -> str:
    Path(directory, "reached").touch()
    while not Path(directory, "gate").exists():
        time.sleep(0.01)
    return "passed"


@workflow(type="stopping-gated")
def waits(directory: str) -> str:
    return gated(directory)


@workflow(type="stopping-endless", unchecked=True)
def endless(directory: str) -> None:
    Path(directory, "reached").touch()
    while True:
        pass


@workflow(type="stopping-hanging", unchecked=True)
def hanging(directory: str) -> None:
    Path(directory, "reached").touch()
    os.read(os.pipe()[0], 1)
"""


@workflow(type="stopping-gated")
def waits(directory: str) -> str:
    raise NotImplementedError


@workflow(type="stopping-endless")
def endless(directory: str) -> None:
    raise NotImplementedError


@workflow(type="stopping-hanging")
def hanging(directory: str) -> None:
    raise NotImplementedError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "stopping.db")
    yield running
    running.stop()


@pytest.fixture
def worker(tmp_path: Path, server: Running) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "worker", "program.py", "--server", server.url]
    process = subprocess.Popen(
        [*command, "--token", TOKEN], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert "works for" in process.stdout.readline()
    yield process
    process.kill()
    process.wait(30)
    process.stdout.close()
    process.stderr.close()


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_one_ctrl_c_lets_what_runs_end(tmp_path: Path, server: Running, worker: subprocess.Popen[str]) -> None:
    with Client(server.url, token=TOKEN) as client:
        client.start(waits, "w", str(tmp_path))
        until((tmp_path / "reached").exists, "the activity runs")
        worker.send_signal(signal.SIGINT)
        (tmp_path / "gate").touch()
        assert worker.wait(30) == 0
        assert "ActivityCompleted" in [entry.type for entry in client.history("w")]


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path, server: Running, worker: subprocess.Popen[str]) -> None:
    with Client(server.url, token=TOKEN) as client:
        client.start(waits, "w", str(tmp_path))
        until((tmp_path / "reached").exists, "the activity runs")
        worker.send_signal(signal.SIGINT)
        assert worker.stderr is not None
        assert any("another Ctrl-C does not wait" in line for line in worker.stderr), "it says so before it ends"
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 0, "it did not wait for what runs"
        assert "ActivityCompleted" not in [entry.type for entry in client.history("w")]


@pytest.mark.parametrize("flow", [waits, endless], ids=["an activity", "workflow code that never ends"])
def test_a_third_ctrl_c_ends_the_process_whatever_it_does(
    flow: object, tmp_path: Path, server: Running, worker: subprocess.Popen[str]
) -> None:
    with Client(server.url, token=TOKEN) as client:
        client.start(flow, "w", str(tmp_path))  # type: ignore[call-overload]
        until((tmp_path / "reached").exists, "the code runs")
        until(lambda: worker.poll() is not None or bool(worker.send_signal(signal.SIGINT)), "it ends")
        assert worker.wait(30) not in (-signal.SIGSEGV, -signal.SIGABRT), "it ended, and did not crash"


@pytest.mark.parametrize("deadline", ["60", "0.1"], ids=["that nobody interrupts", "that the watchdog interrupts"])
def test_one_sigterm_ends_a_worker_whose_workflow_code_hangs(tmp_path: Path, server: Running, deadline: str) -> None:
    """A strike of the watchdog waits for the next bytecode of the thread, and that must not be the handler of the signal."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "worker", "program.py", "--server", server.url]
    command += ["--token", TOKEN, "--drain", "0.1", "--workflow-deadline", deadline]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        try:
            with Client(server.url, token=TOKEN) as client:
                client.start(hanging, "w", str(tmp_path))
                until((tmp_path / "reached").exists, "the code runs")
                if deadline == "0.1":
                    assert worker.stderr is not None
                    assert any("it cannot be interrupted" in line for line in worker.stderr)
                worker.terminate()
                _, said = worker.communicate(timeout=30)
        finally:
            worker.kill()  # a test that fails must not wait for it
    assert worker.returncode == 1
    assert "Timeout" in said
    assert "in hanging" in said, "it says where it hangs"


gate = asyncio.Event()
ran: list[str] = []


@activity
async def guarded() -> str:
    ran.append("guarded")
    await gate.wait()
    return "done"


@workflow(type="stopping-guarded")
def guards() -> str:
    return guarded.step().run()


async def test_a_worker_reports_before_it_ends_what_it_did_while_the_server_was_away(tmp_path: Path) -> None:
    global gate
    gate = asyncio.Event()
    ran.clear()
    running = Running(tmp_path / "away.db")
    try:
        async with AsyncClient(running.url, token=TOKEN) as client:
            worker = AsyncWorker(running.url, [guards, guarded], token=TOKEN)
            await worker.__aenter__()
            handle = await client.start(guards, "g")
            await eventually(lambda: bool(ran), "it runs")
            await asyncio.to_thread(running.kill)
            closing = asyncio.create_task(worker.close())
            gate.set()
            await eventually(lambda: not worker.executor.activities.at_work(), "it is done, and nobody knows")
            await asyncio.to_thread(running.restart)
            await closing
            async with AsyncWorker(running.url, [guards, guarded], token=TOKEN):
                assert await handle.result() == "done"
    finally:
        await asyncio.to_thread(running.stop)
    assert ran == ["guarded"]
