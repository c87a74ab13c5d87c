"""What a type checker says about authors' code: right lines have exactly their types, wrong lines are errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parent / "typing_samples"


def complaints() -> dict[str, dict[int, list[str]]]:
    """The errors that pyright finds in the samples, by file and line."""
    # A project of their own: the one of all tests leaves the samples out.
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(SAMPLES),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=SAMPLES)
    found: dict[str, dict[int, list[str]]] = {"right.py": {}, "wrong.py": {}}
    diagnostics: list[dict[str, Any]] = json.loads(run.stdout)["generalDiagnostics"]
    for one in diagnostics:
        lines = found[Path(one["file"]).name]
        lines.setdefault(one["range"]["start"]["line"] + 1, []).append(one["message"])
    return found


def test_right_lines_have_exactly_their_types_and_wrong_lines_are_errors() -> None:
    found = complaints()
    assert found["right.py"] == {}
    text = (SAMPLES / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(text, 1) if line.endswith("# wrong")}
    assert sorted(wrong - found["wrong.py"].keys()) == [], "accepted, and should not be"
    assert {line: messages for line, messages in found["wrong.py"].items() if line not in wrong} == {}
    assert len(wrong) > 25
