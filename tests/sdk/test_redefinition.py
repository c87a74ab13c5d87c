"""Code that is defined again while an app is open, as in a notebook: the new definition takes the place of the old one."""

from __future__ import annotations

import linecache
import types
from itertools import count
from typing import Any

import pytest

from backstay import AsyncBackstay, Backstay, DefinitionError, activity, workflow

from .kit import blocked, memory

CELL = """
from backstay import activity, sleep, wait, workflow

@activity
def price(n: int) -> int:
    return n * {factor}

@workflow(signals=["go"])
def total(n: int) -> int:
    {before}
    wait("go")
    return price(n) + {extra}

class Shelf:
    def __init__(self, place: str) -> None:
        self.place = place

    @activity
    def put(self, n: int) -> str:
        return f"{{n}} on the {{self.place}}, {{{extra}}}"

@workflow
def shelve(n: int) -> str:
    return Shelf.put(n)
"""


def cell(factor: int = 1, extra: int = 0, before: str = "pass", name: str = "__main__") -> Any:
    """A cell of a notebook, run in a module of that name. A notebook keeps the source of its cells where Python finds it."""
    module = types.ModuleType(name)
    source = CELL.format(factor=factor, extra=extra, before=before)
    file = f"<cell {next(_count)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), vars(module))
    return module


_count = count()


async def finished(app: AsyncBackstay, code: Any, id: str) -> int:
    handle = await app.start(code.total, id, 4)
    await handle.signal("go", None)
    return await handle.result()


@pytest.mark.parametrize("name", ["__main__", "shop"])
async def test_a_definition_that_is_registered_again_replaces_the_old_one(name: str) -> None:
    first, second = cell(name=name), cell(factor=100, extra=7, name=name)
    async with memory(first.total, first.price) as app:
        assert await finished(app, first, "t-1") == 4
        app.register(second.total, second.price)
        assert await finished(app, second, "t-2") == 407


async def test_a_start_of_a_redefined_workflow_runs_the_new_code() -> None:
    first, second = cell(), cell(extra=7)
    async with memory(first.total, first.price) as app:
        assert await finished(app, first, "t-1") == 4
        handle = await app.options(labels={"x": "y"}).start(second.total, "t-2", 4)
        await handle.signal("go", None)
        assert await handle.result() == 11


def test_the_same_without_await() -> None:
    first, second = cell(), cell(factor=100)
    with Backstay(":memory:", register=[first.total, first.price, first.shelve, first.Shelf("floor")]) as app:
        assert app.execute(first.shelve, None, 1) == "1 on the floor, 0"
        app.register(second.total, second.price, second.shelve, second.Shelf("wall"))
        assert app.execute(second.shelve, None, 1) == "1 on the wall, 0"
        handle = app.start(second.total, None, 4)
        handle.signal("go", None)
        assert handle.result() == 400


async def test_an_open_run_goes_on_with_the_new_code_if_that_fits_and_is_blocked_otherwise() -> None:
    first = cell()
    async with memory(first.total, first.price) as app:
        fits = await app.start(first.total, "fits", 4)
        drifts = await app.start(first.total, "drifts", 4)
        second = cell(factor=100, extra=5)
        app.register(second.total, second.price)
        await fits.signal("go", None)
        assert await fits.result() == 405
        third = cell(before="sleep(1)")
        app.register(third.total)
        await drifts.signal("go", None)
        assert "the code asked for timer" in (await blocked(app, "drifts")).tasks[0].task.block.message
        app.register(second.total)
        assert await drifts.result() == 405


def test_two_functions_of_different_places_do_not_share_a_type() -> None:
    app = Backstay(":memory:", register=[cell(name="shop").total])
    with pytest.raises(DefinitionError, match="'total' is claimed by total and by total"):
        app.register(cell(name="store").total)
    with pytest.raises(DefinitionError, match="claimed by"):
        app.register(workflow(type="total")(lambda: None), workflow(type="total")(lambda: 1))


def test_two_definitions_of_one_name_registered_together_are_refused() -> None:
    with pytest.raises(DefinitionError, match="claimed by total and by total"):
        Backstay(":memory:", register=[cell().total, cell().total])
    shelf = cell().Shelf
    with pytest.raises(DefinitionError, match=r"'Shelf.put' is a method of .* and of .*; keep one"):
        Backstay(":memory:", register=[shelf("floor"), shelf("wall")])


class Depot:
    @staticmethod
    @activity
    def weigh(n: int) -> int:
        return 2 * n

    @activity
    def load(self, n: int) -> int:
        return n + 1


@workflow
def weighed(n: int) -> int:
    return Depot.weigh(n) + Depot.load(n)  # pyright: ignore[reportCallIssue]


async def test_an_activity_that_is_a_static_method_is_found() -> None:
    async with memory(weighed, Depot()) as app:
        assert await app.execute(weighed, "w", 5) == 16
