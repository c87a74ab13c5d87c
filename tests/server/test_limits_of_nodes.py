"""Limits of task queues, while shards move between nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.kernel.values import SECOND

from .kit import blob, serving, until
from .test_polls_elsewhere import CHARGE


async def test_a_lease_counts_where_it_was_given_after_its_shard_has_moved(postgresql_url: str) -> None:
    """Or its node would give back what it still uses, and another one would lease a second task under a limit of one."""
    limits: dict[str, Any] = {"activity_task_max_active_leases_per_queue": 1}
    async with serving(store=postgresql_url, still=False, **limits) as one:
        await one.register()
        for number in range(2):
            await one.start(f"o-{number}")
            await one.complete(await one.poll(), CHARGE)
        first = await one.poll("activity", timeout_seconds=8)
        async with serving(store=postgresql_url, still=False, **limits) as two:
            await until(lambda: two.server.engine.holder)
            assert (await two.control("POST", f"/nodes/{one.server.store.me}/drain", {})).status_code == 202
            await until(lambda: two.server.engine.owns_all and not one.server.engine.holder)
            waits = asyncio.create_task(two.poll("activity", timeout_seconds=8))
            world = one.server.engine.world
            over = world.now() + 2 * SECOND  # a node gives back what it has not used for a second
            await until(lambda: world.now() > over)
            assert not waits.done(), "the limit is one"
            assert (await one.activity("complete", first, result=blob(1))).status_code == 200
            assert (await waits)["activity_attempt_id"] != first["activity_attempt_id"]
