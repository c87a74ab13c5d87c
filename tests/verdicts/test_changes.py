"""The verdict on changed code is what deploying that code does."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ..selection import rotating
from .changes import Change, Program, Step, made, tried

CHANGES = [made(random.Random(f"suite-{number}")) for number in range(60)]


@pytest.mark.parametrize(
    "change", rotating([pytest.param(change, id=f"{number}-{change.what}") for number, change in enumerate(CHANGES)], 8)
)
def test_exactly_the_runs_are_blocked_that_the_verdict_names(change: Change, tmp_path: Path) -> None:
    found = asyncio.run(tried(change, tmp_path / "changing.db"))
    assert found.said == found.blocked, change.before.source() + change.after.source()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_that_is_added_blocks_the_runs_that_are_beyond_it(is_async: bool, tmp_path: Path) -> None:
    steps = [Step("wait"), Step("call", "a", "x"), Step("wait"), Step("call", "b", "y"), Step("wait")]
    added = [*steps[:2], Step("call", "c", "new"), *steps[2:]]
    patched = [*steps[:2], Step("call", "c", "new", patched="c"), *steps[2:]]
    before = Program(steps, is_async)
    found = asyncio.run(tried(Change("add", before, Program(added, is_async)), tmp_path / "added.db"))
    assert found.said == found.blocked == {"stands-1", "stands-2"}
    found = asyncio.run(tried(Change("patch", before, Program(patched, is_async)), tmp_path / "patched.db"))
    assert found.said == found.blocked == set()
