"""`make test` proves every row of the contract that `make test-all` proves, and its selection follows the commit."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from . import selection
from .conftest import LEFT_TO_TEST_ALL


def test_every_row_that_is_proven_is_proven_by_make_test(pytestconfig: pytest.Config) -> None:
    left = pytestconfig.stash.get(LEFT_TO_TEST_ALL, None)
    if left is None:
        pytest.skip("not all tests were collected")
    assert left == [], "only tests marked `full` prove these rows of the contract"


class Marked:
    """A test as the collection knows it."""

    def __init__(self, *marks: pytest.MarkDecorator) -> None:
        self.marks = [mark.mark for mark in marks]

    def iter_markers(self, name: str) -> Any:
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> Any:
        return next(self.iter_markers(name), None)


def test_a_row_that_only_full_tests_prove_is_named() -> None:
    full, contract = pytest.mark.full("large"), pytest.mark.contract
    items: list[Any] = [Marked(contract("A-1", "A-2"), full), Marked(contract("A-2")), Marked(full)]
    assert selection.left_to_test_all(items) == ["A-1"]


class Pair(NamedTuple):
    one: int
    other: int


def chosen(cases: list[Any]) -> list[Any]:
    return [case for case in cases if not isinstance(case, type(pytest.param()))]


def test_the_slice_is_that_of_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    slices: list[tuple[int, ...]] = []
    for commit in ("a", "b", "c", "a"):
        monkeypatch.setenv(selection.COMMIT, commit)
        cases = selection.rotating(range(100), 5)
        assert len(cases) == 100
        assert [case.marks[0].name for case in cases if case not in chosen(cases)] == ["full"] * 95
        slices.append(tuple(chosen(cases)))
    assert slices[0] == slices[3]
    assert len(set(slices)) == 3
    assert [len(part) for part in slices] == [5] * 4


def test_seeds_are_new_with_each_commit_and_for_each_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    told: set[int] = set()
    for commit in ("a", "b"):
        monkeypatch.setenv(selection.COMMIT, commit)
        for name in ("", "link"):
            told.update(selection.new_seeds(10, name))
            assert selection.new_seeds(10, name) == selection.new_seeds(10, name)
    assert len(told) == 40
    assert min(told) >= selection.SEEDS


def test_what_is_left_out_keeps_its_values_and_its_id() -> None:
    cases = [1, (1, 2), Pair(1, 2), pytest.param(3, id="three", marks=pytest.mark.contract("A-1"))]
    left_out = selection.first_of(cases, 0, "large")
    assert [case.values for case in left_out] == [(1,), (1, 2), (Pair(1, 2),), (3,)]
    assert left_out[3].id == "three"
    assert [mark.name for mark in left_out[3].marks] == ["contract", "full"]
    assert selection.first_of(cases, 4, "large") == cases
