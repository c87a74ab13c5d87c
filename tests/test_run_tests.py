"""A test that failed beside others is repeated alone where deadlines are in seconds, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.run_tests import MOST, TIMED, may_repeat

ROOT = Path(__file__).parent.parent
FAILS_ONCE = """
from pathlib import Path

def test_late():
    seen = Path(__file__).with_suffix(".seen")
    before = seen.exists()
    seen.touch()
    assert before

def test_right():
    pass
"""


def _run(folder: Path, room: str, source: str) -> tuple[int, str]:
    test = folder / "tests" / room / "test_it.py"
    test.parent.mkdir(parents=True)
    test.write_text(source)
    ended = subprocess.run(
        [sys.executable, "-m", "tools.run_tests", "-n", "1", "-p", "no:cacheprovider", "--rootdir", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_late_test_is_repeated_alone_and_named(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, "processes", FAILS_ONCE)
    assert code == 0, printed
    assert (
        "UNSTEADY: one test failed beside the others and passed alone:\n  tests/processes/test_it.py::test_late"
        in printed
    )


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, "processes", "def test_wrong():\n    assert False\n")
    assert (code, "UNSTEADY" in printed) == (1, False), printed


def test_the_kernel_is_never_late(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, "kernel", FAILS_ONCE)
    assert (code, "Once more" in printed) == (1, False), printed


def test_a_run_without_failures_is_not_repeated(tmp_path: Path) -> None:
    code, printed = _run(tmp_path, "kernel", "def test_right():\n    pass\n")
    assert (code, "Once more" in printed) == (0, False), printed


@pytest.mark.parametrize(
    ("failed", "may"),
    [
        ([], False),
        (["tests/server/test_x.py::test_a[1 :: 2]"], True),
        (["tests/server/test_x.py::test_a", "tests/kernel/features/test_x.py::test_b"], False),
        (["tests/test_house.py::test_sizes"], False),
        ([f"tests/remote/test_x.py::test_{n}" for n in range(MOST)], True),
        ([f"tests/remote/test_x.py::test_{n}" for n in range(MOST + 1)], False),
    ],
)
def test_only_few_failures_of_timed_rooms_are_repeated(failed: list[str], may: bool) -> None:
    assert may_repeat(failed) is may


def test_the_timed_rooms_are_there() -> None:
    assert all((ROOT / "tests" / room).is_dir() for room in TIMED)
