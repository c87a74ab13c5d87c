"""An activity that kills its worker is begun again a bounded number of times, or never: real processes, really killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import ActivityCrashed, AsyncClient, WorkflowFailed

from ..processes import deadly
from ..processes.program import Program
from ..processes.test_deadly import CASES, begun
from .kit import TOKEN, House

Start = Callable[..., Program]


@pytest.fixture
def program() -> Iterator[Start]:
    started: list[Program] = []

    def start(*args: str) -> Program:
        started.append(Program(*args))
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


@CASES
async def test_workers_of_a_server_die_of_it_so_often_and_no_more(
    tmp_path: Path, program: Start, name: str, activity: str, starts: int
) -> None:
    ledger = tmp_path / "ledger"
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        handle = await client.start(deadly.BY_NAME[name], name)
        for _ in range(starts):
            assert await asyncio.to_thread(program("deadly", "worker", house.url, TOKEN, str(ledger)).ended) == 9
        program(
            "deadly", "worker", house.url, TOKEN, str(ledger)
        )  # it comes back under its name, and says that it holds nothing
        crashes, message = await asyncio.wait_for(handle.result(), 30)
        assert crashes == starts
        assert "may have done its work" in message
        assert begun(ledger) == [f"{activity} {number}" for number in range(1, starts + 1)]
        history: Any = await client.history(name)
        told = [entry.event.retry_reason for entry in history if entry.type == "ActivityRetryScheduled"]
        assert told == ["activity_crashed"] * (starts - 1)


async def test_who_does_not_catch_it_fails_with_it(tmp_path: Path, program: Start) -> None:
    ledger = tmp_path / "ledger"
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        handle = await client.start(deadly.careless, "careless")
        assert await asyncio.to_thread(program("deadly", "worker", house.url, TOKEN, str(ledger)).ended) == 9
        program("deadly", "worker", house.url, TOKEN, str(ledger))
        with pytest.raises(WorkflowFailed) as failed:
            await asyncio.wait_for(handle.result(), 30)
        cause = failed.value.__cause__
        assert isinstance(cause, ActivityCrashed)
        assert cause.crashes == 1
