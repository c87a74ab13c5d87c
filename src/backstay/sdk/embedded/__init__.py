"""Backstay in your process: engine, worker and client on one SQLite file, with no server and no broker.

    with Backstay("app.db", [order, charge]) as app:
        print(app.execute(order, "order-1", "ann"))

`Backstay` runs on a thread of its own; `AsyncBackstay` runs on the event loop that enters it.
"""

from __future__ import annotations

from backstay.sdk.embedded.app import AsyncBackstay, Backstay

__all__ = ["AsyncBackstay", "Backstay"]
