"""A worker session has one worker, whatever node has matched it; see `sessions/world.py`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from .mutants import ROOT
from .mutation import Mutant, mutate
from .sessions.mutants import MUTANTS
from .sessions.world import SessionDay, TwoWorkers

SEEDS = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_a_session_has_one_worker() -> None:
    for seed in range(SEEDS):
        day = SessionDay(seed).run()
        assert day.sent > 20, seed
        assert day.moved, seed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_bug_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, text),) = mutate(mutant, ROOT / "src").items()
    module = ModuleType("backstay.server.mutated_sessions")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # its annotations are looked up there
    exec(compile(text, mutant.name, "exec"), module.__dict__)
    for seed in range(SEEDS):
        try:
            SessionDay(seed, vars(module)["SessionRegistry"]).run()
        except TwoWorkers:
            return
    pytest.fail("nobody has noticed")
