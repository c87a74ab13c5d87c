"""What one node has acknowledged, all of them know; see `registries/world.py`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from backstay.server.registries.all import Registries
from backstay.server.registries.registry import StoredRegistry

from .mutants import ROOT
from .mutation import Mutant, mutate
from .registries.mutants import CAUGHT, MUTANTS
from .registries.world import Day, Unknown

SEEDS = 20


@pytest.mark.parametrize("faults", [False, True], ids=["calm", "faults"])
def test_what_was_acknowledged_is_known_everywhere(faults: bool) -> None:
    for seed in range(SEEDS):
        assert Day(seed, faults=faults).run().acknowledgements > 20, seed


def test_one_seed_is_one_day() -> None:
    first, second = Day(3).run(), Day(3).run()
    assert first.entries.rows == second.entries.rows
    assert first.acknowledgements == second.acknowledgements


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_bug_is_caught(mutant: Mutant) -> None:
    name, mutated = _mutated(mutant)
    classes = {"StoredRegistry": StoredRegistry, "Registries": Registries} | {name: mutated}
    for seed in (CAUGHT.get(mutant.name, 0), *range(SEEDS)):
        for faults in (False, True):
            try:
                Day(seed, classes["StoredRegistry"], classes["Registries"], faults=faults).run()
            except Unknown:
                return
    pytest.fail("nobody has noticed")


def _mutated(mutant: Mutant) -> tuple[str, Any]:
    ((_, text),) = mutate(mutant, ROOT / "src").items()
    module = ModuleType("backstay.server.mutated_registries")
    sys.modules[module.__name__] = module  # its annotations are looked up there
    try:
        exec(compile(text, mutant.name, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    name = mutant.function.partition(":")[2].partition(".")[0]
    return name, getattr(module, name)
