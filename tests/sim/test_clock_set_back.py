"""The clock is set back while no engine runs, and nothing waits any longer for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from backstay import AsyncBackstay, activity, now, sleep, workflow
from backstay.kernel.values import SECOND
from tests.sim.virtual import EPOCH, VirtualLoop, VirtualWorld, run

YEAR = 365 * 86_400
ran: list[str] = []


@workflow
def nap() -> float:
    began = now()
    sleep(5)
    sleep(5)
    return (now() - began).total_seconds()


@activity(retries=3, backoff=7)
def fragile() -> str:
    ran.append("try")
    if len(ran) == 1:
        raise ConnectionError
    return "ok"


@workflow
def retried() -> str:
    return fragile()


@activity(timeout=20, retries=2)
async def stuck() -> str:
    ran.append("stuck")
    if len(ran) == 1:
        await asyncio.sleep(10 * YEAR)
    return "unstuck"


@workflow
def started() -> str:
    return stuck.step().run()


EVERYTHING = [nap, fragile, retried, stuck, started]


@pytest.mark.parametrize("back", [3600, YEAR])
@pytest.mark.parametrize(
    ("definition", "result", "longest"), [(nap, None, 10), (retried, "ok", 7), (started, "unstuck", 0)]
)
def test_a_wait_ends_after_its_length_though_the_clock_was_set_back(
    tmp_path: Path, definition: object, result: object, longest: float, back: int
) -> None:
    ran.clear()

    async def story(_: Callable[[], VirtualWorld]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        path = tmp_path / "clock.db"
        async with AsyncBackstay(path, EVERYTHING, guard="off", world=lambda: VirtualWorld(loop, 1)) as app:
            await app.start(definition, "w")  # type: ignore[call-overload]
            await asyncio.sleep(1)
        earlier = EPOCH - back * SECOND
        async with AsyncBackstay(path, EVERYTHING, guard="off", world=lambda: VirtualWorld(loop, 2, earlier)) as app:
            began = loop.time()
            found = await app.handle(None, "w").result()
            assert result is None or found == result
            assert longest <= round(loop.time() - began, 6) < longest + 0.5
            fresh = loop.time()
            await app.execute(nap, "fresh")
            assert 10 <= round(loop.time() - fresh, 6) < 10.5, "new runs live in the new time"
            history = await app.history("w")
            assert [e.at for e in history] == sorted(e.at for e in history)

    run(1, story)
