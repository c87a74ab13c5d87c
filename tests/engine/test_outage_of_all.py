"""A database that was away for everybody: nobody is taken for dead for what nobody could say meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, shared


class Outage:
    """The database cannot be reached by this process."""

    def __init__(self, app: OnDisk) -> None:
        self._store: Any = app.engine.store
        self._kept = {name: getattr(self._store, name) for name in ("look", "mark")}
        for name in self._kept:
            setattr(self._store, name, self._fail)

    async def _fail(self, *_: object) -> NoReturn:
        raise Unavailable("the server cannot be reached")

    def end(self) -> None:
        for name, call in self._kept.items():
            setattr(self._store, name, call)


def without_evidence() -> Disk:
    """A database that does not tell whose session is there."""
    disk, loop = Disk(), asyncio.get_running_loop()
    disk.ownership.evidence = lambda row: None
    disk.ownership.clock = lambda: round(loop.time() * SECOND)
    return disk


def test_who_is_back_first_waits_for_the_others() -> None:
    async def story(_: object) -> None:
        disk = without_evidence()
        async with OnDisk(disk, 1, []) as first, OnDisk(disk, 2, []) as second:
            await shared(first, second)
            away = Outage(first), Outage(second)
            await asyncio.sleep(60)  # virtual seconds: a failover that takes long
            away[0].end()
            await asyncio.sleep(4)
            away[1].end()
            await asyncio.sleep(60)
            assert [app._node.shards.counts["deposed"] for app in (first, second)] == [0, 0]
            await shared(first, second)

    run(1, story)


def test_who_is_not_back_soon_after_the_others_is_dead() -> None:
    async def story(_: object) -> None:
        disk = without_evidence()
        async with OnDisk(disk, 1, []) as first, OnDisk(disk, 2, []) as second:
            await shared(first, second)
            back, gone = Outage(first), Outage(second)
            await asyncio.sleep(60)
            back.end()
            began = asyncio.get_running_loop().time()
            await eventually(lambda: first.engine.owns_all, "the other one is taken for dead")
            assert 5 <= asyncio.get_running_loop().time() - began < 10
            gone.end()
            await shared(first, second)

    run(1, story)
