"""The awaitable forms: under the same names, for `async def` workflows (`await aio.sleep("1h")`)."""

from __future__ import annotations

from backstay.sdk.child import child as _child
from backstay.sdk.gather import gather as _gather
from backstay.sdk.race import race as _race
from backstay.sdk.timer import sleep as _sleep
from backstay.sdk.wait import wait as _wait

child = _child.step
gather = _gather.step
race = _race.step
sleep = _sleep.step
wait = _wait.step
