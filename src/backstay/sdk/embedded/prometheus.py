"""The metrics of an embedded app for Prometheus: one function for a route of the app that embeds it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import overload

from backstay.sdk.embedded.app import AsyncBackstay, Backstay


@overload
def prometheus(app: Backstay, *, open_metrics: bool = False) -> str: ...
@overload
def prometheus(app: AsyncBackstay, *, open_metrics: bool = False) -> Awaitable[str]: ...
def prometheus(app: Backstay | AsyncBackstay, *, open_metrics: bool = False) -> str | Awaitable[str]:
    """Return the counters and gauges of an open app in the text format of Prometheus (version 0.0.4).

    Of an `AsyncBackstay` it is awaited. `open_metrics`: as OpenMetrics 1.0 instead. Nothing but this text is needed: answer it
    with the content type `text/plain; version=0.0.4`.
    """
    return app.prometheus(open_metrics=open_metrics)
