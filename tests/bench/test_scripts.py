"""Every script of `bench/` runs, with the least of everything. What it prints is not looked at: figures are for quiet machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..selection import rotating

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
PATIENCE = 300  # seconds; each ends within ten on a quiet machine

USES: dict[str, list[list[str]]] = {
    "against": [["HEAD", "--only", "disk"]],
    "children": [[]],
    "count": [[]],
    "hop": [[]],
    "imports": [[]],
    "lists": [[]],
    "live": [[]],
    "nodes": [[], ["--shapes", "server"]],
    "page": [["list"], ["news"], ["long"]],
    "pages": [[]],
    "parked": [[]],
    "peer_backstay": [[]],
    "peer_backstay_http": [[]],
    "postgresql": [[]],
    "published": [[]],
    "run": [
        [],
        ["--only", "w2,w3,children"],
        ["--only", "w4,w5,w6"],
        ["--only", "pg"],
        ["--only", "flat,memory,idle,crowd,disk"],
    ],
    "sessions": [[]],
    "takeover": [["--shape", "embedded"], ["--shape", "server"]],
}
"""The arguments of each script, for everything that it can do. Peers that are not installed are named by the script, and left out."""

PARTS = {"figures", "measuring", "node_children", "node_meters", "sides", "workloads"}
"""Modules and processes of those scripts."""


def test_every_script_is_tried() -> None:
    assert {file.stem for file in BENCH.glob("*.py")} == USES.keys() | PARTS


@pytest.mark.parametrize(
    ("name", "arguments"),
    rotating([pytest.param(name, use, id="-".join([name, *use])) for name, uses in USES.items() for use in uses], 6),
)
def test_a_script_runs(name: str, arguments: list[str], tmp_path: Path) -> None:
    if name == "against" and not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: there are no commits to compare with")
    environment = {
        **os.environ,
        "BENCH_HARNESS": str(tmp_path),
        "BENCH_HOME": str(tmp_path),
    }  # no peer is installed there
    ended = subprocess.run(
        [sys.executable, str(BENCH / f"{name}.py"), *arguments, "--small"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.strip(), "it says what it has measured"
    assert "Traceback" not in ended.stderr, ended.stderr
