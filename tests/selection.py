"""What `make test` leaves to `make test-all`: cases that say again, larger or in another variant, what a case that stays says.

    @pytest.mark.full("why")        this test runs only in `make test-all`
    first_of(cases, 1, "why")       the first cases stay, the others are marked `full`
    rotating(cases, 3)              three of many equal cases stay, other ones after every commit
    some_of(things, 3)              three of them, other ones after every commit, for use inside of a test
    new_seeds(10)                   numbers that hardly any run had before, other ones after every commit

The commit is that of the checkout. `BACKSTAY_TEST_COMMIT` names another one, to repeat what a run of it has selected.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

COMMIT = "BACKSTAY_TEST_COMMIT"
SEEDS = 1_000_000
"""New seeds begin here: far from those that people name on the command line."""


def choose_commit() -> None:
    """Called once, before workers start, so that all of them select the same, even if a commit is made meanwhile."""
    if not os.environ.get(COMMIT):
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
        os.environ[COMMIT] = asked.stdout.strip() or "no commit"


def first_of(cases: Iterable[Any], count: int, why: str) -> list[Any]:
    """Parameters of which the first `count` stay in `make test`."""
    return [case if place < count else _full(case, why) for place, case in enumerate(cases)]


def rotating(cases: Iterable[Any], count: int) -> list[Any]:
    """Parameters of which `count`, chosen by the commit, stay in `make test`."""
    told = list(cases)
    chosen = some_of(range(len(told)), count)
    why = f"{count} of {len(told)} equal cases are in each run"
    return [case if place in chosen else _full(case, why) for place, case in enumerate(told)]


def some_of(things: Sequence[T], count: int) -> list[T]:
    """So many of them, chosen by the commit, in their order."""
    places = _chance(str(len(things))).sample(range(len(things)), min(count, len(things)))
    return [things[place] for place in sorted(places)]


def new_seeds(count: int, name: str = "") -> Sequence[int]:
    """Seeds chosen by the commit. `name` tells two simulators apart."""
    first = SEEDS + _chance(name).randrange(10**7) * count
    return range(first, first + count)


def left_to_test_all(items: Iterable[pytest.Item]) -> list[str]:
    """The rows of the contract that only tests marked `full` prove."""
    proven: dict[bool, set[str]] = {True: set(), False: set()}
    for item in items:
        left_out = item.get_closest_marker("full") is not None
        proven[left_out].update(id for mark in item.iter_markers("contract") for id in mark.args)
    return sorted(proven[True] - proven[False])


def _chance(name: str) -> random.Random:
    return random.Random(f"{os.environ[COMMIT]} {name}")


def _full(case: Any, why: str) -> Any:
    mark = pytest.mark.full(why)
    if type(case) is tuple:  # not a NamedTuple, which is one value
        return pytest.param(*case, marks=mark)
    if isinstance(case, _PARAMETERS):
        return pytest.param(*case.values, marks=[*case.marks, mark], id=case.id)
    return pytest.param(case, marks=mark)


_PARAMETERS = type(pytest.param())
