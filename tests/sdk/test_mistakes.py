"""A mistake is named at once, where it was written, with what to write instead."""

# Its mistakes are wrong to a type checker, too.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnusedCoroutine=false

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from backstay import (
    AsyncBackstay,
    DefinitionError,
    NonDeterminismWarning,
    Signal,
    Types,
    WorkflowFailed,
    activity,
    background,
    child,
    continue_as_new,
    gather,
    patched,
    query,
    signal,
    sleep,
    version,
    wait,
    workflow,
)

from .kit import PATIENCE, eventually, evicting, memory, names


@dataclass
class Order:
    cents: int


@activity(type="add")
def add(a: int, b: int) -> int:
    return a + b


@activity(type="add later")
async def add_later(a: int, b: int) -> int:
    return a + b


@workflow(type="ship")
def ship(order: Order, express: bool = False) -> int:
    return order.cents


@workflow(type="ship class")
class Ship:
    def handle(self, order: Order) -> int:
        return order.cents


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), r"ship\(\): missing a required argument: 'order'; it takes \(order, express\)"),
        ((Order(1), True, 3), r"ship\(\): too many positional arguments; it takes \(order, express\)"),
        (("three",), r"ship\(\): argument 'order': Expected `object`, got `str`"),
        (
            ({"cents": "x"},),
            r"ship\(\): argument 'order': Expected `int`, got `str` \(at \$\[0\].cents of its arguments\)",
        ),
        ((Order(1), "yes"), r"ship\(\): argument 'express': Expected `bool`, got `str`"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_by_the_caller(args: tuple[Any, ...], said: str) -> None:
    async with memory(ship, Ship) as app:
        for call in (app.start, app.execute):
            with pytest.raises(TypeError, match=said):
                await call(ship, "s", *args)
        assert await app.list() == []
        assert await app.execute(ship, "fits", {"cents": 3}) == 3  # type: ignore[arg-type] - what a Order is made of
        with pytest.raises(TypeError, match=r"Ship.handle\(\): argument 'order'"):
            await app.start(Ship, "s", 3)  # type: ignore[arg-type]
        go = Signal[int]("go")
        with pytest.raises(TypeError, match=r"ship\(\): argument 'order'"):
            await app.signal_with_start(ship, "s", [3], go, 1)  # type: ignore[arg-type]


@workflow(type="told")
class Told:
    paid = Signal[int]()
    order: Order | None = None

    @signal
    def put(self, order: Order) -> None:
        self.order = order

    def handle(self) -> int:
        wait(lambda: self.order)
        return wait(Told.paid)


def in_background(order: Order) -> int:
    return order.cents


def _tell(name: str, value: Any) -> Any:
    def told() -> int:
        handle = child.start(Told)
        getattr(handle, name)(value)
        return handle.join()

    return told


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ship(3), r"ship\(\): argument 'order'"),
        (lambda: ship.options(retries=1)(3), r"ship\(\): argument 'order'"),
        (lambda: child(Ship, 3), r"Ship.handle\(\): argument 'order'"),
        (lambda: child.start(Ship, 3).join(), r"Ship.handle\(\): argument 'order'"),
        (lambda: gather([ship.step(Order(1)), ship.step(3)]), r"ship\(\): argument 'order'"),
        (lambda: background(in_background, 3), r"in_background\(\): argument 'order'"),
        (lambda: continue_as_new(ship, 3), r"ship\(\): argument 'order'"),
        (_tell("put", 3), r"signal 'put': argument 'order'"),
        (_tell("paid", "much"), r"signal 'paid': Expected `int`, got `str`"),
        (lambda: child.start(Told).signal(Told.put, 3), r"signal 'put': argument 'order'"),
        (lambda: child.start(Told).signal("put", 3), r"signal 'put': argument 'order'"),
    ],
)
@pytest.mark.parametrize("app", [memory, evicting])
async def test_arguments_that_do_not_fit_are_refused_in_workflow_code(app: Any, call: Any, said: str) -> None:
    @workflow(type="slips")
    def slips() -> str:
        try:
            call()
        except TypeError as error:
            problem = str(error)
        sleep("1ms")
        return problem

    async with app(ship, Ship, Told, slips) as backstay:
        assert re.match(said, await asyncio.wait_for(backstay.execute(slips, "s"), PATIENCE))
        asked = names(await backstay.history("s"))
        assert not {"ActivityScheduled", "ChildSignalSent", "WorkflowContinuedAsNew"} & set(asked)
        assert ("ChildWorkflowScheduled" in asked) == ("signal" in said)


