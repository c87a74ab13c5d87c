"""Starting what exists already, and what is known by its type alone."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    WorkflowAlreadyStarted,
    WorkflowFailed,
    activity,
    signal,
    wait,
    workflow,
)

from .kit import memory

done: list[str] = []


@activity(type="charge")
def charge(id: str) -> str:
    done.append(id)
    if id == "bad":
        raise LookupError("no card")
    return f"receipt {id}"


@workflow(type="shop.order")
def order(id: str, times: int = 1) -> list[str]:
    return [charge(id) for _ in range(times)]


@workflow(type="shop.approval")
class Approval:
    def __init__(self) -> None:
        self.by = ""

    @signal
    def approve(self, by: str) -> None:
        self.by = by

    def handle(self, what: str) -> str:
        wait(lambda: self.by)
        return f"{what} by {self.by}"


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


async def test_a_start_may_ask_for_the_workflow_that_exists_and_its_result() -> None:
    async with memory(order, Approval, charge) as app:
        once = app.options(if_exists="return_existing")
        assert await once.execute(order, "o-1", "a") == ["receipt a"]
        assert await once.execute(order, "o-1", "a") == ["receipt a"]
        first = await once.start(order, "o-1", "a")
        assert await first.result() == ["receipt a"]
        assert done == ["a"]
        waiting = await once.start(Approval, "a-1", "it")
        again = await once.start(Approval, "a-1", "it")
        assert again.run_id == waiting.run_id
        await again.signal(Approval.approve, "ann")
        assert await waiting.result() == "it by ann"
        for _ in range(2):
            with pytest.raises(WorkflowFailed, match="no card"):
                await once.execute(order, "o-2", "bad")
        assert done == ["a", "bad"]


async def test_the_advice_of_a_refused_start_fits_the_request() -> None:
    async with memory(order, charge) as app:
        await app.execute(order, "o-1", "a")
        with pytest.raises(WorkflowAlreadyStarted, match=r"ids are used once.*if_exists='return_existing'\)$"):
            await app.start(order, "o-1", "a")
        active = app.options(if_exists="return_existing_active")
        with pytest.raises(
            WorkflowAlreadyStarted, match=r"has ended .* no running one to return.*if_exists='return_existing'\)$"
        ):
            await active.start(order, "o-1", "a")
        with pytest.raises(WorkflowAlreadyStarted, match="no running one to return"):
            await active.execute(order, "o-1", "a")
        with pytest.raises(TypeError, match=r"if_exists must be one of 'reject_duplicate', .*'return_existing'"):
            app.options(if_exists="whatever")  # type: ignore[arg-type]


@pytest.mark.embedded("opens apps of its own")
async def test_a_result_that_exists_is_found_after_a_restart(tmp_path: Any) -> None:
    for _ in range(3):
        async with AsyncBackstay(tmp_path / "shop.db", register=[order, charge]) as app:
            assert await app.options(if_exists="return_existing").execute(order, "o-1", "a") == ["receipt a"]
    assert done == ["a"]


async def test_a_workflow_can_be_started_by_its_type_alone() -> None:
    async with memory(order, Approval, charge) as app:
        assert await app.execute("shop.order", "o-1", "a", 2) == ["receipt a", "receipt a"]
        handle = await app.options(labels={"by": "name"}).start("shop.approval", "a-1", "it")
        await handle.signal("approve", "ann")  # checked by the contract of whoever has the code
        assert await handle.result() == "it by ann"
        other = await app.signal_with_start("shop.approval", "a-2", ["that"], "approve", "bob")
        assert await other.result() == "that by bob"
        with pytest.raises(
            TypeError, match=r"'shop.order' is given by its type, so its arguments are given by position"
        ):
            await app.start("shop.order", "o-2", id="a")  # type: ignore[call-overload]
