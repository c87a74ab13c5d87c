"""Holdfast in your process: engine, worker and client on one SQLite file, with no server and no broker.

    with Holdfast("app.db", [order, charge]) as app:
        print(app.execute(order, "order-1", "ann"))

`Holdfast` runs on a thread of its own; `AsyncHoldfast` runs on the event loop that enters it.
"""

from __future__ import annotations

from holdfast.sdk.embedded.app import AsyncHoldfast, Holdfast

__all__ = ["AsyncHoldfast", "Holdfast"]
