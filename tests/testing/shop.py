"""The workflows that the tests of `backstay.testing` run."""

from __future__ import annotations

import asyncio

from backstay import ActivityTimedOut, Signal, activity, emit, query, signal, sleep, update, wait, workflow

go = Signal[str]("go")


class CardDeclined(Exception):
    pass


@activity(retries=3, backoff="1h")
def charge(order: str, cents: int = 100) -> str:
    return f"receipt for {order}: {cents}"


@activity(timeout="5s", retries=1, backoff="1m")
def ship(order: str) -> str:
    return f"{order} shipped"


@activity(heartbeat_timeout="2s", timeout="1h")
async def pack(order: str) -> str:
    await asyncio.sleep(0)
    return f"{order} packed"


@activity(local=True, retries=2, backoff="10m")
def look_up(order: str) -> int:
    return len(order)


class Desk:
    def __init__(self, name: str) -> None:
        self.name = name

    @activity
    def stamp(self, order: str) -> str:
        return f"{order} stamped by {self.name}"


@workflow
def order(name: str) -> str:
    sleep("30d")
    return charge(name)


@workflow
def careful(name: str) -> list[str]:
    said: list[str] = []
    for step in (ship.step(name), pack.step(name)):
        try:
            said.append(step.run())
        except ActivityTimedOut as late:
            said.append(str(late))
    return said


@workflow
def local(name: str) -> int:
    return look_up(name)


@workflow
def stamped(name: str) -> str:
    return Desk.stamp(name)


@workflow
def child(number: int) -> int:
    return number


@workflow
def parent() -> int:
    sleep("1d")
    return child(3) + child(4)


@workflow(signals=[go])
def waits() -> str:
    return wait(go)


@workflow
def polls() -> None:
    while True:
        sleep("1m")


@workflow
async def sleepy(name: str) -> str:
    await sleep.step("2w")
    return await pack(name)


@workflow
class Door:
    def __init__(self) -> None:
        self.opened = False

    @signal
    def open(self) -> None:
        self.opened = True

    @query
    def state(self) -> str:
        return "open" if self.opened else "closed"

    @update
    def paint(self, color: str) -> str:
        return f"{color} now"

    def handle(self) -> str:
        emit("news", "begins")
        opened = wait(lambda: self.opened, timeout="3d")
        emit("news", "ends")
        return "opened" if opened else "too late"


ALL = [
    charge,
    ship,
    pack,
    look_up,
    Desk("ann"),
    order,
    careful,
    local,
    stamped,
    child,
    parent,
    waits,
    polls,
    sleepy,
    Door,
]
