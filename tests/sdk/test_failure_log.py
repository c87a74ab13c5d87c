"""Failures are logged once, where they happen, with their traceback and ids; and callers get the traceback, too."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest

from backstay import (
    Signal,
    UpdateFailed,
    WorkflowFailed,
    activity,
    activity_info,
    exception_payload,
    logger,
    query,
    update,
    wait,
    workflow,
)

from .kit import evicting, memory

HERE = __name__


def dig(found: dict[str, int]) -> int:
    return found["k"]


@activity(type="dug", retries=1, backoff="1ms")
def dug() -> int:
    return dig({})


@activity(type="dug_async")
async def dug_async() -> int:
    return dig({})


@activity(type="dug_here", local=True, retries=1, backoff="1ms")
def dug_here() -> int:
    return dig({})


@activity(type="late", timeout="20ms")
def late() -> None:
    import time

    from backstay import ActivityCancelled, heartbeat

    try:
        while True:
            time.sleep(0.002)
            heartbeat()
    except ActivityCancelled:
        return


@workflow(type="digs")
def digs() -> int:
    return dug()


@workflow(type="digs_async")
async def digs_async() -> int:
    return await dug_async()


@workflow(type="digs_here")
def digs_here() -> int:
    return dug_here()


@workflow(type="breaks")
def breaks() -> int:
    try:
        return dug()
    except KeyError:
        return dig({"a": 1})


@workflow(type="waits_long")
def waits_long() -> None:
    late()


@workflow(type="Talks")
class Talks:
    end = Signal[None]("end")

    @update
    def dig(self) -> int:
        return dig({})

    @query
    def look(self) -> int:
        return 1

    def handle(self) -> None:
        wait(self.end)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, "backstay.failures")

    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "backstay.failures"]

    return records


def text_of(record: logging.LogRecord) -> str:
    return logging.Formatter().format(record)


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_each_attempt_the_activity_and_the_workflow_are_logged_once_with_their_ids(
    make: Any, logged: Any
) -> None:
    async with make(digs, dug) as app:
        with pytest.raises(WorkflowFailed):
            await app.execute(digs, "w-1")
        run_id = (await app.describe("w-1")).run.run_id
    first, last, run = logged()
    assert [record.levelname for record in (first, last, run)] == ["WARNING", "ERROR", "ERROR"]
    for record, number in ((first, 1), (last, 2)):
        assert (record.workflow_id, record.run_id, record.activity_type) == ("w-1", run_id, "dug")
        assert (record.step, record.attempt) == (1, number)
        shown = text_of(record)
        assert f"attempt {number} of 2" in shown
        assert "'w-1'" in shown
        assert run_id in shown
        assert 'return found["k"]' in shown
        assert "sdk/worker/activities.py" not in shown
    assert (run.workflow_id, run.run_id, run.workflow_type) == ("w-1", run_id, "digs")
    assert 'return found["k"]' in text_of(run)
    assert "return dug()" in text_of(run)


@pytest.mark.parametrize(("run", "act", "levels"), [(digs_async, dug_async, 2), (digs_here, dug_here, 3)])
async def test_async_and_local_activities_are_logged_as_well(run: Any, act: Any, levels: int, logged: Any) -> None:
    async with memory(run, act) as app:
        with pytest.raises(WorkflowFailed):
            await app.execute(run, "w-1")
    records = logged()
    assert [record.levelname for record in records] == ["WARNING"] * (levels - 2) + ["ERROR", "ERROR"]
    assert all('found["k"]' in text_of(record) for record in records)


@pytest.mark.embedded("told with live code and with replay alone")
@pytest.mark.parametrize("make", [memory, evicting])
async def test_a_replay_and_a_question_log_nothing_again(make: Any, logged: Any) -> None:
    async with make(breaks, dug) as app:
        with pytest.raises(WorkflowFailed):
            await app.execute(breaks, "w-1")
    assert [record.levelname for record in logged()] == ["WARNING", "ERROR", "ERROR"]


async def test_an_activity_that_runs_out_of_time_for_good_is_an_error(logged: Any) -> None:
    async with memory(waits_long, late) as app:
        with pytest.raises(WorkflowFailed):
            await app.execute(waits_long, "w-1")
    told, run = logged()
    assert (told.levelname, run.levelname, told.workflow_id) == ("ERROR", "ERROR", "w-1")
    assert "late" in told.getMessage()


async def test_an_update_that_fails_is_a_warning(logged: Any) -> None:
    async with memory(Talks) as app:
        handle = await app.start(Talks, "w-1")
        with pytest.raises(UpdateFailed) as caught:
            await handle.update(Talks.dig)
        assert await handle.query(Talks.look) == 1
        await handle.terminate()
    (record,) = logged()
    assert (record.levelname, record.workflow_id, record.update_name) == ("WARNING", "w-1", "dig")
    assert 'found["k"]' in text_of(record)
    assert 'found["k"]' in "".join(traceback.format_exception(caught.value))


async def test_the_error_of_a_caller_has_the_traceback_of_the_activity(logged: Any) -> None:
    async with memory(digs, dug) as app:
        with pytest.raises(WorkflowFailed) as caught:
            await app.execute(digs, "w-1")
    shown = "".join(traceback.format_exception(caught.value))
    assert "in dig\n" in shown
    assert 'return found["k"]' in shown
    assert "return dug()" in shown
    assert shown.index('found["k"]') < shown.index("return dug()") < shown.index("WorkflowFailed")
    assert exception_payload(caught.value)["exception_type"] == "KeyError"


async def test_diagnostics_can_be_left_out_of_history() -> None:
    async with memory(digs, dug, diagnostics=False) as app:
        with pytest.raises(WorkflowFailed) as caught:
            await app.execute(digs, "w-1")
    assert caught.value.failure is not None
    assert caught.value.failure.diagnostics is None
    assert type(caught.value.__cause__) is KeyError


async def test_log_lines_of_an_activity_have_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    told = logger("shop")

    @activity(type="says")
    def says() -> None:
        told.warning("hello", extra={"sku": "tea"})
        assert activity_info().step == 1

    @workflow(type="run")
    def run() -> None:
        told.warning("hello")
        says()

    async with memory(run, says) as app:
        await app.execute(run, "w-1")
    of_run: Any
    of_attempt: Any
    of_run, of_attempt = [record for record in caplog.records if record.name == "shop"]
    assert (of_run.workflow_id, of_run.workflow_type) == ("w-1", "run")
    fields = (of_attempt.workflow_id, of_attempt.activity_type, of_attempt.step, of_attempt.attempt, of_attempt.sku)
    assert fields == ("w-1", "says", 1, 1, "tea")
    told.warning("outside")
    assert not hasattr(caplog.records[-1], "workflow_id")
