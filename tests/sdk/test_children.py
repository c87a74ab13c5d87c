"""Workflows that call workflows: results, failures, handles, signals, options, background calls.

Every story is told twice: by live code that stays, and by code that is given up and replayed after each of its tasks.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    Cancelled,
    ChildStopped,
    DefinitionError,
    NotInWorkflow,
    Signal,
    WorkflowFailed,
    activity,
    background,
    child,
    children,
    continue_as_new,
    gather,
    info,
    query,
    race,
    signal,
    sleep,
    update,
    wait,
    workflow,
)
from backstay.codec.values import loads
from backstay.kernel.event import Recorded

from ..store.seam import connection_of
from .kit import events, eventually, evicting, memory, names


class OutOfStock(Exception):
    pass


@activity(type="echo")
def echo(value: Any) -> Any:
    return value


@workflow(type="double")
def double(n: int) -> int:
    return echo(n) * 2


@workflow(type="double-later")
async def double_later(n: int) -> int:
    await sleep.step(0.01)
    return n * 2


@workflow(type="refuse")
def refuse(text: str) -> None:
    raise OutOfStock(text)


@workflow(type="long")
def long() -> str:
    sleep("1h")
    return "late"


@workflow(type="thrice")
def thrice(left: int) -> str:
    if left:
        continue_as_new(thrice, left - 1)
    return f"run {info().run_number}"


tries: dict[str, int] = {}


@workflow(type="moody")
def moody(key: str, failures: int) -> int:
    count = tries[key] = echo(tries.get(key, 0) + 1)
    if count <= failures:
        raise OutOfStock(f"try {count}")
    return count


@workflow(type="approval")
class Approval:
    """Waits to be told by whom it is approved."""

    def __init__(self) -> None:
        self.by: list[str] = []

    @signal
    def approved_by(self, name: str) -> None:
        self.by.append(name)

    @query
    def names(self) -> list[str]:
        return self.by

    def handle(self, needed: int) -> list[str]:
        wait(lambda: len(self.by) >= needed)
        return self.by


FAMILY = [echo, double, double_later, refuse, long, thrice, moody, Approval]


async def told(definition: Any, *args: Any) -> tuple[Any, list[Recorded]]:
    """The result and history of a run, which must be the same however often its code is replayed."""
    found: list[tuple[Any, list[Recorded]]] = []
    for app in (memory(definition, *FAMILY), evicting(definition, *FAMILY)):
        tries.clear()
        async with app:
            result = await app.execute(definition, "run", *args)
            found.append((result, await app.history("run")))
    assert found[0][0] == found[1][0]
    return found[1]


# -- results and failures


@pytest.mark.contract("CHILD-01", "CHILD-10")
async def test_calling_a_workflow_in_a_workflow_is_a_child() -> None:
    @workflow
    def run() -> list[Any]:
        return [double(2), child(double, 3), child("double", 4), double.step(5).run(), child(double_later, 6)]

    result, history = await told(run)
    assert result == [4, 6, 8, 10, 12]
    assert names(history).count("ChildRunCompleted") == 5


@pytest.mark.contract("CHILD-10")
async def test_a_coroutine_awaits_its_children() -> None:
    @workflow
    async def run() -> list[Any]:
        return [await double.step(2), await double_later(3), await child.step(double, 4)]

    assert (await told(run))[0] == [4, 6, 8]


@pytest.mark.contract("CHILD-10", "CHILD-12")
async def test_the_failure_of_a_child_is_raised_and_can_be_caught() -> None:
    @workflow
    def run() -> str:
        try:
            refuse("no bolts")
        except OutOfStock as error:
            return f"caught {error}; {echo(1)}"
        return ""

    result, history = await told(run)
    assert result == "caught no bolts; 1"
    assert "FailureHandled" in names(history)


async def test_an_uncaught_failure_of_a_child_fails_its_parent() -> None:
    @workflow
    def run() -> None:
        refuse("no bolts")

    async with memory(run, *FAMILY) as app:
        with pytest.raises(WorkflowFailed) as caught:
            await app.execute(run, "run")
        assert isinstance(caught.value.__cause__, OutOfStock)


@pytest.mark.contract("CHILD-11")
@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
async def test_a_stopped_child_ends_the_wait_with_its_own_exception(verb: str, status: str) -> None:
    @workflow
    def run() -> str:
        try:
            return long()
        except ChildStopped as stopped:
            return stopped.status

    for make in (memory, evicting):
        async with make(run, *FAMILY) as app:
            handle = await app.start(run, "run")
            instance = await child_id(app, "run")
            await getattr(app.handle(long, instance), verb)()
            assert await handle.result(timeout=10) == status


async def child_id(app: AsyncBackstay, parent: str, step: int = 1) -> str:
    async def look() -> str | None:
        for event in events(await app.history(parent), "ChildWorkflowScheduled"):
            if event.sequence == step and await exists(app, event.child_workflow_instance_id):
                return event.child_workflow_instance_id
        return None

    return await eventually(look, "the child started")


async def exists(app: AsyncBackstay, id: str) -> bool:
    return await app.engine.store.find("default", id) is not None


async def test_a_child_that_takes_too_long_times_out() -> None:
    @workflow
    def run() -> str:
        try:
            return child.options(timeout="20ms")(long)
        except TimeoutError as error:
            return type(error).__name__

    assert (await told(run))[0] == "ChildTimedOut"


async def test_a_failed_child_is_tried_again() -> None:
    @workflow
    def run() -> int:
        return child.options(retries=2, backoff="1ms")(moody, "k", 2)

    result, history = await told(run)
    assert result == 3
    started = events(history, "ChildRunStarted")
    assert [event.child_run_number for event in started] == [1, 2, 3]
    assert [event.retry_attempt for event in started] == [None, 2, 3]
    assert len({event.child_call_id for event in started}) == 1
    assert "ChildRunFailed" not in names(history)


async def test_a_fatal_child_failure_is_not_tried_again() -> None:
    @workflow
    def run() -> str:
        try:
            child.options(retries=5, fatal=[OutOfStock])(moody, "k", 9)
        except OutOfStock as error:
            return str(error)
        return ""

    assert (await told(run))[0] == "try 1"


@pytest.mark.parametrize("app", [memory, evicting])
async def test_the_ids_of_a_child_are_there_after_the_next_wait(app: Any) -> None:
    @workflow
    def kid() -> None: ...

    @workflow
    def run() -> list[Any]:
        handle = child.start(kid)
        at_once = [handle.id, handle.run_id]
        sleep("1ms")
        return [at_once, handle.id, handle.run_id]

    async with app(kid, run) as backstay:
        at_once, id, run_id = await backstay.execute(run, "r")
        (event,) = events(await backstay.history("r"), "ChildWorkflowScheduled")
    assert at_once == [None, None]
    assert (id, run_id) == (event.child_workflow_instance_id, event.child_workflow_run_id)


on = Signal[None]("on")


@workflow(type="relay", signals=[on])
def relay(left: int) -> str:
    wait(on)
    if left:
        continue_as_new(relay, left - 1)
    return info().run_id


@pytest.mark.contract("HNDL-04")
async def test_a_handle_follows_the_runs_that_its_parent_was_told_of_and_keeps_its_call() -> None:
    @workflow(type="coach")
    class Coach:
        handle_of: Any = None

        @query
        def ids(self) -> list[Any]:
            handle = self.handle_of
            return [handle.id, handle.run_id, handle.call_id]

        def handle(self) -> list[Any]:
            self.handle_of = child.start(relay, 2)
            ran = self.handle_of.join()
            return [ran, *self.ids()]

    for make in (memory, evicting):
        async with make(Coach, relay, *FAMILY) as app:
            coach = await app.start(Coach, "run")
            instance = await child_id(app, "run")
            (call,) = events(await app.history("run"), "ChildWorkflowScheduled")
            runs: list[str] = []
            for number in (1, 2, 3):

                async def newest(number: int = number) -> str | None:
                    found = events(await app.history("run"), "ChildRunStarted")
                    return found[-1].child_workflow_run_id if len(found) == number else None

                runs.append(await eventually(newest, f"the parent was told of run {number}"))
                assert await coach.query("ids") == [instance, runs[-1], call.child_call_id]
                await app.handle(relay, instance).signal(on, None)
            assert len(set(runs)) == 3
            assert await coach.result(timeout=10) == [runs[-1], instance, runs[-1], call.child_call_id]


@pytest.mark.contract("CHILD-13", "CHILD-14")
async def test_a_child_that_continues_as_new_is_waited_for() -> None:
    @workflow
    def run() -> list[Any]:
        handle = child.start(thrice, 3)
        first, call = handle.run_id, handle.call_id
        value = handle.join()
        return [value, first != handle.run_id, call == handle.call_id, handle.id is not None]

    result, history = await told(run)
    assert result == ["run 4", True, True, True]
    started = events(history, "ChildRunStarted")
    assert [event.child_run_number for event in started] == [1, 2, 3, 4]
    (scheduled,) = events(history, "ChildWorkflowScheduled")
    assert {event.child_call_id for event in started} == {scheduled.child_call_id}
    assert len({event.child_workflow_run_id for event in started}) == 4
    (done,) = events(history, "ChildRunCompleted")
    assert (done.child_call_id, done.child_workflow_run_id) == (
        scheduled.child_call_id,
        started[-1].child_workflow_run_id,
    )


async def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(DefinitionError, match="parent_close"):
        child.options(parent_closes="terminate")  # type: ignore[call-arg]


def test_outside_a_workflow_there_are_no_children() -> None:
    with pytest.raises(NotInWorkflow):
        child.start(double, 1)
    with pytest.raises(NotInWorkflow):
        children()


# -- handles


@pytest.mark.contract("HNDL-01", "HNDL-02", "HNDL-03")
async def test_handles_are_what_history_knows() -> None:
    @workflow
    def run() -> list[Any]:
        none = [child(), children()]
        double(1)
        first = child()
        double(2)
        second = child()
        gather(double.step(3), double.step(4), double.step(5))
        last = child()
        assert first is not None
        assert second is not None
        assert last is not None
        return [*none, *(own(handle) for handle in (first, second, last)), [own(handle) for handle in children()]]

    def own(handle: Any) -> str:
        """The part of a call's id that is the same in every run of this code."""
        return handle.call_id.rpartition("-")[2]

    result, history = await told(run)
    calls = events(history, "ChildWorkflowScheduled")
    assert [loads(call.arguments) for call in calls] == [[1], [2], [3], [4], [5]]
    ids = [call.child_call_id.rpartition("-")[2] for call in calls]
    assert len(set(ids)) == 5
    assert result == [None, [], ids[0], ids[1], ids[4], ids], "in the order of the calls, in a group as well"


