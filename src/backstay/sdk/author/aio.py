"""Awaitable forms of the durable calls, under the same names, for `async def` workflows: `await aio.sleep("1h")`."""

from __future__ import annotations

from backstay.sdk.author.child import child as _child
from backstay.sdk.author.gather import gather as _gather
from backstay.sdk.author.race import race as _race
from backstay.sdk.author.timer import sleep as _sleep
from backstay.sdk.author.wait import wait as _wait

child = _child.step
gather = _gather.step
race = _race.step
sleep = _sleep.step
wait = _wait.step
