"""The published package against a real server process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("durable_workflow")

from ..many_nodes import Chosen, command, store_of
from ..sdk.conftest import run_coroutine
from ..session import ROOT

TOKEN = "interop-token"


PATIENCE = 60  # processes of their own need their time on a busy machine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    return run_coroutine(pyfuncitem, PATIENCE)


class Running:
    """A `dw server` in a process of its own, or several servers behind one address in one process."""

    def __init__(self, database: Path, *arguments: str) -> None:
        self.database = database
        self.arguments = arguments
        self.start("0")

    def start(self, port: str) -> None:
        self.process = subprocess.Popen(self._command(port), stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http" in line, "the server did not start"
        self.url = line.split()[-1]

    def _command(self, port: str) -> list[str]:
        if Chosen.shape.many and not self.arguments:
            settings = {"port": int(port), "token": TOKEN, "store": store_of(self.database)}
            return command(settings, Chosen.shape)
        return [
            *(sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", port, "--token", TOKEN),
            *("--store", f"sqlite:{self.database}", *self.arguments),
        ]

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self._reap()

    def restart(self) -> None:
        """On the same port, so that clients find it again."""
        self.start(self.url.rpartition(":")[2])

    def stop(self) -> int:
        self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "interop.db")
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            assert running.stop() == 0
