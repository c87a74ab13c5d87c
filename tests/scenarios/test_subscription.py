"""A subscription renews every month for years. Each month is a run of its own: `continue_as_new` keeps histories short,
while the id, the customer's key and the notes stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backstay import Backstay, activity, continue_as_new, info, sleep, upsert_memo, workflow
from backstay.codec.values import loads

bills: list[str] = []


@dataclass(frozen=True)
class Subscription:
    customer: str
    month: int = 1
    paid: int = 0


@activity
def bill(customer: str, month: int) -> int:
    bills.append(f"{customer}/{month}")
    return 900


@activity
def still_wanted(customer: str, month: int) -> bool:
    return month < 6


@workflow
class Renewals:
    def handle(self, subscription: Subscription) -> str:
        paid = bill(subscription.customer, subscription.month)
        upsert_memo(months=subscription.month)
        sleep("5ms")  # a month, in a hurry
        if still_wanted(subscription.customer, subscription.month):
            continue_as_new(
                Renewals, replace(subscription, month=subscription.month + 1, paid=subscription.paid + paid)
            )
        return f"{subscription.paid + paid} cents in {info().run_number} months"


def test_every_month_is_a_run_and_the_instance_stays_the_same(database: str) -> None:
    bills.clear()
    with Backstay(database, [Renewals, bill, still_wanted]) as app:
        client = app.options(business_key="customer-7", labels={"plan": "basic"})
        handle = client.start(Renewals, "subscription-7", Subscription("ann"))
        assert handle.result() == "5400 cents in 6 months"
        months = app.list(workflow_id="subscription-7")
        described = app.describe("subscription-7")
        longest = max(len(app.history("subscription-7", month.run_id)) for month in months)
    assert bills == [f"ann/{month}" for month in range(1, 7)]
    assert [month.closed_reason for month in months] == ["completed", *["continued"] * 5]
    assert {month.business_key for month in months} == {"customer-7"}
    assert {month.labels["plan"] for month in months} == {"basic"}
    assert loads(described.memo["months"]) == 6
    assert longest < 15, "no history grows with the years"


def test_renewals_go_on_after_a_restart(database: str) -> None:
    bills.clear()
    with Backstay(database, [Renewals, bill, still_wanted]) as app:
        app.start(Renewals, "subscription-8", Subscription("bob"))
    with Backstay(database, [Renewals, bill, still_wanted]) as app:
        assert app.handle(Renewals, "subscription-8").result() == "5400 cents in 6 months"
    assert bills == [f"bob/{month}" for month in range(1, 7)]
