# pyright: strict
"""Every line here must be accepted, with exactly these types."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, assert_type
from uuid import UUID

import backstay
from backstay import (
    AsyncBackstay,
    Backstay,
    Client,
    Saga,
    Signal,
    Step,
    activity,
    activity_info,
    background,
    child,
    children,
    continue_as_new,
    gather,
    heartbeat,
    info,
    logger,
    now,
    patched,
    query,
    race,
    rng,
    shield,
    side_effect,
    signal,
    sleep,
    spawn,
    update,
    upsert_memo,
    upsert_search_attributes,
    uuid4,
    version,
    wait,
    workflow,
)


@dataclass
class Order:
    id: str


@activity
def charge(order: str, cents: int, *, currency: str = "EUR") -> Order:
    heartbeat("charging", current=1, total=2)
    assert_type(activity_info().idempotency_key, str)
    return Order(order)


@activity(type="shop.fetch", retries=3, backoff=["1s", 2], timeout=timedelta(seconds=3), fatal=(ValueError, "alias"))
async def fetch(url: str) -> bytes:
    return url.encode()


@activity(type="billing.invoice", queue="php", extern=True)
def invoice(order: str) -> str:
    raise NotImplementedError


@activity
def anything(value: Any) -> Any:
    return value


@activity(retries=1)
async def anything_later(value: Any) -> Any:
    return value


class Warehouse:
    @activity
    def ship(self, sku: str) -> int:
        return len(sku)

    @activity(local=True)
    async def count(self) -> int:
        return 1


@workflow
def order(id: str, items: list[str] = []) -> str:  # noqa: B006
    assert_type(charge(id, 1), Order)
    assert_type(charge(id, 1, currency="USD"), Order)
    assert_type(charge.options(retries="forever")(id, 1), Order)
    assert_type(charge.step(id, 1), Step[Order])
    assert_type(charge.step(id, 1).run(), Order)
    assert_type(fetch.step("u").run(), bytes)
    assert_type(Warehouse.ship("sku"), int)
    assert_type(Warehouse.ship.step("sku"), Step[int])
    assert_type(Warehouse().ship("sku"), int)
    assert_type(invoice(id), str)
    assert_type(anything(id), Any)
    assert_type(anything.step(id), Step[Any])
    assert_type(spawn(charge, id, 3).join(), Order)
    assert_type(spawn(lambda: 3).join(), int)
    assert_type(side_effect(lambda: 1.5), float)
    assert_type(side_effect(uuid4), UUID)
    assert_type(version("a", min=1, max=3), int)
    assert_type(patched("a"), bool)
    assert_type(now(), datetime)
    assert_type(rng(), Random)
    assert_type(uuid4(), UUID)
    assert_type(info().run_id, str)
    assert_type(sleep("3d"), None)
    assert_type(sleep.step(timedelta(days=1)), Step[None])
    upsert_memo(note=Order("x"))
    upsert_search_attributes(size=3)
    logger().info("hello")
    if items:
        continue_as_new(order, id, items=[])
    return id


@workflow
def any_order(id: Any) -> Any:
    return id


@workflow(type="shop.later", queue="eu")
async def later(n: int) -> Order:
    assert_type(await fetch("u"), bytes)
    assert_type(await anything_later("u"), Any)
    assert_type(anything("u"), Any)
    assert_type(await fetch.step("u"), bytes)
    assert_type(await charge.step("o", n), Order)
    assert_type(await sleep.step("1h"), None)
    assert_type(await Warehouse.count(), int)
    first, second = await asyncio.gather(fetch("a"), charge.step("b", 1))
    assert_type(first, bytes)
    assert_type(second, Order)
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(fetch("c")), asyncio.Task[bytes])
        assert_type(group.create_task(charge.step("d", 1)), asyncio.Task[Order])
    return second


@workflow(type="shop.class")
class Shop:
    def handle(self, n: int, *, rush: bool = False) -> Order:
        return Order(str(n))


@workflow
class AsyncShop:
    async def handle(self) -> list[Order]:
        return []


approved = Signal[str]("approved")
maybe = Signal[Order | None]("maybe")


@workflow(type="shop.approval", signals=[maybe], handles_cancel="5m")
class Approval:
    note = Signal[int]()
    by: str | None = None

    @signal
    def approve(self, by: str, *, twice: bool = False) -> None:
        self.by = by

    @signal(name="un-approve")
    async def unapprove(self) -> None:
        self.by = None

    @query
    def status(self, short: bool = True) -> Order:
        self.approve("me")
        return Order(self.by or "")

    @update
    def rename(self, name: str) -> int:
        return len(name)

    @rename.validator
    def check(self, name: str) -> None:
        assert_type(self.rename(name), int)

    @update(name="later")
    async def rename_later(self, name: str) -> bytes:
        return name.encode()

    def handle(self, order: Order) -> str:
        assert_type(wait(approved), str)
        assert_type(wait(approved, timeout="1h"), str | None)
        assert_type(wait(self.note), int)
        assert_type(wait(maybe), Order | None)
        assert_type(wait(lambda: self.by, key="by", timeout=3), bool)
        assert_type(wait.step(approved), Step[str])
        assert_type(wait.step(self.note, timeout=3), Step[int | None])
        assert_type(wait.step(lambda: self.by), Step[bool])
        with Saga() as saga, shield():
            saga.undo(charge, order.id, 3, currency="USD")
            saga.undo(charge.step(order.id, 3))
        return ""


@workflow
async def listener() -> str:
    async with Saga() as saga:
        saga.undo(fetch, "u")
    assert_type(await wait.step(lambda: True), bool)
    return await wait.step(approved)


def talk(app: Backstay) -> None:
    run = app.start(Approval, "a", Order("o"))
    run.signal(Approval.approve, "ann", twice=True)
    run.signal(Approval.unapprove)
    run.signal(Approval.note, 3)
    run.signal(approved, "yes")
    run.signal(maybe, None)
    run.signal("by-name", 1, 2)
    assert_type(run.query(Approval.status), Order)
    assert_type(run.query(Approval.status, short=False), Order)
    assert_type(run.of_run("01J8").query(Approval.status), Order)
    assert_type(run.update(Approval.rename, "bob"), int)
    assert_type(run.update(Approval.rename_later, "bob"), bytes)
    assert_type(run.submit(Approval.rename, "bob").result("5s"), int)
    assert_type(run.submitted(Approval.rename_later, "id").result(), bytes)
    assert_type(run.cancel("why"), str)
    assert_type(run.pause(), str)
    assert_type(app.options(request_id="r").handle(Approval, "a").update(Approval.rename, "x"), int)
    app.signal_with_start(Approval, "a", [Order("o")], Approval.approve, "ann")
    app.signal_with_start(Approval, "a", [Order("o")], approved, "ann")
    app.signal_with_start("shop.approval", "a", [Order("o")], "approve", "ann")
    assert_type(app.execute(any_order, "o", 3), Any)


def outside(app: Backstay, client: Client) -> None:
    assert_type(app.start(order, "o", "id", ["a"]).result(), str)
    assert_type(app.execute(later, None, 3), Order)
    assert_type(app.start(Shop, "s", 3, rush=True).result("5s"), Order)
    assert_type(app.execute(AsyncShop, "a"), list[Order])
    assert_type(client.handle(order, "o").result(), str)
    assert_type(client.handle(Shop, "o").result(), Order)
    assert_type(client.handle(AsyncShop, "o").result(), list[Order])
    assert_type(client.reserve(Shop, "r"), bool)
    assert_type(client.options(business_key="k", labels={"a": "b"}, timeout="1h"), Client)
    assert_type(client.options(if_exists="return_existing_active").execute(order, "o", "id"), str)
    assert_type(client.options(if_exists="return_existing").execute(order, "o", "id"), str)
    assert_type(client.execute("shop.order", "o", 1, 2), Any)
    assert_type(client.start("shop.order", None).result(), Any)
    assert_type(client.list(type="order", label=("a", "b"), limit=3)[0].workflow_id, str)
    assert_type(client.describe("o").status, str)


async def outside_later() -> None:
    async with AsyncBackstay("app.db", [order, Shop, Warehouse()], guard="error", queues=["a"]) as app:
        assert_type(await (await app.start(order, "o", "id")).result(), str)
        assert_type(await app.execute(later, "l", 3), Order)
        assert_type(await app.execute(Shop, "s", 3), Order)
        assert_type(await app.execute(AsyncShop, "a"), list[Order])
        assert_type(await app.handle(later, "l").result(), Order)
        nightly = await app.schedules.options(cron="@daily", timezone="UTC", overlap="skip").create(order, "n", "id")
        assert_type((await nightly.trigger(overlap="allow_all")).workflow_id, str | None)
        assert_type((await app.schedules.options(every=["1h", 90]).ensure(Shop, "s", 3)).id, str)
        assert_type((await app.schedules.create(AsyncShop, None)).id, str)


assert_type(charge("o", 1), Order)
assert_type(backstay.side_effect(lambda: 1), int)


def half(n: int) -> float:
    return n / 2


@workflow
def family(id: str) -> None:
    assert_type(order(id), str)
    assert_type(order.step(id), Step[str])
    assert_type(child(order, id), str)
    assert_type(child(later, 1), Order)
    assert_type(child(Shop, 1, rush=True), Order)
    assert_type(child.step(Shop, 1), Step[Order])
    assert_type(child.options(parent_close="terminate", retries=2)(order, id), str)
    assert_type(child.start(Shop, 1).join(), Order)
    assert_type(child.start(order, id).run_id, str | None)
    assert_type([handle.call_id for handle in children()], list[str])
    assert_type(gather(charge.step(id, n) for n in range(3)), list[Order])
    assert_type(gather([fetch.step("u")], limit=3), list[bytes])
    assert_type(gather(charge.step(id, 1), fetch.step("u"), lambda: 3), tuple[Order, bytes, int])
    assert_type(gather({"a": order.step(id)}), dict[str, str])
    assert_type(gather([order.step(id)], return_exceptions=True), list[str | Exception])
    assert_type(gather({"a": order.step(id)}, limit=2, return_exceptions=True), dict[str, str | Exception])
    assert_type(
        gather(order.step(id), fetch.step("u"), return_exceptions=True), tuple[str | Exception, bytes | Exception]
    )
    assert_type(gather.step([order.step(id)], return_exceptions=True), Step[list[str | Exception]])
    assert_type(gather(gather.step([order.step(id)]), sleep.step(1)), tuple[list[str], None])
    match race(order.step(id), sleep.step("1h")):
        case (0, value):
            assert_type(value, str)
        case (1, nothing):
            assert_type(nothing, None)
    assert_type(background(half, 3), float)
    assert_type(background.step(half, n=3), Step[float])


@workflow
async def later_family(id: str) -> None:
    assert_type(await order.step(id), str)
    assert_type(await later(1), Order)
    assert_type(await child.step(order, id), str)
    assert_type(await gather.step(order.step(id), fetch.step("u")), tuple[str, bytes])
    assert_type(await child.start(order, id), str)
    assert_type(await asyncio.gather(order.step(id), later(1)), tuple[str, Order])
