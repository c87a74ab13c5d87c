"""Activities as authors use them: called in a workflow they are durable steps, called outside they are functions."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    ActivityCancelled,
    ActivityTimedOut,
    AsyncBackstay,
    DefinitionError,
    NotInWorkflow,
    Types,
    WorkflowFailed,
    WorkflowTimedOut,
    activity,
    activity_info,
    heartbeat,
    sleep,
    workflow,
)
from backstay.protocol import requests as ask

from .kit import PATIENCE, StillWorld, events, eventually, evicting, memory, names, settle

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


class Declined(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class DeclinedForGood(Declined):
    pass


@activity
def add(a: int, b: int = 10, *, c: int = 0) -> int:
    seen.append(("add", a, b, c))
    return a + b + c


@activity
async def fetch(name: str) -> str:
    await asyncio.sleep(0)
    return name.upper()


@activity(retries=3, backoff=0)
def flaky(fails: int) -> list[int]:
    seen.append((activity_info().number, activity_info().idempotency_key, activity_info().attempt_id))
    if activity_info().number <= fails:
        raise Declined(f"try {activity_info().number}", 402)
    return [activity_info().number]


# -- calling


async def test_a_call_in_a_workflow_is_a_step_and_returns_the_value() -> None:
    @workflow(type="sum")
    def total() -> int:
        return add(1, 2) + add(3)

    async with memory(total, add) as app:
        assert await app.execute(total, "t") == 16
        history = await app.history("t")
    assert [e.sequence for e in events(history, "ActivityScheduled")] == [1, 2]
    assert [e.activity_type for e in events(history, "ActivityCompleted")] == ["add", "add"]


@pytest.mark.contract("AUTHOR-07", "ACT-21")
@pytest.mark.one_server("three servers and a balancer in one process take too long for it")
async def test_each_of_a_thousand_activities_runs_exactly_once() -> None:
    @workflow(type="many")
    def many(n: int) -> int:
        return add(n) - n

    async with memory(many, add) as app:
        handles = [await app.start(many, f"m-{n}", n) for n in range(1000)]
        assert [await handle.result() for handle in handles] == [10] * 1000
    assert sorted(seen) == [("add", n, 10, 0) for n in range(1000)]


async def test_keyword_arguments_travel_by_name() -> None:
    @workflow(type="named")
    def named() -> int:
        return add(1, c=5) + add(b=2, a=3)

    async with memory(named, add) as app:
        assert await app.execute(named, "n") == 21
    assert seen == [("add", 1, 10, 5), ("add", 3, 2, 0)]


def test_outside_a_workflow_an_activity_is_the_function() -> None:
    assert add(1, 2, c=3) == 6
    assert add.step(1, 2).run() == 3
    assert asyncio.run(fetch("ann")) == "ANN"
    assert (add.__name__, add.__doc__) == ("add", None)


async def test_inside_an_activity_another_activity_is_the_function() -> None:
    @activity(type="twice")
    def twice(n: int) -> int:
        return add(n, n)

    @workflow(type="nested")
    def nested() -> int:
        return twice(4)

    async with memory(nested, twice, add) as app:
        assert await app.execute(nested, "n") == 8
        assert len(events(await app.history("n"), "ActivityScheduled")) == 1


async def test_an_async_activity_is_awaited_in_async_code_and_run_as_a_step_in_plain_code() -> None:
    @workflow(type="later")
    async def later() -> list[str]:
        return [await fetch("a"), await fetch.step("b")]

    @workflow(type="plain")
    def plain() -> str:
        return fetch.step("c").run()

    async with memory(later, plain, fetch) as app:
        assert await app.execute(later, "l") == ["A", "B"]
        assert await app.execute(plain, "p") == "C"


async def test_an_async_activity_called_in_plain_code_is_a_type_error_that_says_what_to_write() -> None:
    @workflow(type="wrong")
    def wrong() -> str:
        try:
            fetch("a")  # pyright: ignore[reportUnusedCoroutine]
        except TypeError as error:
            return str(error)
        return "nothing"

    async with memory(wrong, fetch) as app:
        assert "fetch.step(...).run()" in await app.execute(wrong, "w")


class Warehouse:
    def __init__(self, town: str) -> None:
        self.town = town

    @activity
    def ship(self, sku: str) -> str:
        return f"{sku} from {self.town}"

    @activity(type="warehouse.count")
    async def count(self, sku: str) -> int:
        return len(sku) + len(self.town)


async def test_method_activities_run_on_the_registered_instance() -> None:
    @workflow(type="ship")
    async def ship() -> tuple[str, int]:
        return Warehouse.ship("cup"), await Warehouse.count("cup")

    async with memory(ship, Warehouse("Graz")) as app:
        assert await app.execute(ship, "s") == ("cup from Graz", 7)
        assert [e.activity_type for e in events(await app.history("s"), "ActivityScheduled")] == [
            "Warehouse.ship",
            "warehouse.count",
        ]


def test_a_method_activity_of_an_instance_is_the_method_outside() -> None:
    assert Warehouse("Rome").ship("cup") == "cup from Rome"
    with pytest.raises(NotInWorkflow):
        Warehouse.ship.step("cup").run()
    with pytest.raises(NotInWorkflow):
        Warehouse.ship("cup")


def test_an_object_without_activity_methods_is_refused() -> None:
    with pytest.raises(DefinitionError, match="no methods decorated"):
        memory(object())


async def test_wrong_arguments_are_the_authors_to_catch_and_leave_no_trace() -> None:
    @workflow(type="wrong")
    def wrong() -> list[int]:
        found: list[int] = []
        for call in (lambda: add(), lambda: add(1, 2, 3), lambda: add(1, d=2), lambda: add(object())):  # type: ignore[call-arg, arg-type]
            try:
                call()
            except (TypeError, ValueError):
                found.append(1)
        return [*found, add(1, 1)]

    for app in (memory(wrong, add), evicting(wrong, add)):
        async with app:
            assert await app.execute(wrong, "w") == [1, 1, 1, 1, 2]
            assert [e.sequence for e in events(await app.history("w"), "ActivityScheduled")] == [1]


async def test_an_activity_that_returns_what_cannot_be_stored_fails_with_the_path() -> None:
    @activity(type="strange")
    def strange() -> Any:
        return {"a": [object()]}

    @workflow(type="odd")
    def odd() -> str:
        try:
            return strange()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    async with memory(odd, strange) as app:
        found = await app.execute(odd, "o")
    assert found.startswith("PayloadError")
    assert "$.a[0]" in found


class Uncountable(int):
    def __int__(self) -> int:
        raise LookupError("no number")


class Unrecordable(Exception):
    """Even the attempt to record it fails."""

    code = Uncountable(1)


async def test_an_exception_that_cannot_be_recorded_ends_its_attempt_all_the_same() -> None:
    @activity(type="broken")
    def broken() -> None:
        raise Unrecordable

    @activity(type="broken later")
    async def broken_later() -> None:
        raise Unrecordable

    @workflow(type="run")
    def run() -> list[str]:
        said: list[str] = []
        for step in (broken.step(), broken_later.step()):
            try:
                step.run()
            except Exception as error:
                said.append(str(error))
        return said

    async with memory(run, broken, broken_later, threads=1, async_tasks=1) as app:
        for id in ("first", "second"):
            said = await asyncio.wait_for(app.execute(run, id), 10)
            assert said == ["<Unrecordable that cannot be recorded>"] * 2
        assert app.executor.holding == set()


# -- declaring


def test_an_activity_must_be_a_plain_function() -> None:
    def produce() -> Any:
        yield 1

    for wrong, words in (
        (staticmethod(len), "staticmethod"),
        (classmethod(lambda cls: 1), "staticmethod or classmethod"),
        (int, "needs a function"),
        (3, "needs a function"),
        (produce, "generator"),
    ):
        with pytest.raises(DefinitionError, match=words):
            activity(wrong)  # type: ignore[call-overload]


@pytest.mark.parametrize("retries", [None, -1, 2.5, "always"])
def test_retries_are_a_number_or_forever(retries: Any) -> None:
    with pytest.raises(DefinitionError, match="a positive whole number or 'forever', not "):
        activity(retries=retries)(lambda: None)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match=r"'retry'; known are .*retries"):
        activity(retry=3)(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match=r"'retry'; known are .*retries"):
        add.options(retry=3)  # type: ignore[call-arg]


@pytest.mark.contract("CMD-05")
async def test_every_option_is_snapped_into_history() -> None:
    @activity(
        type="shop.ship",
        retries=2,
        backoff=["10ms", 0.5, timedelta(seconds=1)],
        timeout="30s",
        start_timeout="1m",
        schedule_timeout="1h30m",
        heartbeat_timeout=5,
        queue="post",
        fatal=(ValueError, "shop.sold_out"),
    )
    def ship(sku: str) -> str:
        return sku

    @workflow(type="options")
    def options() -> str:
        ship.options(retries="forever", backoff="2s", fatal=())("a")
        add.options(retries=1)(1)
        return ship("b")

    async with memory(options, ship, add, queues=("default", "post")) as app:
        assert await app.execute(options, "o") == "b"
        first, second, third = events(await app.history("o"), "ActivityScheduled")
    policy = third.activity.retry_policy
    assert (policy.max_attempts, policy.backoff_seconds) == (3, [0.01, 0.5, 1.0])
    assert policy.non_retryable_error_types == ["builtins:ValueError", "shop.sold_out"]
    assert (policy.start_to_close_timeout, policy.schedule_to_start_timeout) == (30, 60)
    assert (policy.schedule_to_close_timeout, policy.heartbeat_timeout) == (5400, 5)
    assert (third.activity_type, third.activity.routing.queue) == ("shop.ship", "post")
    assert third.activity.payload_codec == "avro"
    assert first.activity.retry_policy.max_attempts is None
    assert first.activity.retry_policy.backoff_seconds == [2.0]
    assert first.activity.retry_policy.non_retryable_error_types == []
    assert second.activity.retry_policy.max_attempts == 2
    assert second.activity.retry_policy.backoff_seconds == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert ship.policy.max_attempts == 3, "options() makes a copy"


@pytest.mark.parametrize("wrong", ["", "3 weeks", "s", "-1s", -1, float("nan"), 1e11, "1h 3x"])
def test_a_duration_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        activity(timeout=wrong)(lambda: None)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "10s", "heartbeat_timeout": "20s"},
        {"timeout": "2h", "schedule_timeout": "1h"},
        {"timeout": 0},
    ],
)
def test_options_that_do_not_fit_together_are_refused_where_they_are_written(options: Any) -> None:
    with pytest.raises(DefinitionError, match="do not fit"):
        activity(**options)(lambda: None)
    with pytest.raises(DefinitionError, match="do not fit"):
        add.options(**options)


@pytest.mark.embedded("asks with verbs of workers, which a client has not")
async def test_an_extern_activity_runs_elsewhere() -> None:
    @activity(type="billing.invoice", queue="php", extern=True)
    def invoice(order: str) -> None:
        raise NotImplementedError

    @workflow(type="bill")
    def bill() -> None:
        return invoice("o-1")

    async with memory(bill, invoice, queues=("default", "php")) as app:
        handle = await app.start(bill, "b")
        task = await app.call(
            ask.PollActivityTask(
                worker_id="php-1", queue="php", activity_types=frozenset({"billing.invoice"}), wait_seconds=5
            )
        )
        assert task is not None
        assert (task.activity_type, task.attempt_number) == ("billing.invoice", 1)
        done = ask.CompleteActivityTask(activity_attempt_id=task.activity_attempt_id, lease_owner="php-1", result=None)
        assert (await app.call(done)).outcome == "completed"
        assert await handle.result() is None


# -- failing


@pytest.mark.contract("ACT-09", "ACT-15", "ACT-07")
async def test_a_failing_activity_is_tried_again_under_one_idempotency_key() -> None:
    @workflow(type="retry")
    def retry() -> list[int]:
        return flaky(2)

    async with memory(retry, flaky) as app:
        handle = await app.start(retry, "r")
        assert await handle.result() == [3]
        history = await app.history("r")
    assert [number for number, _, _ in seen] == [1, 2, 3]
    assert {key for _, key, _ in seen} == {f"{handle.run_id}-1"}
    assert len({id for _, _, id in seen}) == 3
    assert names(history)[3:] == [
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]
    again = events(history, "ActivityRetryScheduled")
    assert [e.retry_after_attempt for e in again] == [1, 2]
    assert [e.message for e in again] == ["try 1", "try 2"]


@pytest.mark.contract("ACT-17", "FAIL-05")
async def test_an_exhausted_budget_raises_the_exception_it_was_in_the_workflow() -> None:
    @workflow(type="catch")
    def catch() -> tuple[str, str, int]:
        try:
            flaky.options(retries=1, backoff=0)(9)
        except Declined as error:
            return type(error).__name__, str(error), error.code
        return "", "", 0

    async with evicting(catch, flaky) as app:
        assert await app.execute(catch, "c") == ("Declined", "try 2", 402)
        history = await app.history("c")
    assert len(seen) == 2
    assert len(events(history, "ActivityFailed")) == 1
    assert len(events(history, "FailureHandled")) == 1


@pytest.mark.contract("FAIL-04")
async def test_a_caught_failure_is_recorded_as_handled_and_an_uncaught_one_is_not() -> None:
    @workflow(type="uncaught")
    def uncaught() -> None:
        flaky.options(retries=0)(9)

    async with memory(uncaught, flaky) as app:
        with pytest.raises(WorkflowFailed, match=r"try 1") as caught:
            await app.execute(uncaught, "u")
        history = await app.history("u")
    assert isinstance(caught.value.__cause__, Declined)
    assert caught.value.__cause__.code == 402
    assert names(history)[-2:] == ["ActivityFailed", "WorkflowFailed"]


@pytest.mark.contract("ACT-18")
@pytest.mark.parametrize(
    ("fatal", "tries"),
    [((Declined,), 1), ((f"{__name__}.Declined",), 1), ((KeyError,), 3), ((), 3)],
)
async def test_a_fatal_exception_is_not_tried_again(fatal: Any, tries: int) -> None:
    @workflow(type="fatal")
    def run() -> int:
        try:
            flaky.options(retries=2, fatal=fatal)(9)
        except Declined:
            return 1
        return 0

    async with memory(run, flaky) as app:
        assert await app.execute(run, "f") == 1
    assert len(seen) == tries


@pytest.mark.parametrize("how", ["subclass", "local class"])
async def test_fatal_means_what_except_means(how: str) -> None:
    class Local(Exception):
        pass

    raised, named = (DeclinedForGood("no", 1), Declined) if how == "subclass" else (Local("no"), Local)

    @activity(type="fails", retries=3, backoff=0, fatal=(named,))
    def fails() -> None:
        seen.append(1)
        raise raised

    @workflow(type="fatal")
    def run() -> None:
        fails()

    async with memory(run, fails) as app:
        with pytest.raises(WorkflowFailed):
            await app.execute(run, "f")
    assert len(seen) == 1


@pytest.mark.contract("ACT-18")
async def test_a_failure_that_says_it_is_final_is_not_tried_again() -> None:
    class Final(Exception):
        non_retryable = True

    @activity(type="final", retries="forever", backoff=0)
    def final() -> None:
        seen.append(1)
        raise Final("enough")

    @workflow(type="run")
    def run() -> None:
        final()

    async with memory(run, final) as app:
        with pytest.raises(WorkflowFailed, match="enough"):
            await app.execute(run, "f")
    assert len(seen) == 1


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_work_whose_result_cannot_be_stored_is_not_done_again(kind: str, local: bool) -> None:
    @activity(type="charge", retries=3, backoff=0, local=local)
    def charge() -> Any:
        seen.append(activity_info().number)
        return {"response": object()}

    @activity(type="charge", retries=3, backoff=0, local=local)
    async def charge_later() -> Any:
        seen.append(activity_info().number)
        return {"response": object()}

    used: Any = charge if kind == "def" else charge_later

    @workflow(type="charged")
    def charged() -> str:
        try:
            return used.step().run()
        except ValueError as error:
            return str(error)

    async with memory(charged, used) as app:
        assert "$.response" in await app.execute(charged, "c")
    assert seen == [1]


@pytest.mark.contract("ACT-18")
async def test_the_backoff_delays_the_next_attempt() -> None:
    @workflow(type="pause")
    def pause() -> list[int]:
        return flaky.options(backoff=[0.01, 0.03])(3)

    async with memory(pause, flaky) as app:
        assert await app.execute(pause, "p") == [4]
        history = await app.history("p")
    started = [entry.at for entry in history if entry.type == "ActivityStarted"]
    gaps = [later - earlier for earlier, later in pairwise(started)]
    assert [gap >= least for gap, least in zip(gaps, (10_000, 30_000, 30_000), strict=True)] == [True] * 3


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("ACT-16")
async def test_the_retry_policy_is_the_one_of_the_scheduling(tmp_path: Any) -> None:
    gate = threading.Event()

    @activity(type="work", retries=1, backoff=0.3)
    def before() -> None:
        gate.set()
        raise Declined("before", 1)

    @activity(type="work", retries=9, backoff=0)
    def after() -> None:
        seen.append(activity_info().number)
        raise Declined("after", 2)

    @workflow(type="run")
    def first() -> None:
        before()

    @workflow(type="run")
    def second() -> None:
        after()

    async with AsyncBackstay(tmp_path / "a.db", [first, before]) as app:
        await app.start(first, "r")
        await eventually(gate.is_set)
        await eventually(lambda: _scheduled_again(app))
    async with AsyncBackstay(tmp_path / "a.db", [second, after]) as app:
        with pytest.raises(WorkflowFailed, match="after"):
            await app.handle(second, "r").result()
    assert seen == [2]


async def _scheduled_again(app: Any) -> bool:
    return "ActivityRetryScheduled" in names(await app.history("r"))


# -- timeouts


@pytest.mark.contract("ACT-19")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("start_to_close", {"timeout": 0.02}),
        ("schedule_to_close", {"schedule_timeout": 0.02, "retries": "forever"}),
        ("heartbeat", {"heartbeat_timeout": 0.02}),
        ("schedule_to_start", {"start_timeout": 0.02, "queue": "nobody"}),
    ],
)
async def test_each_timeout_is_enforced(kind: str, options: Any) -> None:
    over = threading.Event()

    @activity(type="slow", **options)
    def slow() -> None:
        over.wait(10)

    @workflow(type="run")
    def run() -> str:
        try:
            slow()
        except TimeoutError as error:
            return error.timeout_kind if isinstance(error, ActivityTimedOut) else "another"
        return "none"

    async with memory(run, slow) as app:
        try:
            assert await app.execute(run, "r") == kind
        finally:
            over.set()
        (event,) = events(await app.history("r"), "ActivityTimedOut")
    assert (event.timeout_kind, event.failure_category) == (kind, "timeout")


@pytest.mark.embedded("its clock is the test's")
@pytest.mark.contract("ACT-08")
async def test_a_timed_out_attempt_is_tried_again_and_its_late_result_is_ignored() -> None:
    gate = threading.Event()

    @activity(type="slow", retries=1, backoff=0, timeout=30)
    def slow() -> int:
        number = activity_info().number
        if number == 1:
            gate.wait(10)
        return number

    @workflow(type="run")
    def run() -> int:
        found = slow()
        sleep(0.02)
        return found

    async with memory(run, slow, world=StillWorld) as app:
        world: Any = app.engine.world
        handle = await app.start(run, "r")

        async def recorded(event: str) -> bool:
            return event in names(await app.history("r"))

        await eventually(lambda: recorded("ActivityStarted"))
        await world.advance(31)
        await eventually(lambda: recorded("ActivityCompleted"))
        gate.set()
        await world.advance(1)
        assert await handle.result() == 2
        history = await app.history("r")
    assert [e.attempt_number for e in events(history, "ActivityCompleted")] == [2]
    assert [e.timeout_kind for e in events(history, "ActivityRetryScheduled")] == ["start_to_close"]


# -- heartbeats


async def test_progress_of_a_heartbeat_is_recorded() -> None:
    @activity
    def copy() -> None:
        heartbeat("copying", current=3, total=10, unit="files", folder="a")

    @workflow(type="run")
    def run() -> None:
        copy()

    async with memory(run, copy) as app:
        await app.execute(run, "r")
        (event,) = events(await app.history("r"), "ActivityHeartbeatRecorded")
    progress = event.progress
    assert (progress.message, progress.current, progress.total, progress.unit) == ("copying", 3, 10, "files")
    assert progress.details == {"folder": "a"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"current": -1}, ValueError),
        ({"unit": "files"}, None),
        ({"message": "x", "unit": "files"}, ValueError),
        ({"folder": ["a"]}, TypeError),
        ({"message": {"a": 1}}, TypeError),
        ({"message": 5}, TypeError),
        ({"current": "3"}, TypeError),
        ({"current": True}, TypeError),
        ({"current": 1, "unit": 5}, TypeError),
        ({f"k{n}": n for n in range(21)}, ValueError),
    ],
)
async def test_a_heartbeat_that_says_nonsense_is_refused(arguments: Any, error: type[Exception] | None) -> None:
    @activity(type="beat")
    def beat() -> str:
        try:
            heartbeat(**arguments)
        except Exception as raised:
            return type(raised).__name__
        return ""

    @workflow(type="run")
    def run() -> str:
        return beat()

    async with memory(run, beat) as app:
        assert await app.execute(run, "r") == ("" if error is None else error.__name__)


def test_outside_an_activity_a_heartbeat_does_nothing_and_there_is_no_attempt() -> None:
    heartbeat("hello")
    with pytest.raises(Exception, match="only inside an activity"):
        activity_info()


@pytest.mark.embedded("its clock is the test's")
async def test_a_heartbeat_of_a_closed_run_raises_and_plain_code_is_not_stopped() -> None:
    begun, told = threading.Event(), threading.Event()

    @activity
    def work() -> None:
        begun.set()
        while True:
            try:
                heartbeat()
            except ActivityCancelled:
                seen.append(activity_info().cancelled)
                told.set()
                raise
            told.wait(0.002)

    @workflow(type="run")
    def run() -> None:
        work()

    async with memory(run, work, world=StillWorld) as app:
        world: Any = app.engine.world
        handle = await app.options(run_timeout=30).start(run, "r")
        await eventually(begun.is_set)
        await world.advance(31)
        with pytest.raises(WorkflowTimedOut):
            await handle.result()
        await eventually(told.is_set)
        history = await app.history("r")
    assert seen == [True]
    assert names(history)[-2:] == ["ActivityCancelled", "WorkflowTimedOut"]


@pytest.mark.embedded("its clock is the test's")
async def test_an_async_activity_of_a_closed_run_is_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @activity
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise

    @workflow(type="run")
    def run() -> None:
        wait.step().run()

    async with memory(run, wait, world=StillWorld) as app:
        world: Any = app.engine.world
        handle = await app.options(run_timeout=30).start(run, "r")
        await begun.wait()
        await world.advance(31)
        with pytest.raises(WorkflowTimedOut):
            await handle.result()
        await ended.wait()


async def test_an_async_activity_whose_run_closes_before_it_begins_gives_its_room_back() -> None:
    @activity(type="late")
    async def late() -> None:
        seen.append("began")

    @workflow(type="run")
    def run() -> None:
        late.step().run()

    async with memory(run, late, async_tasks=1) as app:
        deliver = app.executor.deliver

        def deliver_and_close(assignment: Any) -> None:
            deliver(assignment)
            app.executor.closed(assignment.run_id)

        app.executor.deliver = deliver_and_close
        with pytest.raises(WorkflowFailed, match="no longer wanted"):
            await asyncio.wait_for(app.execute(run, "r"), 10)
        assert app.executor.activities.has_room("late")
        assert (seen, app.executor.holding) == ([], set())


# -- cancellation that nobody asked for


async def _cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def _raise_cancelled() -> None:
    raise asyncio.CancelledError


async def _await_what_is_cancelled() -> None:
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


async def _have_itself_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(60)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    "cancelled", [_cancel_own_task, _raise_cancelled, _await_what_is_cancelled, _have_itself_cancelled]
)
async def test_a_cancellation_without_a_request_fails_the_attempt(cancelled: Any, local: bool) -> None:
    @activity(type="unsteady", retries=1, backoff=0, local=local)
    async def unsteady(times: int) -> str:
        seen.append(activity_info().number)
        if activity_info().number <= times:
            await cancelled()
        return "done"

    @workflow(type="run")
    async def run(times: int) -> str:
        return await unsteady(times)

    async with memory(run, unsteady, async_tasks=1) as app:
        assert await asyncio.wait_for(app.execute(run, "r", 1), PATIENCE) == "done"
        with pytest.raises(WorkflowFailed, match="activity 'unsteady' was cancelled, but not by Backstay"):
            await asyncio.wait_for(app.execute(run, "f", 2), PATIENCE)
        history = await app.history("r")
        assert app.executor.activities.has_room("unsteady")
    assert seen == [1, 2, 1, 2]
    (retry,) = events(history, "ActivityRetryScheduled")
    assert retry.exception_type == "asyncio.exceptions.CancelledError"
    assert "but not by Backstay" in retry.message


async def test_the_message_of_a_cancellation_is_recorded() -> None:
    @activity(type="unsteady", retries=0)
    async def unsteady() -> None:
        raise asyncio.CancelledError("no time")

    @workflow(type="run")
    async def run() -> None:
        await unsteady()

    async with memory(run, unsteady) as app:
        with pytest.raises(WorkflowFailed, match="no time"):
            await asyncio.wait_for(app.execute(run, "r"), PATIENCE)


def test_a_loop_that_ends_with_its_app_open_fails_no_attempt(tmp_path: Path) -> None:
    @activity(type="work", retries=0)
    async def work() -> None:
        seen.append(activity_info().number)
        await asyncio.sleep(60)

    @workflow(type="run")
    async def run() -> None:
        await work()

    app = AsyncBackstay(tmp_path / "a.db", [run, work])

    async def leave_it_open() -> None:
        await app.open()
        await app.start(run, "r")
        await eventually(lambda: seen)

    async def read() -> list[str]:
        async with AsyncBackstay(tmp_path / "a.db", [run, work], client_only=True) as reader:
            return names(await reader.history("r"))

    asyncio.run(leave_it_open())
    assert asyncio.run(read())[-1] == "ActivityStarted"

    async def close() -> None:
        assert app.store is not None
        await app.store.close()

    asyncio.run(close())


# -- registration


def test_one_type_key_for_two_activities_is_refused() -> None:
    @activity(type="same")
    def one() -> None: ...

    @activity(type="same")
    def two() -> None: ...

    with pytest.raises(DefinitionError, match=r"'same' is claimed by .*one and by .*two"):
        memory(one, two)


@pytest.mark.contract("TYPE-01")
async def test_the_type_map_names_an_activity_without_a_name_of_its_own() -> None:
    @activity
    def nameless() -> str:
        return "ok"

    @workflow(type="run")
    def run() -> str:
        return nameless()

    async with memory(run, types=Types(activities={"shop.nameless": nameless})) as app:
        assert await app.execute(run, "r") == "ok"
        assert events(await app.history("r"), "ActivityScheduled")[0].activity_type == "shop.nameless"


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("grace", "calls"), [(30.0, 1), (0.0, 2)])
async def test_an_activity_that_runs_when_its_app_closes_gets_time_to_end(
    tmp_path: Path, grace: float, calls: int, local: bool
) -> None:
    begun: list[int] = []
    at_work = asyncio.Event()
    enough = asyncio.Event()

    @activity(type="slow", local=local)
    async def slow() -> str:
        begun.append(1)
        at_work.set()
        await enough.wait()
        return "done"

    @workflow(type="patient")
    async def patient() -> str:
        return await slow()

    async with AsyncBackstay(tmp_path / "app.db", [patient, slow], grace=grace) as app:
        await app.start(patient, "p")
        await at_work.wait()
        asyncio.get_running_loop().call_later(0.01, enough.set)
    async with AsyncBackstay(tmp_path / "app.db", [patient, slow]) as app:
        assert await app.handle(patient, "p").result() == "done"
    assert len(begun) == calls


@pytest.mark.embedded("opens apps of its own")
async def test_an_activity_that_was_taken_and_has_not_begun_when_its_app_closes_gets_time_to_end(
    postgresql_url: str,
) -> None:
    begun: list[int] = []
    enough = asyncio.Event()

    @activity(type="slow")
    async def slow() -> str:
        begun.append(1)
        asyncio.get_running_loop().call_later(0.1, enough.set)
        await enough.wait()
        return "done"

    @workflow(type="patient")
    async def patient() -> str:
        return await slow()

    async with AsyncBackstay(postgresql_url, [patient, slow]) as app:
        free = app.executor.activities._free
        before = dict(free)
        starting = asyncio.create_task(app.start(patient, "p"))
        while free == before:
            await asyncio.sleep(0)
        assert not begun, "its lease is not on disk yet"
    await starting
    async with AsyncBackstay(postgresql_url, [patient, slow]) as app:
        assert await app.handle(patient, "p").result() == "done"
    assert len(begun) == 1


@pytest.mark.embedded("a server stays open")
async def test_an_activity_that_ends_after_its_app_closed_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, enough = threading.Event(), threading.Event()

    @activity(type="slow")
    def slow() -> None:
        begun.set()
        enough.wait(10)

    @workflow(type="run")
    def run() -> None:
        slow()

    async with AsyncBackstay(tmp_path / "app.db", [run, slow], grace=0) as app:
        await app.start(run, "r")
        await eventually(begun.is_set)
    enough.set()
    await eventually(lambda: not app.executor.holding, "its end")
    await settle()
    assert (caplog.records, app.engine.down) == ([], None)
