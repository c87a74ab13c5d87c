# pyright: strict
"""Every line that ends in `# wrong` must be refused by the type checker, and no other line."""

from __future__ import annotations

from backstay import (
    Backstay,
    Saga,
    Signal,
    activity,
    background,
    child,
    continue_as_new,
    gather,
    query,
    race,
    signal,
    sleep,
    spawn,
    update,
    version,
    wait,
    workflow,
)


@activity
def charge(order: str, cents: int, *, currency: str = "EUR") -> str:
    return order


@activity
async def fetch(url: str) -> bytes:
    return url.encode()


class Warehouse:
    @activity
    def ship(self, sku: str) -> int:
        return len(sku)


@workflow
def order(id: str) -> str:
    charge(id)  # wrong
    charge(id, "1")  # wrong
    charge(id, 1, colour="red")  # wrong
    charge.step(1, 2)  # wrong
    charge.options(retry=3)  # wrong
    charge.options(retries="often")  # wrong
    fetch("u")  # wrong
    found: str = fetch.step("u").run()  # wrong
    number: int = charge(id, 1)  # wrong
    Warehouse.ship(3)  # wrong
    Warehouse.ship("a", "b")  # wrong
    spawn(charge, id)  # wrong
    sleep([1])  # wrong
    version(3)  # wrong
    continue_as_new(order, 3)  # wrong
    return found + str(number)


@workflow
async def later(id: str) -> str:
    await charge(id, 1)  # wrong
    await sleep("1h")  # wrong
    await sleep.step([])  # wrong
    await fetch(3)  # wrong
    return id


@workflow
class Shop:
    def handle(self, n: int) -> str:
        return str(n)


approved = Signal[str]("approved")


@workflow
class Approval:
    by: str = ""

    @signal
    def approve(self, by: str) -> None: ...

    @query
    def status(self, n: int) -> str:
        return self.by * n

    @update
    def rename(self, name: str) -> int:
        return len(name)

    @rename.validator  # wrong
    def check(self, name: int) -> None: ...

    def handle(self) -> str:
        short: str = wait(approved, timeout=3)  # wrong
        number: int = wait(approved)  # wrong
        wait(approved, key="k")  # wrong
        wait(3)  # wrong
        self.approve(3)  # wrong
        with Saga() as saga:
            saga.undo(charge, "o")  # wrong
            saga.undo(charge("o", 1))  # wrong
        return short + str(number)


@workflow
async def listener() -> None:
    await wait(approved)  # wrong


def talk(app: Backstay) -> None:
    run = app.start(Approval, "a")
    run.signal(Approval.approve)  # wrong
    run.signal(Approval.approve, 3)  # wrong
    run.signal(Approval.status, 3)  # wrong
    run.signal(approved, 3)  # wrong
    run.query(Approval.status)  # wrong
    run.query(Approval.status, "3")  # wrong
    run.query(Approval.rename, "x")  # wrong
    run.update(Approval.rename, 3)  # wrong
    run.update(Approval.status, 3)  # wrong
    told: str = run.update(Approval.rename, "x")  # wrong
    print(told)


@activity(retry=3)  # wrong
def odd() -> None: ...


@workflow(name="x")  # wrong
def odder() -> None: ...


def outside(app: Backstay) -> None:
    app.start(order, "o")  # wrong
    app.schedules.create(order, "n")  # wrong
    app.schedules.create(order, "n", 3)  # wrong
    app.schedules.ensure(Shop, "s", "n")  # wrong
    app.schedules.options(crno="@daily")  # wrong
    app.schedules.options(overlap="never")  # wrong
    app.schedules.handle("n").change_workflow(order)  # wrong
    app.start(order, "o", 3)  # wrong
    app.start(order, 3, "id")  # wrong
    app.start(Shop, "s", "n")  # wrong
    app.execute(Shop, "s")  # wrong
    app.options(retries=3)  # wrong
    app.options(if_exists="maybe")  # wrong
    number: int = app.execute(order, "o", "id")  # wrong
    text: int = app.handle(Shop, "s").result()  # wrong
    app.start(charge, "c", "o", 1)  # wrong
    print(number, text)


@workflow
def family(id: str) -> None:
    order()  # wrong
    order(3)  # wrong
    child(order, 3)  # wrong
    child(Shop)  # wrong
    child.start(order)  # wrong
    child.options(parent_closes="terminate")  # wrong
    child.options(parent_close="kill")  # wrong
    gather(charge(id, 1))  # wrong
    gather([charge(id, 1)])  # wrong
    gather(charge.step(id, 1), limit="2")  # wrong
    number: list[int] = gather([charge.step(id, 1)])  # wrong
    gather([charge.step(id, 1)], return_exceptions="yes")  # wrong
    race(charge(id, 1), sleep.step(1))  # wrong
    background(len)  # wrong
    text: int = child(order, id)  # wrong
    print(number, text)
