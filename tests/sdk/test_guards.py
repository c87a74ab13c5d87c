"""The guard of replay: code that no longer fits its history is stopped, told about, and never half-run.

A blocked run stays open. Its code notices nothing: no `except`, no `finally` of it ever runs because of the block.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    DefinitionError,
    NonDeterminismWarning,
    Types,
    WorkflowFailed,
    activity,
    continue_as_new,
    patched,
    side_effect,
    sleep,
    spawn,
    upsert_memo,
    upsert_search_attributes,
    version,
    workflow,
)
from backstay.kernel.limits import Limits
from backstay.protocol import requests as ask

from .kit import blocked, eventually, memory, names

LATER = "after the deploy"
ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@activity(type="deploy", queue=LATER)
def deployed() -> str:
    return "deployed"


@activity(type="a")
def a() -> str:
    return "a"


@activity(type="b")
def b() -> str:
    return "b"


@activity(type="local", local=True)
def local() -> str:
    return "local"


EVERY = [a, b, local, deployed]

# One line of code per shape, and how the guard calls it.
SHAPES: dict[str, Any] = {
    "activity a": a,
    "activity b": b,
    "local activity local": local,
    "timer": lambda: sleep(0),
    "side effect": lambda: side_effect(lambda: 1),
    "version marker change": lambda: version("change"),
    "memo upsert": lambda: upsert_memo(k=1),
    "search attributes upsert": lambda: upsert_search_attributes(k=1),
}
KINDS = {
    "activity a": "ActivityScheduled",
    "activity b": "ActivityScheduled",
    "local activity local": "ActivityScheduled",
    "timer": "TimerScheduled",
    "side effect": "SideEffectRecorded",
    "version marker change": "VersionMarkerRecorded",
    "memo upsert": "MemoUpserted",
    "search attributes upsert": "SearchAttributesUpserted",
}


def doing(line: Any) -> Any:
    @workflow(type="run", unchecked=True)
    def run() -> str:
        try:
            line()
            deployed()
        except BaseException:
            ran.append("except")
        finally:
            ran.append("finally")
        return "done"

    return run


class Deploy:
    """The same database under one release after another."""

    def __init__(self, tmp_path: Any) -> None:
        self.path = tmp_path / "guard.db"

    def __call__(self, definition: Any, *things: Any, served: bool = True, **options: Any) -> AsyncBackstay:
        queues = ("default", LATER) if served else ("default",)
        return AsyncBackstay(self.path, [definition, *EVERY, *things], queues=queues, guard="off", **options)


@pytest.fixture
def deploy(tmp_path: Any) -> Deploy:
    return Deploy(tmp_path)


async def waiting(app: AsyncBackstay, id: str = "r") -> Any:
    """The run has asked for the deploy."""

    async def asked() -> bool:
        return any(getattr(e.event, "activity_type", "") == "deploy" for e in await app.history(id))

    return await eventually(asked)


@pytest.mark.contract("REPLAY-03", "REPLAY-08")
@pytest.mark.parametrize("recorded", SHAPES)
@pytest.mark.parametrize("asked", ["activity b", "timer", "side effect", "version marker change"])
async def test_another_shape_at_the_same_step_blocks_the_run(deploy: Deploy, recorded: str, asked: str) -> None:
    if recorded == asked:
        return
    old, new = doing(SHAPES[recorded]), doing(SHAPES[asked])
    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
        before = await app.history("r")
    ran.clear()
    async with deploy(new) as app:
        description = await blocked(app, "r")
        history = await app.history("r")
    (view,) = [view for view in description.tasks if view.task.kind == "workflow"]
    block = view.task.block
    assert block is not None
    if asked.startswith("version"):
        asked = "activity deploy"  # a change that the run got past without a marker is not asked for: what follows is
    assert view.transport_state == "replay_blocked"
    assert (block.reason, block.workflow_sequence, block.replay_blocked) == ("history_shape_mismatch", 1, True)
    assert block.type == "NonDeterministicReplayError"
    assert asked.startswith(block.expected_history_shape or "?")
    assert KINDS[recorded] in block.recorded_event_types
    assert f"history has {recorded}, the code asked for {asked}" in block.message
    assert (f"1: {recorded}", asked) in block.difference
    assert names(history)[: len(before)] == names(before)
    assert set(names(history)[len(before) :]) <= {"ActivityStarted", "ActivityCompleted"}, "only the deploy itself"
    assert ran == [], "the code of a blocked run notices nothing"


async def test_another_activity_of_the_same_kind_is_another_shape(deploy: Deploy) -> None:
    old, new = doing(a), doing(b)
    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new) as app:
        description = await blocked(app, "r")
    assert "history has activity a, the code asked for activity b" in description.tasks[0].task.block.message


async def test_steps_that_the_code_no_longer_reaches_block_too(deploy: Deploy) -> None:
    old = doing(lambda: (a(), b()))

    @workflow(type="run", unchecked=True)
    def new() -> str:
        a()
        return "early"

    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new) as app:
        description = await blocked(app, "r")
        assert "WorkflowCompleted" not in names(await app.history("r"))
    block = description.tasks[0].task.block
    assert "the end of the workflow" in block.message
    assert [left for left, _ in block.difference] == ["1: activity a", "2: activity b", "3: activity deploy"]


async def test_code_that_waits_where_history_went_on_is_blocked(deploy: Deploy) -> None:
    old = doing(lambda: (a(), b()))

    @workflow(type="run", unchecked=True)
    def new() -> str:
        first = spawn(lambda: [sleep("1h"), b()])
        return str(first.join())

    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new) as app:
        assert (await blocked(app, "r")).tasks[0].task.block.workflow_sequence == 1


async def test_the_two_columns_are_logged_for_people(deploy: Deploy, caplog: pytest.LogCaptureFixture) -> None:
    old, new = doing(lambda: (sleep(0), a(), b())), doing(lambda: (sleep(0), b(), a()))
    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    with caplog.at_level(logging.WARNING, "backstay.worker"):
        async with deploy(new) as app:
            await blocked(app, "r")
    (text,) = {record.getMessage() for record in caplog.records if "is blocked" in record.getMessage()}
    lines = [line.split("|") for line in text.splitlines()[1:]]
    assert [(left.strip(), right.strip()) for left, right in lines] == [
        ("history", "code"),
        ("1: timer", "timer"),
        ("2: activity a", "activity b"),
        ("3: activity b", ""),
        ("4: activity deploy", ""),
    ]


async def test_continuing_as_new_over_other_history_is_blocked(deploy: Deploy) -> None:
    old = doing(a)

    @workflow(type="run", unchecked=True)
    def new() -> str:
        continue_as_new(new)

    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new) as app:
        await blocked(app, "r")
        assert len(await app.list(workflow_id="r")) == 1


# -- getting going again


@pytest.mark.contract("REPLAY-09")
async def test_the_restored_code_and_a_repair_go_on(deploy: Deploy) -> None:
    old, new = doing(a), doing(b)
    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    ran.clear()
    async with deploy(new) as app:
        await blocked(app, "r")
        handle = app.handle(new, "r")
        assert (await handle.repair()).revived, "a repair under the same code only tries again"
        await blocked(app, "r")
        restored = doing(a)
        app.registry.workflows["run"] = restored.definition
        assert (await handle.repair()).revived
        assert await handle.result() == "done"
    assert ran == ["finally"]


@pytest.mark.contract("REPLAY-09")
async def test_another_definition_is_tried_without_being_asked(deploy: Deploy) -> None:
    @workflow(type="run", unchecked=True)
    def old() -> str:
        a()
        deployed()
        return "old"

    @workflow(type="run", unchecked=True)
    def new() -> str:
        b()
        deployed()
        return "new"

    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new) as app:
        await blocked(app, "r")
    async with deploy(new) as app:
        assert (await app.describe("r")).liveness_state == "workflow_replay_blocked", "the same code is not tried again"
    async with deploy(old) as app:
        assert await app.handle(old, "r").result() == "old"


async def test_a_definition_registered_later_revives_what_it_fits(deploy: Deploy) -> None:
    old, new = doing(a), doing(b)

    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new) as app:
        await blocked(app, "r")

        @workflow(type="run", unchecked=True)
        def fixed() -> str:
            a()
            deployed()
            return "fixed"

        del app.registry.workflows["run"]
        app.register(fixed)
        assert await app.handle(fixed, "r").result() == "fixed"


async def test_async_code_does_not_notice_a_block_either(deploy: Deploy) -> None:
    def coroutine(first: Any, second: Any) -> Any:
        @workflow(type="run", unchecked=True)
        async def run() -> str:
            async def branch() -> None:
                try:
                    await second.step()
                finally:
                    ran.append("branch")

            try:
                task = asyncio.create_task(branch())
                await first.step()
                await asyncio.gather(task, deployed.step())
            except BaseException:
                ran.append("except")
            finally:
                ran.append("finally")
            return "done"

        return run

    old, new = coroutine(a, b), coroutine(a, a)
    async with deploy(old, served=False) as app:
        await app.start(old, "r")
        await waiting(app)
    ran.clear()
    async with deploy(new) as app:
        await blocked(app, "r")
        gc.collect()
        assert ran == []
    async with deploy(old) as app:
        await app.handle(old, "r").repair()  # the same source under another name: nobody would try it unasked
        assert await app.handle(old, "r").result() == "done"
    assert sorted(ran) == ["branch", "finally"]


# -- failures that cannot be restored


class Vanishing(Exception):
    pass


@pytest.mark.contract("FAIL-08", "FAIL-09")
async def test_a_failure_whose_class_is_gone_blocks_and_no_except_sees_it(deploy: Deploy, monkeypatch: Any) -> None:
    @activity(type="fails")
    def fails() -> None:
        raise Vanishing("gone")

    @workflow(type="run", unchecked=True)
    def run() -> str:
        try:
            fails()
        except Vanishing:
            ran.append("caught")
        except BaseException:
            ran.append("swallowed")
        finally:
            ran.append("finally")
        deployed()
        return "done"

    async with deploy(run, fails, served=False) as app:
        await app.start(run, "r")
        await waiting(app)
    assert ran == ["caught", "finally"]
    ran.clear()
    monkeypatch.delattr(sys.modules[__name__], "Vanishing")
    async with deploy(run, fails) as app:
        description = await blocked(app, "r")
        assert "WorkflowFailed" not in names(await app.history("r"))
    assert ran == []
    block = description.tasks[0].task.block
    assert (block.type, block.reason) == ("UnresolvedWorkflowFailureException", "failure_resolution")
    assert (block.exception_class, block.resolution_source) == (f"{__name__}:Vanishing", "unresolved")
    (failure,) = description.failures
    assert (failure.exception_replay_blocked, failure.resolution_source) == (True, "unresolved")
    assert (failure.resolved_class, failure.resolution_error) == (None, block.resolution_error)
    monkeypatch.undo()
    async with deploy(run, fails) as app:
        await app.handle(run, "r").repair()
        assert await app.handle(run, "r").result() == "done"


@pytest.mark.contract("FAIL-08", "FAIL-09")
async def test_an_alias_that_leads_nowhere_blocks_too(deploy: Deploy) -> None:
    @activity(type="fails")
    def fails() -> None:
        raise Vanishing("lost")

    @workflow(type="run", unchecked=True)
    def run() -> str:
        try:
            fails()
        except Exception:
            ran.append("handler")
        deployed()
        return "done"

    async with deploy(run, fails, served=False, types=Types(exceptions={"gone": Vanishing})) as app:
        await app.start(run, "r")
        await waiting(app)
    ran.clear()
    async with deploy(run, fails, types=Types(exceptions={"gone": "no.such.module:Thing"})) as app:
        block = (await blocked(app, "r")).tasks[0].task.block
    assert (block.exception_type, block.resolution_source) == ("gone", "misconfigured")
    assert ran == []


@pytest.mark.contract("FAIL-06")
async def test_an_alias_restores_a_renamed_exception(deploy: Deploy) -> None:
    @activity(type="fails")
    def fails() -> None:
        raise Vanishing("renamed")

    class Successor(Exception):
        pass

    def catching(kind: type[Exception]) -> Any:
        @workflow(type="run", unchecked=True)
        def run() -> str:
            try:
                fails()
            except kind as error:
                deployed()
                return f"{type(error).__name__} {error}"
            return ""

        return run

    old, new = catching(Vanishing), catching(Successor)
    async with deploy(old, fails, served=False, types=Types(exceptions={"gone": Vanishing})) as app:
        await app.start(old, "r")
        await waiting(app)
    async with deploy(new, fails, types=Types(exceptions={"gone": Successor})) as app:
        assert await app.handle(new, "r").result() == "Successor renamed"


# -- arguments, and failures of the worker itself


async def test_recorded_arguments_that_no_longer_fit_block_until_they_do(deploy: Deploy) -> None:
    @workflow(type="run", unchecked=True)
    def old(name: str) -> str:
        deployed()
        return name

    @workflow(type="run", unchecked=True)
    def new(name: str, size: int) -> str:
        return f"{name} {size}"

    async with deploy(old, served=False) as app:
        await app.start(old, "r", "ann")
        await waiting(app)
    async with deploy(new) as app:
        block = (await blocked(app, "r")).tasks[0].task.block
    assert (block.reason, block.type) == ("workflow_entry_arguments_mismatch", "WorkflowEntryArgumentsMismatch")
    assert "size" in block.message
    async with deploy(old) as app:
        assert await app.handle(old, "r").result() == "ann"


async def test_a_class_that_cannot_be_made_fails_the_run_and_not_the_worker() -> None:
    @workflow(type="run")
    class Broken:
        def __init__(self) -> None:
            raise LookupError("no")

        def handle(self) -> None: ...

    async with memory(Broken) as app:
        with pytest.raises(WorkflowFailed, match="LookupError"):
            await app.execute(Broken, "r")


# -- the source check


def test_the_source_check_warns_with_file_and_line() -> None:
    @workflow
    def clock() -> float:
        return time.time()

    line = clock.definition.entry.__code__.co_firstlineno + 2
    with pytest.warns(NonDeterminismWarning, match=r"^time\.time\(\) inside workflow 'clock'") as told:
        memory(clock)
    assert (told[0].filename, told[0].lineno) == (__file__, line)
    with pytest.raises(DefinitionError, match=r"time\.time\(\)"):
        memory(clock, guard="error")
    memory(clock, guard="off")


def test_unchecked_workflows_are_not_checked() -> None:
    @workflow(unchecked=True)
    def clock() -> float:
        return time.time()

    memory(clock, guard="error")


# -- limits


async def test_asking_for_more_than_the_structure_allows_fails_the_run_with_the_limit() -> None:
    @workflow
    def run() -> None:
        for _ in range(5):
            side_effect(lambda: 1)

    async with memory(run, limits=Limits(command_batch_size=3)) as app:
        with pytest.raises(WorkflowFailed, match="command_batch_size is 5, the limit is 3"):
            await app.execute(run, "r")
        (found,) = await app.call(ask.ListWorkflows(status="failed"))
        assert found.workflow_id == "r"


async def test_a_change_that_older_code_got_past_stays_off_though_newer_code_started_the_run(deploy: Deploy) -> None:
    @workflow(type="run", unchecked=True)
    def before() -> str:
        sleep(0.01)
        deployed()
        return "old way"

    @workflow(type="run", unchecked=True)
    def after() -> str:
        way = "new way" if patched("change") else "old way"
        sleep(0.01)
        deployed()
        return way

    async with deploy(before, served=False) as app:
        await app.start(after, "r")  # the client is ahead of the worker
        await waiting(app)
    async with deploy(after) as app:
        assert await app.handle(after, "r").result(timeout=20) == "old way"
        assert "VersionMarkerRecorded" not in names(await app.history("r"))
        assert await app.execute(after, "fresh") == "new way"
