"""Bad days with every test run: seeds that have found a bug, and new ones. `make test-all` has the first few hundred, too.

`make sim SEEDS=2000` has more; docs/explanation/simulator.md says how to read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ..selection import new_seeds, rotating
from .distant import is_far
from .faults import CLASSES
from .node_links import has_links
from .runner import Kept, Tally, command, kept, report

# A node that is killed leaves coroutines behind that nobody will ever await: that is what being killed means.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BATCHES = 24
BATCH = 10
OPTIONS = {"operations": 100}


def lawful(seeds: Iterable[int], options: dict[str, Any]) -> Tally:
    """What these seeds came to: none of them has broken a law."""
    tally = Tally()
    for seed in seeds:
        tally.add(report(seed, options))
    assert not tally.failures, "\n".join(
        f"{f.why[:1000]}\n{command(f.seed, options)} {options}" for f in tally.failures
    )
    assert sum(tally.fired.values()) > 100, "a day without trouble proves nothing"
    return tally


@pytest.mark.parametrize("batch", rotating(range(BATCHES), 1))
def test_a_simulated_seed_breaks_no_law(batch: int) -> None:
    lawful(range(batch * BATCH, (batch + 1) * BATCH), OPTIONS)


@pytest.mark.parametrize("part", range(3))
def test_a_new_seed_breaks_no_law(part: int) -> None:
    """Other seeds with every commit. One that fails here would have failed before that commit, too: fix it, then keep it."""
    lawful(new_seeds(3 * BATCH)[part::3], OPTIONS)


@pytest.mark.parametrize(("seed", "far"), [(1, False), (8, False), (14, True)])
def test_one_seed_is_one_run(seed: int, far: bool) -> None:
    found = report(seed, {})
    assert found.digest == report(seed, {}).digest
    assert (found.fired["far database"] > 100) == far


def test_a_third_of_the_seeds_have_their_database_far_away() -> None:
    assert 0.28 < sum(map(is_far, range(1000))) / 1000 < 0.38


def test_half_of_the_seeds_have_links_between_nodes_and_use_them() -> None:
    assert 0.45 < sum(map(has_links, range(1000))) / 1000 < 0.55
    options = {"operations": 100, "links": True}
    found = report(2, options)
    assert found.succeeded["forwarded"] > 20
    assert found.digest == report(2, options).digest


def test_without_faults_everything_ends_too() -> None:
    for seed in range(3):
        found = report(seed, {"faults": []})
        assert found.law is None, found.why
        assert not found.fired


@pytest.mark.parametrize("regression", kept(), ids=lambda k: f"{k.seed}-{k.law[:24]}")
def test_a_kept_seed_breaks_no_law(regression: Kept) -> None:
    found = report(regression.seed, regression.options)
    assert found.law is None, f"{found.why[:1000]}\n{regression.what}\n{command(regression.seed, regression.options)}"


def test_a_fault_has_a_name() -> None:
    with pytest.raises(ValueError, match="no such fault"):
        report(1, {"faults": ["gremlins"]})
    assert len(set(CLASSES)) == len(CLASSES)


@pytest.mark.parametrize("batch", rotating(range(4), 1))
def test_stored_views_are_true_on_bad_days(batch: int) -> None:
    tally = lawful(range(batch * BATCH, (batch + 1) * BATCH), {"operations": 100, "views": True})
    assert tally.checks["V1 a summary that is believed is true"] > 50
    assert tally.checks["V2 views are stored in the end"] > 20
