"""Two engines on one database, each of which believes that it owns everything: the guard of each instance decides.

Who owns which shard only saves work; it is not what keeps history right.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backstay import AsyncBackstay, activity, sleep, workflow
from backstay.engine.cluster.shards import Shards
from backstay.kernel.features.activity import crashes

from ..sdk.kit import eventually, names

PATIENCE = 60
COUNT = 8


@activity(retries=20, backoff="1ms", max_crashes=1000)
def step(n: int) -> int:
    return n + 1


@workflow(type="twice-watched")
def watched(count: int) -> int:
    total = 0
    for _ in range(count):
        total = step(total)
        sleep(0.001)
    return total


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    async def believe(self: Shards) -> None:
        if not self._engine.owns_all:
            self._gain(range(self._store.shards), abandoned=True)

    monkeypatch.setattr(Shards, "look", believe)
    # Each takes the attempts of the other for lost. That happens a few times in a row, and waiting for longer each time.
    monkeypatch.setattr(crashes, "pause_after", lambda count: 0)
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")
    return str(tmp_path / "shared.db")


@pytest.mark.contract("TOPO-08")
def test_every_run_ends_once_and_no_history_is_torn(database: str) -> None:
    asyncio.run(asyncio.wait_for(_both(database), PATIENCE))


async def _both(database: str) -> None:
    async with AsyncBackstay(database, [watched, step]) as one, AsyncBackstay(database, [watched, step]) as two:
        assert (one.engine.owns_all, two.engine.owns_all) == (True, True)
        for number in range(COUNT):
            await (one if number % 2 else two).start(watched, f"w-{number}", 3)
        for number in range(COUNT):
            handle = (one, two)[number % 2].handle(watched, f"w-{number}")
            await eventually(lambda h=handle: _ended(h), f"w-{number} ended")
            history = names(await handle.history())
            assert history.count("WorkflowCompleted") == 1
            assert history[-1] == "WorkflowCompleted"
            assert history.count("ActivityScheduled") == history.count("ActivityCompleted") == 3
            assert history.count("TimerScheduled") == history.count("TimerFired") == 3


async def _ended(handle: object) -> bool:
    return "WorkflowCompleted" in names(await handle.history())  # type: ignore[attr-defined]
