"""Cancel, terminate, and workflows that get to see a cancel request and deal with it in time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import backstay
from backstay import (
    AsyncBackstay,
    Cancelled,
    NotInWorkflow,
    Saga,
    Signal,
    WorkflowFailed,
    WorkflowNotRunning,
    WorkflowStopped,
    activity,
    child,
    heartbeat,
    shield,
    signal,
    sleep,
    spawn,
    wait,
    workflow,
)

from .kit import StillWorld, events, eventually, evicting, memory, names, no_threads, settle

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]

did: list[str] = []
letters = Signal[str]("letters")


@pytest.fixture(autouse=True)
def _forget() -> None:
    did.clear()


@activity(type="do")
def do(text: str) -> str:
    did.append(text)
    return text


@activity(type="break")
def fail(text: str) -> str:
    raise LookupError(text)


async def reach(app: AsyncBackstay, id: str, kind: str, count: int = 1) -> None:
    async def there() -> bool:
        return names(await app.history(id)).count(kind) >= count

    await eventually(there, f"{id}: {kind}")


# -- at once


@workflow(type="sleeper")
def sleeper() -> None:
    try:
        sleep("1h")
    except BaseException:
        did.append("noticed")
        raise


@pytest.mark.contract("CANCEL-01", "CANCEL-02", "CANCEL-03", "CANCEL-05")
@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_run_that_did_not_ask_for_it_is_stopped_at_once(how: str) -> None:
    async with memory(sleeper) as app:
        run = await app.start(sleeper, "s")
        await reach(app, "s", "TimerScheduled")
        stopped = "cancelled" if how == "cancel" else "terminated"
        if how == "cancel":
            assert await run.cancel("enough") == "cancelled"
        else:
            await run.terminate("enough")
        with pytest.raises(WorkflowStopped, match=f"the run was {stopped}: enough"):
            await run.result()
        history = names(await run.history())
        assert history[-3:] == [
            "CancelRequested" if how == "cancel" else "TerminateRequested",
            "TimerCancelled",
            "WorkflowCancelled" if how == "cancel" else "WorkflowTerminated",
        ]
        found = await run.describe()
        assert (found.status, found.tasks) == (stopped, [])
        for again in (run.cancel, run.terminate, run.pause):
            with pytest.raises(WorkflowNotRunning) as refused:
                await again()
            assert refused.value.fields["outcome"] == "rejected_not_active"


async def test_a_running_activity_hears_of_it() -> None:
    started = threading.Event()
    heard = threading.Event()

    @activity(type="long")
    def long() -> None:
        started.set()
        for _ in range(500):
            threading.Event().wait(0.005)
            try:
                heartbeat()
            except backstay.ActivityCancelled:
                heard.set()
                raise

    @workflow(type="waits for long", unchecked=True)
    def waits() -> None:
        long()

    async with memory(waits, long) as app:
        run = await app.start(waits, "w")
        await eventually(started.is_set)
        await run.cancel()
        await eventually(heard.is_set)
        assert names(await run.history())[-1] in ("WorkflowCancelled", "ActivityCancelled")


# -- through the code


@workflow(type="tidy", handles_cancel="5m")
def tidy() -> str:
    try:
        wait(letters)
    except Cancelled:
        do("clean up")
        raise
    return "got one"


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("CANCEL-01")
@pytest.mark.parametrize("make", APPS)
async def test_code_that_handles_cancellation_cleans_up_and_closes_as_cancelled(make: Any) -> None:
    async with make(tidy, do) as app:
        run = await app.start(tidy, "t")
        await reach(app, "t", "SignalWaitOpened")
        assert await run.cancel("no longer needed") == "cancel_requested"
        with pytest.raises(WorkflowStopped, match="cancelled: no longer needed"):
            await run.result()
        assert did == ["clean up"]
        history = await run.history()
        (request,) = events(history, "CancelRequested")
        (at,) = [entry.at for entry in history if entry.type == "CancelRequested"]
        assert request.cleanup_deadline_at == at + 300_000_000


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_code_that_returns_closes_as_completed(make: Any) -> None:
    @workflow(type="stubborn", handles_cancel="5m", unchecked=True)
    def stubborn() -> list[Any]:
        got: list[Any] = []
        try:
            sleep("1h")
        except Cancelled:
            got.append("asked")
        got.append(wait(letters))  # it is raised once
        return got

    async with make(stubborn) as app:
        run = await app.start(stubborn, "s")
        await reach(app, "s", "TimerScheduled")
        await run.cancel()
        await run.signal(letters, "a")
        assert await run.result() == ["asked", "a"]
        assert "TimerCancelled" in names(await run.history())


async def test_a_cancellation_is_raised_at_every_kind_of_wait() -> None:
    gate = threading.Event()

    @activity(type="held")
    def held() -> None:
        gate.wait(5)

    @workflow(type="anywhere", handles_cancel="5m", unchecked=True)
    def anywhere(kind: str) -> str:
        try:
            match kind:
                case "sleep":
                    sleep("1h")
                case "signal":
                    wait(letters, timeout="1h")
                case "condition":
                    wait(lambda: False, timeout="1h")
                case "activity":
                    held()
                case "join":
                    spawn(sleep, "1h").join()
                case _:
                    raise AssertionError(kind)
        except Cancelled:
            return f"stopped at {kind}"
        return "?"

    async with memory(anywhere, held) as app:
        for kind in ("sleep", "signal", "condition", "activity", "join"):
            run = await app.start(anywhere, kind, kind)
            await reach(app, kind, "ActivityScheduled" if kind == "activity" else "TimerScheduled")
            await run.cancel()
            assert await run.result(5) == f"stopped at {kind}"
        gate.set()


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_async_code_is_cancelled_as_asyncio_does_it(make: Any) -> None:
    @workflow(type="later", handles_cancel="5m", unchecked=True)
    async def later() -> list[str]:
        seen: list[str] = []

        async def one(n: int) -> None:
            try:
                await sleep.step("1h")
            except asyncio.CancelledError:
                seen.append(f"task {n}")
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for n in range(2):
                    group.create_task(one(n))
        except asyncio.CancelledError:
            seen.append("main")
        seen.append(await do.step("cleaned"))
        return seen

    async with make(later, do) as app:
        run = await app.start(later, "l")
        await reach(app, "l", "TimerScheduled", 2)
        assert await run.cancel() == "cancel_requested"
        assert await run.result() == ["task 0", "task 1", "main", "cleaned"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_blocking_call_is_interrupted_in_both_kinds_of_code(make: Any, kind: str) -> None:
    def nap() -> str:
        try:
            sleep("1h")
        except Cancelled:
            return "woken"
        return "slept"

    @workflow(type="plain", handles_cancel="5m", unchecked=True)
    def plain() -> str:
        return nap()

    @workflow(type="later", handles_cancel="5m", unchecked=True)
    async def later() -> str:
        return nap()

    definition: Any = plain if kind == "def" else later
    async with make(definition) as app:
        run = await app.start(definition, "r")
        await reach(app, "r", "TimerScheduled")
        await run.cancel()
        assert await run.result(3) == "woken"


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_shield_puts_the_request_off_until_it_ends(make: Any, kind: str) -> None:
    @workflow(type="plain", handles_cancel="5m", unchecked=True)
    def plain() -> list[str]:
        seen: list[str] = []
        try:
            with shield(), shield():
                seen.append(wait(letters))
                seen.append(do("inside"))
            seen.append("not reached")
        except Cancelled:
            seen.append("then cancelled")
        return seen

    @workflow(type="later", handles_cancel="5m", unchecked=True)
    async def later() -> list[str]:
        seen: list[str] = []
        try:
            with shield():
                seen.append(await wait.step(letters))
                seen.append(await do.step("inside"))
            seen.append("not reached")
        except Cancelled:
            seen.append("then cancelled")
        return seen

    definition: Any = plain if kind == "def" else later
    async with make(definition, do) as app:
        run = await app.start(definition, "r")
        await reach(app, "r", "SignalWaitOpened")
        await run.cancel()
        await settle()
        await run.signal(letters, "a")
        assert await run.result() == ["a", "inside", "then cancelled"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_shield_that_ends_with_an_error_lets_the_request_through_at_the_next_wait(make: Any, kind: str) -> None:
    @workflow(type="plain", handles_cancel="5m", unchecked=True)
    def plain() -> list[str]:
        seen: list[str] = []
        try:
            try:
                with shield():
                    seen.append(wait(letters))
                    fail("inside")
            except LookupError:
                seen.append("failed")
            seen.append(wait(letters))
        except Cancelled:
            seen.append("then cancelled")
        return seen

    @workflow(type="later", handles_cancel="5m", unchecked=True)
    async def later() -> list[str]:
        seen: list[str] = []
        try:
            try:
                with shield():
                    seen.append(await wait.step(letters))
                    await fail.step("inside")
            except LookupError:
                seen.append("failed")
            seen.append(await wait.step(letters))
        except Cancelled:
            seen.append("then cancelled")
        return seen

    definition: Any = plain if kind == "def" else later
    async with make(definition, fail) as app:
        run = await app.start(definition, "r")
        await reach(app, "r", "SignalWaitOpened")
        await run.cancel()
        await settle()
        await run.signal(letters, "a")
        assert await run.result(3) == ["a", "failed", "then cancelled"]


def test_shield_belongs_in_a_workflow() -> None:
    with pytest.raises(NotInWorkflow), shield():
        pass


@pytest.mark.embedded("its clock is the test's")
async def test_the_deadline_closes_what_does_not_end() -> None:
    world = StillWorld()

    @workflow(type="deaf", handles_cancel=60, unchecked=True)
    def deaf() -> None:
        while True:
            try:
                sleep("1h")
            except Cancelled:
                did.append("heard")

    async with memory(deaf, world=lambda: world) as app:
        run = await app.start(deaf, "d")
        await settle()
        assert await run.cancel() == "cancel_requested"
        await settle()
        await world.advance(59)
        assert (await run.describe()).status == "waiting"
        await world.advance(1)
        with pytest.raises(WorkflowStopped):
            await run.result()
        assert did == ["heard"]


async def test_a_second_cancel_closes_at_once() -> None:
    async with memory(tidy, do) as app:
        no_threads(app)  # nobody cleans up
        run = await app.start(tidy, "t")
        await reach(app, "t", "SignalWaitOpened")
        assert await run.cancel() == "cancel_requested"
        await reach(app, "t", "ActivityScheduled")
        assert await run.cancel() == "cancelled"
        with pytest.raises(WorkflowStopped):
            await run.result()
        assert names(await run.history())[-1] in ("WorkflowCancelled", "ActivityCancelled")


async def test_terminate_asks_no_code() -> None:
    async with memory(tidy, do) as app:
        run = await app.start(tidy, "t")
        await reach(app, "t", "SignalWaitOpened")
        await run.terminate()
        with pytest.raises(WorkflowStopped):
            await run.result()
        assert did == []


async def test_cancelled_is_no_exception_that_a_broad_except_swallows() -> None:
    @workflow(type="broad", handles_cancel="5m", unchecked=True)
    def broad() -> str:
        try:
            sleep("1h")
        except Exception:
            return "swallowed"
        return "slept"

    async with memory(broad) as app:
        run = await app.start(broad, "b")
        await reach(app, "b", "TimerScheduled")
        await run.cancel()
        with pytest.raises(WorkflowStopped):
            await run.result()


async def test_a_cancellation_of_its_own_is_a_failure() -> None:
    @workflow(type="own", unchecked=True)
    def own() -> None:
        raise Cancelled

    async with memory(own) as app:
        with pytest.raises(WorkflowFailed):
            await app.execute(own, "o")


async def test_a_request_before_the_first_wait_is_met_there() -> None:
    @workflow(type="early", handles_cancel="5m", unchecked=True)
    class Early:
        @signal
        def go(self) -> None: ...

        def handle(self) -> str:
            do("first")
            try:
                do("second")
            except Cancelled:
                return "second was cancelled"
            return "both"

    async with memory(Early, do) as app:
        no_threads(app)
        run = await app.start(Early, "e")
        await reach(app, "e", "ActivityScheduled")
        await run.pause()
        await run.cancel()
        await run.unpause()
        with pytest.raises(WorkflowStopped):
            await run.result()


async def test_cancelling_again_with_the_same_request_id_changes_nothing() -> None:
    async with memory(tidy, do) as app:
        no_threads(app)
        await app.start(tidy, "t")
        await reach(app, "t", "SignalWaitOpened")
        again = app.options(request_id="r").handle(tidy, "t")
        assert [await again.cancel() for _ in range(3)] == ["cancel_requested"] * 3
        assert (await again.describe()).status == "waiting"


# -- saga


@activity(type="undo")
def undo(what: str) -> None:
    did.append(f"undo {what}")


@activity(type="cannot undo")
def cannot_undo(what: str) -> None:
    did.append(f"tried {what}")
    raise ConnectionError(f"cannot undo {what}")


@activity(type="undo later")
async def undo_later(what: str) -> None:
    did.append(f"undo {what}")


@workflow(type="trip", handles_cancel="5m", unchecked=True)
def trip(end: str) -> str:
    with Saga() as saga:
        do("hotel")
        saga.undo(undo, "hotel")
        do("car")
        saga.undo(undo.step("car"))
        do("flight")
        saga.undo(cannot_undo if end == "worse" else undo, what="flight")
        match end:
            case "well":
                pass
            case "cancelled":
                wait(letters)
            case "continued":
                backstay.continue_as_new(trip, "well")
            case _:
                fail("bad weather")
    return "home"


@workflow(type="trip later", handles_cancel="5m", unchecked=True)
async def trip_later(end: str) -> str:
    async with Saga() as saga:
        await do.step("hotel")
        saga.undo(undo_later, "hotel")
        await do.step("car")
        saga.undo(undo.step("car"))
        await do.step("flight")
        saga.undo(cannot_undo if end == "worse" else undo, what="flight")
        match end:
            case "well":
                pass
            case "cancelled":
                await wait.step(letters)
            case "continued":
                backstay.continue_as_new(trip_later, "well")
            case _:
                await fail.step("bad weather")
    return "home"


TRIPS = [trip, trip_later]
THINGS = [do, fail, undo, cannot_undo, undo_later]
DONE = ["hotel", "car", "flight"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("definition", TRIPS, ids=["def", "async def"])
async def test_a_saga_undoes_in_reverse_and_keeps_the_error(definition: Any, make: Any) -> None:
    async with make(definition, *THINGS) as app:
        assert await app.execute(definition, "well", "well") == "home"
        assert did == DONE
        did.clear()
        with pytest.raises(WorkflowFailed, match="bad weather") as failed:
            await app.execute(definition, "bad", "bad")
        assert isinstance(failed.value.__cause__, LookupError)
        assert did == [*DONE, "undo flight", "undo car", "undo hotel"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("definition", TRIPS, ids=["def", "async def"])
async def test_a_saga_that_cannot_undo_everything_undoes_the_rest_and_says_both(definition: Any, make: Any) -> None:
    async with make(definition, *THINGS) as app:
        with pytest.raises(WorkflowFailed, match="1 compensation") as failed:
            await app.execute(definition, "worse", "worse")
        said = str(failed.value)
        assert "ConnectionError: cannot undo flight" in said
        assert "LookupError: bad weather" in said
        assert did == [*DONE, "tried flight", "undo car", "undo hotel"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("definition", TRIPS, ids=["def", "async def"])
async def test_continuing_as_new_undoes_nothing(definition: Any, make: Any) -> None:
    async with make(definition, *THINGS) as app:
        assert await app.execute(definition, "c", "continued") == "home"
        assert did == [*DONE, *DONE]


@pytest.mark.parametrize("definition", TRIPS, ids=["def", "async def"])
async def test_giving_code_up_undoes_nothing(definition: Any) -> None:
    async with memory(definition, *THINGS) as app:
        run = await app.start(definition, "c", "cancelled")
        await reach(app, "c", "SignalWaitOpened")
        app.executor.stop()
        await settle()
        assert did == DONE
        await run.signal(letters, "go")
        assert await run.result() == "home"
        assert did == DONE


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("definition", TRIPS, ids=["def", "async def"])
async def test_a_cancelled_saga_is_undone_under_a_shield(definition: Any, make: Any) -> None:
    async with make(definition, *THINGS) as app:
        run = await app.start(definition, "c", "cancelled")
        await reach(app, "c", "SignalWaitOpened")
        assert await run.cancel() == "cancel_requested"
        with pytest.raises(WorkflowStopped):
            await run.result()
        assert did == [*DONE, "undo flight", "undo car", "undo hotel"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("undone", [True, False])
async def test_a_request_in_the_middle_of_undoing_waits_and_hides_no_error(make: Any, kind: str, undone: bool) -> None:
    """The request comes while the compensation of a failure runs: everything is undone, and errors stay visible."""
    gate = threading.Event()

    @activity(type="slow undo")
    def slow_undo() -> None:
        gate.wait(5)
        did.append("undone")
        if not undone:
            raise ConnectionError("cannot undo")

    @workflow(type="plain", handles_cancel="5m", unchecked=True)
    def plain() -> None:
        with Saga() as saga:
            saga.undo(undo, "first")
            saga.undo(slow_undo)
            fail("why")

    @workflow(type="later", handles_cancel="5m", unchecked=True)
    async def later() -> None:
        async with Saga() as saga:
            saga.undo(undo, "first")
            saga.undo(slow_undo)
            await fail.step("why")

    definition: Any = plain if kind == "def" else later
    async with make(definition, fail, slow_undo, undo) as app:
        run = await app.start(definition, "r")
        await reach(app, "r", "ActivityScheduled", 2)
        await run.cancel()
        await settle()
        gate.set()
        if undone:
            with pytest.raises((WorkflowFailed, WorkflowStopped)):
                await run.result(3)
        else:
            with pytest.raises(WorkflowFailed, match="cannot undo"):
                await run.result(3)
        assert did == ["undone", "undo first"]


@workflow(signals=["on"])
def leg(what: str) -> str:
    wait("on")
    return f"{what} booked"


undone: list[str] = []


@activity
def give_back(what: str) -> None:
    undone.append(what)


@workflow(handles_cancel="1h")
def journey() -> None:
    with Saga() as saga:
        for what in ("train", "ship"):
            child(leg, what)
            saga.undo(give_back, what)


async def test_a_child_that_is_waited_for_in_a_saga_has_its_last_word() -> None:
    undone.clear()
    async with memory(journey, leg, give_back) as app:
        run = await app.start(journey, "j")
        first = await eventually(lambda: _open_child(app), "the first child")
        await app.handle(leg, first).signal("on")
        second = await eventually(lambda: _open_child(app, first), "the second child")
        await run.cancel()
        with pytest.raises(WorkflowStopped):
            await run.result()
        with pytest.raises(WorkflowStopped):
            await app.handle(leg, second).result()
        assert undone == ["train"]


async def _open_child(app: Any, but: str | None = None) -> str | None:
    rows = await app.list(type="leg")
    return next((row.workflow_id for row in rows if row.closed_at is None and row.workflow_id != but), None)
