"""What code leaves behind when it ends or is given up: generators, cycles, context. None of it may reach another run."""

from __future__ import annotations

import asyncio
import decimal
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from backstay import AsyncBackstay, WorkflowFailed, activity, query, sleep, wait, workflow
from backstay.sdk.replay import workflow_greenlet
from backstay.sdk.replay.live_run import LiveRun

from .kit import events, eventually, evicting, memory, names

refunded: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    gc.collect()
    refunded.clear()
    yield
    gc.collect()


@activity(type="refund")
def refund(what: str) -> str:
    refunded.append(what)
    return what


async def seats() -> AsyncIterator[str]:
    try:
        yield "1A"
        yield "1B"
    finally:
        await refund.step("seat")


@workflow(type="trip", unchecked=True)
async def trip() -> str:
    async for _ in seats():
        await wait.step("paid")
        break
    await sleep.step(0.001)
    return "flown"


@workflow(type="browse", unchecked=True)
async def browse() -> str:
    async for seat in seats():
        if seat == "1B":
            break
    await sleep.step(0.001)
    return "looked"


@workflow(type="innocent", unchecked=True)
def innocent() -> int:
    gc.collect()
    return len([[n] for n in range(100)])


def alive(kind: type[Any]) -> list[Any]:
    return [one for one in gc.get_objects() if isinstance(one, kind)]


async def given_up(app: AsyncBackstay) -> None:
    """All live code, as when others need the room."""
    for run in list(app.executor._live_runs):  # pyright: ignore[reportPrivateUsage]
        app.executor.forget(run)


async def test_an_async_generator_of_code_that_is_given_up_closes_without_effect() -> None:
    async with memory(trip, refund) as app:
        handle = await app.start(trip, "t")
        await eventually(lambda: waits(app, "t"))
        await given_up(app)
        await asyncio.sleep(0)
        assert refunded == []
        await handle.signal("paid")
        assert await handle.result() == "flown"
        assert names(await handle.history()).count("ActivityScheduled") == 1
        assert refunded == ["seat"]


async def waits(app: AsyncBackstay, id: str) -> bool:
    return (await app.describe(id)).wait_kind == "signal"


@pytest.mark.parametrize("app_of", [memory, evicting])
async def test_an_async_generator_that_is_left_closes_within_its_run(app_of: Any) -> None:
    async with app_of(browse, refund) as app:
        assert await app.execute(browse, "b") == "looked"
        history = await app.history("b")
        assert len(events(history, "ActivityScheduled")) == len(events(history, "ActivityCompleted")) == 1
    assert refunded == ["seat"]


def booking(what: str) -> Iterator[str]:
    try:
        yield what
    finally:
        refund(what)


@workflow(type="keeper", unchecked=True)
class Keeper:
    def handle(self) -> str:
        self.me = self  # so that only the collector of cycles can free it
        self.seats = booking("kept")
        next(self.seats)
        return str(wait("paid"))


@workflow(type="async keeper", unchecked=True)
class AsyncKeeper:
    async def handle(self) -> str:
        self.me = self
        self.seats = seats()
        await anext(self.seats)
        return str(await wait.step("paid"))


@pytest.mark.parametrize("kind", [Keeper, AsyncKeeper])
@pytest.mark.parametrize("where", ["another run", "no run"])
async def test_objects_of_a_given_up_run_are_freed_without_effect(kind: Any, where: str) -> None:
    async with memory(kind, innocent, refund) as app:
        await app.start(kind, "k")
        await eventually(lambda: waits(app, "k"))
        await given_up(app)
        if where == "no run":
            gc.collect()
            await asyncio.sleep(0)
        assert await app.execute(innocent, "i") == 100
        assert "ActivityScheduled" not in names(await app.history("i"))
        assert refunded == []


@workflow(type="litter", unchecked=True)
async def litter() -> str:
    class Holder:
        pass

    holder = Holder()
    holder.me = holder  # type: ignore[attr-defined]
    holder.seats = seats()  # type: ignore[attr-defined]
    await anext(holder.seats)  # type: ignore[attr-defined]
    del holder
    gc.collect()
    await sleep.step(0.001)
    return "tidy"


