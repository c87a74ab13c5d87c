"""An activity that kills its process is begun again a bounded number of times, or never: real processes, really killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncClient, WorkflowFailed
from backstay.sdk.errors import ActivityCrashed

from ..remote.kit import TOKEN, House
from . import deadly
from .program import Program

Start = Callable[..., Program]
CASES = pytest.mark.parametrize(("name", "activity", "starts"), [("spend", "greedy", 2), ("pay_once", "pay", 1)])


def begun(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


@CASES
def test_embedded_it_takes_its_program_down_so_often_and_then_fails(
    tmp_path: Path, program: Start, name: str, activity: str, starts: int
) -> None:
    ledger = tmp_path / "ledger"
    for _ in range(starts):
        assert program("deadly", "embedded", str(tmp_path / "app.db"), name, str(ledger)).ended() == 9
    last = program("deadly", "embedded", str(tmp_path / "app.db"), name, str(ledger))
    assert last.ended() == 0
    assert last.lines[0].startswith(f"[{starts}, ")
    assert begun(ledger) == [f"{activity} {number}" for number in range(1, starts + 1)]


def test_without_a_workflow_it_is_the_same(tmp_path: Path, program: Start) -> None:
    ledger = tmp_path / "ledger"
    assert program("deadly", "activity", str(tmp_path / "app.db"), str(ledger)).ended() == 9
    last = program("deadly", "activity", str(tmp_path / "app.db"), str(ledger))
    assert last.ended() == 0
    assert last.lines[0].startswith("ActivityCrashed(")
    assert last.lines[0].endswith(" 1\n")
    assert begun(ledger) == ["pay 1"]


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
