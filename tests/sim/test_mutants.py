"""The deliberate bugs can still be made. Whether each is caught takes longer: `python -m tests.sim.mutants`."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from .mutants import CAUGHT, MUTANTS, ROOT
from .mutation import CannotMutate, Mutant, mutate

SOURCE = """
def outer(limit):
    first = "(" + ")"  # a comment
    if limit > 3 and first:
        call(
            limit=3,
        )
    return limit

class Box:
    def outer(self):
        return first or first

TABLE = Feature(carry=outer, resume={1: 2})
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_names_a_function_and_a_change_that_applies_once(mutant: Mutant) -> None:
    for file, text in mutate(mutant, ROOT / "src").items():
        compile(text, file, "exec")
        assert text != ast.unparse(ast.parse(file.read_text()))


def test_each_mutant_has_a_name_of_its_own_and_those_that_were_caught_are_among_them() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 40
    assert set(json.loads(CAUGHT.read_text())) <= set(names)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "module.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("function", "old", "new", "shown"),
    [
        ("outer", "limit>3 and first", "False", "if False:"),
        ("outer", "call(limit=3)", "", "pass"),
        ("outer", "limit = 3", "limit = 4", "call(limit=4)"),
        ("outer", "first = '(' + ')'", "first = None", "first = None"),
        ("outer", "return limit", "found()\nreturn limit", "found()\n    return limit"),
        ("Box.outer", "first or first", "None", "return None"),
        ("TABLE", "carry=outer", "", "TABLE = Feature(resume={1: 2})"),
    ],
)
def test_a_mutation_is_found_as_syntax(sources: Path, function: str, old: str, new: str, shown: str) -> None:
    mutant = Mutant("slip", f"package.module:{function}", old, new)
    ((file, text),) = mutate(mutant, sources).items()
    assert file == sources / "package" / "module.py"
    assert shown in text


@pytest.mark.parametrize(
    ("function", "old", "why"),
    [
        ("package.module:gone", "first", "function package.module:gone of mutant 'slip' does not exist; did it move?"),
        ("package.gone:outer", "first", "module package.gone of mutant 'slip' does not exist; did it move?"),
        (
            "package.module:Box.outer",
            "first",
            "mutant 'slip' changes what is 2 times in package.module:Box.outer: first",
        ),
        ("package.module:outer", "last", "mutant 'slip' changes what is 0 times in package.module:outer: last"),
    ],
)
def test_a_mutation_that_no_longer_fits_says_why(sources: Path, function: str, old: str, why: str) -> None:
    with pytest.raises(CannotMutate) as error:
        mutate(Mutant("slip", function, old, "None"), sources)
    assert str(error.value) == why
