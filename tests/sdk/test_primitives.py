"""What workflow code may use of the world: values recorded once, versions, its own time and randomness, notes."""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

import backstay
from backstay import (
    AsyncBackstay,
    DurableCallRefused,
    NotInWorkflow,
    WorkflowFailed,
    activity,
    info,
    logger,
    now,
    patched,
    rng,
    side_effect,
    sleep,
    spawn,
    upsert_memo,
    upsert_search_attributes,
    version,
    workflow,
)
from backstay.codec.values import loads
from backstay.kernel.features.version import DEFAULT_VERSION

from .kit import blocked, events, eventually, evicting, memory, names, steps

LATER = "after the deploy"
"""A queue that only the second release serves: what waits there waits for the deploy."""


@activity(type="deploy", queue=LATER)
def deployed() -> None: ...


@activity(type="note")
def note(text: str) -> str:
    return text


def both(*things: Any) -> list[AsyncBackstay]:
    """Live code that stays, and code that is given up after each task."""
    return [memory(*things), evicting(*things)]


# -- side effects


@pytest.mark.embedded("opens apps of its own")
@pytest.mark.contract("SIDE-01", "AUTHOR-08")
async def test_a_side_effect_runs_once_over_restarts_and_replays(tmp_path: Any) -> None:
    calls: list[int] = []

    def roll() -> int:
        calls.append(random.getrandbits(60))
        return calls[-1]

    @workflow
    def dice() -> list[int]:
        first = side_effect(roll)
        deployed()
        second = side_effect(roll)
        sleep(0.001)
        return [first, second]

    path = tmp_path / "dice.db"
    async with AsyncBackstay(path, [dice]) as app:
        await app.start(dice, "d")
    assert len(calls) == 1
    async with AsyncBackstay(path, [dice, deployed], queues=("default", LATER)) as app:
        assert await app.handle(dice, "d").result() == calls
        history = await app.history("d")
    assert len(calls) == 2
    assert [e.sequence for e in events(history, "SideEffectRecorded")] == [1, 3]


async def test_live_code_gets_the_value_as_it_was_recorded() -> None:
    def when() -> datetime:
        return datetime(2026, 1, 31, tzinfo=UTC)

    @workflow
    def kinds() -> list[str]:
        return [
            type(value).__name__
            for value in (
                side_effect(when),
                side_effect(lambda: datetime(2026, 1, 31, tzinfo=UTC)),
                side_effect(uuid4),
                side_effect(lambda: (1, 2)),
                side_effect(lambda: None),
            )
        ]

    for app in both(kinds):
        async with app:
            assert await app.execute(kinds, "k") == ["datetime", "str", "str", "list", "NoneType"]


