"""The shop of the demo: an order workflow, its activities, and the outside world they act on.

`python -m backstay.demo.shop DIRECTORY` runs the order of that directory to its end, from wherever an earlier process
left it. `show.py` starts that process, and kills it in the worst moments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from backstay import Backstay, activity, activity_info, sleep, workflow

WORKFLOW_ID = "order-1"
DATABASE = "shop.db"


class OutsideWorld:
    """Everything outside: the warehouse, the bank, the carrier, the post. What happens there cannot be undone.

    Like a good payment provider it remembers idempotency keys: asked again with a key it has seen, it confirms and does
    nothing. `asked` has every request, `ledger` every thing that really happened.
    """

    def __init__(self, directory: Path) -> None:
        self.asked = directory / "asked.jsonl"
        self.ledger = directory / "ledger.jsonl"

    def do(self, effect: str, detail: str) -> str:
        key = activity_info().idempotency_key
        line = {"effect": effect, "key": key, "detail": detail, "pid": os.getpid()}
        append(self.asked, line)
        if all(done["key"] != key for done in read(self.ledger)):
            append(self.ledger, line)
        return f"{effect} {detail}"


class Shop:
    """The activities. The worker registers `Shop(world)`; the workflow names the class."""

    def __init__(self, world: OutsideWorld) -> None:
        self.world = world

    @activity(type="reserve_stock")
    def reserve_stock(self, sku: str) -> str:
        return self.world.do("reserved", sku)

    @activity(type="charge_card", retries=5, backoff="2s")
    def charge_card(self, cents: int) -> str:
        if activity_info().number == 1:
            raise ConnectionError("the card terminal is offline")
        return self.world.do("charged", f"{cents / 100:.2f}")

    @activity(type="pack")
    def pack(self, sku: str) -> str:
        return self.world.do("packed", sku)

    @activity(type="ship")
    def ship(self, sku: str) -> str:
        tracking = self.world.do("shipped", sku)
        if activity_info().number == 1:
            time.sleep(60)  # the parcel is on its way, but the carrier's answer does not arrive
        return tracking

    @activity(type="send_email")
    def send_email(self, address: str) -> str:
        return self.world.do("e-mailed", address)


@workflow
def order(sku: str, cents: int, address: str) -> str:
    Shop.reserve_stock(sku)
    Shop.charge_card(cents)
    sleep("3s")  # time to change one's mind; in a real shop "2h"
    Shop.pack(sku)
    tracking = Shop.ship(sku)
    Shop.send_email(address)
    return tracking


def append(file: Path, line: Mapping[str, object]) -> None:
    """Add a line that is on disk when this returns: what happened outside stays so, whatever becomes of us."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
        out.flush()
        os.fsync(out.fileno())


def read(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def main(directory: Path) -> None:
    with Backstay(directory / DATABASE, register=[order, Shop(OutsideWorld(directory))]) as backstay:
        print("open", flush=True)
        # The same line for the first process and for every later one: start it, or find it running.
        client = backstay.options(if_exists="return_existing_active")
        client.start(order, WORKFLOW_ID, "book", 4200, "ada@example.com").result()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
