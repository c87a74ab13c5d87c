"""Limits hold over all processes, whatever happens to them; see `budgets/world.py`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from .budgets.mutants import CAUGHT, MUTANTS
from .budgets.world import Broken, Day
from .mutants import ROOT
from .mutation import Mutant, mutate

BATCH = 10
SEEDS = 60


@pytest.mark.parametrize("batch", range(3))
def test_no_limit_is_passed_and_no_task_waits_while_there_is_room(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        assert Day(seed).run().leases > 10, seed


def test_without_faults_everything_goes_on_too() -> None:
    for seed in range(BATCH):
        assert Day(seed, faults=False).run().leases > 10, seed


def test_one_seed_is_one_day() -> None:
    first, second = Day(3).run(), Day(3).run()
    assert (first.leases, first.database.registry) == (second.leases, second.database.registry)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_bug_is_caught(mutant: Mutant) -> None:
    shares = _mutated(mutant)
    before = CAUGHT.get(mutant.name, 0)
    for seed in (before, *range(SEEDS)):
        try:
            Day(seed, shares).run()
        except Broken:
            return
    pytest.fail("nobody has noticed")


def _mutated(mutant: Mutant) -> Any:
    ((_, text),) = mutate(mutant, ROOT / "src").items()
    module = ModuleType("backstay.server.mutated_shares")
    sys.modules[module.__name__] = module  # its annotations are looked up there
    try:
        exec(compile(text, mutant.name, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.BudgetShares
