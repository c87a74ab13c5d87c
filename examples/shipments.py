"""An order in several parcels: each parcel is a workflow of its own, and the order waits for all of them.

Run it with `python examples/shipments.py`. Lines of one order ship at the same time, at most three of them at once; a parcel
whose carrier fails is tried again by itself. Whoever signs last closes the order, or nobody does in time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from backstay import Backstay, activity, child, gather, info, race, signal, sleep, wait, workflow


@activity
def pick(sku: str) -> str:
    return f"{sku} from the shelf"


@activity
def hand_over(sku: str, carrier: str) -> str:
    return f"{sku} with {carrier}"


@workflow
def parcel(sku: str) -> str:
    """One line of the order. The first carrier never comes."""
    pick(sku)
    if info().run_number == 1 and sku == "lamp":
        raise ConnectionError("the carrier did not come")
    return hand_over(sku, "the tram")


@workflow
class Signature:
    """Waits until somebody signs."""

    def __init__(self) -> None:
        self.name: str | None = None

    @signal
    def signed(self, name: str) -> None:
        self.name = name

    def handle(self) -> str | None:
        wait(lambda: self.name is not None)
        return self.name


@workflow
def order(skus: list[str]) -> list[str]:
    ship = child.options(retries=2, backoff="50ms")
    parcels = gather((ship.step(parcel, sku) for sku in skus), limit=3)
    signature = child.options(parent_close="request_cancel").start(Signature)
    signature.signed("Robin")  # somebody at the door
    match race(child.step(parcel, "a receipt"), sleep.step("1h")):
        case (0, receipt):
            return [*parcels, receipt, f"signed by {signature.join()}"]
        case _:
            return [*parcels, "nobody signed"]


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Backstay(Path(directory) / "shipments.db", [order, parcel, Signature, pick, hand_over]) as app,
    ):
        for line in app.execute(order, "order-1", ["book", "lamp", "chair", "rug"]):
            print(line)


if __name__ == "__main__":
    main()
