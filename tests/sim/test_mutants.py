"""The deliberate bugs can still be made. Whether each is caught takes longer: `python -m tests.sim.mutants`."""

from __future__ import annotations

import json

import pytest

from .mutants import CAUGHT, MUTANTS, ROOT, Mutant, made


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_line_is_there_once_and_the_bug_is_python(mutant: Mutant) -> None:
    for file, text in made(mutant, ROOT / "src" / "backstay").items():
        compile(text, file, "exec")
    assert mutant.old != mutant.new


def test_each_has_a_name_of_its_own_and_those_that_were_caught_are_among_them() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 40
    assert set(json.loads(CAUGHT.read_text())) <= set(names)
