"""The helpers of the contract in one program, and its own example: two steps in a row, then two at once behind a closure."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import (
    activity,
    background,
    child,
    continue_as_new,
    gather,
    info,
    side_effect,
    signal,
    sleep,
    version,
    wait,
    workflow,
)

from .kit import memory, names

ran: list[str] = []


@activity
def work(name: str) -> str:
    ran.append(name)
    return name


@workflow(type="helper")
def helper(name: str) -> str:
    return work(f"child {name}")


def aside(name: str) -> str:
    return work(f"aside {name}")


@workflow(type="seed-helpers")
class Helpers:
    def __init__(self) -> None:
        self.told = ""

    @signal
    def tell(self, word: str) -> None:
        self.told = word

    def handle(self, found: list[Any] | None = None) -> list[Any]:
        if found is not None:
            return found
        found = [
            work("one"),
            side_effect(lambda: 6),
            version("branch"),
            gather([work.step("two"), helper.step("three")]),
            child(helper, "four"),
            background(aside, "five"),
        ]
        sleep(0.001)
        wait(lambda: self.told, key="told")
        return continue_as_new(Helpers, [*found, self.told, info().run_number])


@pytest.mark.contract("AUTHOR-02")
async def test_every_helper_in_one_program() -> None:
    ran.clear()
    async with memory(Helpers, helper, work) as app:
        handle = await app.start(Helpers, "h")
        await handle.signal(Helpers.tell, "go")
        assert await handle.result() == ["one", 6, 1, ["two", "child three"], "child four", "aside five", "go", 1]


@workflow(type="my-workflow")
def mine() -> list[Any]:
    return [
        work("a"),
        work("b"),
        lambda: gather([lambda: work("c"), lambda: work("d")]),
    ]


@workflow(type="my-async-workflow")
async def mine_async() -> list[Any]:
    return [
        await work.step("a"),
        lambda: work.step("b"),
        lambda: gather.step([work.step("c"), work.step("d")]),
    ]


@pytest.mark.contract("AUTHOR-05", "AUTHOR-04")
@pytest.mark.parametrize("definition", [mine, mine_async], ids=["def", "async def"])
async def test_a_returned_closure_over_a_barrier_is_run_before_the_end(definition: Any) -> None:
    ran.clear()
    async with memory(definition, work) as app:
        assert await app.execute(definition, "m") == ["a", "b", ["c", "d"]]
        history = await app.history("m")
        assert sorted(ran) == ["a", "b", "c", "d"]
        grouped = [
            path[0].parallel_group_size
            for e in history
            if (path := getattr(e.event, "parallel_group_path", None)) and e.type == "ActivityScheduled"
        ]
        assert grouped == [2, 2]
        assert names(history)[-1] == "WorkflowCompleted"


@pytest.mark.contract("AUTHOR-04")
async def test_closures_and_described_steps_make_the_same_barrier() -> None:
    @workflow(type="either")
    def either(closures: bool) -> list[Any]:
        if closures:
            return gather([lambda: work("a"), gather.step([lambda: work("b"), lambda: helper("c")])])
        return gather([work.step("a"), gather.step([work.step("b"), helper.step("c")])])

    async with memory(either, helper, work) as app:
        told = {}
        for closures in (True, False):
            assert await app.execute(either, f"e-{closures}", closures) == ["a", ["b", "child c"]]
            told[closures] = [
                (e.type, [(g.parallel_group_kind, g.parallel_group_size, g.parallel_group_index) for g in path])
                for e in await app.history(f"e-{closures}")
                if (path := getattr(e.event, "parallel_group_path", None))
                and e.type in ("ActivityScheduled", "ChildWorkflowScheduled")
            ]
        assert told[True] == told[False]
        assert len(told[True]) == 3
