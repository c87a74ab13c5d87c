"""Two engines on one database, each of which believes that it is the only one: the guard of each instance decides.

Who is the engine is a lock, and nobody is told of commits but by looking. Both only save work; neither is what keeps history right.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backstay import AsyncBackstay, activity, sleep, workflow
from backstay.store.postgresql.writer import PostgresqlWriter

from ..sdk.kit import eventually, names

PATIENCE = 60
COUNT = 8


@activity(retries=20, backoff="1ms")
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
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")

        async def begin(self: PostgresqlWriter) -> bool:
            async def term(session: object) -> bool:
                self._term = (await session.fetch(self._sql["begin_term"]))[0][0]  # type: ignore[attr-defined]
                self.holder = True
                return True

            return self.holder or await self.do(term)  # type: ignore[arg-type]

        monkeypatch.setattr(PostgresqlWriter, "acquire", begin)
        return url
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    return str(tmp_path / "shared.db")


@pytest.mark.contract("TOPO-08")
def test_every_run_ends_once_and_no_history_is_torn(database: str) -> None:
    asyncio.run(asyncio.wait_for(_both(database), PATIENCE))


async def _both(database: str) -> None:
    async with AsyncBackstay(database, [watched, step]) as one, AsyncBackstay(database, [watched, step]) as two:
        assert (one.engine.holder, two.engine.holder) == (True, True)
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
