"""Heartbeats over HTTP: an attempt that beats too late is told to stop, and its worker goes on with everything else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backstay import ActivityCancelled, WorkflowFailed, activity, heartbeat, workflow
from backstay.sdk.client.handle import AsyncHandle

from ..sdk.kit import eventually, names
from .kit import Remote

told: list[str] = []


def beating(name: str) -> str:
    """Beats until it is told to stop."""
    try:
        while True:
            heartbeat("busy", current=1)
            threading.Event().wait(0.01)
    except ActivityCancelled:
        told.append(name)
        raise


@activity
def beats(name: str) -> str:
    return beating(name)


@activity(timeout=0.3)
def beats_too_long(name: str) -> str:
    return beating(name)


@activity
def rows(total: int) -> int:
    for row in range(total):
        heartbeat("importing", current=row, total=total, unit="rows")
    return total


@activity
async def rows_awaited(total: int) -> int:
    for row in range(total):
        heartbeat("importing", current=row, total=total, unit="rows")
    return total


@activity
def quick() -> str:
    return "ok"


@workflow(type="importing")
def importing(total: int) -> int:
    return rows(total) + rows_awaited.step(total).run()


@workflow(type="beating-long")
def long(name: str) -> str:
    return beats(name)


@workflow(type="beating-too-long")
def too_long(name: str) -> str:
    return beats_too_long(name)


@workflow(type="innocent")
def innocent() -> str:
    return quick()


ALL = [importing, long, too_long, innocent, beats, beats_too_long, rows, rows_awaited, quick]


@pytest.fixture(autouse=True)
def _anew(caplog: pytest.LogCaptureFixture) -> None:
    told.clear()
    caplog.set_level("WARNING", "backstay.worker")


async def begun(handle: AsyncHandle[str]) -> None:
    async def running() -> bool:
        return "ActivityHeartbeatRecorded" in names(await handle.history())

    await eventually(running, "it beats")


async def all_is_well(app: Remote, caplog: pytest.LogCaptureFixture) -> None:
    assert await app.execute(innocent, "innocent") == "ok"
    assert app.worker.link.lost == 0, "nothing was wrong with the connection"
    ours = ("talking to", "the answer to", "lost http")
    assert not [record for record in caplog.records if record.getMessage().startswith(ours)], "nothing went wrong in it"


async def test_an_activity_that_beats_and_returns(caplog: pytest.LogCaptureFixture) -> None:
    async with Remote(*ALL) as app:
        handles = [await app.start(importing, f"i-{n}", 20) for n in range(30)]
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [40] * 30
        await all_is_well(app, caplog)


async def test_an_attempt_that_beats_past_its_timeout_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with Remote(*ALL) as app:
        handle = await app.start(too_long, "t", "late")
        with pytest.raises(WorkflowFailed):
            await handle.result()
        await eventually(lambda: told == ["late"], "it was told")
        await all_is_well(app, caplog)
        assert names(await handle.history()).count("ActivityTimedOut") == 1


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_an_attempt_that_beats_for_a_run_that_was_stopped_is_told(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Remote(*ALL) as app:
        handle = await app.start(long, "s", how)
        await begun(handle)
        await (handle.terminate() if how == "terminate" else handle.cancel())
        await eventually(lambda: told == [how], "it was told")
        await all_is_well(app, caplog)


async def test_an_attempt_that_was_given_to_another_worker_stops_without_an_outcome() -> None:
    """It is not the current one: what it raises is nothing that the activity has come to."""
    async with Remote(*ALL) as app:
        handle = await app.start(long, "s", "stale")
        await begun(handle)
        (task,) = app.engine.leases
        app.house.server.release(task)
        await eventually(lambda: told == ["stale"], "the first attempt was told")
        await begun(handle)
        assert not {"ActivityFailed", "ActivityCancelled"} & set(names(await handle.history()))
        await handle.terminate()
        await eventually(lambda: told == ["stale"] * 2, "and so was the second, when its run had ended")
