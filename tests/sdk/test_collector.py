"""While an app is open, Python looks for garbage cycles more rarely, unless the program has said how often."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from backstay import AsyncBackstay, collector
from backstay.collector import RARELY


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of its own: in this one, other tests may have left apps behind as a crash does."""
    monkeypatch.setattr(collector, "_open", 0)
    monkeypatch.setattr(collector, "_before", None)
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_the_first_app_relaxes_the_collector_and_the_last_one_puts_it_back() -> None:
    gc.set_threshold(700, 11, 12)
    async with AsyncBackstay(":memory:"):
        assert gc.get_threshold() == (RARELY, 11, 12)
        async with AsyncBackstay(":memory:"):
            pass
        assert gc.get_threshold() == (RARELY, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("chosen", [0, 300, 50_000])
async def test_a_collector_threshold_that_the_program_chose_before_is_left_alone(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    async with AsyncBackstay(":memory:"):
        assert gc.get_threshold()[0] == chosen
    assert gc.get_threshold()[0] == chosen


async def test_a_collector_threshold_that_the_program_chooses_meanwhile_stays() -> None:
    gc.set_threshold(700, 10, 10)
    async with AsyncBackstay(":memory:"):
        gc.set_threshold(5_000)
    assert gc.get_threshold()[0] == 5_000


async def test_an_app_that_cannot_open_changes_nothing(tmp_path: object) -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(Exception, match="no"):
        async with AsyncBackstay(f"{tmp_path}/nowhere/app.db"):
            pass
    assert gc.get_threshold()[0] == 700


def test_the_collector_rests_until_the_last_one_that_asked_for_it_is_done() -> None:
    assert gc.isenabled()
    with collector.resting():
        with collector.resting():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector.resting():
            pass
        assert not gc.isenabled(), "as the program has it"
    finally:
        gc.enable()
