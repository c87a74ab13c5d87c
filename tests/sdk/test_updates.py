"""Updates: accepted, applied once, answered; what goes wrong in one is its own affair."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    Backstay,
    RequestRefused,
    Signal,
    UpdateFailed,
    UpdateTimeout,
    WorkflowNotRunning,
    activity,
    continue_as_new,
    query,
    signal,
    sleep,
    spawn,
    update,
    wait,
    workflow,
)
from backstay.protocol import commands as tell

from .kit import StillWorld, events, eventually, evicting, memory, names, settle
from .test_slow_code import burn

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]

approved = Signal[str]("approved")


class TooMuch(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


@activity(type="echo")
def echo(text: str) -> str:
    return text


@activity(type="near", local=True)
def near(text: str) -> str:
    return text


@workflow(type="account")
class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.checked = 0

    @update
    def deposit(self, cents: int, times: int = 1) -> int:
        self.balance += cents * times
        return self.balance

    @update(name="take-out")
    def withdraw(self, cents: int) -> int:
        self.balance -= cents
        if self.balance < 0:
            raise TooMuch(self.balance + cents)
        return self.balance

    @deposit.validator
    def _positive(self, cents: int, times: int = 1) -> None:
        if cents <= 0:
            raise ValueError(f"cannot deposit {cents}")

    @update
    async def close(self) -> str:
        self.balance = -1
        return "closed"

    @query
    def look(self) -> int:
        return self.balance

    @signal
    def note(self, cents: int) -> None:
        self.balance += cents

    def handle(self) -> str:
        wait(lambda: self.balance == -1)
        return "done"


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("UPD-01", "UPD-05", "UPD-11")
@pytest.mark.parametrize("make", APPS)
async def test_an_update_changes_something_and_answers(make: Any) -> None:
    async with make(Account) as app:
        run = await app.start(Account, "a")
        assert await run.update(Account.deposit, 5) == 5
        assert await run.update(Account.deposit, 5, times=3) == 20
        assert await run.update("deposit", times=2, cents=1) == 22
        assert await run.update("take-out", 2) == 20
        assert await run.update(Account.close) == "closed"
        assert await run.result() == "done"
        history = await run.history()
        accepted = [event.update_id for event in events(history, "UpdateAccepted")]
        assert len(set(accepted)) == 5
        assert [event.update_id for event in events(history, "UpdateApplied")] == accepted
        assert [event.update_id for event in events(history, "UpdateCompleted")] == accepted
        assert [event.update_name for event in events(history, "UpdateAccepted")][3] == "take-out"


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("UPD-04", "UPD-02")
@pytest.mark.parametrize("make", APPS)
async def test_many_at_once_are_applied_one_after_another(make: Any) -> None:
    async with make(Account) as app:
        run = await app.start(Account, "a")
        balances = await asyncio.gather(*(run.update(Account.deposit, 1) for _ in range(50)))
        assert sorted(balances) == list(range(1, 51))
        assert await run.query(Account.look) == 50


@pytest.mark.contract("UPD-03", "UPD-14", "UPD-15", "UPD-18")
async def test_an_update_that_cannot_be_accepted_is_rejected_durably() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        for name, args, reason, outcome, errors in [
            ("withdraw", [1], "unknown_update", "rejected_unknown_update", {}),
            (
                "deposit",
                ["x"],
                "invalid_update_arguments",
                "rejected_invalid_arguments",
                {"cents": ["must be int, not string"]},
            ),
            ("deposit", [], "invalid_update_arguments", "rejected_invalid_arguments", {"cents": ["is missing"]}),
            (
                "deposit",
                [-3],
                "update_validator_rejected",
                "rejected_by_validator",
                {"validator": ["ValueError: cannot deposit -3"]},
            ),
        ]:
            with pytest.raises(RequestRefused) as refused:
                await run.update(name, *args)
            assert refused.value.reason == reason
            assert refused.value.fields["outcome"] == outcome
            assert refused.value.fields["validation_errors"] == errors
        history = await run.history()
        assert names(history).count("UpdateRejected") == 4
        assert "UpdateAccepted" not in names(history)
        commands = (await run.describe()).commands
        assert [command.sequence for command in commands] == [1, 2, 3, 4, 5]
        assert await run.query(Account.look) == 0


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("UPD-22")
@pytest.mark.parametrize("make", APPS)
async def test_a_raising_update_fails_alone_and_leaves_no_trace_in_the_state(make: Any) -> None:
    async with make(Account, TooMuch) as app:
        run = await app.start(Account, "a")
        await run.update(Account.deposit, 5)
        with pytest.raises(UpdateFailed, match="take-out") as failed:
            await run.update(Account.withdraw, 8)
        assert isinstance(failed.value.__cause__, TooMuch)
        assert failed.value.__cause__.limit == 5
        assert failed.value.update_id is not None
        assert await run.query(Account.look) == 5, "the half-changed code was given up"
        assert await run.update(Account.deposit, 1) == 6
        ended = events(await run.history(), "UpdateCompleted")
        assert [event.outcome for event in ended] == ["update_completed", "update_failed", "update_completed"]
        assert (await run.describe()).status == "waiting"


async def test_a_result_that_cannot_be_told_fails_the_update_and_is_not_applied() -> None:
    @workflow(type="odd", unchecked=True)
    class Odd:
        def __init__(self) -> None:
            self.value = 0

        @update
        def go(self) -> Any:
            self.value += 1
            return object()

        @query
        def look(self) -> int:
            return self.value

        def handle(self) -> None:
            wait(lambda: False)

    async with memory(Odd) as app:
        run = await app.start(Odd, "o")
        with pytest.raises(UpdateFailed):
            await run.update(Odd.go)
        assert await run.query(Odd.look) == 0
        assert "UpdateApplied" not in names(await run.history())


@pytest.mark.parametrize("call", [lambda: echo("x"), lambda: sleep(1), lambda: spawn(echo, "x")])
async def test_an_update_makes_no_durable_calls(call: Any) -> None:
    @workflow(type="greedy", unchecked=True)
    class Greedy:
        @update
        def go(self) -> None:
            call()

        @go.validator
        def check(self) -> None: ...

        @update
        def checked(self) -> None: ...

        @checked.validator
        def check_it(self) -> None:
            call()

        def handle(self) -> None:
            wait(lambda: False)

    async with memory(Greedy, echo) as app:
        run = await app.start(Greedy, "g")
        with pytest.raises(UpdateFailed, match="update 'go' cannot make durable calls"):
            await run.update(Greedy.go)
        with pytest.raises(RequestRefused, match="cannot make durable calls"):
            await run.update(Greedy.checked)
        assert "ActivityScheduled" not in names(await run.history())


@pytest.mark.contract("UPD-19", "UPD-20")
async def test_behind_a_signal_that_was_not_applied_an_update_is_rejected() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        await run.pause()
        await run.signal(Account.note, 3)
        with pytest.raises(RequestRefused, match="try again") as refused:
            await run.update(Account.deposit, 1)
        assert refused.value.fields["outcome"] == "rejected_pending_signal"
        await run.unpause()
        await eventually(lambda: _has(app, "a", "SignalApplied"))
        assert await run.update(Account.deposit, 1) == 4


async def test_behind_a_signal_that_was_acknowledged_an_update_and_its_validator_see_it() -> None:
    @workflow(type="seeing")
    class Seeing:
        def __init__(self) -> None:
            self.told = 0

        @signal
        def tell(self, n: int) -> None:
            self.told += n

        @update
        def look(self, expected: int) -> int:
            return self.told

        @look.validator
        def _as_expected(self, expected: int) -> None:
            if expected != self.told:
                raise ValueError(f"{self.told}, not {expected}")

        @update
        def plain(self) -> int:
            return self.told

        @query
        def read(self) -> int:
            return self.told

        def handle(self) -> None:
            wait(lambda: False)

    async with memory(Seeing) as app:
        run = await app.start(Seeing, "s")
        for n in range(1, 16):
            await run.signal(Seeing.tell, 1)
            match n % 3:
                case 0:
                    assert await run.query(Seeing.read) == n
                case 1:
                    assert await run.update(Seeing.look, n) == n
                case _:
                    assert await run.update(Seeing.plain) == n
        # Signals and updates at once: whichever comes first, none is refused for the other.
        said = [run.signal(Seeing.tell, 1) if n % 2 else run.update(Seeing.plain) for n in range(40)]
        await asyncio.gather(*said)
        assert await run.query(Seeing.read) == 35
        assert "UpdateRejected" not in names(await run.history())


async def test_a_query_or_update_that_waits_too_long_for_an_earlier_signal_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going = threading.Event()

    @activity(type="slow", local=True)
    def slow() -> None:
        going.wait(30)

    @workflow(type="busy")
    class Busy:
        def __init__(self) -> None:
            self.told = 0

        @signal
        def tell(self, n: int) -> None:
            self.told += n

        @update
        def plain(self) -> int:
            return self.told

        @query
        def read(self) -> int:
            return self.told

        def handle(self) -> None:
            slow()
            wait(lambda: False)

    monkeypatch.setattr(tell, "SIGNAL_WAIT", 0.05)
    async with memory(Busy, slow) as app:
        run = await app.start(Busy, "b")
        await run.signal(Busy.tell, 1)
        try:
            with pytest.raises(
                RequestRefused, match="has not applied signal 'tell', which was sent before query 'read'"
            ) as refused:
                await run.query(Busy.read)
            assert refused.value.reason == "earlier_signal_pending"
            with pytest.raises(RequestRefused, match="a signal sent earlier has not been applied yet") as refused:
                await run.update(Busy.plain)
            assert refused.value.fields["outcome"] == "rejected_pending_signal"
        finally:
            going.set()
        monkeypatch.setattr(tell, "SIGNAL_WAIT", 30.0)
        assert await run.query(Busy.read) == 1
        assert await run.update(Busy.plain) == 1


async def test_a_request_id_outlives_the_refusal_that_says_to_try_again() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        once = app.options(request_id="r").handle(Account, "a")
        await run.pause()
        await run.signal(Account.note, 3)
        for _ in range(2):
            with pytest.raises(RequestRefused, match="try again"):
                await once.update(Account.deposit, 1)
        await run.unpause()
        await eventually(lambda: _has(app, "a", "SignalApplied"))
        assert [await once.update(Account.deposit, 1) for _ in range(2)] == [4, 4]


async def _has(app: AsyncBackstay, id: str, kind: str) -> bool:
    return kind in names(await app.history(id))


async def test_a_validator_sees_the_state_and_changes_nothing_it_should_not() -> None:
    @workflow(type="guarded")
    class Guarded:
        def __init__(self) -> None:
            self.names: list[str] = []

        @update
        def add(self, name: str) -> int:
            self.names.append(name)
            return len(self.names)

        @add.validator
        def check(self, name: str) -> None:
            if name in self.names:
                raise ValueError(f"{name} is there already")

        def handle(self) -> None:
            wait(lambda: False)

    for make in (memory, evicting):
        async with make(Guarded) as app:
            run = await app.start(Guarded, "g")
            assert await run.update(Guarded.add, "ann") == 1
            with pytest.raises(RequestRefused, match="ann is there already"):
                await run.update(Guarded.add, "ann")
            assert await run.update(Guarded.add, "bob") == 2


# -- code that goes on around updates


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_an_update_and_what_happened_before_it_come_in_order(make: Any, kind: str) -> None:
    """While the run is paused a timer fires and an update is accepted: its own task comes first, and meets both."""

    class Base:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @update
        def say(self, text: str) -> list[str]:
            self.seen.append(text)
            return self.seen

    @workflow(type="plain", unchecked=True)
    class Plain(Base):
        def handle(self) -> list[str]:
            sleep(10)
            self.seen.append("woke")
            self.seen.append(near("near"))
            wait(lambda: "hello" in self.seen)
            self.seen.append(echo("far"))
            return self.seen

    @workflow(type="later", unchecked=True)
    class Later(Base):
        async def handle(self) -> list[str]:
            await sleep.step(10)
            self.seen.append("woke")
            self.seen.append(await near.step("near"))
            await wait.step(lambda: "hello" in self.seen)
            self.seen.append(await echo.step("far"))
            return self.seen

    definition: Any = Plain if kind == "def" else Later
    world = StillWorld()
    async with make(definition, near, echo, world=lambda: world) as app:
        run = await app.start(definition, "r")
        await settle()
        await run.pause()
        await world.advance(10)
        submitted = await run.submit(definition.say, "hello")
        await run.unpause()
        assert await submitted.result() == ["woke", "hello"]
        assert await run.result() == ["woke", "hello", "near", "far"]


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", APPS)
async def test_an_update_accepted_after_the_end_of_the_code_fails_with_the_run(make: Any) -> None:
    """The code ended at an event before it; that the run had not closed yet is an accident of who ran it when."""

    @workflow(type="short", unchecked=True)
    class Short:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @update
        def say(self, text: str) -> list[str]:
            self.seen.append(text)
            return self.seen

        @query
        def look(self) -> list[str]:
            return self.seen

        def handle(self) -> str:
            sleep(10)
            self.seen.append("woke")
            return "over"

    world = StillWorld()
    async with make(Short, world=lambda: world) as app:
        run = await app.start(Short, "r")
        await settle()
        await run.pause()
        await world.advance(10)
        submitted = await run.submit(Short.say, "hello")
        await run.unpause()
        with pytest.raises(UpdateFailed, match=r"the run closed \(completed\)"):
            await submitted.result()
        assert await run.result() == "over"
        assert await run.query(Short.look) == ["woke"]


async def test_updates_that_the_run_did_not_get_to_fail_with_it() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        await run.pause()
        waiting = [await run.submit(Account.deposit, n) for n in (1, 2)]
        await run.terminate("enough")
        for one in waiting:
            with pytest.raises(UpdateFailed, match=r"the run closed \(terminated\)"):
                await one.result()
        with pytest.raises(WorkflowNotRunning):
            await run.update(Account.deposit, 1)


async def test_an_accepted_update_goes_on_with_the_next_run() -> None:
    @workflow(type="legs", unchecked=True)
    class Legs:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @update
        def say(self, text: str) -> str:
            self.seen.append(text)
            return f"heard {text}"

        def handle(self, left: int) -> list[str]:
            burn(0.03)
            if left:
                continue_as_new(Legs, left - 1)
            wait(approved)
            return self.seen

    async with memory(Legs) as app:
        run = await app.start(Legs, "l", 6)
        for n in range(4):
            assert await run.update(Legs.say, f"{n}") == f"heard {n}"
        await run.signal(approved, "enough")
        await run.result()
        histories = [await run.history(row.run_id) for row in await app.list(workflow_id="l")]
        applied = [event.update_id for history in histories for event in events(history, "UpdateApplied")]
        assert len(applied) == len(set(applied)) == 4


async def test_an_update_is_found_in_whichever_run_it_has_ended() -> None:
    entered = [asyncio.Event() for _ in range(5)]
    go_on = [asyncio.Event() for _ in range(5)]

    @activity(type="hold", local=True)
    async def hold(leg: int) -> None:
        entered[leg].set()
        await go_on[leg].wait()

    @workflow(type="legs")
    class Legs:
        @update
        def say(self, text: str) -> str:
            return f"heard {text}"

        def handle(self, leg: int) -> None:
            hold.step(leg).run()
            if leg < 3:
                continue_as_new(Legs, leg + 1)
            wait(approved)
            if leg == 3:
                continue_as_new(Legs, 4)

    async with memory(Legs, hold) as app:
        run = await app.start(Legs, "l", 1)
        await entered[1].wait()
        submitted = await run.submit(Legs.say, "hello")
        with pytest.raises(TimeoutError, match=r"'say' .* has not ended yet"):
            await submitted.result(timeout=0)  # accepted in the middle of a task, whose end makes it history
        for leg in (1, 2, 3):
            await entered[leg].wait()
            go_on[leg].set()
        assert await submitted.result(timeout=10) == "heard hello"
        await run.signal(approved, "on")
        await entered[4].wait()
        assert len(await app.list(workflow_id="l")) == 4
        assert await run.submitted(Legs.say, submitted.id).result(timeout=10) == "heard hello"
        go_on[4].set()
        await run.signal(approved, "enough")
        await run.result()
        assert await run.submitted(Legs.say, submitted.id).result(timeout=10) == "heard hello"
        await app.start(Legs, "other", 4)
        with pytest.raises(RequestRefused, match="'other' has no update"):
            await app.handle(Legs, "other").submitted(Legs.say, submitted.id).result()


@pytest.mark.parametrize("definition", ["def", "async def"])
async def test_code_on_its_own_thread_is_talked_to_like_any_other(definition: str) -> None:
    class Base:
        def __init__(self) -> None:
            self.total = 0

        @update
        def add(self, n: int) -> int:
            self.total += n
            return self.total

        @signal
        def tell(self, n: int) -> None:
            self.total += n

        @query
        def look(self) -> int:
            return self.total

    @workflow(type="heavy", unchecked=True)
    class Heavy(Base):
        def handle(self, wanted: int) -> int:
            for _ in range(4):
                burn(0.006)
                echo("x")
            wait(lambda: self.total >= wanted)
            return self.total

    @workflow(type="heavy later", unchecked=True)
    class HeavyLater(Base):
        async def handle(self, wanted: int) -> int:
            for _ in range(4):
                burn(0.006)
                await echo.step("x")
            await wait.step(lambda: self.total >= wanted)
            return self.total

    kind: Any = Heavy if definition == "def" else HeavyLater
    async with memory(kind, echo) as app:
        for round in range(2):
            run = await app.start(kind, f"h-{round}", 1000)
            done = told = 0
            while done < 4:
                await run.update(kind.add, 2)
                done += 1
                await run.signal(kind.tell, 1)
                told += 1
                assert await run.query(kind.look) >= 2 * done
            await run.signal(kind.tell, 1000)
            assert await run.result() == 2 * done + told + 1000
            assert len(events(await run.history(), "UpdateApplied")) == done
    assert kind.__backstay_workflow__.type in app.executor._slow


# -- submit, and coming back for the answer


@pytest.mark.contract("UPD-05", "UPD-08", "UPD-09", "UPD-10")
async def test_submit_returns_at_once_and_its_answer_is_there_later() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        await run.pause()
        submitted = await run.submit(Account.deposit, 3)
        with pytest.raises(TimeoutError, match="has not ended yet"):
            await submitted.result(timeout=0)
        with pytest.raises(TimeoutError):
            await submitted.result(timeout=0.01)
        status = await app.call(tell.GetUpdate(workflow_id="a", update_id=submitted.id))
        assert (status.update_status, status.wait_for) == ("accepted", "status")
        found = await run.describe()
        assert (found.wait_kind, found.open_wait_id) == ("update", f"update:{submitted.id}")
        late = asyncio.create_task(submitted.result())
        await run.unpause()
        assert await late == 3
        assert await submitted.result() == 3


@pytest.mark.needs_links("the node that has the worker is found by asking again, which takes longer than this wait")
@pytest.mark.contract("UPD-09")
async def test_a_wait_for_an_update_has_an_end() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        assert run._client.update_seconds == 60, "unless told otherwise"
        await run.pause()
        hasty = app.options(update_timeout=0.01).handle(Account, "a")
        with pytest.raises(UpdateTimeout, match="was accepted and has not ended yet") as late:
            await hasty.update(Account.deposit, 3)
        assert (late.value.workflow_id, late.value.update_id is None) == ("a", False)
        assert "submitted('deposit', " in str(late.value), "how to ask again"
        patient = app.options(update_timeout=None).handle(Account, "a")
        waiting = asyncio.create_task(patient.update(Account.deposit, 4))
        await settle()
        assert not waiting.done()
        await run.unpause()
        assert await run.submitted(Account.deposit, late.value.update_id or "").result() == 3
        assert await waiting == 7


@pytest.mark.needs_links("the node that has the worker is found by asking again, which takes longer than this wait")
async def test_a_bounded_wait_falls_back_to_where_the_update_stands() -> None:
    async with memory(Account) as app:
        run = await app.start(Account, "a")
        await run.pause()
        request = tell.UpdateWorkflow(
            workflow_id="a", update_name="deposit", named={"cents": 3}, wait_for="completed", wait_seconds=0.01
        )
        status = await app.call(request)
        assert (status.update_status, status.wait_timed_out, status.wait_timeout_seconds) == ("accepted", True, 0.01)
        await run.unpause()
        with pytest.raises(RequestRefused) as refused:
            await app.call(tell.GetUpdate(workflow_id="a", update_id="nope"))
        assert refused.value.reason == "update_not_found"


@pytest.mark.embedded("the body is refused before anybody reads what it wants")
async def test_wait_for_is_accepted_or_completed() -> None:
    async with memory(Account) as app:
        await app.start(Account, "a")
        wrong: Any = "status"
        with pytest.raises(RequestRefused) as refused:
            await app.call(tell.UpdateWorkflow(workflow_id="a", update_name="deposit", wait_for=wrong))
        assert refused.value.reason == "invalid_wait_for"


def test_an_update_is_found_again_after_a_restart(tmp_path: Path) -> None:
    with Backstay(tmp_path / "app.db", [Account, TooMuch]) as app:
        run = app.start(Account, "a")
        run.pause()
        good, bad = run.submit(Account.deposit, 3), run.submit(Account.withdraw, 9)
        ids = good.id, bad.id
    with Backstay(tmp_path / "app.db", [Account, TooMuch]) as app:
        run = app.handle(Account, "a")
        first, second = run.submitted(Account.deposit, ids[0]), run.submitted(Account.withdraw, ids[1])
        with pytest.raises(TimeoutError):
            first.result(timeout=0)
        run.unpause()
        assert first.result() == 3
        with pytest.raises(UpdateFailed) as failed:
            second.result()
        assert isinstance(failed.value.__cause__, TooMuch)
        assert run.submitted("deposit", ids[0]).result() == 3
        with pytest.raises(RequestRefused, match="has no update"):
            run.submitted(Account.deposit, "another").result()


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("REC-01")
async def test_an_update_that_is_sent_again_is_applied_once_and_answers_the_same(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [Account]) as app:
        await app.start(Account, "a")
        again = app.options(request_id="r").handle(Account, "a")
        assert [await again.update(Account.deposit, 3) for _ in range(3)] == [3, 3, 3]
        first = await again.submit(Account.deposit, 3)
        with pytest.raises(RequestRefused) as refused:
            await again.update(Account.deposit, 4)
        assert refused.value.reason == "request_id_conflict"
    async with AsyncBackstay(tmp_path / "app.db", [Account]) as app:
        again = app.options(request_id="r").handle(Account, "a")
        assert await again.update(Account.deposit, 3) == 3
        assert (await again.submit(Account.deposit, 3)).id == first.id
        assert await app.handle(Account, "a").query(Account.look) == 3


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("UPD-17", "UPD-16")
async def test_without_a_worker_that_knows_the_code_an_update_is_rejected_and_without_any_worker_it_waits(
    tmp_path: Path,
) -> None:
    @workflow(type="other")
    def other() -> None: ...

    async with AsyncBackstay(tmp_path / "app.db", [Account]) as app:
        await app.start(Account, "a")
    async with AsyncBackstay(tmp_path / "app.db", [other]) as app:
        run = app.handle(None, "a")
        with pytest.raises(RequestRefused) as refused:
            await run.update("deposit", "x")
        assert refused.value.reason == "invalid_update_arguments", "judged from history, not from code"
        with pytest.raises(RequestRefused, match="no live worker of queue") as refused:
            await run.update("deposit", 3)
        assert refused.value.fields["outcome"] == "rejected_workflow_definition_unavailable"
    async with AsyncBackstay(tmp_path / "app.db", [other], queues=("elsewhere",)) as app:
        submitted = await app.handle(None, "a").submit("close")  # history says that it has no validator
    async with AsyncBackstay(tmp_path / "app.db", [Account]) as app:
        assert await app.handle(Account, "a").submitted(Account.close, submitted.id).result() == "closed"


@workflow(type="guarded-account")
class Guarded:
    balance = 0

    @update
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @deposit.validator
    def _positive(self, amount: int) -> None:
        if amount <= 0:
            raise ValueError("deposit something")

    def handle(self) -> int:
        wait(lambda: self.balance > 10)
        return self.balance


@pytest.mark.embedded("opens apps of its own")
async def test_an_update_with_a_validator_is_refused_where_no_code_can_be_asked(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "app.db", queues=("elsewhere",)) as app:
        runs = [await app.start(Guarded, "known"), await app.start("guarded-account", "unknown")]
        for run in runs:
            with pytest.raises(RequestRefused, match="is not in this process; register it here"):
                await run.submit("deposit", -7)
    async with AsyncBackstay(tmp_path / "app.db", [Guarded]) as app:
        for id in ("known", "unknown"):
            run = app.handle(Guarded, id)
            with pytest.raises(RequestRefused, match="deposit something"):
                await run.submit(Guarded.deposit, -7)
            assert await run.update(Guarded.deposit, 11) == 11
            assert await run.result() == 11


@pytest.mark.embedded("opens apps of its own")
async def test_a_release_without_an_update_that_was_applied_is_refused(tmp_path: Path) -> None:
    @workflow(type="account")
    class Smaller:
        balance = 0

        @query
        def look(self) -> int:
            return 0

        def handle(self) -> str:
            wait(lambda: self.balance == -1)
            return ""

    async with AsyncBackstay(tmp_path / "app.db", [Account]) as app:
        run = await app.start(Account, "a")
        await run.update(Account.deposit, 3)
    async with AsyncBackstay(tmp_path / "app.db", [Smaller]) as app:
        with pytest.raises(RequestRefused, match="which the code no longer has"):
            await app.handle(Smaller, "a").query(Smaller.look)