async def test_arguments_that_fit_reach_children() -> None:
    @workflow(type="speaks")
    def speaks() -> int:
        told = child.start(Told)
        told.put({"cents": 1})
        told.signal(Told.paid, 2)
        unchecked = child.start("told")  # known by its name alone
        unchecked.signal("put", {"cents": 1})
        unchecked.signal("paid", 4)
        return told.join() + unchecked.join() + background(in_background, Order(8)) + ship({"cents": 16})  # type: ignore[arg-type]

    async with memory(Told, ship, speaks) as app:
        assert await asyncio.wait_for(app.execute(speaks, "s"), PATIENCE) == 30


async def test_a_schedule_takes_only_arguments_that_fit() -> None:
    async with memory(ship) as app:
        daily = app.schedules.options(cron="@daily")
        for call in (daily.create, daily.ensure):
            with pytest.raises(TypeError, match=r"ship\(\): argument 'order'"):
                await call(ship, "daily", 3)  # type: ignore[arg-type]
        assert await app.schedules.list() == []
        handle = await daily.create(ship, "daily", Order(1))
        with pytest.raises(TypeError, match=r"ship\(\): argument 'order'"):
            await handle.change_workflow(ship, 3)  # type: ignore[arg-type]


async def test_an_id_that_was_forgotten_is_missed() -> None:
    async with memory(ship) as app:
        with pytest.raises(
            TypeError,
            match=r"the first argument is the workflow id: text, or None to generate one, not Order\(cents=3\)",
        ):
            await app.start(ship, Order(3))  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["described", "not awaited"])
async def test_a_call_that_was_never_made_says_so(kind: str) -> None:
    @workflow(type="forgets")
    def described() -> Any:
        return add.step(1, 2)

    @workflow(type="forgets")
    async def not_awaited() -> Any:
        return add_later(1, 2)

    forgetful: Any = described if kind == "described" else not_awaited
    async with memory(forgetful, add, add_later) as app:
        with pytest.raises(WorkflowFailed, match=r"never waited for: write `await`, or in `def` code `.run\(\)`"):
            await app.execute(forgetful, "f")


@workflow(type="ships later")
async def ship_later(order: Order) -> int:
    return order.cents


@workflow(type="forgets an await")
async def forgets_an_await() -> str:
    add_later(1, 2)
    return "ok"


@workflow(type="forgets a child")
async def forgets_a_child() -> str:
    ship_later(Order(1))
    return "ok"


pause = sleep.step


@workflow(type="forgets to sleep")
async def forgets_to_sleep() -> str:
    pause("1h")
    return "ok"


@pytest.mark.parametrize(
    ("forgetful", "call"),
    [
        (forgets_an_await, r"add_later\(1, 2\)"),
        (forgets_a_child, r"ship_later\(Order\(1\)\)"),
        (forgets_to_sleep, r"pause\('1h'\)"),
    ],
)
def test_a_forgotten_await_is_warned_of(forgetful: Any, call: str) -> None:
    with pytest.warns(NonDeterminismWarning, match=rf"{call} inside workflow .*; it does not run"):
        memory(forgetful)


@workflow(type="awaits-a-value")
async def awaits_a_value() -> int:
    called = [add]
    return await called[0](1, 2)  # pyright: ignore


@workflow(type="awaits-a-child")
async def awaits_a_child() -> None:
    await ship(Order(1))  # pyright: ignore


@workflow(type="awaits-an-activity")
async def awaits_an_activity() -> int:
    return await add(1, 2)  # pyright: ignore


