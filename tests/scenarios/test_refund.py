"""An order was paid and then could not be shipped. It is taken back to before the shipping, and tried on the side first."""

from __future__ import annotations

import pytest

from backstay import Backstay, WorkflowFailed, activity, query, signal, update, wait, workflow

shipped: list[str] = []
roads = {"open": False}


@activity
def pack(order: str) -> str:
    return f"{order}, packed"


@activity
def ship(parcel: str, place: str) -> str:
    if not roads["open"]:
        raise ConnectionError(f"no road to {place}")
    shipped.append(f"{parcel} to {place}")
    return f"{parcel}, shipped to {place}"


@workflow
class Delivery:
    """Waits for the money, takes notes at any time, and ships."""

    def __init__(self) -> None:
        self.paid = 0
        self.notes: list[str] = []
        self.place = "the shop"

    @signal
    def pay(self, amount: int) -> None:
        self.paid += amount

    @update
    def send_to(self, place: str) -> str:
        before, self.place = self.place, place
        self.notes.append(f"not to {before}")
        return before

    @query
    def money(self) -> int:
        return self.paid

    def handle(self, order: str) -> str:
        parcel = pack(order)
        wait(lambda: self.paid >= 10, key="paid")
        return f"{ship(parcel, self.place)}, paid {self.paid}, {', '.join(self.notes)}"


EVERYTHING = [Delivery, pack, ship]


def test_what_was_paid_and_asked_for_counts_once_after_a_rewind(database: str) -> None:
    shipped.clear()
    roads["open"] = False
    with Backstay(database, EVERYTHING) as app:
        run = app.start(Delivery, "order-1", "a lamp")
        assert run.update(Delivery.send_to, "the island") == "the shop"
        run.signal(Delivery.pay, 10)
        with pytest.raises(WorkflowFailed, match="no road to the island"):
            run.result()
    roads["open"] = True
    with Backstay(database, EVERYTHING) as app:  # days later, after the storm
        run = app.handle(Delivery, "order-1")
        trial = run.fork("ship", new_id="order-1-trial", set={3: "not shipped"})
        assert trial.result() == "not shipped, paid 10, not to the shop"
        assert shipped == []
        run.rewind(reason="the road is open")
        assert run.result() == "a lamp, packed, shipped to the island, paid 10, not to the shop"
        assert run.query(Delivery.money) == 10
    assert shipped == ["a lamp, packed to the island"]


def test_a_rewind_to_before_the_payment_gets_the_payment_again(database: str) -> None:
    shipped.clear()
    roads["open"] = False
    with Backstay(database, EVERYTHING) as app:
        run = app.start(Delivery, "order-2", "a chair")
        run.signal(Delivery.pay, 10)
        with pytest.raises(WorkflowFailed):
            run.result()
        roads["open"] = True
        run.rewind("event:2", reason="the wrong chair")
        assert run.result() == "a chair, packed, shipped to the shop, paid 10, "
    assert shipped == ["a chair, packed to the shop"]
