"""A process that drains while others still give to it keeps nothing, and leaves nothing without an owner that works."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from backstay.engine.cluster.draining import wish
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, shared


def test_shards_that_arrive_while_a_process_drains_are_handed_on() -> None:
    async def story(_: object) -> None:
        disk = Disk()
        async with OnDisk(disk, 1, []) as stays, OnDisk(disk, 2, []) as drains:
            await shared(stays, drains)
            me, shards = drains.store.me, stays._node.shards
            drains._node.facts = replace(drains._node.facts, draining=True)
            await shards._give([shard for shard, mine in enumerate(stays.engine.owned) if mine][:8], me)
            assert sum(row.owner == me for row in disk.ownership.shards) > sum(drains.engine.owned), (
                "it has not looked yet"
            )
            await eventually(lambda: stays.engine.owns_all, "the other one works for all of them")
            assert not any(row.owner == me for row in disk.ownership.shards)

    run(1, story)


def test_a_process_that_drains_goes_on_with_it_after_it_was_taken_for_dead() -> None:
    """It has another row then, and what was asked for names the row that it had."""

    async def story(_: object) -> None:
        disk = Disk()
        async with OnDisk(disk, 1, []) as stays, OnDisk(disk, 2, []) as drains:
            await shared(stays, drains)
            before = drains.store.me
            drains._drains.start()
            await wish(stays.engine.world, stays.store, before, True)
            await eventually(lambda: stays.engine.owns_all, "it has handed over what it had")
            disk.ownership.writers[before].fenced = True
            await eventually(lambda: drains._node.shards.me not in (0, before), "it has another row")
            await asyncio.sleep(5)  # virtual seconds, in which it looks for what it is asked for
            assert drains._node.facts.draining
            await wish(stays.engine.world, stays.store, drains.store.me, False)
            await shared(stays, drains)

    run(1, story)


def test_a_process_that_drains_takes_over_if_no_other_process_is_left() -> None:
    """Work that waits is worse than a process that cannot be stopped yet."""

    async def story(_: object) -> None:
        disk = Disk()
        async with OnDisk(disk, 1, []) as dies, OnDisk(disk, 2, []) as drains:
            await shared(dies, drains)
            drains._drains.start()
            await wish(dies.engine.world, dies.store, drains.store.me, True)
            await eventually(lambda: dies.engine.owns_all, "it has handed over what it had")
            disk.ownership.writers[dies.store.me].session = False
            dies._node.stop()
            await eventually(lambda: drains.engine.owns_all, "nobody else could")
            async with OnDisk(disk, 3, []) as begins:
                await eventually(lambda: begins.engine.owns_all, "it drains as soon as another is there")

    run(1, story)
