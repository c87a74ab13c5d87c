"""The awaitable forms: under the same names, for `async def` workflows (`await aio.sleep("1h")`)."""

from __future__ import annotations

from holdfast.sdk.timer import sleep as _sleep

sleep = _sleep.step
