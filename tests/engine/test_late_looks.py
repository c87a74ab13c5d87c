"""A look at the processes of a database that comes back after a later one shows what was so before."""

from __future__ import annotations

import asyncio

from backstay.store import Ready
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, shared


def test_a_look_that_is_overtaken_by_a_later_one_is_not_believed() -> None:
    async def story(_: object) -> bool:
        disk = Disk()
        async with OnDisk(disk, 1, []) as stays:
            async with OnDisk(disk, 2, []) as leaves:
                await shared(stays, leaves)
                gone = leaves.store.me
                shards, store = stays._node.shards, stays.engine.store
                look = store.look

                async def late() -> object:
                    found = look()
                    assert isinstance(found, Ready)
                    await asyncio.sleep(100)
                    return found.value

                store.look = late  # type: ignore[method-assign]
                overtaken = asyncio.ensure_future(shards.check())
                await asyncio.sleep(0)
                store.look = look  # type: ignore[method-assign]
            await eventually(lambda: gone not in shards.nodes, "the other one is gone")
            await overtaken
            return gone in shards.nodes

    assert not run(1, story)