async def test_several_started_children_are_joined_in_any_order() -> None:
    @workflow
    def run() -> list[Any]:
        a, b, c = child.start(double, 1), child.start(double_later, 2), child.start(double, 3)
        echo(0)
        return [c.join(), b.join(), a.join(), a.join()]

    assert (await told(run))[0] == [6, 4, 2, 2]


async def test_a_started_child_is_awaited_in_a_coroutine() -> None:
    @workflow
    async def run() -> list[Any]:
        a, b = child.start(double_later, 1), child.start(double, 2)
        return [await b, await a]

    assert (await told(run))[0] == [4, 2]


async def test_the_failure_of_a_started_child_is_raised_at_its_join() -> None:
    @workflow
    def run() -> str:
        handle = child.start(refuse, "no")
        echo(1)
        sleep(0.02)
        try:
            handle.join()
        except OutOfStock as error:
            return str(error)
        return ""

    assert (await told(run))[0] == "no"


async def test_a_looked_up_handle_cannot_be_joined() -> None:
    @workflow
    def run() -> str:
        double(1)
        try:
            children()[0].join()
        except DefinitionError as error:
            return str(error)
        return ""

    assert "child.start()" in (await told(run))[0]


# -- signals


@pytest.mark.contract("HNDL-05")
async def test_a_parent_signals_its_child_in_every_way_there_is() -> None:
    @workflow
    def run() -> list[str]:
        handle = child.start(Approval, 3)
        handle.signal(Approval.approved_by, "Ann")
        handle.signal("approved_by", "Bob")
        handle.approved_by("Cyd")
        return handle.join()

    result, history = await told(run)
    assert result == ["Ann", "Bob", "Cyd"]
    assert names(history).count("ChildSignalSent") == 3


