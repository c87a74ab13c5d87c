"""The client: start, wait, look. The same words with and without `await`."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    AsyncClient,
    Backstay,
    Client,
    DefinitionError,
    DurableCallRefused,
    RequestRefused,
    WorkflowAlreadyStarted,
    WorkflowFailed,
    WorkflowNotFound,
    WorkflowNotRunning,
    WorkflowStopped,
    WorkflowTimedOut,
    activity,
    continue_as_new,
    side_effect,
    sleep,
    workflow,
)
from backstay.codec.values import loads
from backstay.kernel.values import SECOND
from backstay.protocol import requests as ask
from backstay.sdk.client import loop_thread
from backstay.sdk.client.bridge import LoopBridge
from backstay.sdk.embedded.thread import EngineThread
from backstay.store import RunFilter

from .kit import events, eventually, memory, names


@activity(type="never", queue="nobody serves this")
def never() -> None: ...


@workflow(type="greet")
def greet(name: str = "you", *, times: int = 1) -> str:
    return " ".join(["hello", name] * times)


@workflow(type="waits")
def waits() -> str:
    never()
    return "unreachable"


@workflow(type="sleeps")
async def sleeps() -> str:
    await sleep.step("1h")
    return "slept"


@workflow(type="fails")
def fails() -> None:
    raise ValueError("no")


EVERY = [greet, waits, sleeps, fails]


# -- starting and waiting


async def test_start_gives_a_handle_and_execute_the_result() -> None:
    async with memory(*EVERY) as app:
        handle = await app.start(greet, "g", "ann")
        assert handle.id == "g"
        assert handle.run_id
        assert await handle.result() == "hello ann"
        assert await handle.result("1s") == "hello ann"
        assert await app.execute(greet, "h", times=2) == "hello you hello you"
        assert await app.handle(greet, "g").result() == "hello ann"
        assert await app.handle(None, "g").result() == "hello ann"
        assert "g" in repr(handle)
        (command,) = (await app.describe("g")).commands
        assert (command.command_type, command.outcome, command.source) == ("start", "started_new", "python")
        assert names(await handle.history())[:2] == ["StartAccepted", "WorkflowStarted"]


async def test_without_an_id_one_is_made() -> None:
    async with memory(*EVERY) as app:
        first, second = await app.start(greet, None), await app.start(greet, None)
        assert first.id != second.id
        assert len(first.id) == 26


async def test_waiting_for_a_result_ends_with_its_timeout_and_can_be_taken_up_again() -> None:
    async with memory(*EVERY) as app:
        handle = await app.start(sleeps, "s")
        for _ in range(2):
            with pytest.raises(TimeoutError, match="'s' has not ended yet"):
                await handle.result(0.01)
        assert (await app.describe("s")).status == "waiting"


async def test_many_may_wait_for_one_result() -> None:
    gate = threading.Event()

    @activity(type="gate")
    def wait_for_gate() -> int:
        gate.wait(10)
        return 7

    @workflow(type="gated")
    def gated() -> int:
        return wait_for_gate()

    async with memory(gated, wait_for_gate) as app:
        handle = await app.start(gated, "g")
        waiting = [asyncio.create_task(handle.result()) for _ in range(5)]
        with pytest.raises(TimeoutError):
            await handle.result(0.01)
        waiting[0].cancel()
        gate.set()
        assert await asyncio.gather(*waiting[1:]) == [7] * 4


async def test_a_result_follows_runs_that_continue_as_new() -> None:
    @workflow(type="loop")
    def loop(n: int) -> int:
        sleep(0.001)
        if n:
            continue_as_new(loop, n - 1)
        return n

    async with memory(loop) as app:
        assert await app.execute(loop, "l", 5) == 0


async def test_each_way_to_end_is_an_error_of_its_own() -> None:
    async with memory(*EVERY) as app:
        with pytest.raises(WorkflowFailed, match="'f' failed: ValueError: no") as failed:
            await app.execute(fails, "f")
        assert (failed.value.workflow_id, bool(failed.value.run_id)) == ("f", True)
        with pytest.raises(WorkflowTimedOut, match="run timeout") as timed_out:
            await app.options(run_timeout=0.01).execute(waits, "t")
        assert isinstance(timed_out.value, TimeoutError)
        assert issubclass(WorkflowStopped, Exception)
        with pytest.raises(WorkflowTimedOut, match="execution timeout"):
            await app.options(timeout=0.01, run_timeout="1h").execute(waits, "e")


async def test_an_exception_that_cannot_be_restored_here_is_told_in_a_note() -> None:
    class Local(Exception):
        pass

    @workflow(type="odd")
    def odd() -> None:
        raise Local("strange")

    async with memory(odd) as app:
        with pytest.raises(WorkflowFailed, match="strange"):
            await app.execute(odd, "o")


# -- ids


@pytest.mark.contract("START-02", "START-03")
@pytest.mark.parametrize("id", ["", " ", "a b", "a/b", "é", "a\n", "x" * 192, "a%20", "a?b", "a#b"])
async def test_an_id_that_is_no_id_is_refused_before_anything_is_stored(id: str) -> None:
    async with memory(*EVERY) as app:
        with pytest.raises(RequestRefused) as start:
            await app.start(greet, id)
        with pytest.raises(RequestRefused) as reserve:
            await app.reserve(greet, id)
        assert start.value.reason == reserve.value.reason == "invalid_workflow_id"
        assert start.value.fields["field"] == "workflow_id"
        assert await app.list() == []
        with pytest.raises(WorkflowNotFound):
            await app.describe(id)


@pytest.mark.contract("START-02")
@pytest.mark.parametrize("id", ["a", "x" * 191, "order-1.2_3:4~5", "A"])
async def test_an_id_that_is_one_passes(id: str) -> None:
    async with memory(*EVERY) as app:
        assert await app.execute(greet, id) == "hello you"


async def test_an_id_is_used_once() -> None:
    async with memory(*EVERY) as app:
        first = await app.start(sleeps, "s")
        with pytest.raises(WorkflowAlreadyStarted, match="already been started") as caught:
            await app.start(sleeps, "s")
        assert caught.value.reason == "instance_already_started"
        assert caught.value.fields["run_id"] == first.run_id
        await app.execute(greet, "g")
        with pytest.raises(WorkflowAlreadyStarted):
            await app.start(greet, "g")
        outcomes = [command.outcome for command in (await app.describe("s")).commands]
        assert outcomes == ["started_new", "rejected_duplicate"]


async def test_an_active_run_can_be_asked_for_instead() -> None:
    async with memory(*EVERY) as app:
        once = app.options(if_exists="return_existing_active")
        first = await once.start(sleeps, "s")
        again = await once.start(sleeps, "s")
        assert again.run_id == first.run_id
        await once.execute(greet, "g")
        with pytest.raises(WorkflowAlreadyStarted):
            await once.start(greet, "g")


async def test_many_starts_of_one_id_at_once_start_one_run() -> None:
    async with memory(*EVERY) as app:
        found = await asyncio.gather(*(app.start(sleeps, "s") for _ in range(50)), return_exceptions=True)
        assert sum(not isinstance(one, BaseException) for one in found) == 1
        assert {type(one) for one in found if isinstance(one, BaseException)} == {WorkflowAlreadyStarted}
        assert len(await app.list()) == 1


@pytest.mark.contract("START-01")
async def test_a_reserved_id_is_known_and_not_started_over_a_restart(tmp_path: Any) -> None:
    path = tmp_path / "reserved.db"
    async with AsyncBackstay(path, EVERY) as app:
        assert await app.reserve(greet, "g") is True
        assert await app.reserve(greet, "g") is False
    async with AsyncBackstay(path, EVERY) as app:
        description = await app.describe("g")
        assert (description.status, description.run, description.workflow_type) == ("reserved", None, "greet")
        assert await app.list() == []
        assert await app.history("g") == []
        with pytest.raises(RequestRefused) as caught:
            await app.start(fails, "g")
        assert caught.value.reason == "workflow_type_mismatch"
        with pytest.raises(RequestRefused):
            await app.reserve(fails, "g")
        waiting = asyncio.create_task(app.handle(greet, "g").result())
        await asyncio.sleep(0)
        assert await app.execute(greet, "g") == "hello you"
        assert await waiting == "hello you"
        with pytest.raises(WorkflowAlreadyStarted):
            await app.start(greet, "g")


async def test_an_unknown_workflow_or_run_is_not_found() -> None:
    async with memory(*EVERY) as app:
        handle = app.handle(greet, "nobody")
        for call in (handle.result, handle.describe, handle.history, handle.repair):
            with pytest.raises(WorkflowNotFound, match="'nobody'") as caught:
                await call()
            assert caught.value.reason == "workflow_not_found"
        await app.execute(greet, "g")
        with pytest.raises(WorkflowNotFound):
            await app.history("g", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
        with pytest.raises(DefinitionError, match="not a workflow"):
            await app.start(print, "p")  # type: ignore[call-overload]


async def test_an_unregistered_workflow_waits_for_an_app_that_registers_it() -> None:
    @workflow(type="unknown")
    def unknown() -> int:
        return 1

    async with memory(*EVERY) as app:
        handle = await app.start(unknown, "u")
        with pytest.raises(TimeoutError):
            await handle.result(0.02)
        assert (await app.describe("u")).liveness_state == "workflow_task_waiting_for_compatible_worker"
        app.register(unknown)
        assert await handle.result() == 1


# -- options


@pytest.mark.contract("START-09")
async def test_a_memo_is_returned_and_never_matched() -> None:
    async with memory(*EVERY) as app:
        await app.options(memo={"note": "blue"}, search={"size": 3}).start(sleeps, "s")
        assert {row.workflow_id for row in await app.list(search=("size", 3))} == {"s"}
        assert await app.list(search=("note", "blue")) == []
        assert await app.list(label=("note", "blue")) == []
        assert await app.list(business_key="blue") == []
        with pytest.raises(TypeError):
            await app.list(memo=("note", "blue"))  # type: ignore[call-arg]
        assert list((await app.describe("s")).memo) == ["note"]
    assert not any("memo" in name for name in (*RunFilter.__struct_fields__, *ask.ListWorkflows.__struct_fields__))


@pytest.mark.contract("START-06")
async def test_every_option_of_a_start_is_kept() -> None:
    async with memory(*EVERY, queues=("default", "eu"), compatibility="build-1") as app:
        chosen = app.options(
            queue="eu",
            business_key="order 17",
            labels={"tenant": "acme"},
            memo={"note": {"a": [1]}},
            search={"size": 3, "rush": True},
            timeout="1h",
            run_timeout=60,
            priority=2,
            fairness_key="acme",
            fairness_weight=4,
            compatibility="build-1",
            request_id="req-1",
        )
        handle = await chosen.start(sleeps, "s")
        await eventually(lambda: _timer(app))
        description = await app.describe("s")
        (row,) = await app.list(business_key="order 17")
        (started,) = events(await handle.history(), "WorkflowStarted")
    assert (row.business_key, row.labels, row.search_attributes) == (
        "order 17",
        {"tenant": "acme"},
        {"rush": True, "size": 3},
    )
    assert (row.queue, row.compatibility) == ("eu", "build-1")
    assert {key: loads(blob) for key, blob in description.memo.items()} == {"note": {"a": [1]}}
    assert (started.business_key, started.visibility_labels) == ("order 17", {"tenant": "acme"})
    assert (started.execution_timeout_seconds, started.run_timeout_seconds) == (3600, 60)
    assert description.run_deadline_at == row.started_at + 60 * SECOND
    assert description.execution_deadline_at == row.started_at + 3600 * SECOND
    routing = started.routing
    assert (routing.priority, routing.fairness_key, routing.fairness_weight) == (2, "acme", 4)
    assert description.commands[0].request_id == "req-1"


async def _timer(app: AsyncBackstay) -> bool:
    return (await app.describe("s")).wait_kind == "timer"


async def test_options_are_added_up_and_do_not_stick_to_the_client() -> None:
    async with memory(*EVERY) as app:
        both = app.options(business_key="a").options(labels={"l": "1"})
        await both.execute(greet, "b")
        await app.execute(greet, "n")
        with_options, without = (await app.describe("b")).run, (await app.describe("n")).run
    assert with_options is not None
    assert without is not None
    assert (with_options.business_key, with_options.labels) == ("a", {"l": "1"})
    assert (without.business_key, without.labels) == (None, {})
    with pytest.raises(TypeError, match=r"'retries'; known are business_key"):
        app.options(retries=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"timeout": 0}, "invalid_timeout"),
        ({"run_timeout": 0}, "invalid_timeout"),
        ({"business_key": ""}, "invalid_business_key"),
        ({"business_key": "x" * 192}, "invalid_business_key"),
        ({"labels": {"bad key": "x"}}, "invalid_visibility_label"),
        ({"labels": {"key": ""}}, "invalid_visibility_label"),
        ({"search": {"key": {"deep": 1}}}, "invalid_search_attributes"),
        ({"memo": {"12": 1}}, "invalid_memo"),
        ({"memo": {"big": "x" * 300_000}}, "structural_limit_exceeded"),
    ],
)
async def test_options_that_are_wrong_are_refused_with_their_reason(options: Any, reason: str) -> None:
    async with memory(*EVERY) as app:
        with pytest.raises(RequestRefused) as caught:
            await app.options(**options).start(greet, "g")
        assert caught.value.reason == reason
        assert await app.list() == []


# -- looking


async def test_lists_filter_and_page() -> None:
    async with memory(*EVERY) as app:
        await app.options(business_key="k", labels={"t": "a"}, search={"n": 1}).execute(greet, "one")
        await app.options(business_key="k", labels={"t": "b"}, search={"n": 2}).start(sleeps, "two")
        await app.start(greet, "three", "x")
        await app.handle(greet, "three").result()
        await eventually(lambda: _status(app, "two", "waiting"))

        async def ids(**filters: Any) -> list[str]:
            return [row.workflow_id for row in await app.list(**filters)]

        assert await ids() == ["three", "two", "one"]
        assert await ids(type="greet") == ["three", "one"]
        assert await ids(status="completed") == ["three", "one"]
        assert await ids(status="waiting") == ["two"]
        assert await ids(business_key="k") == ["two", "one"]
        assert await ids(label=("t", "a")) == ["one"]
        assert await ids(search=("n", 2)) == ["two"]
        assert await ids(workflow_id="three") == ["three"]
        assert await ids(type="greet", business_key="k") == ["one"]
        assert await ids(search=("n", "1")) == []
        first = await app.list(limit=2)
        assert [row.workflow_id for row in first] == ["three", "two"]
        assert await ids(limit=2, before=first[-1].key) == ["one"]


async def _status(app: AsyncBackstay, id: str, status: str) -> bool:
    run = (await app.describe(id)).run
    return run is not None and run.status == status


async def test_namespaces_do_not_see_each_other() -> None:
    async with memory(*EVERY, namespace="a") as app:
        await app.execute(greet, "g")
        assert (await app.list())[0].namespace == "a"
        other = AsyncClient(app._transport, namespace="b")  # pyright: ignore[reportPrivateUsage]
        assert await other.list() == []
        with pytest.raises(WorkflowNotFound):
            await other.describe("g")
        await other.start(greet, "g")
        assert (await other.describe("g")).liveness_state == "workflow_task_waiting_for_compatible_worker", (
            "no worker serves that namespace"
        )


async def test_history_can_be_read_from_a_sequence_on() -> None:
    async with memory(*EVERY) as app:
        await app.execute(greet, "g")
        whole = await app.history("g")
        assert [entry.sequence for entry in whole] == [1, 2, 3]
        assert await app.history("g", after=2) == whole[2:]
        assert await app.history("g", whole[0].event.workflow_run_id) == whole  # type: ignore[attr-defined]


async def test_an_app_that_is_not_open_says_so() -> None:
    app = memory(*EVERY)
    with pytest.raises(RuntimeError, match="not open"):
        await app.start(greet, "g")
    async with app:
        await app.execute(greet, "g")
    with pytest.raises(RuntimeError, match="not open"):
        await app.describe("g")


# -- without await


def test_the_sync_client_has_the_same_words(tmp_path: Any) -> None:
    with Backstay(tmp_path / "sync.db", EVERY) as app:
        assert app.is_engine
        assert app.path.endswith("sync.db")
        handle = app.start(greet, "g", "ann")
        assert (handle.id, bool(handle.run_id)) == ("g", True)
        assert handle.result() == "hello ann"
        assert app.execute(greet, "h", times=2) == "hello you hello you"
        assert app.handle(greet, "g").result("1s") == "hello ann"
        assert app.reserve(greet, "r") is True
        assert app.options(business_key="k").execute(greet, "k") == "hello you"
        assert [row.workflow_id for row in app.list(business_key="k")] == ["k"]
        assert app.describe("g").status == handle.describe().status == "completed"
        assert app.history("g") == handle.history()
        with pytest.raises(WorkflowNotRunning, match="has ended"):
            handle.repair()
        assert "g" in repr(handle)
        with pytest.raises(WorkflowFailed):
            app.execute(fails, "f")
        with pytest.raises(TimeoutError):
            app.start(sleeps, "s").result(0.01)
        with pytest.raises(WorkflowNotFound):
            app.describe("nobody")


def test_the_sync_client_can_be_opened_by_hand_and_register_later(tmp_path: Any) -> None:
    app = Backstay(tmp_path / "later.db")
    app.register(greet)
    assert app.open() is app.open()
    app.register(fails)
    with pytest.raises(WorkflowFailed):
        app.execute(fails, "f")
    assert app.execute(greet, "g") == "hello you"
    app.close()
    app.close()


def test_a_database_that_cannot_be_opened_leaves_no_thread(tmp_path: Any) -> None:
    app = Backstay(tmp_path / "no" / "such" / "folder.db", EVERY)
    before = threading.active_count()
    with pytest.raises(Exception, match="does not exist"):
        app.open()
    assert threading.active_count() == before


@pytest.mark.parametrize("where", ["async activity", "workflow", "side effect"])
def test_the_sync_client_is_refused_where_it_would_wait_for_itself(where: str, tmp_path: Any) -> None:
    app = Backstay(tmp_path / "itself.db", [greet])

    @activity(type="calls")
    async def calls() -> str:
        return app.execute(greet, "inner")

    @workflow(type="outer", unchecked=True)
    def outer() -> str:
        if where == "async activity":
            return calls.step().run()
        if where == "workflow":
            return app.execute(greet, "inner")
        return side_effect(lambda: app.execute(greet, "inner"))

    app.register(outer, calls)
    with app:
        with pytest.raises(WorkflowFailed) as caught:
            app.start(outer, "o").result(5)
        kind = RuntimeError if where == "async activity" else DurableCallRefused
        assert isinstance(caught.value.__cause__, kind)
        assert app.execute(greet, "still-alive") == "hello you"


def test_the_sync_client_works_in_a_sync_activity(tmp_path: Any) -> None:
    app = Backstay(tmp_path / "nested.db", [greet])

    @activity(type="calls")
    def calls() -> str:
        return app.execute(greet, "inner")

    @workflow(type="outer")
    def outer() -> str:
        return calls()

    app.register(outer, calls)
    with app:
        assert app.execute(outer, "o") == "hello you"


async def test_the_sync_client_in_the_loop_of_its_own_engine_is_refused() -> None:
    async with memory(*EVERY) as app:
        client = Client(app, LoopBridge(asyncio.get_running_loop()))
        with pytest.raises(RuntimeError, match="use the async client"):
            client.execute(greet, "g")
        assert await asyncio.to_thread(client.execute, greet, "g") == "hello you"


def test_two_apps_on_one_file_share_the_work(tmp_path: Any) -> None:
    path = tmp_path / "shared.db"
    with Backstay(path, EVERY) as first, Backstay(path, EVERY) as second:
        assert (first.is_engine, second.is_engine) == (True, False)
        assert second.execute(greet, "g", "ann") == "hello ann"
        assert first.handle(greet, "g").result() == "hello ann"


def test_a_call_that_comes_to_the_engine_while_it_closes_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.run_coroutine_threadsafe
    coming, closing, posted = threading.Event(), threading.Event(), threading.Event()
    answers: list[BaseException] = []

    class LastMoment(asyncio.SelectorEventLoop):
        def close(self) -> None:
            closing.set()
            posted.wait(10)
            super().close()

    def held_up(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        if threading.current_thread() is not caller:
            return real(work, loop)
        coming.set()
        closing.wait(0.2)  # an engine that closes waits for who is on the way; there is nothing to see of it
        try:
            return real(work, loop)
        finally:
            posted.set()

    def call() -> None:
        with pytest.raises(RuntimeError, match="closed before the answer came") as caught:
            app.handle(waits, "w").result()
        answers.append(caught.value)

    monkeypatch.setattr(asyncio, "new_event_loop", LastMoment)
    app = Backstay(":memory:", EVERY).open()
    app.start(waits, "w")
    caller = threading.Thread(target=call, daemon=True)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", held_up)
    caller.start()
    assert coming.wait(10)
    app.close()
    caller.join(10)
    assert len(answers) == 1


def test_a_call_that_does_not_end_when_it_is_told_to_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "LEAVE", 0)
    engine = EngineThread()
    engine.start()
    begun = threading.Event()
    answers: list[BaseException] = []

    async def stubborn() -> None:
        begun.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()

    def call() -> None:
        with pytest.raises(RuntimeError, match="closed before the answer came") as caught:
            engine.run(stubborn())
        answers.append(caught.value)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert begun.wait(10)
    engine.stop()
    caller.join(10)
    assert len(answers) == 1


async def test_an_app_that_is_cancelled_while_it_closes_frees_the_database(tmp_path: Any) -> None:
    at_work, closing = asyncio.Event(), asyncio.Event()

    @activity(type="endless")
    async def endless() -> None:
        at_work.set()
        await asyncio.Event().wait()

    @workflow(type="patient")
    async def patient() -> None:
        await endless()

    async def service() -> None:
        async with AsyncBackstay(tmp_path / "app.db", [patient, endless], grace=300) as app:
            await app.start(patient, "p")
            await at_work.wait()
            closing.set()

    task = asyncio.create_task(service())
    await closing.wait()
    task.cancel()  # in the middle of the grace
    with pytest.raises(asyncio.CancelledError):
        await task
    async with AsyncBackstay(tmp_path / "app.db", [patient, endless], grace=0) as again:
        assert again.engine.holder
