"""An activity that kills its process is begun again a bounded number of times, or never: real processes, really killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import poison
from .program import Program

Start = Callable[..., Program]
CASES = pytest.mark.parametrize(("name", "activity", "starts"), [("spend", "greedy", 2), ("pay_once", "pay", 1)])


def begun(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


@CASES
def test_embedded_it_takes_its_program_down_so_often_and_then_fails(
    tmp_path: Path, program: Start, name: str, activity: str, starts: int
) -> None:
    ledger = tmp_path / "ledger"
    for _ in range(starts):
        assert program("deadly", "embedded", str(tmp_path / "app.db"), name, str(ledger)).ended() == 9
    last = program("deadly", "embedded", str(tmp_path / "app.db"), name, str(ledger))
    assert last.ended() == 0
    assert last.lines[0].startswith(f"[{starts}, ")
    assert begun(ledger) == [f"{activity} {number}" for number in range(1, starts + 1)]


def test_without_a_workflow_it_is_the_same(tmp_path: Path, program: Start) -> None:
    ledger = tmp_path / "ledger"
    assert program("deadly", "activity", str(tmp_path / "app.db"), str(ledger)).ended() == 9
    last = program("deadly", "activity", str(tmp_path / "app.db"), str(ledger))
    assert last.ended() == 0
    assert last.lines[0].startswith("ActivityCrashed(")
    assert last.lines[0].endswith(" 1\n")
    assert begun(ledger) == ["pay 1"]


def test_neighbours_of_an_activity_that_kills_its_program_are_not_blamed(tmp_path: Path, program: Start) -> None:
    """They begin together and die together until they are suspects; then each is tried alone."""
    deaths = 0
    while (last := program("poison", "embedded", str(tmp_path / "app.db"))).ended() == 9:
        deaths += 1
        assert deaths <= poison.CRASHES + 1, "the program dies of what has failed already"
    assert deaths == poison.CRASHES + 1
    told = dict(line.split(" ", 1) for line in last.lines)
    assert {told[name] for name in poison.NAMES} == {"done\n"}
    assert told["work-poison"].startswith("ActivityCrashed(")
