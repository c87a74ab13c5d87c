"""An order: take the money, try the flaky warehouse until it answers, wait, send a reminder.

A payment must not happen twice, however often it is tried: `activity_info().idempotency_key` is the same on every try.
"""

from __future__ import annotations

import pytest

from backstay import Backstay, WorkflowFailed, activity, activity_info, sleep, workflow

payments: dict[str, int] = {}
mail: list[str] = []
warehouse_is_down = 2


class SoldOut(Exception):
    pass


@activity(retries=5, backoff="5ms")
def charge(order: str, cents: int) -> str:
    payments.setdefault(activity_info().idempotency_key, cents)
    if activity_info().number == 1:
        raise ConnectionError("the answer of the bank was lost")
    return f"receipt-{order}"


@activity
def refund(receipt: str) -> None:
    payments.clear()


@activity(retries=5, backoff="5ms", fatal=(SoldOut,))
def reserve(sku: str) -> str:
    if sku == "rare":
        raise SoldOut(sku)
    if activity_info().number <= warehouse_is_down:
        raise TimeoutError("the warehouse does not answer")
    return f"shelf-{sku}"


@activity
def send(text: str) -> None:
    mail.append(text)


@workflow
def order(id: str, sku: str, cents: int) -> str:
    receipt = charge(id, cents)
    try:
        shelf = reserve(sku)
    except SoldOut:
        refund(receipt)
        raise
    sleep("20ms")  # thirty days, in a hurry
    send(f"How do you like {sku}?")
    return f"{receipt} from {shelf}"


@pytest.fixture(autouse=True)
def _another_day() -> None:
    payments.clear()
    mail.clear()


def test_an_order_survives_a_lost_answer_and_a_warehouse_that_is_down(database: str) -> None:
    with Backstay(database, [order, charge, refund, reserve, send]) as shop:
        assert shop.execute(order, "order-1", "1", "cup", 1250) == "receipt-1 from shelf-cup"
        history = [event.type for event in shop.history("order-1")]
    assert list(payments.values()) == [1250], "paid once, although the bank was asked twice"
    assert mail == ["How do you like cup?"]
    assert history.count("ActivityRetryScheduled") == 3
    assert history.count("TimerFired") == 1


def test_an_order_that_cannot_be_shipped_is_refunded(database: str) -> None:
    with Backstay(database, [order, charge, refund, reserve, send]) as shop:
        with pytest.raises(WorkflowFailed) as failed:
            shop.execute(order, "order-2", "2", "rare", 99)
        assert isinstance(failed.value.__cause__, SoldOut)
        assert shop.describe("order-2").status == "failed"
    assert payments == {}
    assert mail == []


def test_the_shop_may_close_in_the_middle_and_no_customer_notices(database: str) -> None:
    with Backstay(database, [order, charge, refund, reserve, send]) as shop:
        shop.start(order, "order-3", "3", "pot", 2000)
    with Backstay(database, [order, charge, refund, reserve, send]) as shop:
        assert shop.handle(order, "order-3").result() == "receipt-3 from shelf-pot"
    assert list(payments.values()) == [2000]
    assert len(mail) == 1
