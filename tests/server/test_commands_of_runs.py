"""A command belongs to the run that it names: in the number it gets, in the detail of the run, in its export."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..many_nodes import Chosen, Shape
from .kit import Api, detail, serving

CONTRACT = {"signals": ["pay"], "queries": [], "updates": ["rename"]}
NEXT = {"type": "continue_as_new"}
WAIT = {"type": "open_condition_wait", "condition_key": "paid", "condition_definition_fingerprint": "sha256:1"}


async def continued(api: Api) -> tuple[str, str]:
    """A workflow with two runs, the first of them closed: their ids."""
    await api.register(workflow_command_contracts={"order": CONTRACT})
    first = (await api.start())["run_id"]
    await api.complete(await api.poll(timeout_seconds=30), NEXT)
    await api.complete(await api.poll(timeout_seconds=30), WAIT)
    return first, (await api.describe())["run_id"]


async def commands(api: Api, run_id: str) -> list[tuple[Any, ...]]:
    """The commands of a run as its detail shows them; the export of the run shows the same."""
    path = f"/workflows/o-1/runs/{run_id}"
    shown = (await api.control("GET", f"{path}/detail")).json()["commands"]
    exported = (await api.control("GET", f"{path}/history/export")).json()["commands"]
    assert [one["id"] for one in exported] == [one["id"] for one in shown]
    return [(one["command_type"], one["command_sequence"], one["outcome"]) for one in shown]


async def tell(api: Api, run_id: str, verb: str, **body: Any) -> httpx.Response:
    return await api.control("POST", f"/workflows/o-1/runs/{run_id}/{verb}", body)


@pytest.mark.contract("REC-01", "REC-06", "CANCEL-04", "ARCH-01")
async def test_a_command_to_an_older_run_is_filed_under_that_run() -> None:
    async with serving() as api:
        first, second = await continued(api)
        before = await commands(api, second)
        assert before == [("start", 1, "started_new")]
        told = [await tell(api, first, verb) for verb in ("archive", "cancel", "terminate", "repair", "signal/pay")]
        told += [await tell(api, first, "update/rename"), await tell(api, first, "archive")]
        assert await commands(api, first) == [
            ("start", 1, "started_new"),
            ("archive", 2, "archived"),
            ("cancel", 3, "rejected_not_current"),
            ("terminate", 4, "rejected_not_current"),
            ("repair", 5, "rejected_not_current"),
            ("signal", 6, "rejected_not_current"),
            ("update", 7, "rejected_not_current"),
            ("archive", 8, "archive_not_needed"),
        ]
        assert [answer.json()["command_sequence"] for answer in told] == list(range(2, 9))
        assert await commands(api, second) == before
        assert "UpdateRejected" not in await api.types()
        # The next command of the current run has the next number of that run.
        assert (await api.control("POST", "/workflows/o-1/cancel", {})).json()["command_sequence"] == 2
        ids = [one["id"] for run in (first, second) for one in await _shown(api, run)]
        assert len(set(ids)) == len(ids) == 10


async def _shown(api: Api, run_id: str) -> list[dict[str, Any]]:
    return (await api.control("GET", f"/workflows/o-1/runs/{run_id}/detail")).json()["commands"]


@pytest.mark.contract("SIG-02", "SIG-03")
async def test_a_rejected_signal_to_an_older_run_is_a_signal_of_that_run() -> None:
    async with serving() as api:
        first, second = await continued(api)
        await tell(api, first, "signal/pay")
        older = (await api.control("GET", f"/workflows/o-1/runs/{first}/detail")).json()
        (signal,) = older["signals"]
        (command,) = [one for one in older["commands"] if one["command_type"] == "signal"]
        assert (signal["status"], signal["outcome"]) == ("rejected", "rejected_not_current")
        assert (command["signal_id"], command["signal_status"]) == (signal["signal_id"], "rejected")
        assert signal["signal_id"].startswith(first)
        assert (command["requested_run_id"], command["resolved_run_id"]) == (first, second)
        assert (await detail(api))["signals"] == []


@pytest.mark.parametrize("shape", [Shape(), Shape(3, links=False)], ids=["one node", "three nodes"])
async def test_many_commands_to_an_older_run_at_once_are_numbered_without_gaps(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chosen, "shape", shape)
    async with serving() as api:
        first, _ = await continued(api)
        await asyncio.gather(*(tell(api, first, verb) for verb in ["cancel", "archive", "repair"] * 5))
        assert [sequence for _, sequence, _ in await commands(api, first)] == list(range(1, 17))


async def test_numbers_of_an_older_run_go_on_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    async with serving(store=store) as api:
        first, _ = await continued(api)
        await tell(api, first, "archive")
    async with serving(store=store) as api:
        await tell(api, first, "archive")
        assert [sequence for _, sequence, _ in await commands(api, first)] == [1, 2, 3]


@pytest.mark.contract("REC-02", "SIG-08")
async def test_signals_of_one_moment_are_kept_and_applied_in_the_order_of_their_numbers() -> None:
    async with serving() as api:
        await api.register(workflow_command_contracts={"order": CONTRACT})
        await api.start()
        await api.complete(await api.poll(), WAIT)
        sent = [api.control("POST", "/workflows/o-1/signal/pay", {"input": [cents]}) for cents in range(100)]
        answers = [answer.json() for answer in await asyncio.gather(*sent)]
        numbers = sorted(answer["command_sequence"] for answer in answers)
        assert numbers == list(range(2, 102))
        kept = [one for one in (await detail(api))["commands"] if one["command_type"] == "signal"]
        assert len({one["recorded_at"] for one in kept}) == 1, "the time tells nothing"
        assert [one["command_sequence"] for one in kept] == numbers
        by_number = {answer["command_sequence"]: answer["signal_id"] for answer in answers}
        in_order = [by_number[number] for number in numbers]

        async def signals(type: str) -> list[str]:
            return [event["payload"]["signal_id"] for event in await api.history() if event["event_type"] == type]

        assert await signals("SignalReceived") == in_order
        while (task := await api.poll()) is not None:
            await api.complete(task, WAIT)
        assert await signals("SignalApplied") == in_order
