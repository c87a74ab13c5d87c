"""The awaitable forms: under the same names, for `async def` workflows (`await aio.sleep("1h")`)."""

from __future__ import annotations

from holdfast.sdk.child import child as _child
from holdfast.sdk.gather import gather as _gather
from holdfast.sdk.race import race as _race
from holdfast.sdk.timer import sleep as _sleep
from holdfast.sdk.wait import wait as _wait

child = _child.step
gather = _gather.step
race = _race.step
sleep = _sleep.step
wait = _wait.step
