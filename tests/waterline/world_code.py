"""The workflows of the world that the tests look at; `dw worker` runs this file. What each of them is for: `world.py`.

With BACKSTAY_WORLD_CODE=old, `shipping` is the release before: a run that it began does not fit the release of today.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from backstay import (
    Signal,
    activity,
    activity_info,
    child,
    continue_as_new,
    gather,
    heartbeat,
    query,
    signal,
    sleep,
    update,
    upsert_memo,
    upsert_search_attributes,
    wait,
    workflow,
)

SCRIPT = '<img src=x onerror="alert(1)">'
RIGHT_TO_LEFT = "\u202egpj.exe\u202c שלום مرحبا"
EMOJI = "👩‍👩‍👧‍👦 🏳️‍🌈 🇺🇳"
MARKUP = "</script><script>alert(2)</script> javascript:alert(3) &amp; {{7*7}} ${1} ' \" ` \\ %00 --> ]]>"
HOSTILE = f"{SCRIPT} {RIGHT_TO_LEFT} {EMOJI} {MARKUP}\nsecond line\tand a tab"
LARGEST, SMALLEST, INEXACT = 2**63 - 1, -(2**63), 2**53 + 1
"""Integers that JavaScript cannot hold as numbers."""


@dataclass
class Money:
    cents: int
    currency: str = "EUR"


class CardDeclined(Exception):
    pass


# -- what waits


@workflow(type="shop.approval")
class Approval:
    """Waits until somebody approves; every kind of message, with parameters of several types."""

    def __init__(self) -> None:
        self.by: str | None = None
        self.price = Money(0)

    @signal
    def approve(self, by: str, urgent: bool = False, copies: int = 1) -> None:
        self.by = by

    @update
    def amend(self, price: Money, reason: str | None = None) -> int:
        before, self.price = self.price, price
        return before.cents

    @amend.validator
    def _positive(self, price: Money, reason: str | None = None) -> None:
        if price.cents <= 0:
            raise ValueError("an expense costs something")

    @query
    def status(self) -> str:
        return f"{self.price.cents} {self.price.currency}, " + (f"approved by {self.by}" if self.by else "waiting")

    def handle(self, price: Money) -> str:
        self.price = price
        wait(lambda: self.by, key="approved", timeout="30d")
        return f"{self.by} approved {self.price.cents}"


payments = Signal[Money]("payment")


@workflow(type="shop.invoice")
def invoice(customer: str) -> str:
    upsert_search_attributes(customer=customer, stage="sent")
    upsert_memo(note="called twice")
    paid = wait(payments)
    return f"{customer} paid {paid.cents if paid else 0}"


@workflow
def reminder(days: int) -> str:
    sleep(f"{days}d")
    return "reminded"


# -- activities that fail, run and succeed


@activity(retries=20, backoff="1h")
def carrier(parcel: str) -> str:
    raise ConnectionError(f"the carrier did not answer for {parcel}")


@workflow
def delivery(parcel: str) -> str:
    return carrier(parcel)


@activity
def charge(cents: int) -> str:
    raise CardDeclined(f"the card was declined for {cents} cents")


@workflow(type="shop.order")
def order(cents: int) -> str:
    pick(1)
    return charge(cents)


@activity
def copy_rows(total: int) -> int:
    for row in (1, total // 4, total * 2 // 5):
        heartbeat(message="copying rows", current=row, total=total, unit="rows")
    threading.Event().wait()  # as long as the world stands; its worker is killed
    return total


@workflow
def import_rows(total: int) -> int:
    return copy_rows(total)


@activity
def pick(number: int) -> int:
    return number


@activity(retries=3, backoff="10ms")
def pack(number: int) -> str:
    if number == 3 and activity_info().number == 1:
        raise TimeoutError("the scale did not answer")
    return f"box {number}"


@workflow(type="shop.batch")
def batch(parallel: int, one_by_one: int) -> list[str]:
    """Steps at once and steps one after another, one of them tried twice."""
    picked = gather(pick.step(number) for number in range(parallel))
    packed = [pack(number) for number in range(one_by_one)]
    sleep("10ms")
    return [f"{len(picked)} picked", *packed, *gather(pack.step(number) for number in (90, 91, 92, 93))]


@workflow
def welcome(name: str) -> str:
    return f"Hello {name}"


# -- chains and families


@workflow
def poller(number: int) -> None:
    pick(number)
    if number < 3:
        continue_as_new(poller, number + 1)
    wait(payments)


@workflow
def grandchild(name: str) -> str:
    pick(1)
    raise CardDeclined(f"{name} has no money")


@workflow
def firm_child(name: str) -> str:
    """Its own child fails, which it takes note of."""
    try:
        return grandchild(name)
    except CardDeclined as declined:
        return f"poor: {declined}"


@workflow
def patient_child(name: str) -> str:
    wait(payments)
    return name


@workflow
def family(name: str) -> list[str]:
    first = welcome(name)
    second = firm_child(name)
    return [first, second, *gather(child.step(patient_child, f"{name} {number}") for number in (1, 2))]


# -- code that changed

if os.environ.get("BACKSTAY_WORLD_CODE") == "old":

    @workflow(queue="deploys")
    def shipping(parcel: str) -> str:
        pick.options(queue="default")(1)
        paid = wait(payments)
        return f"{parcel} {paid}"

else:

    @workflow(queue="deploys")
    def shipping(parcel: str) -> str:
        sleep("1h")
        paid = wait(payments)
        return f"{parcel} {paid}"


@workflow(queue="nowhere")
def stranded(parcel: str) -> str:
    return parcel


# -- what attackers send


@activity(type=f"echo {SCRIPT}", retries=20, backoff="1h")
def echo(text: str) -> str:
    raise ValueError(text)


@workflow(type=f"hostile {SCRIPT}")
class Hostile:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @signal(name=f"say {SCRIPT}")
    def say(self, text: str, number: int) -> None:
        self.heard.append(text)

    def handle(self, text: str, numbers: list[int]) -> str:
        upsert_memo(note=text, numbers=numbers)
        upsert_search_attributes(customer=text)
        return echo(text)


@workflow
def hostile_failure(text: str) -> str:
    raise CardDeclined(text)


@activity
def blow_up(size: int) -> str:
    return "payload " * (size // 8)


@workflow
def large(text: str) -> str:
    return blow_up(len(text))