async def test_a_method_that_is_no_signal_is_an_attribute_error() -> None:
    @workflow
    def run() -> str:
        handle = child.start(Approval, 0)
        try:
            handle.aproved_by("Cyd")
        except AttributeError as error:
            return str(error)
        return ""

    assert "declares no signal 'aproved_by'" in (await told(run))[0]


async def test_a_coroutine_signals_its_child() -> None:
    @workflow
    async def run() -> list[str]:
        handle = child.start(Approval, 1)
        await sleep.step(0.005)
        handle.approved_by("Ann")
        return await handle

    assert (await told(run))[0] == ["Ann"]


@workflow(type="desk")
class Desk:
    """A parent whose update and queries reach its child."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @update
    def approve(self, name: str) -> str | None:
        handle = child()
        if handle is None:
            return None
        handle.approved_by(name)
        self.seen.append(name)
        return handle.call_id

    @query
    def look(self) -> list[Any]:
        handle = child()
        return [None if handle is None else handle.id, len(children()), self.seen]

    def handle(self, needed: int) -> list[str]:
        found = child(Approval, needed)
        echo(1)
        return found


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("HNDL-02", "HNDL-06", "HNDL-07")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_an_update_signals_the_child_exactly_once_and_queries_never(make: Any) -> None:
    async with make(Desk, *FAMILY) as app:
        handle = await app.start(Desk, "run", 2)
        instance = await child_id(app, "run")
        assert await handle.query(Desk.look) == [instance, 1, []]
        assert await handle.update(Desk.approve, "Ann") is not None
        for _ in range(3):
            assert await handle.query(Desk.look) == [instance, 1, ["Ann"]]
        approval = app.handle(Approval, instance)
        await eventually(lambda: names_of(approval), "the signal arrived")
        assert await approval.query(Approval.names) == ["Ann"]
        await handle.update(Desk.approve, "Bob")
        assert await handle.result(timeout=10) == ["Ann", "Bob"]
        received = events(await app.history(instance), "SignalReceived")
        assert len(received) == 2
        assert names(await app.history("run")).count("ChildSignalSentByUpdate") == 2


async def names_of(handle: Any) -> list[str]:
    return await handle.query(Approval.names)


@pytest.mark.contract("CHILD-15")
async def test_a_query_of_a_parent_waits_with_it_whatever_the_rows_of_the_child_say() -> None:
    @workflow(type="asked")
    class Asked:
        def __init__(self) -> None:
            self.at = "beginning"

        @query
        def where(self) -> str:
            return self.at

        def handle(self) -> str:
            self.at = "calling"
            try:
                return long()
            finally:
                self.at = "stopped"

    for make in (memory, evicting):
        async with make(Asked, *FAMILY) as app:
            handle = await app.start(Asked, "run")
            instance = await child_id(app, "run")
            assert await handle.query("where") == "calling"
            connection = connection_of(app.store)
            closing = "update run set status = 'completed', closed_reason = 'completed', closed_at = 1"
            assert connection.execute(f"{closing} where workflow_id = ?", (instance,)).rowcount == 1
            for entry in list(app.engine.cache):
                app.engine.discard_cached(entry)
            assert await handle.query("where") == "calling", "the parent's own history has no end of it"
            assert not [name for name in names(await app.history("run")) if name.startswith("ChildRunCompleted")]
            await app.handle(long, instance).terminate()
            with pytest.raises(WorkflowFailed):
                await handle.result(timeout=10)
            assert await handle.query("where") == "stopped"


# -- what becomes of them


@pytest.mark.contract("PCP-01", "PCP-02", "PCP-03")
async def test_children_are_abandoned_cancelled_or_terminated_with_their_parent() -> None:
    @workflow
    def run() -> list[Any]:
        kept = child.start(long)
        asked = child.options(parent_close="request_cancel").start(long)
        ended = child.options(parent_close="terminate").start(long)
        echo(1)
        return [kept.id, asked.id, ended.id]

    async with memory(run, *FAMILY) as app:
        ids = await app.execute(run, "run")

        async def look() -> list[str] | None:
            found = [(await app.describe(id)).status for id in ids]
            return found if found[1:] == ["cancelled", "terminated"] else None

        assert (await eventually(look, "the policies were enforced"))[0] not in ("cancelled", "terminated")
        await eventually(lambda: applied(app), "the parent recorded it")


cleaned: list[str] = []


@activity
def clean(what: str) -> None:
    cleaned.append(what)


@workflow(type="careful", handles_cancel="5m")
def careful() -> str:
    try:
        sleep("1h")
    except Cancelled:
        clean("the child")
        raise
    return "not cancelled"


@pytest.mark.contract("PCP-05", "PCP-08")
async def test_a_child_that_handles_cancellation_cleans_up_after_its_parent_has_closed() -> None:
    @workflow
    def run() -> str | None:
        started = child.options(parent_close="request_cancel").start(careful)
        echo(1)
        return started.id

    cleaned.clear()
    async with memory(run, careful, clean, *FAMILY) as app:
        id = await app.execute(run, "run")
        assert id is not None
        assert (await app.describe("run")).status == "completed"

        async def closed() -> bool:
            return (await app.describe(id)).status == "cancelled"

        await eventually(closed, "the child has cleaned up and closed")
        assert cleaned == ["the child"], "its own code ran, once, after the request"
        history = await app.history(id)
        told = names(history)
        assert told.index("CancelRequested") < told.index("ActivityScheduled") < told.index("WorkflowCancelled")
        (asked,) = [entry.event for entry in history if entry.type == "CancelRequested"]
        assert "parent workflow run closed: completed" in (asked.reason or "")  # type: ignore[attr-defined]

        async def recorded() -> bool:
            return "ParentClosePolicyApplied" in names(await app.history("run"))

        await eventually(recorded, "the parent knows")


async def applied(app: AsyncBackstay) -> bool:
    return names(await app.history("run")).count("ParentClosePolicyApplied") == 2


# -- asyncio's own tools


async def test_asyncio_gather_and_task_groups_work_over_children() -> None:
    @workflow
    async def run() -> list[Any]:
        first = await asyncio.gather(double.step(1), double_later.step(2), echo.step(3))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(as_coroutine(n)) for n in range(3)]
        done, pending = await asyncio.wait([asyncio.ensure_future(as_coroutine(7))])
        return [list(first), [task.result() for task in tasks], len(done), len(pending)]

    async def as_coroutine(n: int) -> int:
        return await double.step(n) + await double_later.step(n)

    assert (await told(run))[0] == [[2, 4, 3], [0, 4, 8], 1, 0]


@pytest.mark.needs_links("the child, perhaps at another node, answers within 50 ms")
async def test_a_timeout_gives_a_child_up_and_asks_it_to_stop() -> None:
    @workflow
    async def run() -> str:
        try:
            async with asyncio.timeout(0.02):
                return await long.step()
        except TimeoutError:
            await sleep.step(0.05)
            return "gave up"

    result, history = await told(run)
    assert result == "gave up"
    assert names(history)[-3:].count("ChildRunCancelled") == 1


async def test_a_failing_task_group_cancels_its_other_children() -> None:
    @workflow
    async def run() -> list[str]:
        found: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(as_task(refuse.step("no")))
                group.create_task(as_task(long.step()))
        except* OutOfStock as caught:
            found = [str(error) for error in caught.exceptions]
        return found

    async def as_task(step: Any) -> Any:
        return await step

    result, history = await told(run)
    assert result == ["no"]
    assert names(history).count("ChildWorkflowScheduled") == 2


# -- background


def add(a: int, b: int = 0) -> int:
    return echo(a) + b


def both(n: int) -> list[int]:
    return list(gather(echo.step(n), double.step(n)))


def fails() -> None:
    raise OutOfStock("in the background")


def yields() -> Any:
    yield 1


async def awaits() -> None: ...


class Tools:
    @staticmethod
    def half(n: int) -> float:
        return n / 2


@pytest.mark.contract("ASYNC-01", "ASYNC-03")
async def test_a_background_call_is_a_child_of_the_packages_own_type() -> None:
    @workflow
    def run() -> list[Any]:
        return [background(add, 1, b=2), background(both, 4), background(Tools.half, 5)]

    result, history = await told(run)
    assert result == [3, [4, 8], 2.5]
    scheduled = events(history, "ChildWorkflowScheduled")
    assert {event.child_workflow_type for event in scheduled} == {"durable-workflow.async"}


async def test_background_calls_are_gathered_raced_and_awaited() -> None:
    @workflow
    def run() -> list[Any]:
        return [list(gather(background.step(add, 1), background.step(add, 2))), race(background.step(add, 3))]

    @workflow
    async def later() -> int:
        return await background.step(add, 9)

    assert (await told(run))[0] == [[1, 2], [0, 3]]
    assert (await told(later))[0] == 9


async def test_the_failure_of_a_background_call_is_raised() -> None:
    @workflow
    def run() -> str:
        try:
            background(fails)
        except OutOfStock as error:
            return str(error)
        return ""

    assert (await told(run))[0] == "in the background"


@pytest.mark.contract("ASYNC-02", "ASYNC-03")
@pytest.mark.parametrize(
    ("target", "why"),
    [
        (lambda: 1, "by name"),
        (yields, "yield"),
        (awaits, "async"),
        (len, "takes a function"),
        (echo, "takes a function"),
        (double, "takes a function"),
        (Tools(), "takes a function"),
    ],
)
async def test_background_refuses_anything_but_a_plain_function_with_a_name(target: Any, why: str) -> None:
    def local() -> None: ...

    for refused, reason in ((target, why), (local, "by name")):
        with pytest.raises(DefinitionError, match=reason):
            background.step(refused)


async def test_a_reference_that_names_something_else_is_refused() -> None:
    @functools.wraps(add)
    def disguised(a: int) -> int:
        return a

    with pytest.raises(DefinitionError, match="another process"):
        background.step(disguised, 1)


async def test_an_endless_chain_carries_no_more_children_than_are_open() -> None:
    go, done = Signal[str]("go"), Signal[str]("done")

    @workflow(type="leaf", unchecked=True)
    def leaf() -> None:
        wait(done)

    @workflow(type="chain", unchecked=True)
    def chain(left: int) -> None:
        child.options(parent_close="terminate").start(leaf)
        wait(go)
        if left:
            continue_as_new(chain, left - 1)

    async with memory(chain, leaf) as app:
        run = await app.start(chain, "c", 4)

        async def found(type: str, count: int) -> Any:
            rows = await app.list(type=type)
            return rows[0] if len(rows) == count else None

        async def told() -> bool:
            return "CarriedChildClosed" in names(await run.history())

        for leg in range(1, 5):
            newest = await eventually(lambda: found("leaf", leg), "the child of this leg")  # noqa: B023
            await run.signal(go, "on")
            await eventually(lambda: found("chain", leg + 1), "the next leg")  # noqa: B023
            await app.handle(leaf, newest.workflow_id).signal(done, "enough")
            await eventually(told, "the chain is told")
            (began,) = events(await run.history(), "WorkflowStarted")
            assert [carried.child_workflow_instance_id for carried in began.open_children] == [newest.workflow_id]
        await run.signal(go, "end")
        await run.result(timeout=10)
