"""The real world: what the engine and the SDK rely on of clock and alarms."""

from __future__ import annotations

import asyncio

from backstay.engine.world import AsyncioWorld
from backstay.kernel.values import SECOND

DAY = 86_400


def test_an_alarm_waits_as_long_as_it_is_told_to() -> None:
    """Whoever waits three days for a result, or between two tries, is not to be told after one."""

    async def told() -> float:
        loop = asyncio.get_running_loop()
        world = AsyncioWorld(loop)
        alarm = world.at(world.now() + 3 * DAY * SECOND, lambda: None)
        alarm.cancel()
        assert isinstance(alarm, asyncio.TimerHandle)
        return alarm.when() - loop.time()

    assert 2.9 * DAY < asyncio.run(told()) < 3.1 * DAY
