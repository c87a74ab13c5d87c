"""Messages of one instance between two commits share a decision; what is wrong with one is no matter of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast import AsyncHoldfast, activity, signal, wait, workflow
from holdfast.kernel.decision import Decision
from holdfast.store import Applied

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


def test_what_comes_together_is_written_together(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncHoldfast(tmp_path / "app.db", [Listener]) as app:
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
        async with AsyncHoldfast(tmp_path / "app.db", [Listener]) as app:
            handle = await app.start(Listener, "l", 2)
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
            assert not app.engine.losses.careful

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
        async with AsyncHoldfast(tmp_path / "app.db", [job, work]) as app:
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
