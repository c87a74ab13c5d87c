"""Messages of one instance between two commits share a decision; what is wrong with one is no matter of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, WorkflowStopped, activity, signal, wait, workflow
from backstay.codec.values import dumps
from backstay.kernel.decision import Decision
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.machine import Machine
from backstay.kernel.task import Lease, Task
from backstay.kernel.turn import Turn
from backstay.protocol import requests as ask
from backstay.store import Applied
from backstay.store.errors import StoreError

from ..sdk.kit import eventually, names


@workflow(type="listener")
class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @signal
    def say(self, word: str) -> None:
        self.heard.append(word)

    def handle(self, count: int) -> list[str]:
        wait(lambda: len(self.heard) >= count)
        return self.heard


def test_signals_that_arrive_together_are_one_decision_in_one_commit(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", [Listener]) as app:
            handle = await app.start(Listener, "l", 3)
            written = app.engine.store.apply
            batches: list[int] = []

            def watched(decisions, done):  # type: ignore[no-untyped-def]
                batches.append(len(decisions))
                written(decisions, done)

            app.engine.store.apply = watched  # type: ignore[method-assign]
            await asyncio.gather(*(handle.signal(Listener.say, word) for word in "abc"))
            assert await handle.result() == ["a", "b", "c"]
            assert batches == [1], "three signals and the code they wake are one decision"

    asyncio.run(story())


def test_a_message_that_cannot_be_written_fails_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        unwritable = "\ud800"  # half a character: neither JSON nor a database takes it
        async with AsyncBackstay(tmp_path / "app.db", [Listener]) as app:
            handle: Any = await app.start(Listener, "l", 2)
            with caplog.at_level(logging.CRITICAL):
                answers = await asyncio.gather(
                    handle.signal(Listener.say, "before"),
                    handle.signal(Listener.say, "never", request_id=unwritable),
                    handle.signal(Listener.say, "after"),
                    return_exceptions=True,
                )
            assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
            assert await handle.result() == ["before", "after"]
            assert names(await app.history("l")).count("SignalReceived") == 2
            assert not app.engine.rollback.one_by_one

    asyncio.run(story())


def test_an_instance_of_which_nothing_could_be_written_is_not_remembered_for_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", [Listener]) as app:
            with caplog.at_level(logging.CRITICAL):
                answers = await asyncio.gather(
                    *(
                        app.options(request_id=unwritable).start(Listener, "l", 2)
                        for unwritable in ("\ud800", "\ud801")
                    ),
                    return_exceptions=True,
                )
            assert all(isinstance(answer, Exception) for answer in answers)
            assert not app.engine.rollback.one_by_one

    asyncio.run(story())


def test_a_start_behind_one_that_cannot_be_written_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are one request that was sent twice. The second is decided on what the first would have created."""

    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", [Listener]) as app:
            apply = app.engine.store.apply
            under_way: list[Callable[[Applied], None]] = []

            def held_up(decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
                under_way.append(done)

            app.engine.store.apply = held_up  # type: ignore[method-assign]
            once = app.options(request_id="r")
            first = asyncio.create_task(once.start(Listener, "l", 1))
            await eventually(lambda: under_way, "the start and what its code did are being written")
            broken = Applied(failed={0: StoreError("it cannot be written")})
            with caplog.at_level(logging.CRITICAL):
                under_way.pop()(broken)
                await eventually(lambda: under_way, "the start is being written by itself")
                second = asyncio.create_task(once.start(Listener, "l", 1))
                await eventually(lambda: any(entry.answers for entry in app.engine.cache), "the second waits for it")
                app.engine.store.apply = apply  # type: ignore[method-assign]
                under_way.pop()(broken)
                handle = await second
                await asyncio.wait([first])
            await handle.signal(Listener.say, "hello")
            assert await handle.result() == ["hello"]
            assert first.exception() is None or "it cannot be written" in str(first.exception())

    asyncio.run(story())


done: list[int] = []


@activity(type="work")
def work() -> int:
    done.append(1)
    return len(done)


@workflow(type="job")
def job() -> int:
    return work()


def test_a_report_on_its_way_that_turns_out_stale_is_not_taken_for_lost_work(tmp_path: Path) -> None:
    """Another process moves the instance while the report of a step is being written, so all of it is decided again."""

    async def story() -> None:
        done.clear()
        async with AsyncBackstay(tmp_path / "app.db", [job, work]) as app:
            engine = app.engine
            write = engine.store.apply
            kept: list[Callable[[Applied], None]] = []

            def conflicting(decisions: Sequence[Decision], answer: Callable[[Applied], None]) -> None:
                if done and not kept:
                    kept.append(answer)
                else:
                    write(decisions, answer)

            engine.store.apply = conflicting  # type: ignore[method-assign]
            handle = await app.start(job, "j")
            await eventually(lambda: bool(kept), "kept")
            key = await engine.key_of("default", "j")
            assert key is not None
            entry = engine.cache.get(key)
            assert entry is not None
            engine.discard(entry)
            await eventually(lambda: engine.cache.get(key) is not None, "loaded")
            kept[0](Applied(stale=frozenset({0})))
            assert await handle.result() == 1
            assert done == [1]

    asyncio.run(story())


def test_a_report_that_was_refused_by_a_decision_that_comes_to_nothing_is_heard_again(tmp_path: Path) -> None:
    """A run is cancelled while its step ends; another process comes first, and neither of the two has happened."""
    gate = asyncio.Event()

    @activity(type="gated")
    async def gated() -> int:
        done.append(1)
        await gate.wait()
        return len(done)

    @workflow(type="gated-job")
    def gated_job() -> int:
        return gated.step().run()

    async def story() -> None:
        done.clear()
        async with AsyncBackstay(tmp_path / "app.db", [gated_job, gated]) as app:
            engine = app.engine
            handle = await app.start(gated_job, "j")
            await eventually(lambda: bool(done), "it is running")
            write = engine.store.apply
            kept: list[Callable[[Applied], None]] = []
            engine.store.apply = lambda decisions, answer: kept.append(answer)  # type: ignore[method-assign]
            cancelled = asyncio.ensure_future(handle.cancel())
            await eventually(lambda: bool(kept), "it is being written that the run is over")
            gate.set()
            await eventually(lambda: not app.executor.activities.at_work(), "the step has ended, too late")
            engine.store.apply = write  # type: ignore[method-assign]
            kept[0](Applied(stale=frozenset({0})))
            await cancelled
            with pytest.raises(WorkflowStopped):
                await handle.result()
            told = names(await handle.history())
            assert (told.count("ActivityStarted"), told.count("ActivityCompleted")) == (1, 1)
            assert done == [1]

    asyncio.run(story())


def test_a_process_beside_the_engine_answers_from_what_is_on_disk_when_it_answers(tmp_path: Path) -> None:
    """It is writing something for an instance, while the engine moves that instance on."""

    async def story() -> None:
        path = tmp_path / "app.db"
        async with (
            AsyncBackstay(path) as app,
            AsyncBackstay(path, client_only=True) as guest,
        ):
            await app.call(ask.StartWorkflow(workflow_type="order", workflow_id="o"))
            task = await app.call(ask.PollWorkflowTask(worker_id="w"))
            assert task is not None
            scheduled = ask.CompleteTask(
                task_id=task.task.id,
                lease_owner="w",
                workflow_task_attempt=1,
                commands=[ScheduleActivity(activity_type="charge")],
            )
            await app.call(scheduled)
            write = guest.engine.store.apply
            written: list[Callable[[], None]] = []

            def slow(decisions: Sequence[Decision], answer: Callable[[Applied], None]) -> None:
                write(decisions, lambda applied: written.append(lambda: answer(applied)))

            guest.engine.store.apply = slow  # type: ignore[method-assign]
            signalling = asyncio.ensure_future(guest.handle(None, "o").signal("hello"))
            await eventually(lambda: bool(written), "written")
            work = await app.call(ask.PollActivityTask(worker_id="w", activity_types=frozenset({"charge"})))
            assert work is not None
            beat = ask.HeartbeatActivityTask(activity_attempt_id=work.activity_attempt_id, lease_owner="w")
            beating = asyncio.ensure_future(guest.call(beat))
            entry = next(iter(guest.engine.cache))
            await eventually(lambda: bool(entry.answers), "decided")
            guest.engine.store.apply = write  # type: ignore[method-assign]
            written[0]()
            await signalling
            assert (await beating).can_continue

    asyncio.run(story())


def test_a_message_that_cannot_be_written_does_not_keep_its_instance_from_being_made() -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", [Listener]) as app:
            written = app.engine.store.apply

            def but_no_signals(decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
                bad = [any(command.command_type == "signal" for command in d.commands) for d in decisions]
                failed: dict[int, Exception] = {n: ValueError("no signals today") for n, it in enumerate(bad) if it}
                written(
                    [d for d, it in zip(decisions, bad, strict=True) if not it], lambda _: done(Applied(failed=failed))
                )

            app.engine.store.apply = but_no_signals  # type: ignore[method-assign]
            handle = app.handle(Listener, "l")

            async def said() -> None:
                while app.engine.cache.named("default", "l") is None:  # decided, and not written yet
                    await asyncio.sleep(0)
                await handle.signal(Listener.say, "never")

            started, refused = await asyncio.gather(app.start(Listener, "l", 1), said(), return_exceptions=True)
            assert not isinstance(started, BaseException)
            assert isinstance(refused, ValueError)
            assert (await handle.describe()).status == "waiting"

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_caller_who_chokes_on_the_answer_keeps_it_from_no_other_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with AsyncBackstay(":memory:", [Listener]) as app:
            handle = await app.start(Listener, "l", 2)
            (key,) = [entry.instance.key for entry in app.engine.cache]
            answered: list[str] = []

            def choke(*_: object) -> None:
                answered.append("choked")
                raise ZeroDivisionError

            def say(word: str, reply: Callable[..., None]) -> None:
                message = DeliverSignal(
                    name="say", arguments=dumps([word]), values=[word], request_id=None, source="test", context={}
                )
                app.engine.submit(key, message, reply)

            with caplog.at_level(logging.CRITICAL):
                say("a", choke)
                say("b", lambda *_: answered.append("b"))
                assert await handle.result(timeout=10) == ["a", "b"]
            assert answered == ["choked", "b"]

    asyncio.run(story())


@activity(type="task")
def task(number: int) -> int:
    return number


@workflow(type="worker")
def working(number: int) -> int:
    return task(number)


async def test_a_decision_that_breaks_gives_back_the_room_it_had_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grant = Machine.grant
    broken: list[str] = []

    def breaks(self: Machine, turn: Turn, task: Task, lease: Lease) -> None:
        grant(self, turn, task, lease)
        if not broken and task.kind == "activity":
            broken.append(task.id)
            raise ArithmeticError("a bug of the kernel")

    monkeypatch.setattr(Machine, "grant", breaks)
    async with AsyncBackstay(":memory:", [working, task], threads=1) as app:
        assert [await app.execute(working, f"w-{number}", number) for number in range(2)] == [0, 1]
    assert broken
    assert "deciding" in caplog.text


def test_an_observer_that_breaks_holds_no_caller_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(batch: object) -> None:
        raise RuntimeError("an observer is broken")

    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", [Listener]) as app:
            app.engine.commits.observe(broken)
            handle = await app.start(Listener, "l", 1)
            await handle.signal(Listener.say, "a")
            assert await asyncio.wait_for(handle.result(), 10) == ["a"]

    with caplog.at_level(logging.ERROR, "backstay.engine"):
        asyncio.run(story())
    assert "an observer is broken" in caplog.text
