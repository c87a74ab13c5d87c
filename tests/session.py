"""What all processes of a test session share: each thing is made by whoever needs it first, and kept by a process of its own.

That process is `python -m MODULE PID DIRECTORY`. It tells in the file `told` of the directory where the thing is, and ends when the
process PID, which runs the tests, is gone.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def begin_session() -> None:
    """Said once, by the process that keeps the session; workers inherit it."""
    os.environ["BACKSTAY_TEST_SESSION"] = f"{os.getpid()}:{tempfile.gettempdir()}/backstay-tests-{os.getpid()}"


def shared(module: str, name: str = "", patience: float = 60) -> str:
    """What the keeper of this module tells, or the log of one that tells nothing. `name`: of its directory."""
    keeper, _, session = os.environ["BACKSTAY_TEST_SESSION"].partition(":")
    place = Path(session + name)
    place.mkdir(exist_ok=True)
    told = place / "told"
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            _keep(module, keeper, place, told, patience)
    return told.read_text()


def _keep(module: str, keeper: str, place: Path, told: Path, patience: float) -> None:
    with open(place / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, keeper, str(place)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + patience
    while not told.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            told.write_text(f"{module} did not start: {(place / 'log').read_text()[-4000:]}")
        else:
            time.sleep(0.02)
    process.returncode = 0  # it outlives this process; nobody is to wait for it