@pytest.mark.parametrize("awaiting", [awaits_an_activity, awaits_a_child])
def test_an_await_of_a_plain_value_is_refused_with_what_to_write(awaiting: Any) -> None:
    with pytest.raises(DefinitionError, match=r"test_mistakes.py:\d+: await .*; drop the await, or await its .step"):
        memory(awaiting)


async def test_an_await_of_a_plain_value_out_of_sight_says_what_to_write() -> None:
    async with memory(awaits_a_value, add) as app:
        with pytest.raises(WorkflowFailed, match=r"drop the await, or await its .step\(...\)"):
            await app.execute(awaits_a_value, "w")


async def test_a_name_that_is_not_registered_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    @workflow(type="sums")
    def sums() -> int:
        return add(1, 2)

    with caplog.at_level(logging.WARNING, "backstay.worker"):
        async with memory() as app:
            first, second = await app.start(sums, "a"), await app.start(sums, "b")
            await eventually(lambda: caplog.messages)
            app.register(sums)
            await eventually(lambda: len(caplog.messages) == 2)
            app.register(add)
            assert await first.result(timeout=10) == await second.result(timeout=10) == 3
    assert [line.partition(", so")[0] for line in caplog.messages] == [
        "workflow 'sums' is not registered in this process",
        "activity 'add' is not registered in this process",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"register": add}, r"register takes several: write register=\[<activity add>\]"),
        ({"register": "add"}, r"register takes several: write register=\['add'\]"),
        ({"queues": "mail"}, r"queues takes several: write queues=\['mail'\]"),
        ({"queues": [5]}, "queues are named by text, not 5"),
        ({"queues": []}, "queues names none; a worker serves at least one"),
        ({"threads": 0}, "threads must be a whole number of 1 or more, not 0"),
        ({"threads": -1}, "threads must be a whole number of 1 or more, not -1"),
        ({"async_tasks": 0.5}, "async_tasks must be a whole number of 1 or more, not 0.5"),
        ({"guard": "eror"}, "guard must be one of 'error', 'warn', 'off', not 'eror'"),
        ({"guard": None}, "guard must be one of 'error', 'warn', 'off', not None"),
    ],
)
def test_an_app_that_could_not_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        AsyncBackstay(":memory:", **options)


NO_TEXT = UUID(int=7)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("queue", 5, "queue must be text, not 5"),
        ("connection", 5, "connection must be text, not 5"),
        ("compatibility", 5, "compatibility must be text, not 5"),
        ("fairness_key", 5, "fairness_key must be text, not 5"),
        ("business_key", 5, "business_key must be text, not 5"),
        ("request_id", NO_TEXT, r"request_id must be text, not UUID\('0{8}-.*7'\)"),
        ("priority", "high", "priority must be a whole number from 0 to 9, not 'high'"),
        ("priority", True, "priority must be a whole number from 0 to 9, not True"),
        ("fairness_weight", "x", "fairness_weight must be a whole number from 1 to 1000, not 'x'"),
        ("labels", {"a": 2}, "labels must be a mapping of text to text, not {'a': 2}"),
        ("memo", {1: 2}, "memo must be a mapping with names of text, not {1: 2}"),
        ("search", ["a"], r"search must be a mapping with names of text, not \['a'\]"),
        ("timeout", Decimal(3), r"timeout must be a duration: .*, not Decimal\('3'\)"),
        ("run_timeout", True, "run_timeout must be a duration: .*, not True"),
    ],
)
async def test_an_option_of_another_type_is_refused_where_it_is_given(option: str, value: Any, said: str) -> None:
    given: dict[str, Any] = {option: value}
    async with memory(ship) as app:
        with pytest.raises(TypeError, match=said):
            app.options(**given)
        if option not in ("request_id", "business_key"):
            with pytest.raises(TypeError, match=said):
                app.schedules.options(**given)


