"""A server that goes and comes back: what its workers did meanwhile counts, and nobody was too late because nobody listened."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from backstay import AsyncClient, AsyncWorker, activity, heartbeat, workflow

from ..interop.conftest import TOKEN, Running
from ..sdk.kit import eventually, names

begun: Counter[str] = Counter()
beats: list[float] = []
finish = threading.Event()
HEARTBEAT = 2.0
TIMEOUT = 2.0


@activity(heartbeat=HEARTBEAT)
def beating() -> str:
    """Beats in time, all the time."""
    begun["beating"] += 1
    while not finish.wait(0.02):
        heartbeat("busy")
        beats.append(time.monotonic())
    return "beaten"


@activity(timeout=TIMEOUT)
def ended_meanwhile() -> str:
    """Ends in time, while no server is there to hear of it."""
    begun["ended"] += 1
    down.wait()
    return "ended"


down = threading.Event()


@workflow(type="restarts-beating")
def beats_on() -> str:
    return beating()


@workflow(type="restarts-ended")
def ends() -> str:
    return ended_meanwhile()


ALL = [beats_on, ends, beating, ended_meanwhile]


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    begun.clear()
    beats.clear()
    finish.clear()
    down.clear()
    yield
    finish.set()
    down.set()


async def beaten_for(seconds: float) -> None:
    """Until somebody who beats all the time has done so for as long as this."""
    since = time.monotonic()
    await eventually(lambda: bool(beats) and beats[-1] - since > seconds, "it beats")


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_an_attempt_is_not_too_late_because_its_server_was_away(tmp_path: Path, how: str) -> None:
    running = Running(tmp_path / "restarted.db")
    try:
        async with (
            AsyncWorker(running.url, ALL, token=TOKEN, drain=0.3),
            AsyncClient(running.url, token=TOKEN) as client,
        ):
            first = await client.start(beats_on, "b")
            second = await client.start(ends, "e")
            waits = [asyncio.create_task(handle.result()) for handle in (first, second)]
            await eventually(lambda: begun == {"beating": 1, "ended": 1}, "both have begun")
            await asyncio.to_thread(getattr(running, how))
            down.set()
            await beaten_for(max(TIMEOUT, HEARTBEAT) + 0.1)
            await asyncio.to_thread(running.restart)
            assert await waits[1] == "ended"
            await beaten_for(HEARTBEAT / 2)
            finish.set()
            assert await waits[0] == "beaten"
            for handle in (first, second):
                assert not {"ActivityTimedOut", "ActivityRetryScheduled"} & set(names(await handle.history()))
        assert begun == {"beating": 1, "ended": 1}, "nothing was begun again"
    finally:
        await asyncio.to_thread(running.stop)
