"""Signals: what others tell a run reaches its code in the order it was accepted, typed, once, and survives everything."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import (
    AsyncBackstay,
    DefinitionError,
    RequestRefused,
    Signal,
    WorkflowNotFound,
    WorkflowNotRunning,
    activity,
    continue_as_new,
    race,
    signal,
    sleep,
    spawn,
    update,
    wait,
    workflow,
)
from backstay.kernel.features.signal_rejection import SignalRejected
from backstay.kernel.limits import Limits
from backstay.protocol import commands as tell
from backstay.sdk.author.workflow import definition_of

from .kit import StillWorld, events, eventually, evicting, memory, names, settle

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]


@dataclass
class Order:
    id: str
    cents: int


approved = Signal[str]("approved")
orders = Signal[Order]("orders")
maybe = Signal[str | None]("maybe")


@activity(type="echo")
def echo(text: str) -> str:
    return text


@workflow(type="counter")
class Counter:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @signal
    def add(self, n: int, times: int = 1) -> None:
        self.seen += [n] * times

    @signal(name="stop-now")
    def stop(self) -> None:
        self.seen.append(-1)

    def handle(self) -> list[int]:
        wait(lambda: -1 in self.seen, key="stopped")
        return self.seen


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("SIG-08", "REC-02")
@pytest.mark.parametrize("make", APPS)
async def test_handlers_run_in_the_order_of_acceptance(make: Any) -> None:
    async with make(Counter) as app:
        run = await app.start(Counter, "c")
        await run.signal(Counter.add, 1)
        await run.signal(Counter.add, 2, times=2)
        await asyncio.gather(*(run.signal(Counter.add, n) for n in range(3, 50)))
        await run.signal(Counter.stop)
        assert await run.result() == [1, 2, 2, *range(3, 50), -1]
        history = await run.history()
        accepted = [event.signal_id for event in events(history, "SignalReceived")]
        assert [event.signal_id for event in events(history, "SignalApplied")] == accepted
        assert len(set(accepted)) == 50


@pytest.mark.contract("SIG-01", "UPD-14")
async def test_the_public_name_is_the_name() -> None:
    async with memory(Counter) as app:
        run = await app.start(Counter, "c")
        await run.signal("add", 5)
        await run.signal("add", times=2, n=6)
        with pytest.raises(RequestRefused, match="the workflow does not declare it") as refused:
            await run.signal("stop")
        assert refused.value.reason == "unknown_signal"
        await run.signal("stop-now")
        assert await run.result() == [5, 6, 6, -1]
        received = events(await run.history(), "SignalReceived")
        assert [event.signal_name for event in received] == ["add", "add", "stop-now"]


@pytest.mark.contract("SIG-04", "SIG-05", "DECL-03")
@pytest.mark.parametrize(
    ("args", "kwargs", "wrong"),
    [
        ((), {}, {"n": ["is missing"]}),
        (("x",), {}, {"n": ["must be int, not string"]}),
        ((None,), {}, {"n": ["must not be null"]}),
        ((1, 2, 3), {}, {"arguments": ["1 more than the 2 that 'add' takes"]}),
        ((), {"m": 1}, {"m": ["is unknown; 'add' takes n, times"], "n": ["is missing"]}),
        ((), {"times": 3}, {"n": ["is missing"]}),
    ],
)
async def test_wrong_arguments_are_rejected_by_field_and_nothing_happens(
    args: Any, kwargs: Any, wrong: dict[str, list[str]]
) -> None:
    async with memory(Counter) as app:
        run = await app.start(Counter, "c")
        with pytest.raises(RequestRefused) as refused:
            await run.signal("add", *args, **kwargs)
        assert refused.value.reason == "invalid_signal_arguments"
        assert refused.value.fields["outcome"] == "rejected_invalid_arguments"
        assert refused.value.fields["validation_errors"] == wrong
        (start, rejected) = (await run.describe()).commands
        assert (rejected.command_type, rejected.status) == ("signal", "rejected")
        assert rejected.sequence == (start.sequence or 0) + 1
        assert "SignalReceived" not in names(await run.history())


async def test_wrong_arguments_in_python_are_a_type_error_here() -> None:
    async with memory(Counter) as app:
        run: Any = await app.start(Counter, "c")
        with pytest.raises(TypeError):
            await run.signal(Counter.add)
        with pytest.raises(TypeError, match="one value"):
            await run.signal(approved, "a", "b")
        with pytest.raises(TypeError, match="all arguments by position or all by name"):
            await run.signal("add", 1, times=2)
        with pytest.raises(TypeError, match="by its method, its Signal or its public name"):
            await run.signal(print, 1)


async def test_a_signal_to_an_unknown_or_closed_run_is_refused() -> None:
    async with memory(Counter) as app:
        with pytest.raises(WorkflowNotFound):
            await app.handle(Counter, "nobody").signal(Counter.stop)
        await app.reserve(Counter, "later")
        with pytest.raises(WorkflowNotFound):
            await app.handle(Counter, "later").signal(Counter.stop)
        run = await app.start(Counter, "c")
        await run.signal(Counter.stop)
        await run.result()
        with pytest.raises(WorkflowNotRunning, match="has ended") as refused:
            await run.signal(Counter.stop)
        assert refused.value.fields["outcome"] == "rejected_not_active"


async def test_a_member_of_another_class_is_a_mistake_that_is_not_sent() -> None:
    @workflow(type="other")
    class Other:
        @signal
        def add(self, n: int) -> None: ...

        def handle(self) -> None: ...

    async with memory(Counter, Other) as app:
        run = await app.start(Counter, "c")
        with pytest.raises(TypeError, match=r"<signal add> belongs to .*Other, not to Counter"):
            await run.signal(Other.add, 1)
        assert len((await run.describe()).commands) == 1


async def test_members_are_inherited_and_overridden() -> None:
    class Base:
        def __init__(self) -> None:
            self.said: list[str] = []

        @signal
        def say(self, text: str) -> None:
            self.said.append(f"base {text}")

        @signal
        def end(self) -> None:
            self.said.append("end")

    @workflow(type="derived")
    class Derived(Base):
        @signal
        def say(self, text: str) -> None:
            self.said.append(f"derived {text}")

        def handle(self) -> list[str]:
            wait(lambda: "end" in self.said)
            return self.said

    async with memory(Derived) as app:
        run = await app.start(Derived, "d")
        await run.signal(Derived.say, "a")
        await run.signal(Base.end)
        assert await run.result() == ["derived a", "end"]


# -- channels


@workflow(type="by module")
def by_module() -> str:
    return wait(approved)


@workflow(type="by literal")
def by_literal() -> Any:
    return wait("approved")


@workflow(type="by literal step")
async def by_literal_step() -> Any:
    return await wait.step("approved")


def helper() -> str:
    return wait(approved)


@workflow(type="by list", signals=[approved])
def by_list() -> str:
    return helper()


@workflow(type="by text in a list", signals=["approved"])
def by_text() -> str:
    return helper()


@workflow(type="by attribute")
class ByAttribute:
    approved = Signal[str]()

    def handle(self) -> str:
        return wait(self.approved)


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("SIG-06", "DECL-01", "DECL-02")
@pytest.mark.parametrize(
    "definition", [by_module, by_literal, by_literal_step, by_list, by_text, ByAttribute], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("make", APPS)
async def test_every_way_to_declare_a_channel(definition: Any, make: Any) -> None:
    async with make(definition) as app:
        run = await app.start(definition, "w")
        await run.signal("approved", "ann")
        assert await run.result() == "ann"
        (started,) = events(await run.history(), "WorkflowStarted")
        assert started.declared_signals == ["approved"]
        (contract,) = started.declared_signal_contracts
        assert contract["mode"] == "wait"


async def test_the_values_of_a_signal_channel_are_typed_on_both_sides() -> None:
    @workflow(type="typed")
    def typed() -> list[Any]:
        order = wait(orders)
        assert isinstance(order, Order)
        nothing = wait(maybe)
        return [order, nothing, wait(approved)]

    async with memory(typed) as app:
        run = await app.start(typed, "t")
        await run.signal(orders, Order("o", 3))
        for value in (3, None):
            with pytest.raises(RequestRefused) as refused:
                await run.signal("approved", value)
            assert refused.value.reason == "invalid_signal_arguments"
        await run.signal(maybe, None)
        await run.signal(approved, "yes")
        assert await run.result() == [{"id": "o", "cents": 3}, None, "yes"]


async def test_a_channel_by_name_takes_anything() -> None:
    @workflow(type="anything")
    def anything() -> list[Any]:
        return [wait("note") for _ in range(3)]

    async with memory(anything) as app:
        run = await app.start(anything, "a")
        await run.signal("note")
        await run.signal("note", {"deep": [1]})
        await run.signal("note", 1, 2)
        assert await run.result() == [True, {"deep": [1]}, [1, 2]]


async def test_a_wait_for_what_no_caller_could_send_is_refused_by_name() -> None:
    hidden = Signal[str]("hidden")

    def ask(channel: Any) -> Any:
        return wait(channel)

    @workflow(type="undeclared", unchecked=True)
    def undeclared() -> str:
        return ask(hidden)

    async with memory(undeclared) as app:
        with pytest.raises(backstay.WorkflowFailed, match=r"'hidden' is not declared; name it with @workflow"):
            await app.execute(undeclared, "u")


async def test_a_signal_with_a_method_is_not_waited_for_by_name() -> None:
    @workflow(type="confused")
    class Confused:
        @signal
        def go(self) -> None: ...

        def handle(self) -> None:
            wait("g" + "o")

    async with memory(Confused) as app:
        with pytest.raises(backstay.WorkflowFailed, match="has a method; wait for what the method changes"):
            await app.execute(Confused, "c")


def test_mistakes_in_declarations_are_found_at_once() -> None:
    with pytest.raises(DefinitionError, match="both a method and a channel"):

        @workflow
        class Both:
            channel = Signal[str]("go")

            @signal
            def go(self) -> None: ...

            def handle(self) -> None: ...

    with pytest.raises(DefinitionError, match="two members with the public name 'go'"):

        @workflow
        class Twice:
            @signal
            def go(self) -> None: ...

            @signal(name="go")
            def went(self) -> None: ...

            def handle(self) -> None: ...

    with pytest.raises(DefinitionError, match="uses `yield`"):

        @signal
        def generator(self: Any) -> Any:
            yield 1

    with pytest.raises(DefinitionError, match="needs a method"):
        signal(3)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="has no name"):
        assert Signal[str]().name
    with pytest.raises(TypeError, match="hides the decorator"):

        class Hidden:
            @update
            def update(self) -> None: ...

            @update
            def other(self) -> None: ...


def test_on_self_a_member_is_the_method_and_on_the_class_a_reference() -> None:
    counter = Counter()
    counter.add(3, times=2)
    assert counter.seen == [3, 3]
    assert repr(Counter.add) == "<signal add>"
    with pytest.raises(TypeError, match="call it on self, or send it through a handle"):
        Counter.add(counter, 3)  # type: ignore[operator]


# -- waits for channels


@workflow(type="inbox")
def inbox(count: int) -> list[str]:
    return [echo(wait(approved)) for _ in range(count)]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("SIG-08", "SIG-09")
@pytest.mark.parametrize("make", APPS)
async def test_waits_take_the_signals_of_a_name_in_order_early_and_late_ones(make: Any) -> None:
    async with make(inbox, echo) as app:
        run = await app.start(inbox, "i", 6)
        for n in range(3):
            await run.signal(approved, f"early {n}")
        await eventually(lambda: _applied(app, "i", 3))
        for n in range(3):
            await run.signal(approved, f"late {n}")
        assert await run.result() == [f"{when} {n}" for when in ("early", "late") for n in range(3)]
        history = await run.history()
        ids = [event.signal_wait_id for event in events(history, "SignalReceived")]
        assert len(set(ids)) == 6
        assert [event.signal_wait_id for event in events(history, "SignalWaitOpened")] == ids
        assert [event.signal_wait_id for event in events(history, "SignalApplied")] == ids


@workflow(type="waits for many")
def waits_for_many(count: int) -> int:
    wait("go")
    return sum(wait("number") for _ in range(count))


@workflow(type="handles many")
class HandlesMany:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.may_go = False

    @signal
    def go(self) -> None:
        self.may_go = True

    @signal
    def number(self, n: int) -> None:
        self.numbers.append(n)

    def handle(self, count: int) -> int:
        total = 0
        for _ in range(count):
            wait(lambda: self.may_go and self.numbers)
            total += self.numbers.pop()
        return total


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("definition", [waits_for_many, HandlesMany])
@pytest.mark.parametrize("make", APPS)
async def test_signals_that_have_piled_up_are_no_batch_of_steps(make: Any, definition: Any) -> None:
    async with make(definition, limits=Limits(command_batch_size=3)) as app:
        run = await app.start(definition, "many", 10)
        for n in range(10):
            await run.signal("number", n)
        await run.signal("go")
        assert await run.result() == 45


async def _applied(app: AsyncBackstay, id: str, count: int) -> bool:
    return len(events(await app.history(id), "SignalApplied")) >= count


@workflow(type="patient")
def patient() -> list[Any]:
    return [wait(approved, timeout="1h"), wait(approved, timeout=60), wait("other", timeout=60)]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("SIG-07")
@pytest.mark.parametrize("make", APPS)
async def test_a_wait_with_a_timeout_answers_none_when_the_time_is_over(make: Any) -> None:
    world = StillWorld()
    async with make(patient, world=lambda: world) as app:
        run = await app.start(patient, "p")
        await settle()
        await world.advance(10)
        await run.signal(approved, "in time")
        await settle()
        await world.advance(59)
        assert (await run.describe()).status == "waiting"
        await world.advance(1)
        await run.signal(approved, "too late")
        await settle()
        await world.advance(60)
        assert await run.result() == ["in time", None, None]
        history = names(await run.history())
        assert history.count("TimerCancelled") == 1
        assert history.count("TimerFired") == 2


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_many_strands_wait_for_one_name(make: Any) -> None:
    @workflow(type="strands", unchecked=True)
    def strands() -> list[str]:
        def one(n: int) -> str:
            return f"{n}{wait(approved)}"

        return [branch.join() for branch in [spawn(one, n) for n in range(4)]]

    async with make(strands) as app:
        run = await app.start(strands, "s")
        for letter in "abcd":
            await run.signal(approved, letter)
        assert await run.result() == ["0a", "1b", "2c", "3d"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_async_code_waits_for_signals_like_for_anything_else(make: Any) -> None:
    @workflow(type="later", unchecked=True)
    async def later() -> list[Any]:
        first, second = await asyncio.gather(wait.step(approved), wait.step(orders))
        try:
            async with asyncio.timeout(0.02):
                await wait.step(approved)
        except TimeoutError:
            pass
        return [first, second.cents, await wait.step(approved), wait(approved)]

    async with make(later) as app:
        run = await app.start(later, "l")
        await run.signal(orders, Order("o", 3))
        await run.signal(approved, "a")
        await eventually(lambda: _has(app, "l", "TimerFired"))
        await run.signal(approved, "b")
        await run.signal(approved, "c")
        assert await run.result() == ["a", 3, "b", "c"]


async def _has(app: AsyncBackstay, id: str, kind: str) -> bool:
    return kind in names(await app.history(id))


async def test_handlers_may_be_async_and_wake_async_code() -> None:
    @workflow(type="queue", unchecked=True)
    class Queue:
        def __init__(self) -> None:
            self.queue: asyncio.Queue[int] = asyncio.Queue()

        @signal
        async def put(self, n: int) -> None:
            await asyncio.gather()
            self.queue.put_nowait(n)

        async def handle(self, count: int) -> list[int]:
            return [await self.queue.get() for _ in range(count)]

    for make in (memory, evicting):
        async with make(Queue) as app:
            run = await app.start(Queue, "q", 3)
            for n in range(3):
                await run.signal(Queue.put, n)
            assert await run.result() == [0, 1, 2]


# -- what goes wrong in a handler


def shaky(broken: bool) -> Any:
    """One release of a workflow; its handler cannot deal with 'x' while it is broken."""

    @workflow(type="shaky")
    class Shaky:
        def __init__(self) -> None:
            self.got: list[str] = []

        @signal
        def take(self, text: str) -> None:
            self.got.append(text)
            if broken and text == "x":
                raise LookupError("no such letter")

        def handle(self) -> list[str]:
            wait(lambda: len(self.got) == 3)
            return self.got

    return Shaky


@pytest.mark.embedded("opens apps of its own")
async def test_a_raising_handler_fails_the_task_not_the_run_and_a_deploy_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, better = shaky(True), shaky(False)
    async with AsyncBackstay(tmp_path / "app.db", [broken]) as app:
        run = await app.start(broken, "s")
        await run.signal(broken.take, "a")
        with caplog.at_level(logging.WARNING, "backstay.worker"):
            await run.signal(broken.take, "x")
            await eventually(lambda: any("could not be applied" in r.getMessage() for r in caplog.records))
        found = await run.describe()
        assert found.status == "waiting"
        (task,) = found.tasks
        assert task.transport_state == "repair_backoff"
        assert task.task.block is not None
        assert task.task.block.message == "signal 'take' could not be applied: LookupError: no such letter"
        await run.signal(broken.take, "b")
    async with AsyncBackstay(tmp_path / "app.db", [better]) as app:
        run = app.handle(better, "s")
        await run.repair()
        assert await run.result() == ["a", "x", "b"]


@dataclass
class Parcel:
    grams: int

    def __post_init__(self) -> None:
        if self.grams < 0:
            raise ValueError("lighter than air")


def sorter(kind: str, takes: Any) -> Any:
    """A workflow that reads one channel, and thinks it can deal with anything that might go wrong there."""
    channel = Signal[takes]("parcels")

    @workflow(type="sorter", signals=[channel], unchecked=True)
    def in_plain_code() -> Any:
        try:
            return wait(channel)
        except Exception as error:
            return f"caught {error!r}"

    @workflow(type="sorter", signals=[channel], unchecked=True)
    async def in_async_code() -> Any:
        try:
            return await wait.step(channel)
        except Exception as error:
            return f"caught {error!r}"

    @workflow(type="sorter", signals=[channel], unchecked=True)
    def in_a_race() -> Any:
        try:
            return race(wait.step(channel), sleep.step("1h"))[1]
        except Exception as error:
            return f"caught {error!r}"

    return {"def": in_plain_code, "async def": in_async_code, "race": in_a_race}[kind]


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.parametrize("kind", ["def", "async def", "race"])
@pytest.mark.parametrize("sent", [{"grams": "many"}, {"grams": -1}], ids=["another type", "refused by its class"])
async def test_a_value_that_cannot_be_read_is_rejected_and_the_run_waits_for_the_next(
    tmp_path: Path, kind: str, sent: dict[str, Any]
) -> None:
    strict, lenient = sorter(kind, Parcel), sorter(kind, dict[str, Any])
    async with AsyncBackstay(tmp_path / "app.db", [strict]) as app:
        run = await app.start(strict, "s")
        await run.signal("parcels", sent)
        await eventually(lambda: has_events(run, "SignalRejected"))
        (event,) = [entry.event for entry in await run.history() if isinstance(entry.event, SignalRejected)]
        assert event.rejection_reason == "invalid_signal_arguments"
        assert len(event.validation_errors["arguments"]) == 1
        found = await run.describe()
        assert (found.status, found.tasks) == ("waiting", [])
        assert [view.status for view in found.signals] == ["rejected"]
    async with AsyncBackstay(tmp_path / "app.db", [lenient]) as app:
        # What was rejected stays so, whatever other code would make of it.
        run = app.handle(lenient, "s")
        await run.signal("parcels", {"grams": 7})
        assert await run.result(timeout=10) == {"grams": 7}


async def has_events(run: Any, name: str) -> bool:
    return name in names(await run.history())


@pytest.mark.parametrize("what", ["activity", "sleep", "wait", "spawn"])
async def test_a_handler_makes_no_durable_calls(what: str) -> None:
    calls: dict[str, Any] = {
        "activity": lambda: echo("x"),
        "sleep": lambda: sleep(1),
        "wait": lambda: wait("x"),
        "spawn": lambda: spawn(echo, "x"),
    }

    @workflow(type="greedy", unchecked=True)
    class Greedy:
        done = False

        @signal
        def go(self) -> None:
            with pytest.raises(backstay.DurableCallRefused, match="signal 'go' cannot make durable calls"):
                calls[what]()
            self.done = True

        def handle(self) -> bool:
            wait(lambda: self.done)
            wait("x", timeout=0)
            return self.done

    async with memory(Greedy, echo) as app:
        run = await app.start(Greedy, "g")
        await run.signal(Greedy.go)
        assert await run.result()
        assert "ActivityScheduled" not in names(await run.history())


async def test_an_async_handler_that_waits_is_refused() -> None:
    @workflow(type="lazy", unchecked=True)
    class Lazy:
        @signal
        async def go(self) -> None:
            await asyncio.sleep(0)

        async def handle(self) -> None:
            await wait.step(lambda: False, timeout="1h")

    async with memory(Lazy) as app:
        run = await app.start(Lazy, "l")
        await run.signal(Lazy.go)
        found = await eventually(lambda: _blocked(app, "l"))
        assert "a handler must not do" in found.message


async def _blocked(app: AsyncBackstay, id: str) -> Any:
    return next((view.task.block for view in (await app.describe(id)).tasks if view.task.block is not None), None)


# -- request ids, signal with start, continued runs


@pytest.mark.contract("REC-01")
async def test_a_signal_that_is_sent_again_is_taken_once() -> None:
    async with memory(Counter) as app:
        run = await app.start(Counter, "c")
        for _ in range(3):
            await app.options(request_id="r-1").handle(Counter, "c").signal(Counter.add, 1)
        with pytest.raises(RequestRefused) as refused:
            await app.options(request_id="r-1").handle(Counter, "c").signal(Counter.add, 2)
        assert refused.value.reason == "request_id_conflict"
        await app.options(request_id="r-2").handle(Counter, "c").signal(Counter.add, 3)
        await run.signal(Counter.stop)
        assert await run.result() == [1, 3, -1]


@pytest.mark.embedded("opens apps of its own")
async def test_a_request_id_holds_after_a_restart(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [Counter]) as app:
        await app.start(Counter, "c")
        await app.options(request_id="r").handle(Counter, "c").signal(Counter.add, 1)
    async with AsyncBackstay(tmp_path / "app.db", [Counter]) as app:
        await app.options(request_id="r").handle(Counter, "c").signal(Counter.add, 1)
        await app.handle(Counter, "c").signal(Counter.stop)
        assert await app.handle(Counter, "c").result() == [1, -1]


@pytest.mark.contract("REC-04")
async def test_signal_with_start_starts_once_and_signals_before_any_code_runs() -> None:
    seen: list[int] = []

    @workflow(type="greeter", unchecked=True)
    class Greeter:
        def __init__(self) -> None:
            self.names: list[str] = []

        @signal
        def greet(self, name: str) -> None:
            self.names.append(name)

        def handle(self, wanted: int) -> list[str]:
            seen.append(len(self.names))
            wait(lambda: len(self.names) >= wanted)
            return self.names

    async with memory(Greeter) as app:
        run = await app.signal_with_start(Greeter, "g", [2], Greeter.greet, "ann")
        again = await app.signal_with_start(Greeter, "g", [2], Greeter.greet, "bob")
        assert again.run_id == run.run_id
        assert await run.result() == ["ann", "bob"]
        history = names(await run.history())
        assert history.index("SignalReceived") < history.index("ConditionWaitOpened")
        with pytest.raises(RequestRefused) as refused:
            await app.signal_with_start(Greeter, "other", [2], "greet", 3)
        assert refused.value.reason == "invalid_signal_arguments"
        with pytest.raises(WorkflowNotFound):
            await app.describe("other")


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_signals_that_a_run_did_not_use_go_on_with_the_next_run(make: Any) -> None:
    @workflow(type="legs", unchecked=True)
    def legs(left: int, got: list[str]) -> list[str]:
        got = [*got, wait(approved)]
        if left > 1:
            continue_as_new(legs, left - 1, got)
        return got

    async with make(legs) as app:
        run = await app.start(legs, "l", 4, [])
        await asyncio.gather(*(run.signal(approved, letter) for letter in "abcd"))
        assert await run.result() == list("abcd")
        assert len(await app.list(workflow_id="l")) == 4


async def test_a_signal_to_a_run_that_is_not_the_current_one_says_which_is() -> None:
    @workflow(type="twice", unchecked=True)
    def twice(again: bool) -> str:
        got = wait(approved)
        if again:
            continue_as_new(twice, False)
        return got

    async with memory(twice) as app:
        run = await app.start(twice, "t", True)
        await run.signal(approved, "a")
        await eventually(lambda: _runs(app, "t", 2))
        rejected = await app.call(
            tell.SignalWorkflow(workflow_id="t", run_id=run.run_id, signal_name="approved", arguments=None)
        )
        assert (rejected.accepted, rejected.outcome) == (False, "rejected_not_current")
        assert rejected.requested_run_id == run.run_id
        assert rejected.run_id == (await run.describe()).run.run_id  # type: ignore[union-attr]


async def _runs(app: AsyncBackstay, id: str, count: int) -> bool:
    return len(await app.list(workflow_id=id)) == count


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("DECL-05", "DECL-06")
async def test_the_contract_is_the_one_the_run_was_started_with(tmp_path: Path) -> None:
    @workflow(type="counter")
    class Renamed:
        @signal
        def other(self) -> None: ...

        def handle(self) -> None: ...

    async with AsyncBackstay(tmp_path / "app.db", [Counter]) as app:
        await app.start(Counter, "c")
    async with AsyncBackstay(tmp_path / "app.db", [Renamed]) as app:
        with pytest.raises(RequestRefused) as refused:
            await app.handle(None, "c").signal("other")
        assert refused.value.reason == "unknown_signal"
        await app.handle(None, "c").signal("add", 3)


def test_the_snapshot_says_what_others_may_say() -> None:
    snapshot = definition_of(Counter).snapshot
    assert snapshot.signals == ["add", "stop-now"]
    add, stop = snapshot.signal_contracts
    assert [(p["name"], p["type"], p["required"], p["allows_null"]) for p in add["parameters"]] == [
        ("n", "int", True, False),
        ("times", "int", False, False),
    ]
    assert stop == {"name": "stop-now", "parameters": [], "mode": "handler"}
