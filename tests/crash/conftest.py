"""Lanes to run victims in, and trials: one directory with a database and a ledger, lived in by several victims."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

pytest.register_assert_rewrite(f"{__package__}.evidence", f"{__package__}.trial")

from .trial import Trial  # noqa: E402 - after its asserts are registered

LANES = 3


class Lanes:
    """A few warm processes that fork victims."""

    def __init__(self, count: int) -> None:
        tests = str(Path(__file__).parents[1])
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "crash.lane"],
                cwd=tests,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *os.environ.get("PYTHONPATH", "").split()])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(count)
        ]
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            self._free.put(process)

    def run(self, job: Any) -> int:
        """How the victim ended: its exit code, or minus the signal that ended it."""
        process = self._free.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            return int(process.stdout.readline())
        finally:
            self._free.put(process)

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait(timeout=40)
            process.stdout.close()


@pytest.fixture(scope="session")
def lanes() -> Iterator[Lanes]:
    lanes = Lanes(LANES)
    yield lanes
    lanes.close()


@pytest.fixture
def trial(lanes: Lanes, tmp_path: Path) -> Callable[[str], Trial]:
    """A fresh trial by name."""

    def make(name: str) -> Trial:
        directory = tmp_path / name
        directory.mkdir()
        return Trial(directory, lanes.run)

    return make


@pytest.fixture
def at_once(lanes: Lanes) -> Callable[[Callable[[Any], None], list[Any]], None]:
    """Call a function for each of many things, as many at a time as there are lanes."""

    def run(call: Callable[[Any], None], things: list[Any]) -> None:
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(call, things))

    return run
