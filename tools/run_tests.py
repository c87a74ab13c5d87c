"""Run the tests, and a test that failed beside others once more, alone, if its verdict may depend on how busy the machine is.

    python -m tools.run_tests -n 3 --dist worksteal

Tests of the rooms in `TIMED` talk to real processes, servers, browsers and databases, and have deadlines in seconds. A machine that
does something else meanwhile can make any of them late. So up to `MOST` failures there are repeated one at a time. A test that
passes then is named at the end, so that it can be mended; one that fails again fails the run, and so does any failure elsewhere:
the kernel, the codec and the simulator have no such excuse.

The module is also the plugin of pytest that tells which tests failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TIMED = frozenset(
    (
        "bench",
        "cli",
        "contrib",
        "crash",
        "docs",
        "engine",
        "interop",
        "packaging",
        "processes",
        "remote",
        "scenarios",
        "sdk",
        "server",
    )
) | {"store", "testing", "waterline"}
MOST = 5
FAILED_TO = "BACKSTAY_FAILED_TESTS"
"""Names the file that the plugin writes the ids of failed tests to."""


def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "failed"
        ended = _pytest("-p", "tools.run_tests", *options, **{FAILED_TO: str(listed)})
        failed = listed.read_text().splitlines() if listed.exists() else []
    if ended != pytest.ExitCode.TESTS_FAILED or not may_repeat(failed):
        return ended
    print(f"\n{_count(failed)} failed beside the others, and may have been late. Once more, alone:", flush=True)
    again = _pytest(*failed)
    if again == pytest.ExitCode.OK:
        print(
            f"\nUNSTEADY: {_count(failed)} failed beside the others and passed alone:", *failed, sep="\n  ", flush=True
        )
    return again


def may_repeat(failed: list[str]) -> bool:
    """Whether each of these tests (few, by their ids) may have failed because the machine was busy."""
    return 0 < len(failed) <= MOST and all(_room(test) in TIMED for test in failed)


def _room(test: str) -> str:
    parts = Path(test.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else ""


def _count(failed: list[str]) -> str:
    return "one test" if len(failed) == 1 else f"{len(failed)} tests"


def _pytest(*options: str, **more: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], env=os.environ | more, check=False).returncode


# -- the plugin

_failed: dict[str, None] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed[report.nodeid] = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # the workers of xdist report to one session, which writes
        Path(os.environ[FAILED_TO]).write_text("".join(f"{id}\n" for id in _failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
