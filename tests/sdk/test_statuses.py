"""The status of a run is one word, the same in lists, in filters and in descriptions; `blocked` is one of them."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import activity, sleep, wait, workflow

from .kit import blocked, evicting, memory


@activity(type="echo")
def echo(n: int) -> int:
    return n


CODE = {"drifts": False}


@workflow(type="drifter", signals=["go"])
def drifter() -> None:
    if CODE["drifts"]:
        echo(1)
    wait("go")
    sleep("1h")


@workflow(type="waiter", signals=["go"])
def waiter() -> None:
    wait("go")


@workflow(type="breaks")
def breaks() -> None:
    raise LookupError("no")


async def ids(app: Any, status: Any, **more: Any) -> list[str]:
    found = await app.list(status=status, **more)
    if status not in ("open", None):
        assert {run.status for run in found} <= {status}
    return [run.workflow_id for run in found]


@pytest.fixture(autouse=True)
def _code() -> None:
    CODE["drifts"] = False


async def test_every_status_finds_its_own_runs() -> None:
    async with evicting(drifter, waiter, breaks, echo) as app:
        for id in ("b-1", "b-2", "b-3"):
            handle = await app.start(drifter, id)
        waiting = await app.start(waiter, "w-1")
        for id, stop in (("c-1", "cancel"), ("t-1", "terminate"), ("d-1", "signal")):
            handle = await app.start(waiter, id)
            await (handle.signal("go", None) if stop == "signal" else getattr(handle, stop)())
        handle = await app.start(breaks, "f-1")
        with pytest.raises(Exception, match="no"):
            await handle.result()
        await app.handle(None, "d-1").result()
        CODE["drifts"] = True
        for id in ("b-1", "b-2", "b-3"):
            await app.handle(drifter, id).signal("go", None)
            found = await blocked(app, id)
            assert (found.status, found.run.status) == ("blocked", "blocked")
        assert await ids(app, "blocked") == ["b-3", "b-2", "b-1"]
        assert await ids(app, "blocked", limit=2) == ["b-3", "b-2"]
        page = await app.list(status="blocked", limit=1)
        assert await ids(app, "blocked", before=page[-1].key) == ["b-2", "b-1"]
        assert await ids(app, "blocked", workflow_id="b-2") == ["b-2"]
        assert await ids(app, "blocked", type="waiter") == []
        assert await ids(app, "waiting") == ["w-1"]
        assert await ids(app, "waiting", limit=1) == ["w-1"]
        assert await ids(app, "open") == ["w-1", "b-3", "b-2", "b-1"]
        assert await ids(app, "completed") == ["d-1"]
        assert await ids(app, "failed") == ["f-1"]
        assert await ids(app, "cancelled") == ["c-1"]
        assert await ids(app, "terminated") == ["t-1"]
        assert {run.workflow_id: run.status for run in await app.list()}["b-1"] == "blocked"
        assert (await waiting.describe()).status == "waiting"


async def test_a_status_that_does_not_exist_is_refused_with_those_that_do() -> None:
    async with memory() as app:
        with pytest.raises(
            TypeError, match="status must be one of 'open', 'pending', 'waiting', 'blocked', 'completed'"
        ):
            await app.list(status="running")  # type: ignore[arg-type]
