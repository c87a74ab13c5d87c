"""An order: reserve, charge, wait a moment, ship. The card terminal is flaky, and the retries deal with it.

Run it with `python examples/order.py`, or live with `dw dev examples/order.py` and, beside it,
`dw start examples/order.py:order order-1 '{"id": "o-1", "sku": "book"}'`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from backstay import Backstay, activity, activity_info, logger, sleep, workflow


@dataclass
class Order:
    id: str
    sku: str
    cents: int = 4200


class SoldOutError(Exception):
    """Trying again would not help, so `reserve` names it as fatal."""


@activity(fatal=[SoldOutError], retries=5)
def reserve(sku: str) -> str:
    if sku == "unicorn":
        raise SoldOutError(f"no {sku} left")
    return f"reservation of a {sku}"


@activity(retries=3, backoff="200ms", timeout="10s")
def charge(order: Order) -> str:
    if activity_info().number == 1:
        raise ConnectionError("the card terminal is offline")
    # A real payment provider takes this key and charges once, however often it is asked.
    return f"receipt {activity_info().idempotency_key[-6:]} over {order.cents / 100:.2f}"


@activity
def ship(order: Order) -> str:
    return f"parcel with a {order.sku}"


@workflow
def order(order: Order) -> list[str]:
    """Straight-line code. Each call of an activity is recorded; after a crash the code resumes after the last one."""
    try:
        reservation = reserve(order.sku)
    except SoldOutError as sold_out:
        return [f"sorry: {sold_out}"]
    receipt = charge(order)
    logger().info("charged %s", order.id)
    sleep("300ms")  # could as well be "3d": nothing waits in memory
    return [reservation, receipt, ship(order)]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / "orders.db"
        with Backstay(database, register=[order, reserve, charge, ship, SoldOutError]) as backstay:
            book = backstay.start(order, "order-1", Order("o-1", "book"))
            unicorn = backstay.start(order, "order-2", Order("o-2", "unicorn"))
            print("order-1:", "; ".join(book.result()))
            print("order-2:", "; ".join(unicorn.result()))


if __name__ == "__main__":
    main()