async def test_a_failing_side_effect_fails_the_run_even_if_the_code_would_go_on() -> None:
    @workflow
    def fails() -> str:
        try:
            side_effect(lambda: 1 // 0)
        except ZeroDivisionError:
            note("went on")
        return "fine"

    @workflow
    def returns() -> str:
        try:
            side_effect(lambda: 1 // 0)
        except ZeroDivisionError:
            return "fine"
        return "finer"

    for app in both(fails, returns, note):
        async with app:
            for definition in (fails, returns):
                with pytest.raises(WorkflowFailed, match="ZeroDivisionError"):
                    await app.execute(definition, definition.type)
                assert "ActivityScheduled" not in names(await app.history(definition.type))


async def test_a_side_effect_makes_no_durable_calls() -> None:
    @workflow
    def nests() -> int:
        return side_effect(lambda: len(note("x")))

    async with memory(nests, note) as app:
        with pytest.raises(WorkflowFailed, match="a side effect cannot make durable calls") as caught:
            await app.execute(nests, "n")
    assert isinstance(caught.value.__cause__, DurableCallRefused)


async def test_a_side_effect_whose_value_cannot_be_stored_fails_the_run() -> None:
    @workflow
    def odd() -> Any:
        return side_effect(object)

    async with memory(odd) as app:
        with pytest.raises(WorkflowFailed, match="unsupported_value_type"):
            await app.execute(odd, "o")


# -- versions


def release(old: Any, new: Any, tmp_path: Any) -> Any:
    """Start a run on the old release, let it reach the deploy, and give it to the new one."""

    async def through(id: str = "r") -> tuple[Any, list[Any]]:
        path = tmp_path / "release.db"
        async with AsyncBackstay(path, [old, note]) as app:
            await app.start(old, id)
        async with AsyncBackstay(path, [new, note, deployed], queues=("default", LATER)) as app:
            result = await app.handle(new, id).result()
            return result, await app.history(id)

    return through


@pytest.mark.contract("VER-01")
async def test_a_fresh_run_takes_the_newest_version_and_marks_it_once() -> None:
    @workflow
    def run() -> list[int]:
        found = [version("a"), version("b", max=4), version("a"), version("a")]
        note("x")
        return [*found, version("b", max=4)]

    for app in both(run, note):
        async with app:
            assert await app.execute(run, "r") == [1, 4, 1, 1, 4]
            history = await app.history("r")
        assert [
            (e.sequence, e.change_id, e.version, e.min_supported, e.max_supported)
            for e in events(history, "VersionMarkerRecorded")
        ] == [
            (1, "a", 1, -1, 1),
            (2, "b", 4, -1, 4),
        ]


@pytest.mark.contract("VER-03", "VER-04")
async def test_a_run_that_started_before_the_change_stays_on_the_old_branch_without_a_marker(tmp_path: Any) -> None:
    @workflow(type="run")
    def old() -> list[Any]:
        deployed()
        return [note("old")]

    @workflow(type="run")
    def new() -> list[Any]:
        first = version("polite")
        deployed()
        second = patched("later")
        return [first, second, note("new")]

    result, history = await release(old, new, tmp_path)()
    assert result == [DEFAULT_VERSION, False, "new"]
    assert "VersionMarkerRecorded" not in names(history)
    assert [e.sequence for e in events(history, "ActivityScheduled")] == [1, 2]


@pytest.mark.contract("VER-02")
async def test_a_committed_marker_wins_over_a_higher_maximum(tmp_path: Any) -> None:
    @workflow(type="run")
    def old() -> int:
        version("fee", max=1)
        deployed()
        return 0

    @workflow(type="run")
    def new() -> int:
        version("fee", max=3)
        deployed()
        return version("fee", max=3)

    result, history = await release(old, new, tmp_path)()
    assert result == 1
    assert len(events(history, "VersionMarkerRecorded")) == 1


async def test_an_id_that_stood_in_the_old_source_is_fresh_when_it_is_reached_later(tmp_path: Any) -> None:
    @workflow(type="run")
    def old() -> int:
        deployed()
        return version("fee", max=2)

    @workflow(type="run")
    def new() -> int:
        deployed()
        note("another definition")
        return version("fee", max=2)

    result, history = await release(old, new, tmp_path)()
    assert result == 2
    assert len(events(history, "VersionMarkerRecorded")) == 1


@pytest.mark.embedded("opens apps of its own")
async def test_a_version_out_of_the_supported_range_blocks_and_never_fails_the_run(tmp_path: Any) -> None:
    @workflow(type="run")
    def old() -> int:
        found = version("fee", max=1)
        deployed()
        return found

    @workflow(type="run", unchecked=True)
    def new() -> int:
        try:
            return version("fee", min=2, max=3)
        except BaseException:
            return -1
        finally:
            deployed()

    path = tmp_path / "range.db"
    async with AsyncBackstay(path, [old]) as app:
        await app.start(old, "r")
    async with AsyncBackstay(path, [new, deployed], queues=("default", LATER)) as app:
        description = await blocked(app, "r")
        assert "on version 1 of 'fee'; the code supports 2..3" in description.tasks[0].task.block.message
        assert "WorkflowFailed" not in names(await app.history("r"))
    async with AsyncBackstay(path, [old, deployed], queues=("default", LATER)) as app:
        assert await app.handle(old, "r").result() == 1


async def test_nonsense_versions_are_a_value_error() -> None:
    @workflow
    def run() -> int:
        refused = 0
        for wrong in (lambda: version(""), lambda: version("a", min=3, max=2)):
            try:
                wrong()
            except ValueError:
                refused += 1
        return refused

    async with memory(run) as app:
        assert await app.execute(run, "r") == 2


# -- time, randomness, identity


@pytest.mark.contract("AUTHOR-08", "AUTHOR-09")
async def test_time_randomness_and_identity_repeat_in_every_replay() -> None:
    seen: list[list[Any]] = []

    @activity(type="local", local=True)
    def local() -> int:
        return 1

    @workflow(type="repeat", unchecked=True)
    def repeat() -> list[Any]:
        mine: list[Any] = []
        seen.append(mine)

        def look() -> None:
            told = info()
            mine.append((now(), rng().random(), backstay.uuid4(), told.history_length, told.continue_suggested))

        look()
        note("a")
        look()
        local()
        look()
        branch = spawn(lambda: (sleep(0.003), look(), note("b"), look()))
        sleep(0.001)
        look()
        branch.join()
        look()
        return [info().workflow_id, info().run_id, info().type, info().namespace, info().run_number]

    async with evicting(repeat, note, local) as app:
        handle = await app.start(repeat, "r")
        assert await handle.result() == ["r", handle.run_id, "repeat", "default", 1]
    assert len(seen) >= 3, "every task was a replay"
    longest = max(seen, key=len)
    assert len(longest) == 7
    for replay in seen:
        assert replay == longest[: len(replay)]
    times = [entry[0] for entry in longest]
    assert times == sorted(times)
    assert all(time.tzinfo is not None for time in times)
    assert len({entry[2] for entry in longest}) == 7
    assert all(isinstance(entry[2], UUID) and entry[2].version == 4 for entry in longest)


async def test_two_runs_have_randomness_of_their_own() -> None:
    @workflow
    def draw() -> float:
        return rng().random()

    async with memory(draw) as app:
        assert await app.execute(draw, "a") != await app.execute(draw, "b")


async def test_time_stands_still_until_something_happens() -> None:
    @workflow
    def clock() -> list[float]:
        before = now()
        same = now()
        sleep(0.02)
        return [(same - before).total_seconds(), (now() - before).total_seconds()]

    async with memory(clock) as app:
        still, moved = await app.execute(clock, "c")
    assert still == 0
    assert moved >= 0.02


# -- logging


@pytest.mark.embedded("code that ran ahead says its line again when that was not taken")
async def test_the_logger_is_silent_while_a_run_replays(caplog: pytest.LogCaptureFixture) -> None:
    @activity(type="local", local=True)
    def local() -> int:
        return 1

    @workflow(type="talk")
    def talk() -> None:
        log = logger()
        log.info("started %s", 1)
        note("a")
        log.info("after a")
        local()
        log.info("after local")
        sleep(0.001)
        log.info("after sleep")
        sleep(0)
        log.info("end")

    for app in both(talk, note, local):
        caplog.clear()
        with caplog.at_level(logging.INFO, "backstay.workflow"):
            async with app:
                handle = await app.start(talk, "t")
                await handle.result()
        records = [record for record in caplog.records if record.name == "backstay.workflow"]
        assert [record.getMessage() for record in records] == [
            "started 1",
            "after a",
            "after local",
            "after sleep",
            "end",
        ]
        assert {(r.workflow_id, r.run_id, r.workflow_type) for r in records} == {("t", handle.run_id, "talk")}  # type: ignore[attr-defined]


def test_the_logger_works_outside_a_workflow(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "shop"):
        logger("shop").info("plain")
    assert caplog.messages == ["plain"]


# -- memo and search attributes


@pytest.mark.contract("CMD-16")
async def test_memo_and_search_attributes_are_merged_and_removed() -> None:
    @workflow
    def notes() -> None:
        upsert_memo(stage="paid", extra={"deep": [1]})
        upsert_search_attributes(colour="red", size=3, seen=datetime(2026, 1, 31, tzinfo=UTC), tags=["a", "b"])
        note("x")
        upsert_memo(stage="shipped", start=None)
        upsert_search_attributes(size=None, colour="blue")

    for app in both(notes, note):
        async with app:
            await app.options(memo={"start": 1}, search={"colour": "green", "kept": True}).execute(notes, "n")
            description = await app.describe("n")
            (row,) = await app.list(search=("colour", "blue"))
            history = await app.history("n")
        assert {key: loads(blob) for key, blob in description.memo.items()} == {
            "stage": "shipped",
            "extra": {"deep": [1]},
        }
        assert row.search_attributes == {
            "colour": "blue",
            "kept": True,
            "seen": "2026-01-31T00:00:00+00:00",
            "tags": ["a", "b"],
        }
        assert [step for step in steps(history) if "Upserted" in step[0]] == [
            ("MemoUpserted", 1),
            ("SearchAttributesUpserted", 2),
            ("MemoUpserted", 4),
            ("SearchAttributesUpserted", 5),
        ]


async def test_a_memo_is_no_filter() -> None:
    @workflow
    def run() -> None: ...

    async with memory(run) as app:
        await app.options(memo={"colour": "red"}).execute(run, "r")
        assert await app.list(search=("colour", "red")) == []
        assert await app.list(label=("colour", "red")) == []


async def test_a_malformed_memo_or_search_attribute_is_a_value_error_in_the_code() -> None:
    @workflow
    def run() -> int:
        refused = 0
        for wrong in (
            lambda: upsert_memo(**{"no spaces": 1}),
            lambda: upsert_memo(thing=object()),
            lambda: upsert_search_attributes(deep={"a": 1}),
            lambda: upsert_search_attributes(ä=1),
        ):
            try:
                wrong()
            except ValueError:
                refused += 1
        upsert_memo(fine=1)
        return refused

    async with memory(run) as app:
        assert await app.execute(run, "r") == 4
        assert steps(await app.history("r")) == [("MemoUpserted", 1)]


# -- outside


@pytest.mark.parametrize(
    "call",
    [
        lambda: sleep(1),
        lambda: sleep.step(1).run(),
        lambda: now(),
        lambda: rng(),
        lambda: backstay.uuid4(),
        lambda: info(),
        lambda: version("a"),
        lambda: patched("a"),
        lambda: spawn(print),
        lambda: upsert_memo(a=1),
        lambda: upsert_search_attributes(a=1),
    ],
)
def test_outside_a_workflow_the_primitives_say_so(call: Any) -> None:
    with pytest.raises(NotInWorkflow, match="only inside a workflow"):
        call()


def test_outside_a_workflow_a_side_effect_is_the_function() -> None:
    assert side_effect(lambda: 3) == 3


# -- timers


@pytest.mark.contract("TIMER-01", "CMD-06")
async def test_only_the_firing_of_its_timer_resumes_a_sleep() -> None:
    @workflow
    def waits() -> str:
        sleep("1h")
        return "late"

    async with memory(waits) as app:
        await app.start(waits, "w")
        description = await eventually(lambda: _waiting(app, "w"))
        history = await app.history("w")
        assert names(history)[-1] == "TimerScheduled"
        assert description.liveness_state == "timer_scheduled"
        assert description.next_wake == history[-1].event.fire_at  # type: ignore[attr-defined]
        assert history[-1].event.fire_at == history[-1].at + 3_600_000_000  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError):
            await app.handle(waits, "w").result(0.02)


async def _waiting(app: AsyncBackstay, id: str) -> Any:
    found = await app.describe(id)
    return found if found.wait_kind == "timer" else None


@pytest.mark.parametrize("nap", [0, 0.001, "1ms", "0.001s"])
async def test_a_sleep_of_any_spelling_ends(nap: Any) -> None:
    @workflow
    def waits() -> str:
        sleep(nap)
        return "up"

    for app in both(waits):
        async with app:
            assert await app.execute(waits, "w") == "up"
            assert [name for name in names(await app.history("w")) if "Timer" in name] == [
                "TimerScheduled",
                "TimerFired",
            ]
