"""The awaitable forms: under the same names, for `async def` workflows (`await aio.sleep("1h")`)."""

from __future__ import annotations

from holdfast.sdk.timer import sleep as _sleep
from holdfast.sdk.wait import wait as _wait

sleep = _sleep.step
wait = _wait.step
