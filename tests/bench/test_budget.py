"""The hot path has a budget: bytecodes and calls of one workflow and of one step, embedded and at each side of HTTP.

The figures are counted by `bench/count.py` and recorded in `budget.json`, for each version of Python. A change that costs more
than 2 % more fails here: make it cheaper, or record the new figure and say in the commit what it buys. A figure that has fallen by
a tenth fails as well: either nothing is counted any more, or the budget is too loose to notice the next change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ..session import ROOT

FILE = Path(__file__).with_name("budget.json")
BUDGET: dict[str, dict[str, tuple[int, int]]] = json.loads(FILE.read_text())
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
MORE, LESS = 1.02, 0.9
AGAIN = 2
PATIENCE = 300  # seconds; it takes twenty on a quiet machine


def counted(out: Path) -> dict[str, tuple[int, int]]:
    out.unlink(missing_ok=True)
    script = [sys.executable, str(ROOT / "bench" / "count.py"), "--json", str(out)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(out.read_text())["results"]
    return {what: (figures["bytecodes"], figures["calls"]) for what, figures in results.items()}


def differences(found: dict[str, tuple[int, int]], recorded: dict[str, tuple[int, int]]) -> list[str]:
    return [
        f"{what}: {now} {unit}, {now / max(before, 1) - 1:+.1%} against {before}"
        for what, figures in found.items()
        for unit, before, now in zip(("bytecodes", "calls"), recorded[what], figures, strict=True)
        if not before * LESS <= now <= before * MORE
    ]


def test_the_hot_path_costs_no_more_than_was_recorded(tmp_path: Path) -> None:
    """One test, because counting takes a while.

    On a crowded machine every workflow of a count may be disturbed, and cost more; so what is too dear is counted again, and the
    lowest figures count.
    """
    found = counted(tmp_path / "counted")
    assert VERSION in BUDGET, f"record in {FILE.name} for Python {VERSION}: {json.dumps(found)}"
    recorded = BUDGET[VERSION]
    assert found.keys() == recorded.keys()
    for _ in range(AGAIN):
        if not differences(found, recorded):
            break
        again = counted(tmp_path / "counted")
        found = {what: (min(one[0], again[what][0]), min(one[1], again[what][1])) for what, one in found.items()}
    other = differences(found, recorded)
    advice = f"make it cheaper, or record the new figures in tests/bench/{FILE.name} and say why: {json.dumps(found)}"
    assert not other, "; ".join([*other, advice])


def test_whatever_calls_executes_bytecodes() -> None:
    """A figure of zero would mean that the counter is deaf there."""
    for version, recorded in BUDGET.items():
        for what, (bytecodes, calls) in recorded.items():
            assert (bytecodes > calls) if calls else not bytecodes, f"{what} on Python {version}"


def test_every_version_that_is_promised_has_figures() -> None:
    assert BUDGET.keys() >= {"3.11", "3.12", "3.13"}
