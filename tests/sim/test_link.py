"""Bad days between workers and servers, with every test run. `make sim LINK=yes SEEDS=500` has more; see docs/explanation/simulator.md.

`make test` runs new seeds and some of the first ones; `make test-all` all of the first ones, and the deliberate bugs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..selection import new_seeds, rotating
from .link.faults import CHANCES
from .link.published import has_published
from .link.simulation import LinkSimulation
from .mutants import CAUGHT, MUTANTS, ROOT, Mutant, hunt
from .runner import Tally, command, report

# A process that is killed leaves coroutines behind that nobody will ever await: that is what being killed means.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BATCHES = 10
BATCH = 8
SEEDS = 60
OPTIONS = {"link": True, "operations": 100}


FIRST = [range(batch * BATCH, (batch + 1) * BATCH) for batch in range(BATCHES)]
NEW = new_seeds(BATCH, "link")


@pytest.mark.parametrize("seeds", [*rotating(FIRST, 1), NEW], ids=lambda seeds: "new" if seeds is NEW else seeds[0])
def test_the_messages_of_workers_and_servers_agree_with_history(seeds: range) -> None:
    tally = Tally()
    for seed in seeds:
        tally.add(report(seed, OPTIONS))
    assert not tally.failures, "\n".join(f"{f.why[:1000]}\n{command(f.seed, OPTIONS)}" for f in tally.failures)
    assert sum(tally.fired.values()) > 100, "a day without trouble proves nothing"
    for verb in ("task reported", "activity reported"):
        assert tally.succeeded[verb] > 10, "a law that hears of no report proves nothing"


@pytest.mark.parametrize("seed", [2, 5])
def test_one_seed_is_one_run(seed: int) -> None:
    assert report(seed, OPTIONS).digest == report(seed, OPTIONS).digest


def test_one_seed_is_one_run_in_every_process(tmp_path: Path) -> None:
    """Whatever order a process has its sets in, and wherever its checkout is."""
    elsewhere = tmp_path / "a checkout with a longer name"
    for part in ("src/backstay", "tests/sim"):
        shutil.copytree(ROOT / part, elsewhere / part)
    (elsewhere / "tests/__init__.py").touch()
    kinds = "{'link': True, 'published': True}, {'link': True, 'published': False}, {}"
    script = f"from tests.sim.runner import report\nfor kind in ({kinds}): print(report(3, {{**kind, 'operations': 100}}).digest)"
    told = {
        subprocess.check_output(
            [sys.executable, "-c", script],
            cwd=place,
            env={**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": f"{place}/src{os.pathsep}{place}"},
        )
        for order, place in (("1", ROOT), ("4242", elsewhere))
    }
    assert len(told) == 1


def test_no_code_looks_at_a_real_clock() -> None:
    parts = ("backstay.engine", "backstay.link", "backstay.server", "backstay.sdk.remote")
    sim = LinkSimulation(0)
    with sim.world():
        real = [
            name for name, module in sys.modules.items() if name.startswith(parts) and vars(module).get("time") is time
        ]
    sim.loop.close()
    assert real == ["backstay.engine.core.world"], "its clock is the one that is replaced as a whole"


def test_without_faults_everything_ends_too() -> None:
    for seed in range(5):
        found = report(seed, {**OPTIONS, "faults": []})
        assert found.law is None, found.why
        assert not found.fired


@pytest.mark.full("they prove that the laws find bugs; the laws themselves are tested above")
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.link], ids=lambda mutant: mutant.name)
def test_a_deliberate_bug_is_caught(mutant: Mutant) -> None:
    """By the seed that caught it before; or, since any change moves what happens in a seed, by one of the first."""
    before: int = json.loads(CAUGHT.read_text())[mutant.name]
    _, caught, outcome = hunt(mutant, [before, *(seed for seed in range(SEEDS) if seed != before)])
    assert caught is not None, outcome


def test_some_seeds_have_workers_of_the_published_package_and_use_them() -> None:
    assert 0.35 < sum(map(has_published, range(1000))) / 1000 < 0.45
    tally = Tally()
    for seed in (0, 1, 24, 117):
        tally.add(report(seed, {**OPTIONS, "published": True}))
    for verb in (
        "workflow task polled",
        "activity task polled",
        "task fetched",
        "published task reported",
        "errand fetch",
    ):
        assert tally.succeeded[verb] > 5, verb
    for law in ("S8 a poll that is repeated gets what it has", "in calm a ready task comes to a poll that waits"):
        assert tally.checks[law] > 5, law


def test_a_fault_has_a_name() -> None:
    with pytest.raises(ValueError, match="no such fault"):
        report(1, {"link": True, "faults": ["clock"]})
    assert len(CHANCES) == len(set(CHANCES))