@pytest.mark.parametrize("verb", ["cancel", "terminate", "pause", "unpause", "archive"])
async def test_a_reason_is_text(verb: str) -> None:
    @workflow(type="sleeper")
    def sleeper() -> None:
        sleep("1d")

    async with memory(sleeper) as app:
        handle = await app.start(sleeper, "s")
        length = len(await handle.history())
        with pytest.raises(TypeError, match="reason must be text, not 5"):
            await getattr(handle, verb)(5)
        assert len(await handle.history()) == length


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.handle(ship, 5),
        lambda app: app.handle(ship, "s").of_run(5),
        lambda app: app.handle(ship, "s").submitted("update", 5),
        lambda app: app.schedules.handle(5),
        lambda app: app.schedules.options(note=5),
        lambda app: AsyncBackstay(":memory:", namespace=5),
    ],
)
async def test_a_name_is_text(call: Callable[[Any], Any]) -> None:
    async with memory(ship) as app:
        with pytest.raises(TypeError, match="must be text, not 5"):
            call(app)


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda: activity(type=5), "type must be text, not 5"),
        (lambda: activity(queue=5), "queue must be text, not 5"),
        (lambda: activity(fatal="ValueError"), r"fatal must be several .* as in \[ValueError\], not 'ValueError'"),
        (
            lambda: activity(fatal=ValueError),
            r"fatal must be several .* as in \[ValueError\], not <class 'ValueError'>",
        ),
        (lambda: activity(fatal=[5]), r"fatal must be several exception classes or their names.* not \[5\]"),
        (lambda: activity(local="no"), "local must be True or False, not 'no'"),
        (lambda: activity(retries=-1), "retries must be 0, a positive whole number or 'forever', not -1"),
        (lambda: workflow(type=5), "type must be text, not 5"),
        (lambda: workflow(queue=5), "queue must be text, not 5"),
        (lambda: lambda fn: AsyncBackstay(":memory:", types=Types(activities={5: activity(fn)})), "type must be text"),
        (lambda: lambda fn: activity(fn).options(queue=5), "queue must be text, not 5"),
        (lambda: lambda fn: workflow(fn).options(connection=5), "connection must be text, not 5"),
        (lambda: lambda fn: child.options(queue=5), "queue must be text, not 5"),
        (lambda: lambda fn: child.options(parent_close="no"), "parent_close must be one of 'abandon', .*, not 'no'"),
        (lambda: lambda fn: child.options(timeout=0), "timeout of a child must be above 0, not 0"),
        (lambda: lambda fn: child.options(retries=-1), "retries must be 0, a positive whole number or 'forever'"),
        (lambda: lambda fn: child.step(""), "a child is named by its workflow or by the type of one, and '' is none"),
        (lambda: signal(name=5), "name must be text, not 5"),
        (lambda: query(name=5), "name must be text, not 5"),
        (lambda: lambda fn: Signal(5), "name must be text, not 5"),
    ],
)
def test_a_definition_of_other_types_is_refused_where_it_is_written(
    define: Callable[[], Callable[[Any], Any]], said: str
) -> None:
    def plain() -> None: ...

    with pytest.raises(DefinitionError, match=said):
        define()(plain)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: patched(4711), r"version\(4711, min=-1, max=1\): the id of a change is text"),
        (lambda: version("v", max=1.5), r"version\('v', min=-1, max=1.5\): .* versions are whole numbers"),
        (lambda: version("v", max=True), r"version\('v', min=-1, max=True\): .* versions are whole numbers"),
        (lambda: sleep(True), "True is not a duration"),
        (lambda: wait(lambda: True, key=5), "condition key 5"),
    ],
)
async def test_a_value_that_could_not_be_read_back_is_not_recorded(call: Callable[[], Any], said: str) -> None:
    @workflow(type="slips", unchecked=True)
    def slips() -> None:
        call()

    async with memory(slips) as app:
        with pytest.raises(WorkflowFailed, match=said):
            await app.execute(slips, "s")
        assert [entry.type for entry in await app.history("s")][-1] == "WorkflowFailed"


async def test_an_activity_that_returns_something_else_is_named() -> None:
    @activity(type="counts")
    def counts() -> int:
        return "three"  # type: ignore[return-value]

    @workflow(type="sums")
    def sums() -> int:
        return counts()

    async with memory(sums, counts) as app:
        with pytest.raises(WorkflowFailed, match="activity 'counts' returned is not what it declares: Expected `int`"):
            await app.execute(sums, "s")
