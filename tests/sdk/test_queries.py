"""Queries look at a run, live or long closed, and change nothing: no history, no side effects, no predicate is asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    RequestRefused,
    Signal,
    WorkflowNotFound,
    activity,
    continue_as_new,
    info,
    logger,
    query,
    side_effect,
    signal,
    sleep,
    update,
    wait,
    workflow,
)

from .kit import eventually, evicting, memory, names

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]

did: list[str] = []
letters = Signal[str]("letters")


@pytest.fixture(autouse=True)
def _forget() -> None:
    did.clear()


@dataclass
class Progress:
    done: int
    note: str | None = None


@activity(type="work")
def work(text: str) -> str:
    did.append(f"work {text}")
    return text


def note(text: str) -> str:
    did.append(text)
    return text


@workflow(type="job")
class Job:
    def __init__(self) -> None:
        self.done = 0
        self.note: str | None = None

    @signal
    def tell(self, text: str) -> None:
        self.note = text

    @query
    def progress(self) -> Progress:
        return Progress(self.done, self.note)

    @query(name="done-plus")
    def plus(self, n: int, by: int = 1) -> int:
        return self.done + n * by

    @query
    async def later(self) -> int:
        return self.done

    @query
    def broken(self) -> int:
        raise LookupError("nothing there")

    @query
    def greedy(self) -> str:
        return work("from a query")

    def handle(self, steps: int) -> str:
        for n in range(steps):
            side_effect(lambda n=n: note(f"effect {n}"))
            work(f"{n}")
            self.done += 1
            logger().warning("step %s", n)
        wait(lambda: note("looked") and self.note == "end")
        return "ended"


async def reach(app: AsyncBackstay, id: str, kind: str) -> None:
    async def there() -> bool:
        return kind in names(await app.history(id))

    await eventually(there)


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("QRY-02", "QRY-14", "QRY-15")
@pytest.mark.parametrize("make", APPS)
async def test_a_query_answers_with_its_type_and_records_nothing(make: Any) -> None:
    async with make(Job, work) as app:
        run = await app.start(Job, "j", 2)
        await reach(app, "j", "ConditionWaitOpened")
        before = await run.history()
        assert await run.query(Job.progress) == Progress(2)
        assert await run.query(Job.plus, 3, by=2) == 8
        assert await run.query("done-plus", by=2, n=3) == 8
        assert await run.query("progress") == {"done": 2, "note": None}
        assert await run.query(Job.later) == 2
        assert await run.history() == before
        found = await run.describe()
        assert len(found.commands) == 1
        assert found.declared is not None
        asked = {target.name: target for target in found.declared.declared_query_targets}
        assert [
            (one["name"], one["position"], one["type"], one["allows_null"], one["required"])
            for one in asked["done-plus"].parameters
        ] == [("n", 0, "int", False, True), ("by", 1, "int", False, False)]
        assert asked["done-plus"].has_contract
        assert asked["progress"].parameters == []


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("QRY-08", "QRY-09")
@pytest.mark.parametrize("make", APPS)
async def test_a_query_that_cannot_be_answered_says_why(make: Any) -> None:
    async with make(Job, work) as app:
        run = await app.start(Job, "j", 1)
        await reach(app, "j", "ConditionWaitOpened")
        for name, args, reason, says in [
            ("plus", [1], "query_not_found", "there is no query 'plus'; declared are: progress, done-plus"),
            ("done-plus", ["x"], "invalid_query_arguments", "n must be int, not string"),
            ("done-plus", [], "invalid_query_arguments", "n is missing"),
            ("broken", [], "query_rejected", "query 'broken' raised LookupError: nothing there"),
            ("greedy", [], "query_rejected", "query 'greedy' cannot make durable calls"),
        ]:
            with pytest.raises(RequestRefused, match=says) as refused:
                await run.query(name, *args)
            assert refused.value.reason == reason
        assert did.count("work from a query") == 0
        assert await run.query(Job.progress) == Progress(1)
        with pytest.raises(WorkflowNotFound):
            await app.handle(Job, "nobody").query(Job.progress)
        await app.reserve(Job, "later")
        with pytest.raises(WorkflowNotFound):
            await app.handle(Job, "later").query(Job.progress)


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("QRY-12", "COND-02")
async def test_a_cold_query_runs_no_effect_looks_at_no_condition_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [Job, work]) as app:
        await app.start(Job, "j", 3)
        await reach(app, "j", "ConditionWaitOpened")
    did.clear()
    caplog.clear()
    async with AsyncBackstay(tmp_path / "app.db", [Job, work]) as app:
        for _ in range(3):
            assert await app.handle(Job, "j").query(Job.progress) == Progress(3)
        assert did == []
        assert [record for record in caplog.records if record.name.startswith("backstay.workflow")] == []


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.contract("QRY-12")
@pytest.mark.parametrize("make", APPS)
async def test_a_query_never_applies_what_is_pending(make: Any) -> None:
    async with make(Job, work) as app:
        run = await app.start(Job, "j", 1)
        await reach(app, "j", "ConditionWaitOpened")
        await run.pause()
        await run.signal(Job.tell, "pending")
        assert await run.query(Job.progress) == Progress(1, None)
        await run.unpause()
        await reach(app, "j", "SignalApplied")
        assert await run.query(Job.progress) == Progress(1, "pending")


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.parametrize("how", ["completed", "terminated", "failed"])
async def test_a_closed_run_still_answers_also_after_a_restart(how: str, tmp_path: Path) -> None:
    @workflow(type="closing", unchecked=True)
    class Closing:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @query
        def look(self) -> list[str]:
            return self.seen

        def handle(self, how: str) -> str:
            self.seen.append(work("a"))
            if how == "terminated":
                sleep("1h")
            self.seen.append(work("b"))
            if how == "failed":
                raise ValueError("no")
            return "ok"

    expected = ["a"] if how == "terminated" else ["a", "b"]
    async with AsyncBackstay(tmp_path / "app.db", [Closing, work]) as app:
        run = await app.start(Closing, "c", how)
        if how == "terminated":
            await reach(app, "c", "TimerScheduled")
            await run.terminate()
        await eventually(lambda: _closed(app, "c"))
        assert await run.query(Closing.look) == expected
    did.clear()
    async with AsyncBackstay(tmp_path / "app.db", [Closing, work]) as app:
        assert await app.handle(Closing, "c").query(Closing.look) == expected
        assert did == []


async def _closed(app: AsyncBackstay, id: str) -> bool:
    row = (await app.describe(id)).run
    return row is not None and row.closed_reason is not None


@pytest.mark.contract("QRY-13")
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_every_run_of_a_chain_answers_for_itself(kind: str) -> None:
    class Base:
        got = ""

        @query
        def look(self) -> str:
            return self.got

    @workflow(type="legs", unchecked=True)
    class Legs(Base):
        def handle(self, left: int) -> None:
            self.got = wait(letters)
            if left:
                continue_as_new(Legs, left - 1)

    @workflow(type="legs", unchecked=True)
    class LegsLater(Base):
        async def handle(self, left: int) -> None:
            self.got = await wait.step(letters)
            if left:
                continue_as_new(LegsLater, left - 1)

    definition: Any = Legs if kind == "def" else LegsLater
    async with memory(definition) as app:
        run = await app.start(definition, "l", 2)
        for letter in "abc":
            await run.signal(letters, letter)
        await run.result()
        runs = sorted(await app.list(workflow_id="l"), key=lambda row: row.number)
        assert [await run.of_run(row.run_id).query(definition.look) for row in runs] == ["a", "b", "c"]
        assert await run.query(definition.look) == "c"
        with pytest.raises(WorkflowNotFound, match="'l' has no run 'another'"):
            await run.of_run("another").query(definition.look)


async def test_a_handle_of_one_run_is_about_that_run_alone() -> None:
    @workflow(type="legs")
    class Legs:
        @query
        def look(self) -> str:
            return info().run_id

        @update
        def say(self) -> str:
            return info().run_id

        def handle(self, left: int) -> str:
            wait(letters)
            if left:
                continue_as_new(Legs, left - 1)
            return "done"

    async with memory(Legs) as app:
        whole = await app.start(Legs, "l", 1)
        assert whole.run_id is not None
        first = whole.of_run(whole.run_id)
        assert await first.update(Legs.say) == first.run_id
        await first.signal(letters, "a")

        async def latest() -> str | None:
            run_id = (await app.list(workflow_id="l"))[0].run_id
            return None if run_id == whole.run_id else run_id

        second = whole.of_run(await eventually(latest, "the second run"))
        assert await second.query(Legs.look) == second.run_id != first.run_id
        assert await first.query(Legs.look) == first.run_id
        assert names(await first.history())[-1] == "WorkflowContinuedAsNew"
        for refused in (first.signal(letters, "b"), first.update(Legs.say), first.cancel(), first.terminate()):
            with pytest.raises(
                RequestRefused, match=f"{first.run_id} is not the current one, which is {second.run_id}"
            ):
                await refused
        assert await first.archive() == "archived"
        await second.signal(letters, "b")
        assert await first.result() == "done"


@pytest.mark.embedded("opens apps of its own")
async def test_before_its_first_task_a_run_is_as_it_was_made(tmp_path: Path) -> None:
    @workflow(type="job")
    class Checked(Job):
        @update
        def advance(self, done: int) -> int:
            self.done = done
            return done

        @advance.validator
        def check(self, done: int) -> None:
            if done <= self.done:
                raise ValueError(f"not above {self.done}")

    async with AsyncBackstay(tmp_path / "app.db", [Checked], queues=("elsewhere",)) as app:
        run = await app.start(Checked, "j", 1)
        await run.pause()
    async with AsyncBackstay(tmp_path / "app.db", [Checked, work]) as app:
        run = app.handle(Checked, "j")
        assert await run.query(Checked.progress) == Progress(0)
        assert await run.query(Checked.plus, 3) == 3
        with pytest.raises(RequestRefused, match="not above 0"):
            await run.update(Checked.advance, 0)
        assert did == []
        submitted = await run.submit(Checked.advance, 5)
        await run.unpause()
        assert await submitted.result() == 5


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("QRY-10", "QRY-16")
async def test_without_its_code_a_run_cannot_be_asked(tmp_path: Path) -> None:
    @workflow(type="other")
    def other() -> None: ...

    async with AsyncBackstay(tmp_path / "app.db", [Job, work]) as app:
        await app.start(Job, "j", 1)
    async with AsyncBackstay(tmp_path / "app.db", [other]) as app:
        with pytest.raises(RequestRefused, match="no live worker knows workflow type 'job'") as refused:
            await app.handle(None, "j").query("progress")
        assert refused.value.fields["query_blocked_reason"] == "workflow_definition_unavailable"
    async with AsyncBackstay(tmp_path / "app.db", [], queues=("elsewhere",)) as app:
        with pytest.raises(RequestRefused, match="a query needs the workflow's code") as refused:
            await app.handle(None, "j").query("progress")
        assert refused.value.reason == "query_worker_unavailable"


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("QRY-17")
async def test_code_that_does_not_fit_refuses_instead_of_guessing(tmp_path: Path) -> None:
    @workflow(type="job")
    class Changed:
        @query
        def progress(self) -> int:
            return 0

        def handle(self, steps: int) -> str:
            sleep("1h")
            return ""

    async with AsyncBackstay(tmp_path / "app.db", [Job, work]) as app:
        await app.start(Job, "j", 1)
        await reach(app, "j", "ConditionWaitOpened")
    async with AsyncBackstay(tmp_path / "app.db", [Changed]) as app:
        before = await app.history("j")
        with pytest.raises(RequestRefused, match="cannot be replayed with this code: replay diverged") as refused:
            await app.handle(Changed, "j").query(Changed.progress)
        assert refused.value.fields["query_blocked_reason"] == "workflow_replay_blocked"
        assert await app.history("j") == before


async def test_many_at_once_beside_a_run_that_moves() -> None:
    async with memory(Job, work) as app:
        run = await app.start(Job, "j", 30)

        async def look() -> list[int]:
            return [(await run.query(Job.progress)).done for _ in range(20)]

        for seen in await asyncio.gather(*(look() for _ in range(5))):
            assert seen == sorted(seen), "nobody sees it go back"
        await run.signal(Job.tell, "end")
        assert await run.result() == "ended"
        assert (await run.query(Job.progress)).done == 30
        assert did.count("effect 0") == 1


async def test_an_unwound_look_leaves_nothing_behind() -> None:
    """The code that was replayed for a question is given up: its `finally` runs, and has no effect."""

    @workflow(type="careful", unchecked=True)
    class Careful:
        @query
        def look(self) -> str:
            return "looked"

        def handle(self) -> None:
            try:
                wait(lambda: False)
            finally:
                work("finally")
                side_effect(lambda: note("finally"))

    async with evicting(Careful, work) as app:
        run = await app.start(Careful, "c")
        await reach(app, "c", "ConditionWaitOpened")
        assert await run.query(Careful.look) == "looked"
        assert did == []
        assert (await run.describe()).status == "waiting"
