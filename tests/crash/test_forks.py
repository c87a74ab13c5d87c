"""Forks and rewinds, killed at every commit boundary: each is done once or not at all, and nothing that was kept is done again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ..selection import some_of

ROOT = Path(__file__).parent.parent.parent


def live(directory: Path, side: str = "none", commit: int = 0) -> int:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.crash.fork_victim", str(directory), side, str(commit)]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode


def concluded(directory: Path) -> dict[str, Any]:
    report = json.loads((directory / "report.json").read_text())
    assert report["results"] == {"o-1": ["reserved", "charged", "o-1"], "o-2": ["reserved", "charged", "o-2"]}
    closes = Counter((name, reason) for name, _, _, reason in report["runs"])
    assert closes == {("o-1", "rewound"): 1, ("o-1", "completed"): 1, ("o-2", "completed"): 1}
    for name, run, number, reason in report["runs"]:
        types = report["histories"][run]
        inherits = name == "o-2" or number == 2
        assert types.count("HistoryInherited") == inherits
        if reason == "rewound":
            assert types[-1] == "WorkflowRewound", "it takes nothing more"
    acts = [line.split() for line in (directory / "acts").read_text().splitlines()]
    keys = {(what, key) for what, key, _ in acts}
    assert Counter(what for what, _ in keys) == {"reserve": 1, "charge": 3}, "what was kept is not done again"
    again = [act for act, count in Counter(map(tuple, acts)).items() if count > 1]
    assert not again, "a second attempt has another number"
    return report


@pytest.mark.parametrize("side", ["before", "open", "after"])
def test_a_kill_at_any_commit_loses_and_doubles_nothing(side: str, tmp_path: Path) -> None:
    unharmed = tmp_path / "unharmed"
    assert live(unharmed) == 0
    commits = concluded(unharmed)["commits"]
    for commit in some_of(range(1, commits + 1), 5):
        harmed = tmp_path / f"{commit}"
        ended = live(harmed, side, commit)
        assert ended in (-9, 0)
        if ended:
            assert live(harmed) == 0
        concluded(harmed)
