"""A server that goes and comes back: what its workers did meanwhile counts, and nobody was too late because nobody listened."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncClient, AsyncWorker, Signal, activity, emit, heartbeat, query, update, wait, workflow
from backstay.protocol.native import client as calls
from backstay.sdk.client.handle import AsyncHandle

from ..interop.conftest import TOKEN, Running
from ..sdk.kit import eventually, names
from .kit import TOKEN as HOUSE_TOKEN
from .kit import House

begun: Counter[str] = Counter()
beats: list[float] = []
finish = threading.Event()
HEARTBEAT = 2.0
TIMEOUT = 2.0


@activity(heartbeat_timeout=HEARTBEAT)
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


@workflow(type="restarts-counter")
class Counting:
    go = Signal[int]()

    def __init__(self) -> None:
        self.total = 0

    @update
    def add(self, n: int) -> int:
        self.total += n
        return self.total

    @query
    def so_far(self) -> int:
        return self.total

    def handle(self) -> int:
        emit("steps", "begun")
        return wait(self.go)


async def first_step(handle: AsyncHandle[int]) -> object:
    async for item in handle.stream("steps"):
        return item
    return None


WAITS: dict[str, Callable[[AsyncClient, AsyncHandle[int]], Any]] = {
    "execute": lambda client, _: client.execute(Counting, "executed"),
    "result": lambda _, handle: handle.result(),
    "update": lambda _, handle: handle.update(Counting.add, 1),
    "query": lambda _, handle: handle.query(Counting.so_far),
    "stream": lambda _, handle: first_step(handle),
}


async def stood_still(worker: AsyncWorker) -> None:
    """Its process hears and says nothing any more."""
    assert worker._running is not None
    worker._running.cancel()
    await asyncio.gather(worker._running, return_exceptions=True)


@pytest.mark.one_server("it stops its server once a call waits inside of it")
@pytest.mark.parametrize("what", WAITS)
async def test_a_server_that_stops_sends_away_who_waits(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would end these calls within the time of this test."""
    monkeypatch.setattr(calls, "PATIENCE", 3600.0)
    settings: dict[str, Any] = {"drain_seconds": 3600, "query_timeout_seconds": 3600}
    house = await House(str(tmp_path / "waits.db"), **settings).__aenter__()
    port = int(house.url.rpartition(":")[2])
    async with AsyncClient(house.url, token=HOUSE_TOKEN) as client:
        silent = AsyncWorker(house.url, [Counting], token=HOUSE_TOKEN, drain=0)
        await silent.__aenter__()
        await stood_still(silent)
        handle = await client.start(Counting, "c")
        waiting = asyncio.create_task(WAITS[what](client, handle))
        await eventually(lambda: house.server.waiting, "it waits")
        await house.__aexit__()
        assert not waiting.done(), "its caller knows nothing of it"
        async with (
            House(str(tmp_path / "waits.db"), port) as again,
            AsyncWorker(again.url, [Counting], token=HOUSE_TOKEN),
        ):
            if what in ("execute", "result"):
                await (handle if what == "result" else client.handle(Counting, "executed")).signal(Counting.go, 5)
            assert await waiting == {"execute": 5, "result": 5, "update": 1, "query": 0, "stream": "begun"}[what]
        silent.executor.stop()
        silent.host.close()
        silent.link._http.close()
