"""A description tells what is on disk. The state in memory is used for it when that is the same, and only then."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, Signal, activity, wait, workflow
from backstay.kernel.event import Recorded
from backstay.kernel.features import signal
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run

go = Signal[int]("go")


@workflow
def patient() -> int:
    return wait(go) + wait(go)


def story(path: Path | str, tell: Callable[[AsyncBackstay, list[int]], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        async with AsyncBackstay(path, [patient, stuck, nobodys]) as app:
            await app.start(patient, "p")
            folds: list[int] = []
            fold = Machine.fold

            def counting(self: Machine, flow: Instance, run: Run, history: list[Recorded]) -> None:
                folds.append(len(history))
                fold(self, flow, run, history)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Machine, "fold", counting)
                await tell(app, folds)

    asyncio.run(asyncio.wait_for(told(), 30))


def test_a_run_in_memory_is_described_without_folding_its_history():
    async def tell(app: AsyncBackstay, folds: list[int]) -> None:
        known = await app.describe("p")
        assert folds == []
        for entry in app.engine.cache:
            app.engine.discard_cached(entry)
        assert await app.describe("p") == known
        assert len(folds) == 1

    story(":memory:", tell)


def test_describe_tells_nothing_that_is_not_on_disk_yet():
    async def tell(app: AsyncBackstay, folds: list[int]) -> None:
        before = await app.describe("p")
        key = app.engine.cache.named("default", "p")
        assert key is not None
        app.engine.submit(key, signal.DeliverSignal(name="go", arguments=None, values=[1]))
        entry = app.engine.cache.get(key)
        assert entry is not None
        assert entry.inflight
        assert await app.describe("p") == before
        assert len(folds) == 1
        await app.engine.commits.drain()
        assert [view.signal_name for view in (await app.describe("p")).signals] == ["go"]

    story(":memory:", tell)


@activity(queue="elsewhere")
def nobodys() -> None: ...


@workflow
def stuck() -> None:
    nobodys()


def test_rows_that_differ_from_memory_are_told_as_they_are(tmp_path: Path):
    async def tell(app: AsyncBackstay, folds: list[int]) -> None:
        await app.start(stuck, "s")
        assert (await app.describe("s")).liveness_state == "activity_task_waiting_for_compatible_worker"
        assert folds == []
        with sqlite3.connect(tmp_path / "app.db") as other:
            other.execute("delete from task")
        other.close()
        assert (await app.describe("s")).liveness_state == "repair_needed"
        assert len(folds) == 1

    story(tmp_path / "app.db", tell)
