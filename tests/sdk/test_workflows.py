"""Workflows as authors declare them: functions and classes, what they may take and return, and under which type."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from backstay import (
    AsyncBackstay,
    AsyncWorker,
    Backstay,
    DefinitionError,
    NotInWorkflow,
    Types,
    WorkflowFailed,
    activity,
    continue_as_new,
    info,
    signal,
    sleep,
    spawn,
    workflow,
)
from backstay.sdk.replay.workflow_greenlet import current_run

from .kit import blocked, events, eventually, evicting, memory, names


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal = Decimal("1.50")


@dataclass
class Order:
    id: UUID
    lines: list[Line] = field(default_factory=list[Line])


class Point(msgspec.Struct):
    x: int
    y: float


class Person(pydantic.BaseModel):
    name: str
    born: date


MOMENT = datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=UTC)
SOME_ID = UUID("12345678-1234-5678-1234-567812345678")

KINDS: list[Any] = [
    (Order, Order(SOME_ID, [Line("cup"), Line("pot", Decimal("20.00"))])),
    (Point, Point(1, 2.5)),
    (Person, Person(name="ann", born=date(1990, 2, 3))),
    (Colour, Colour.BLUE),
    (datetime, MOMENT),
    (date, date(2026, 1, 31)),
    (timedelta, timedelta(days=2, seconds=3)),
    (UUID, SOME_ID),
    (Decimal, Decimal("19.90")),
    (bytes, b"\x00\xff"),
    (str, "größer"),
    (int, 2**63 - 1),
    (float, 0.1),
    (bool, True),
    (type(None), None),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (dict[str, list[Point]], {"a": [Point(1, 2.0)]}),
    (Order | None, Order(SOME_ID)),
]


# -- what goes through


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=[str(kind) for kind, _ in KINDS])
@pytest.mark.contract("CODEC-13")
async def test_every_kind_of_value_travels_into_and_out_of_workflows_and_activities(kind: Any, value: Any) -> None:
    def carry(thing: Any) -> Any:
        assert thing == value
        assert type(thing) is type(value)
        return thing

    carry.__annotations__ = {"thing": kind, "return": kind}
    carried = activity(type="carry")(carry)

    def entry(thing: Any, by_name: Any = None) -> Any:
        assert thing == value == by_name
        assert type(thing) is type(value)
        return carried(thing)

    entry.__annotations__ = {"thing": kind, "by_name": kind, "return": kind}
    run = workflow(type="entry", unchecked=True)(entry)

    async with memory(run, carried) as app:
        found = await app.execute(run, "w", value, by_name=value)
        assert found == value
        assert type(found) is type(value)
        history = await app.history("w")
    assert {e.payload_codec for kind in ("WorkflowStarted", "ActivityCompleted") for e in events(history, kind)} == {
        "avro"
    }
    assert events(history, "ActivityScheduled")[0].activity.payload_codec == "avro"
    assert events(history, "WorkflowCompleted")[0].payload_codec == "avro"


async def test_without_an_annotation_values_are_plain() -> None:
    @workflow(type="plain")
    def plain(order):  # type: ignore[no-untyped-def]
        return [type(order).__name__, order]

    async with memory(plain) as app:
        kind, found = await app.execute(plain, "p", Order(SOME_ID, [Line("cup")]))
    assert kind == "dict"
    assert found == {"id": str(SOME_ID), "lines": [{"sku": "cup", "price": "1.50"}]}


async def test_a_result_that_cannot_be_stored_fails_the_run_with_its_path() -> None:
    @workflow(type="odd")
    def odd() -> Any:
        return {"deep": [object()]}

    async with memory(odd) as app:
        with pytest.raises(WorkflowFailed, match=r"\$\.deep\[0\]"):
            await app.execute(odd, "o")


async def test_wrong_arguments_are_a_type_error_before_anything_is_written() -> None:
    @workflow(type="typed")
    def typed(a: int, *, b: str = "") -> None: ...

    async with memory(typed) as app:
        for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"c": 3})):
            with pytest.raises(TypeError):
                await app.start(typed, "t", *args, **kwargs)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="unsupported_value_type"):
            await app.start(typed, "t", object())  # type: ignore[call-overload]
        assert await app.list() == []


async def test_an_argument_of_the_wrong_kind_blocks_the_run_until_the_code_fits() -> None:
    @workflow(type="typed")
    def typed(a: int) -> int:
        return a

    @workflow(type="typed")
    def elsewhere(a: str) -> int: ...

    async with memory(typed) as app:
        await app.start(elsewhere, "t", "not a number")
        description = await blocked(app, "t")
    assert description.tasks[0].task.block is not None
    assert description.tasks[0].task.block.reason == "workflow_entry_arguments_mismatch"


# -- functions and classes


@pytest.mark.contract("AUTHOR-01")
async def test_functions_classes_and_coroutines_run_alike() -> None:
    @workflow
    def by_function(n: int) -> int:
        sleep(0.001)
        return n + 1

    @workflow
    async def by_coroutine(n: int) -> int:
        await sleep.step(0.001)
        return n + 2

    @workflow(type="by class")
    class ByClass:
        started = 0

        def __init__(self) -> None:
            self.log: list[int] = []

        def handle(self, n: int) -> int:
            self.log.append(n)
            sleep(0.001)
            return self._sum() + 3

        def _sum(self) -> int:
            return sum(self.log)

    @workflow
    class ByAsyncClass:
        async def handle(self, n: int = 1) -> int:
            await sleep.step(0.001)
            return n + 4

    for app in (
        memory(by_function, by_coroutine, ByClass, ByAsyncClass),
        evicting(by_function, by_coroutine, ByClass, ByAsyncClass),
    ):
        async with app:
            assert await app.execute(by_function, "f", 1) == 2
            assert await app.execute(by_coroutine, "c", 1) == 3
            assert await app.execute(ByClass, "k", 1) == 4
            assert await app.execute(ByAsyncClass, "a") == 5
            history = await app.history("k")
        assert events(history, "WorkflowStarted")[0].declared_entry_method == "handle"
        assert events(history, "WorkflowStarted")[0].declared_entry_mode == "canonical"


async def test_every_run_of_a_class_has_an_instance_of_its_own() -> None:
    @workflow
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def handle(self) -> int:
            self.n += 1
            sleep(0.001)
            self.n += 1
            return self.n

    async with memory(Counter) as app:
        handles = [await app.start(Counter, f"c-{n}") for n in range(5)]
        assert [await handle.result() for handle in handles] == [2] * 5


def test_outside_a_workflow_a_workflow_function_is_the_function() -> None:
    @workflow
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert double.__name__ == "double"
    assert double.type == "double"


async def test_calling_a_workflow_inside_another_is_a_child() -> None:
    @workflow
    def inner() -> int:
        return 1

    @workflow
    def outer() -> int:
        return inner() + 1

    async with memory(inner, outer) as app:
        assert await app.execute(outer, "o") == 2
        assert {row.workflow_type for row in await app.list()} == {"inner", "outer"}


async def test_an_uncaught_exception_fails_the_run_and_is_the_cause_at_the_caller() -> None:
    @workflow
    def fails() -> None:
        sleep(0.001)
        raise LookupError("nothing there", 7)

    for app in (memory(fails), evicting(fails)):
        async with app:
            with pytest.raises(WorkflowFailed, match=r"LookupError: .*nothing there") as caught:
                await app.execute(fails, "f")
            assert (await app.describe("f")).status == "failed"
        assert isinstance(caught.value.__cause__, LookupError)
        assert caught.value.__cause__.args == ("nothing there", 7)
        assert caught.value.workflow_id == "f"


@pytest.mark.parametrize("how", ["def", "async def"])
async def test_code_that_wants_to_end_the_process_only_fails_its_run(how: str) -> None:
    @workflow(unchecked=True)
    def leaves() -> None:
        raise SystemExit(3)

    @workflow(unchecked=True)
    async def leaves_later() -> None:
        raise SystemExit(3)

    async with memory(leaves, leaves_later) as app:
        with pytest.raises(WorkflowFailed, match="SystemExit"):
            await app.execute(leaves if how == "def" else leaves_later, "l")


@dataclass
class Trap:
    kind: str

    def __post_init__(self) -> None:
        if self.kind != "none" and current_run() is not None:
            raise {"interrupt": KeyboardInterrupt, "exit": SystemExit}[self.kind]


@workflow(unchecked=True)
def interrupts() -> None:
    raise KeyboardInterrupt


@workflow(unchecked=True)
def interrupts_in_a_branch() -> None:
    spawn(interrupts.definition.entry).join()


@workflow(unchecked=True)
async def interrupts_later() -> None:
    await asyncio.sleep(0)
    raise KeyboardInterrupt


@workflow(unchecked=True)
async def interrupts_in_a_task() -> None:
    async def other() -> None:
        raise KeyboardInterrupt

    await asyncio.create_task(other())


@workflow(unchecked=True)
def trapped(trap: Trap) -> str:
    return trap.kind


@pytest.mark.parametrize(
    ("target", "given", "kind"),
    [
        (interrupts, (), "KeyboardInterrupt"),
        (interrupts_in_a_branch, (), "KeyboardInterrupt"),
        (interrupts_later, (), "KeyboardInterrupt"),
        (interrupts_in_a_task, (), "KeyboardInterrupt"),
        (trapped, (Trap("interrupt"),), "KeyboardInterrupt"),
        (trapped, (Trap("exit"),), "SystemExit"),
    ],
)
async def test_code_that_would_end_the_thread_of_the_engine_fails_its_task_and_nothing_else(
    target: Any, given: Any, kind: str
) -> None:
    with Backstay(":memory:", [target, trapped]) as app:
        app.start(target, "l", *given)
        found = await eventually(lambda: next((t.task.block for t in app.describe("l").tasks if t.task.block), None))
        assert (found.type, found.reason) == (kind, "workflow_raised_exit")
        assert found.message.startswith(f"workflow code raised {kind}, but ")
        assert app.describe("l").status == "pending"
        assert app.execute(trapped, "other", Trap("none")) == "none"


async def test_the_same_on_the_thread_that_slow_workflows_have() -> None:
    async with memory(interrupts, trapped) as app:
        app.executor._slow |= {"interrupts", "trapped"}
        run = await app.start(interrupts, "l")

        async def failed() -> bool:
            return any(task.task.block is not None for task in (await run.describe()).tasks)

        await eventually(failed)
        assert await app.execute(trapped, "other", Trap("none")) == "none"


IN_THE_MAIN_THREAD = """
import asyncio, os, signal
from backstay import AsyncBackstay, workflow

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with

