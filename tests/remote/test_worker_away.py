"""What happens to a run while no worker has its code, or while a worker is busy with an activity, comes out in order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    Signal,
    WorkflowStopped,
    activity,
    child,
    children,
    gather,
    query,
    update,
    wait,
    workflow,
)

from ..sdk.kit import events, eventually, names
from .kit import TOKEN, House, forgetful

gates: dict[str, threading.Event] = {}
passed: list[str] = []


@activity(retries=0, queue="work")
def fails(name: str) -> str:
    assert gates[name].wait(20)
    raise ValueError(name)


@workflow(type="group")
def group() -> str:
    try:
        gather([fails.step("first"), fails.step("second"), fails.step("third")])
    except ValueError as error:
        return str(error)
    return "none"


@pytest.mark.contract("BARRIER-06", "BARRIER-02")
async def test_of_several_failures_that_came_while_the_parent_was_away_the_earliest_is_thrown() -> None:
    gates.update({name: threading.Event() for name in ("first", "second", "third")})
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        run = await client.start(group, "g")

        async def count(kind: str) -> int:
            return names(await run.history()).count(kind)

        async with AsyncWorker(house.url, [fails], queues=["work"], token=TOKEN, worker_id="works"):
            async with AsyncWorker(house.url, [group], token=TOKEN, worker_id="decides"):

                async def begun() -> bool:
                    return await count("ActivityStarted") == 3

                await eventually(begun, "every leaf was scheduled and is under way")
            for number, name in enumerate(("third", "first", "second"), 1):
                gates[name].set()

                async def failed(number: int = number) -> bool:
                    return await count("ActivityFailed") == number

                await eventually(failed, f"{name} has failed")
            closed = [event.sequence for event in events(await run.history(), "ActivityFailed")]
            assert closed == [3, 1, 2], "in another order than they were called"
            async with AsyncWorker(house.url, [group], token=TOKEN, worker_id="decides again"):
                assert await run.result() == "third"


@activity(type="long")
def long(name: str) -> None:
    passed.append("in")
    assert gates[name].wait(20)
    passed.append("through")


@workflow(type="waits_long")
def waits_long(name: str) -> None:
    long(name)


@pytest.mark.contract("ACT-30")
@pytest.mark.parametrize("verb", ["cancel", "terminate"])
async def test_a_stop_does_not_break_off_code_that_a_worker_runs(verb: str) -> None:
    passed.clear()
    gates["long"] = threading.Event()
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [waits_long, long], token=TOKEN):
            run = await client.start(waits_long, "w", "long")
            await eventually(lambda: passed == ["in"], "the activity is under way")
            await getattr(run, verb)()
            with pytest.raises(WorkflowStopped):
                await run.result()
            assert passed == ["in"], "the run is closed, its code is not"
            gates["long"].set()
            await eventually(lambda: passed == ["in", "through"], "it came to its own end")
        found = names(await run.history())
        assert (found.count("ActivityCancelled"), found.count("ActivityCompleted")) == (1, 0), "too late to count"


letters = Signal[str]("letters")


@workflow(type="patient")
def patient() -> list[str | None]:
    return [wait(letters, timeout="1h"), wait(letters, timeout=0.2), wait(letters, timeout=0.2)]


@pytest.mark.contract("SIG-07")
@pytest.mark.parametrize("live", [None, 0], ids=["live code", "replay alone"])
async def test_a_wait_for_a_signal_answers_none_when_its_time_is_over(live: int | None) -> None:
    options: dict[str, Any] = {} if live is None else {"live": live}
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [patient], token=TOKEN, **options):
            run = await client.start(patient, "p")
            await run.signal(letters, "in time")
            assert await run.result() == ["in time", None, None]
            found = names(await run.history())
            assert (found.count("TimerFired"), found.count("SignalApplied")) == (2, 1)


@workflow(type="approval")
class Approval:
    approved_by = Signal[str]("approved-by")

    def __init__(self) -> None:
        self.names: list[str] = []

    def handle(self, needed: int) -> list[str]:
        while len(self.names) < needed:
            self.names.append(wait(self.approved_by))
        return self.names


@workflow(type="desk")
class Desk:
    @update
    def approve(self, name: str) -> str:
        handle = child()
        assert handle is not None
        handle.signal("approved-by", name)
        return handle.call_id

    @query
    def count(self) -> int:
        return len(children())

    def handle(self, needed: int) -> list[str]:
        return child(Approval, needed)


@pytest.mark.contract("HNDL-06", "HNDL-02")
async def test_an_update_signals_the_child_once_though_every_task_replays_it() -> None:
    async with forgetful(Desk, Approval) as app:
        run = await app.start(Desk, "d", 2)

        async def reached() -> bool:
            return await run.query(Desk.count) == 1

        await eventually(reached, "it has its child")
        call_id = await run.update(Desk.approve, "Ann")
        for _ in range(3):
            assert await run.query(Desk.count) == 1, "each of them replays the update"
        assert await run.update(Desk.approve, "Bob") == call_id
        assert await run.result() == ["Ann", "Bob"]
        (call,) = events(await run.history(), "ChildWorkflowScheduled")
        received = events(await app.history(call.child_workflow_instance_id), "SignalReceived")
        assert len(received) == 2
