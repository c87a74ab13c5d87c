"""Long histories: the engine reads them on a thread and folds them in pages, and loses no message meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from backstay import AsyncBackstay, side_effect, signal, sleep, wait, workflow
from backstay.store import Ready


@workflow
class Long:
    def __init__(self) -> None:
        self.told: list[int] = []

    @signal
    def tell(self, number: int) -> None:
        self.told.append(number)

    def handle(self, steps: int) -> list[int]:
        for number in range(steps):
            side_effect(lambda number=number: number)
            if number % 400 == 399:
                sleep("1ms")
        wait(lambda: len(self.told) == 3)
        return self.told


async def test_a_long_run_that_is_not_in_memory_gets_every_message(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "long.db", [Long]) as app:
        handle = await app.start(Long, "long-1", 1200)
        await handle.signal("tell", 1)
        while len(await handle.history()) < 1200:
            await asyncio.sleep(0)  # its timers are short
        engine = app.engine
        key = await engine.store.find("default", "long-1")
        assert key is not None
        await engine.commits.drain()
        assert engine.reload(key), "it rests"
        assert not isinstance(app.store.load(key), Ready), "it is read on a thread"
        first = handle.signal("tell", 2)
        second = handle.signal("tell", 3)
        await first
        await second
        assert await handle.result() == [1, 2, 3]
