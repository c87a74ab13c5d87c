"""An order ships in parcels, each a workflow of its own; and what becomes of children whose parent is over.

Parcels go out at the same time, a bounded number at once. A parcel whose carrier fails is tried again by itself; one that
cannot be shipped at all makes the order refund the others.
"""

from __future__ import annotations

from time import monotonic
from time import sleep as pause
from typing import Any

import pytest

from backstay import Backstay, Cancelled, WorkflowFailed, activity, child, gather, info, shield, sleep, workflow

shelves: dict[str, int] = {}
done: list[str] = []


class Unknown(Exception):
    pass


@activity
def pick(sku: str) -> str:
    if sku not in shelves:
        raise Unknown(sku)
    shelves[sku] -= 1
    return sku


@activity
def put_back(sku: str) -> None:
    shelves[sku] += 1


@activity
def note(text: str) -> None:
    done.append(text)


@workflow
def parcel(sku: str) -> str:
    picked = pick(sku)
    if info().run_number == 1 and sku == "vase":
        put_back(sku)
        raise ConnectionError("the carrier dropped it")
    sleep("5ms")
    return f"{picked} in run {info().run_number}"


@workflow
def order(skus: list[str]) -> list[str]:
    ship = child.options(retries=2, backoff="5ms", fatal=[Unknown])
    try:
        return gather((ship.step(parcel, sku) for sku in skus), limit=2)
    except Unknown:
        gather(put_back.step(sku) for sku in skus if sku in shelves)
        raise


@workflow
def watch(name: str) -> None:
    """Runs for ever, and tidies up when it is asked to stop."""
    try:
        sleep("1h")
    except Cancelled:
        with shield():
            note(f"{name} tidied up")
        raise


@workflow
def shop(how: str) -> list[str | None]:
    kept = child.start(watch, "kept")
    asked = child.options(parent_close="request_cancel").start(watch, "asked")
    ended = child.options(parent_close="terminate").start(watch, "ended")
    sleep("5ms")
    if how == "fails":
        raise RuntimeError("the roof came down")
    note(f"{kept.id} {asked.id} {ended.id}")
    return [kept.id, asked.id, ended.id]


ALL: list[Any] = [order, parcel, watch, shop, pick, put_back, note, Unknown]


def test_parcels_go_out_together_and_a_dropped_one_goes_again(database: str) -> None:
    shelves.update(book=5, vase=5, rug=5)
    with Backstay(database, ALL) as app:
        assert app.execute(order, "o-1", ["book", "vase", "rug", "book"]) == [
            "book in run 1",
            "vase in run 2",
            "rug in run 1",
            "book in run 1",
        ]
    assert shelves == {"book": 3, "vase": 4, "rug": 4}


def test_a_parcel_that_cannot_be_shipped_ends_the_order(database: str) -> None:
    shelves.clear()
    shelves.update(book=5)
    with Backstay(database, ALL) as app, pytest.raises(WorkflowFailed) as failed:
        app.execute(order, "o-1", ["book", "unicorn"])
    assert isinstance(failed.value.__cause__, Unknown)


@pytest.mark.contract("PCP-01", "PCP-03", "PCP-04", "PCP-08")
@pytest.mark.parametrize("how", ["ends", "fails"])
def test_children_follow_their_parent_close_policy(database: str, how: str) -> None:
    with Backstay(database, ALL) as app:
        handle = app.start(shop, "shop", how)
        if how == "fails":
            with pytest.raises(WorkflowFailed):
                handle.result()
        else:
            handle.result()
        wanted = [("cancelled", "cancelled"), ("terminated", "terminated"), ("waiting", None)]
        deadline = monotonic() + 10
        while monotonic() < deadline:
            found = sorted((row.status, row.closed_reason) for row in app.list(type=watch.type))
            if found == wanted:  # the one that is left may begin after the others have ended
                break
            pause(0.01)
        assert found == wanted
