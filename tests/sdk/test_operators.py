"""What an operator does to runs: pause, unpause, archive, repair; each is a durable command, numbered with all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    Backstay,
    RequestRefused,
    Signal,
    WorkflowNotFound,
    activity,
    continue_as_new,
    sleep,
    wait,
    workflow,
)

from .kit import StillWorld, events, memory, names, settle

letters = Signal[str]("letters")


@activity(type="echo")
def echo(text: str) -> str:
    return text


@workflow(type="flow")
def flow() -> list[Any]:
    sleep(10)
    return [echo("a"), wait(letters, timeout=100)]


async def test_a_paused_run_records_facts_and_does_nothing() -> None:
    world = StillWorld()
    async with memory(flow, echo, world=lambda: world) as app:
        run = await app.start(flow, "f")
        await settle()
        assert await run.pause("maintenance") == "paused"
        assert await run.pause() == "pause_not_needed"
        assert (await run.describe()).liveness_state == "paused"
        await world.advance(10)
        await run.signal(letters, "early")
        found = await run.describe()
        assert [view.transport_state for view in found.tasks] == ["paused"]
        assert names(await run.history())[-2:] == ["TimerFired", "SignalReceived"]
        assert await run.unpause() == "unpaused"
        assert await run.unpause() == "unpause_not_needed"
        assert await run.result() == ["a", "early"]
        (paused,) = events(await run.history(), "WorkflowPaused")
        assert paused.reason == "maintenance"


async def test_a_pause_outlives_the_process(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "app.db", [flow, echo]) as app:
        run = await app.start(flow, "f")
        await run.pause()
    async with AsyncBackstay(tmp_path / "app.db", [flow, echo]) as app:
        run = app.handle(flow, "f")
        await app.engine.commits.drain()
        assert (await run.describe()).liveness_state == "paused"
        await run.terminate()


async def test_an_activity_that_backs_off_is_tried_again_now() -> None:
    tries: list[int] = []

    @activity(type="carrier", retries=20, backoff="1h")
    def carrier() -> str:
        tries.append(len(tries) + 1)
        if len(tries) == 1:
            raise ConnectionError("no answer")
        return "shipped"

    @workflow(type="shipping", unchecked=True)
    def shipping() -> str:
        return carrier()

    world = StillWorld()
    async with memory(shipping, carrier, world=lambda: world) as app:
        run = await app.start(shipping, "s")
        while "ActivityRetryScheduled" not in names(await run.history()):
            await settle()
        with pytest.raises(RequestRefused, match="no such activity"):
            await run.retry_now("elsewhere-1")
        why = await run.why()
        assert (why.verb, why.action and why.action.verb) == ("tries_again", "retry_now")
        assert why.sentence == "Tries again in 1 h: carrier has failed 1 of 21 times, last with “no answer”."
        branch = await run.why(event=len(await run.history()))
        assert branch.chain[-1].type == "ActivityRetryScheduled"
        assert await run.retry_now(reason="the carrier is back") == "retry_dispatched"
        assert await run.result() == "shipped"
        assert tries == [1, 2]
        (asked,) = events(await run.history(), "ActivityRetryRequested")
        assert (asked.reason, asked.activity_type) == ("the carrier is back", "carrier")
        with pytest.raises(RequestRefused, match="has ended"):
            await run.retry_now()


@pytest.mark.contract("ARCH-01", "ARCH-02", "ARCH-03", "ARCH-04", "CANCEL-04")
async def test_closed_runs_are_archived_any_of_a_chain() -> None:
    @workflow(type="legs", unchecked=True)
    def legs(left: int) -> str:
        got = wait(letters)
        if left:
            continue_as_new(legs, left - 1)
        return got

    async with memory(legs) as app:
        run = await app.start(legs, "l", 1)
        with pytest.raises(RequestRefused) as refused:
            await run.archive()
        assert refused.value.fields["outcome"] == "rejected_run_not_closed"
        await run.signal(letters, "a")
        await run.signal(letters, "b")
        assert await run.result() == "b"
        first, second = sorted(await app.list(workflow_id="l"), key=lambda row: row.number)
        assert await run.archive("audited", run_id=first.run_id) == "archived"
        assert names(await run.history(first.run_id))[-2:] == ["ArchiveRequested", "WorkflowArchived"]
        assert await run.archive(run_id=first.run_id) == "archive_not_needed"
        assert names(await run.history())[-1] == "WorkflowCompleted"
        assert await run.archive() == "archived"
        rows = {row.run_id: row.archived_at for row in await app.list(workflow_id="l")}
        assert all(rows[row.run_id] is not None for row in (first, second))
        assert await run.result() == "b"


async def test_archiving_an_earlier_run_leaves_the_code_of_the_current_one_alone() -> None:
    @workflow(type="legs", unchecked=True)
    def legs(left: int) -> str:
        got = wait(letters)
        if left:
            continue_as_new(legs, left - 1)
        return got

    async with memory(legs) as app:
        run = await app.start(legs, "l", 1)
        await run.signal(letters, "a")
        await settle()
        assert names(await run.history())[-1] == "SignalWaitOpened"
        await run.archive(run_id=run.run_id)
        await run.signal(letters, "b")
        assert await run.result(timeout=10) == "b"


@pytest.mark.contract("REC-01", "REC-03")
async def test_every_command_is_on_record_in_one_numbered_row() -> None:
    async with memory(flow, echo) as app:
        run = await app.start(flow, "f")
        await run.signal(letters, "a")
        with pytest.raises(RequestRefused):
            await run.signal("nobody")
        await run.pause()
        await run.unpause()
        await run.repair()
        await run.cancel()
        with pytest.raises(RequestRefused):
            await run.terminate()
        commands = (await run.describe()).commands
        assert [command.sequence for command in commands] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [(c.command_type, c.status) for c in commands] == [
            ("start", "accepted"),
            ("signal", "accepted"),
            ("signal", "rejected"),
            ("pause", "accepted"),
            ("unpause", "accepted"),
            ("repair", "accepted"),
            ("cancel", "accepted"),
            ("terminate", "rejected"),
        ]
        assert {command.source for command in commands} == {"python"}


async def test_repair_of_a_healthy_run_is_not_needed_and_restores_what_is_missing() -> None:
    async with memory(flow, echo) as app:
        run = await app.start(flow, "f")
        await settle()
        assert not (await run.repair()).changed
        with pytest.raises(WorkflowNotFound):
            await app.handle(None, "nobody").repair()


def test_the_blocking_client_has_all_of_it(tmp_path: Path) -> None:
    with Backstay(tmp_path / "app.db", [flow, echo]) as app:
        run = app.start(flow, "f")
        assert run.pause("why") == "paused"
        assert run.unpause() == "unpaused"
        run.signal(letters, "a")
        assert not run.repair().changed
        assert run.cancel() == "cancelled"
        assert run.archive() == "archived"
        other = app.signal_with_start(flow, "g", [], letters, "b")
        other.terminate("enough")
        assert app.describe("g").status == "terminated"