@pytest.mark.parametrize("app_of", [memory, evicting])
async def test_an_object_that_the_collector_frees_makes_no_step(app_of: Any) -> None:
    """When it comes by is no fact of the run."""
    async with app_of(litter, refund) as app:
        assert await app.execute(litter, "l") == "tidy"
        assert "ActivityScheduled" not in names(await app.history("l"))
    gc.collect()
    assert refunded == []


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@workflow(type="rude", unchecked=True)
def rude() -> str:
    decimal.getcontext().prec = 2
    tenant.set("rude")
    return "set"


@workflow(type="polite", unchecked=True)
def polite() -> tuple[str, str]:
    return tenant.get(), str(decimal.Decimal(1) / 3)


@activity(type="rude activity")
def rude_activity() -> None:
    decimal.getcontext().prec = 2
    tenant.set("rude")


@activity(type="polite activity")
def polite_activity() -> tuple[str, int]:
    return tenant.get(), decimal.getcontext().prec


@workflow(type="both", unchecked=True)
def both() -> tuple[str, int]:
    rude_activity()
    return polite_activity()


async def test_context_is_not_handed_on_from_run_to_run() -> None:
    async with memory(rude, polite) as app:
        for n in range(3):
            await app.execute(rude, f"r{n}")
        assert await app.execute(polite, "p") == ("nobody", str(decimal.Decimal(1) / 3))


async def test_context_is_not_handed_on_from_attempt_to_attempt() -> None:
    async with memory(both, rude_activity, polite_activity, threads=1) as app:
        assert await app.execute(both, "b") == ("nobody", decimal.getcontext().prec)


@workflow(type="changed", unchecked=True)
class Before:
    @query
    def seen(self) -> int:
        return 1

    def handle(self) -> None:
        sleep("1h")


@workflow(type="changed", unchecked=True)
class After:
    @query
    def seen(self) -> int:
        return 1

    def handle(self) -> None:
        refund("diverged")


async def test_asking_blocked_code_keeps_only_so_much_of_it(tmp_path: Any) -> None:
    before = len(alive(workflow_greenlet.WorkflowGreenlet))
    async with AsyncBackstay(tmp_path / "a.db", [Before]) as app:
        await app.start(Before, "c")
    async with AsyncBackstay(tmp_path / "a.db", [After, refund]) as app:
        for _ in range(3 * workflow_greenlet.PARKED):
            with pytest.raises(Exception, match="diverged"):
                await app.handle(After, "c").query("seen")
        assert (
            len(alive(workflow_greenlet.WorkflowGreenlet)) - before <= workflow_greenlet.PARKED + 2
        )  # and those that wait for work
    assert refunded == []


@workflow(type="fails", unchecked=True)
def fails() -> None:
    sleep(0.001)
    raise ValueError("no")


@workflow(type="async fails", unchecked=True)
async def async_fails() -> None:
    await sleep.step(0.001)
    raise ValueError("no")


@workflow(type="async ends", unchecked=True)
async def async_ends() -> int:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep.step(0.001))
    return 1


@workflow(type="class ends", unchecked=True)
class Ends:
    def handle(self) -> int:
        self.me = refund("x")
        return 1


@pytest.mark.parametrize("kind", [fails, async_fails, async_ends, Ends], ids=lambda kind: kind.__name__)
async def test_a_run_that_has_ended_is_freed_at_once(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Without the collector of cycles, which would have to look through everything to find it."""
    caplog.set_level("CRITICAL", "backstay.failures")  # records that are kept keep their tracebacks
    before = len(alive(LiveRun))
    gc.disable()
    try:
        async with memory(kind, refund) as app:
            for n in range(5):
                with suppress(WorkflowFailed):
                    await app.execute(kind, f"r{n}")
            assert len(alive(LiveRun)) - before <= 1  # the last one may still be on its way out
    finally:
        gc.enable()


async def test_of_code_only_its_errors_are_told_not_that_it_is_let_go_where_it_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process may end with its app open: that code which waits goes with it is nobody's mistake, and runs again elsewhere."""

    @workflow(type="let-go", unchecked=True)
    async def let_go() -> None:
        loop = asyncio.get_running_loop()
        said = {"message": "Task was destroyed but it is pending!", "task": asyncio.current_task()}
        loop.call_exception_handler(said)  # as a task does that is collected
        loop.call_exception_handler({"message": "a callback failed", "exception": ValueError("no")})

    async with memory(let_go) as app:
        await app.execute(let_go, "l")
    assert [record.getMessage() for record in caplog.records] == ["a callback failed"]
