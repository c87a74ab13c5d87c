"""A few hundred bad days with every test run. `make sim SEEDS=2000` has more; docs/simulator.md says how to read them."""

from __future__ import annotations

import pytest

from .faults import CLASSES
from .runner import Kept, Tally, command, kept, report

# A node that is killed leaves coroutines behind that nobody will ever await: that is what being killed means.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BATCHES = 30
BATCH = 10
OPTIONS = {"operations": 100}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_is_lost_doubled_or_stranded(batch: int) -> None:
    tally = Tally()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        tally.add(report(seed, OPTIONS))
    assert not tally.failures, "\n".join(f"{f.why[:1000]}\n{command(f.seed, OPTIONS)}" for f in tally.failures)
    assert sum(tally.fired.values()) > 100, "a day without trouble proves nothing"


@pytest.mark.parametrize("seed", [1, 8])
def test_one_seed_is_one_run(seed: int) -> None:
    assert report(seed, {}).digest == report(seed, {}).digest


def test_without_faults_everything_ends_too() -> None:
    for seed in range(3):
        found = report(seed, {"faults": []})
        assert found.law is None, found.why
        assert not found.fired


@pytest.mark.parametrize("regression", kept(), ids=lambda k: f"{k.seed}-{k.law[:24]}")
def test_what_was_found_once_stays_fixed(regression: Kept) -> None:
    found = report(regression.seed, regression.options)
    assert found.law is None, f"{found.why[:1000]}\n{regression.what}\n{command(regression.seed, regression.options)}"


def test_a_fault_has_a_name() -> None:
    with pytest.raises(ValueError, match="no such fault"):
        report(1, {"faults": ["gremlins"]})
    assert len(set(CLASSES)) == len(CLASSES)
