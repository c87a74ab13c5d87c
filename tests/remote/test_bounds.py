"""What is too large for a server: it fails by the name of the limit, at once and once, and hurts nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    RequestRefused,
    WorkflowFailed,
    activity,
    emit,
    gather,
    heartbeat,
    query,
    side_effect,
    update,
    wait,
    workflow,
)

from ..sdk.kit import events, eventually, names
from .kit import TOKEN, House

ran: list[str] = []


@activity(retries=3)
def large(size: int) -> str:
    ran.append("large")
    return "x" * size


@activity(local=True)
def nearby(size: int) -> str:
    return "x" * size


@activity
def taking(text: str) -> int:
    return len(text)


@activity
def raising(size: int) -> None:
    raise ValueError("x" * size)


@activity
def telling(size: int) -> None:
    heartbeat(rows="x" * size)


@workflow(type="bounds-result")
def returns(size: int) -> str:
    return "x" * size


@workflow(type="bounds-activity")
def asks(size: int) -> str:
    try:
        return large(size)
    except Exception as failed:
        return f"failed: {failed}"


@workflow(type="bounds-local")
def asks_nearby(size: int) -> int:
    return len(nearby(size))


@workflow(type="bounds-arguments")
def passes(size: int) -> int:
    return taking("x" * size)


@workflow(type="bounds-many")
def passes_many(count: int, size: int) -> int:
    return sum(gather(taking.step("x" * size) for _ in range(count)))


@workflow(type="bounds-child")
def begets(size: int) -> int:
    return len(echoes("x" * size))


@workflow(type="bounds-echo")
def echoes(text: str) -> str:
    return text


@workflow(type="bounds-side-effect")
def dices(size: int) -> int:
    return len(side_effect(lambda: "x" * size))


@workflow(type="bounds-stream")
def streams(size: int) -> int:
    emit("said", "x" * size)
    return size


@workflow(type="bounds-raises")
def raises(size: int) -> None:
    raising(size)


@workflow(type="bounds-fails")
def fails(size: int) -> None:
    raise ValueError("x" * size)


@workflow(type="bounds-tells")
def tells(size: int) -> None:
    telling(size)


@workflow(type="bounds-talks")
class Talks:
    done = False

    @query
    def much(self, size: int) -> str:
        return "x" * size

    @update
    def give(self, size: int) -> str:
        return "x" * size

    @update
    def stop(self) -> None:
        self.done = True

    def handle(self) -> None:
        wait(lambda: self.done)


FLOWS = [returns, asks, asks_nearby, passes, passes_many, begets, echoes, dices, streams, raises, fails, tells, Talks]
ALL = [*FLOWS, large, nearby, taking, raising, telling]
HUGE = 9_000_000  # more than one request may have


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


@asynccontextmanager
async def bounded(**settings: Any) -> AsyncIterator[tuple[AsyncClient, AsyncWorker]]:
    async with (
        House(**settings) as house,
        AsyncWorker(house.url, ALL, token=TOKEN, drain=1.0) as worker,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        yield client, worker
        assert await client.execute(passes, "others", 10) == 10
        assert worker.link.lost == 0, "nothing was sent that is refused"


@pytest.mark.parametrize("size", [3_000_000, HUGE], ids=["more than a payload", "more than a request"])
async def test_an_activity_whose_result_is_too_large_has_failed_by_the_limit(size: int) -> None:
    async with bounded() as (client, _):
        said = await client.execute(asks, "a", size)
        assert "payload_size is" in said
        assert "the limit is 2097152" in said
        assert "store the large value elsewhere" in said
        (failed,) = events(await client.history("a"), "ActivityFailed")
        assert (failed.failure_category, failed.structural_limit_kind) == ("structural_limit", "payload_size")
        assert failed.structural_limit_value > size
        assert failed.non_retryable
    assert ran == ["large"], "to do it again would give the same once more"


@pytest.mark.parametrize(
    "flow", [returns, asks_nearby, passes, begets, dices, streams], ids=lambda flow: flow.type.removeprefix("bounds-")
)
@pytest.mark.parametrize("size", [3_000_000, HUGE], ids=["more than a payload", "more than a request"])
async def test_a_run_that_asks_for_too_much_fails_by_the_limit(flow: Any, size: int) -> None:
    async with bounded() as (client, _):
        with pytest.raises(WorkflowFailed, match=r"payload_size is \d+, the limit is 2097152"):
            await client.execute(flow, "f", size)
        (failed,) = events(await client.history("f"), "WorkflowFailed")
        assert (failed.failure_category, failed.structural_limit_kind) == ("structural_limit", "payload_size")


async def test_a_request_that_is_too_small_for_a_legal_result_names_its_setting() -> None:
    async with bounded(max_body_bytes=200_000) as (client, _):
        said = await client.execute(asks, "a", 180_000)
        assert "max_body_bytes is" in said
        assert "the limit is 200000" in said
    assert ran == ["large"]


async def test_commands_that_are_too_large_together_block_the_run_and_name_the_setting() -> None:
    async with bounded(max_body_bytes=200_000) as (client, _):
        handle = await client.start(passes_many, "m", 10, 30_000)

        async def block() -> str:
            described = await client.describe("m")
            return next((view.task.block.message for view in described.tasks if view.task.block), "")

        said = await eventually(block, "its task failed")
        assert "the server accepts 200000 (max_body_bytes)" in said
        assert "ActivityScheduled" not in names(await handle.history())
        await handle.terminate()


async def test_results_that_are_too_large_together_are_sent_one_by_one() -> None:
    async with bounded(max_body_bytes=200_000) as (client, _):
        assert (
            await asyncio.gather(*(client.execute(returns, f"r-{n}", 90_000) for n in range(20))) == ["x" * 90_000] * 20
        )


@pytest.mark.parametrize("flow", [raises, fails], ids=["of an activity", "of a run"])
async def test_an_error_with_a_huge_message_is_told_in_short(flow: Any) -> None:
    async with bounded() as (client, _):
        with pytest.raises(WorkflowFailed, match="xxx"):
            await client.execute(flow, "e", HUGE)


async def test_a_heartbeat_takes_details_and_no_documents() -> None:
    async with bounded() as (client, _):
        with pytest.raises(WorkflowFailed, match="heartbeat detail 'rows' has 9000000 characters, at most 2000"):
            await client.execute(tells, "t", HUGE)


async def test_an_answer_that_is_too_large_is_refused_and_its_workflow_goes_on() -> None:
    async with bounded() as (client, _):
        handle = await client.start(Talks, "t")
        with pytest.raises(RequestRefused, match=r"accepts 8388608 \(max_body_bytes\)"):
            await handle.query(Talks.much, HUGE)
        for size in (3_000_000, HUGE):
            with pytest.raises(Exception, match=r"payload_size is \d+, the limit is 2097152"):
                await handle.update(Talks.give, size)
        await handle.update(Talks.stop)
        await handle.result()


async def test_a_call_that_is_too_large_says_what_to_do() -> None:
    async with bounded() as (client, _):
        with pytest.raises(RequestRefused, match=r"max_body_bytes.*store the large value elsewhere"):
            await client.start(echoes, "c", "x" * HUGE)
        with pytest.raises(RequestRefused, match="payload_size"):
            await client.start(echoes, "c", "x" * 3_000_000)