@workflow(unchecked=True)
def interrupts() -> None:
    raise KeyboardInterrupt

async def main() -> None:
    async with AsyncBackstay(":memory:", [interrupts]) as app:
        run = await app.start(interrupts, "l")
        while not any(task.task.block for task in (await run.describe()).tasks):
            await asyncio.sleep(0.002)
        print("its task failed")

asyncio.run(main())
try:
    asyncio.new_event_loop().run_until_complete(main())
except KeyboardInterrupt:
    print("the process was interrupted", flush=True)
    os._exit(0)
"""


def test_in_the_main_thread_an_interrupt_is_for_the_process_if_no_code_looks_after_the_signal() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IN_THE_MAIN_THREAD], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.splitlines() == ["its task failed", "the process was interrupted"], ended.stderr


# -- what is refused at declaration


@pytest.mark.contract("AUTHOR-03")
def test_generators_are_refused() -> None:
    def plain() -> Any:
        yield 1

    async def later() -> Any:
        yield 1

    class Workflow:
        def handle(self) -> Any:
            yield 1

    for wrong in (plain, later, Workflow):
        with pytest.raises(DefinitionError, match="yield"):
            workflow(wrong)


@pytest.mark.contract("AUTHOR-10")
def test_two_entry_methods_are_refused_also_when_inherited() -> None:
    class Old:
        def execute(self) -> None: ...

    class Both:
        def handle(self) -> None: ...
        def execute(self) -> None: ...

    class Mixed(Old):
        def handle(self) -> None: ...

    for wrong in (Both, Mixed):
        with pytest.raises(DefinitionError, match="two entry methods"):
            workflow(wrong)
    with pytest.raises(DefinitionError, match="needs a method handle"):
        workflow(Old)  # type: ignore[type-var]


@pytest.mark.parametrize("shared", [[], {}, set(), bytearray()])
def test_a_mutable_class_attribute_is_refused(shared: Any) -> None:
    with pytest.raises(DefinitionError, match="mutable class attribute"):
        workflow(type("Shared", (), {"items": shared, "handle": lambda self: None}))


def test_a_workflow_that_is_neither_function_nor_class_is_refused() -> None:
    for wrong in (3, "name", len):
        with pytest.raises(DefinitionError):
            workflow(wrong)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="cannot register"):
        memory(lambda: None)


def test_continue_as_new_outside_a_workflow_is_refused() -> None:
    @workflow
    def run() -> None: ...

    with pytest.raises(NotInWorkflow):
        continue_as_new(run)


# -- types


@pytest.mark.contract("TYPE-01")
async def test_runs_carry_the_type_of_the_decorator_or_of_the_map() -> None:
    @workflow(type="decorated")
    def first() -> None: ...

    @workflow
    def second() -> None: ...

    @workflow
    class Third:
        def handle(self) -> None: ...

    async with memory(first, types=Types(workflows={"mapped": second, "third.v1": Third})) as app:
        for definition in (first, second, Third):
            await app.execute(definition, None)  # type: ignore[call-overload]
        assert {row.workflow_type for row in await app.list()} == {"decorated", "mapped", "third.v1"}
        (row,) = await app.list(type="mapped")
        history = await app.history(row.workflow_id)
    assert events(history, "WorkflowStarted")[0].workflow_type == "mapped"
    assert events(history, "WorkflowStarted")[0].workflow_class.endswith(":" + second.__qualname__)  # type: ignore[attr-defined]


@pytest.mark.contract("TYPE-02")
def test_one_definition_under_two_keys_is_refused() -> None:
    @workflow
    def twice() -> None: ...

    with pytest.raises(DefinitionError, match=r"'one' and as 'two'|decorator says"):
        memory(types=Types(workflows={"one": twice, "two": twice}))

    def plain() -> None: ...

    with pytest.raises(DefinitionError, match="registered as 'a' and as 'b'"):
        memory(workflow(type="a")(plain), workflow(type="b")(plain))


@pytest.mark.contract("TYPE-03")
def test_a_map_that_contradicts_the_decorator_is_refused() -> None:
    @workflow(type="order")
    def order() -> None: ...

    @activity(type="charge")
    def charge() -> None: ...

    with pytest.raises(DefinitionError, match=r"the type map names workflow .* 'purchase', its decorator says 'order'"):
        memory(types=Types(workflows={"purchase": order}))
    with pytest.raises(DefinitionError, match=r"the type map names activity .* 'pay', its decorator says 'charge'"):
        memory(types=Types(activities={"pay": charge}))
    with pytest.raises(DefinitionError, match=r"the type map names workflow .* 'purchase', its decorator says 'order'"):
        AsyncWorker("http://127.0.0.1:1", [order], types=Types(workflows={"purchase": order}))  # asks nobody first
    with pytest.raises(DefinitionError, match=r"the type map names activity .* 'pay', its decorator says 'charge'"):
        AsyncWorker("http://127.0.0.1:1", [charge], types=Types(activities={"pay": charge}))
    memory(order, charge, types=Types(workflows={"order": order}, activities={"charge": charge}))


def test_two_definitions_under_one_key_are_refused_and_the_same_one_twice_is_not() -> None:
    @workflow(type="same")
    def one() -> None: ...

    @workflow(type="same")
    def two() -> None: ...

    with pytest.raises(DefinitionError, match="claimed by"):
        memory(one, two)
    memory(one, one)


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("TYPE-04", "TYPE-05")
async def test_a_renamed_class_goes_on_under_its_old_key_and_is_recorded_as_it_is_now(tmp_path: Any) -> None:
    @activity(type="deploy", queue="after the rename")
    def deployed() -> None: ...

    @workflow
    class Before:
        def handle(self, n: int) -> str:
            deployed()
            return f"{n}"

    @workflow
    class Shop:
        @signal
        def ring(self, times: int) -> None: ...

        def handle(self, n: int) -> str:
            deployed()
            if n < 2:
                continue_as_new(Shop, 2)
            return f"{n} {info().type}"

    path = tmp_path / "shop.db"
    async with AsyncBackstay(path, types=Types(workflows={"shop.order": Before})) as app:
        await app.start(Before, "running", 5)
        await app.start(Before, "continuing", 1)
        assert await app.reserve(Before, "reserved")
    queues = ("default", "after the rename")
    async with AsyncBackstay(path, [deployed], types=Types(workflows={"shop.order": Shop}), queues=queues) as app:
        assert await app.handle(Shop, "running").result() == "5 shop.order"
        assert await app.handle(Shop, "continuing").result() == "2 shop.order"
        assert await app.execute(Shop, "reserved", 3) == "3 shop.order"
        for id in ("continuing", "reserved"):
            (started,) = events(await app.history(id), "WorkflowStarted")
            assert started.workflow_class.endswith(":" + Shop.__qualname__)
            assert started.declared_signals == ["ring"], "the contract is that of the class as it is now"
            assert [one["name"] for one in started.declared_signal_contracts[0]["parameters"]] == ["times"]
            assert started.workflow_type == "shop.order"


# -- continue as new


@pytest.mark.contract("CAN-01", "CAN-02", "CAN-03", "CAN-04", "START-07")
async def test_continue_as_new_keeps_the_instance_and_its_labels_and_starts_a_fresh_history() -> None:
    @workflow(type="loop")
    def loop(n: int) -> str:
        sleep(0.001)
        if n < 3:
            continue_as_new(loop, n + 1)
        return f"done after {info().run_number}"

    for app in (memory(loop), evicting(loop)):
        async with app:
            options = {"business_key": "k-1", "labels": {"tenant": "a"}, "memo": {"note": "x"}, "search": {"size": 3}}
            handle = await app.options(**options).start(loop, "l", 1)  # type: ignore[arg-type]
            assert await handle.result() == "done after 3"
            rows = await app.list(workflow_id="l")
            assert [(row.number, row.status, row.closed_reason) for row in rows] == [
                (3, "completed", "completed"),
                (2, "completed", "continued"),
                (1, "completed", "continued"),
            ]
            assert {(row.business_key, row.labels["tenant"], row.search_attributes["size"]) for row in rows} == {
                ("k-1", "a", 3)
            }
            first = await app.history("l", rows[2].run_id)
            second = await app.history("l", rows[1].run_id)
            description = await app.describe("l")
            assert (await app.handle(loop, "l").history())[1].event.memo["note"]  # type: ignore[attr-defined]
        assert handle.run_id == rows[2].run_id
        assert names(first)[-1] == "WorkflowContinuedAsNew"
        assert first[-1].event.continued_to_run_id == rows[1].run_id  # type: ignore[attr-defined]
        started = events(second, "WorkflowStarted")[0]
        assert started.continued_from_run_id == rows[2].run_id
        assert names(second)[:2] == ["StartAccepted", "WorkflowStarted"]
        command = description.commands[-1]
        assert (command.command_type, command.source) == ("start", "workflow")
        assert command.context["workflow"]["parent_run_id"] == rows[1].run_id
        assert description.memo["note"]


async def test_continue_as_new_with_wrong_arguments_is_a_type_error_in_the_code() -> None:
    @workflow
    def loop(n: int) -> str:
        try:
            continue_as_new(loop)  # type: ignore[call-arg]
        except TypeError:
            return "refused"

    async with memory(loop) as app:
        assert await app.execute(loop, "l", 1) == "refused"


async def test_except_exception_does_not_swallow_continue_as_new() -> None:
    @workflow
    def loop(n: int) -> int:
        try:
            if n < 2:
                continue_as_new(loop, n + 1)
        except Exception:
            return -1
        return n

    async with memory(loop) as app:
        assert await app.execute(loop, "l", 1) == 2


# -- restarts


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("AUTHOR-06", "AUTHOR-07")
async def test_a_run_waits_while_no_process_runs(tmp_path: Any) -> None:
    made: list[int] = []

    @activity
    def step(n: int) -> int:
        made.append(n)
        return n

    @workflow
    def waits() -> list[int]:
        before = step(1)
        sleep(0.05)
        return [before, step(2)]

    path = tmp_path / "waits.db"
    async with AsyncBackstay(path, [waits, step]) as app:
        await app.start(waits, "w")

        async def sleeping() -> bool:
            return (await app.describe("w")).wait_kind == "timer"

        await eventually(sleeping)
    with sqlite3.connect(path) as rows:
        assert rows.execute("pragma integrity_check").fetchone() == ("ok",)
    rows.close()
    async with AsyncBackstay(path, [waits, step]) as app:
        assert await app.handle(waits, "w").result() == [1, 2]
    assert made == [1, 2]
