"""Work that a running server has lost, rows and memory alike: its sweep makes it again, without any operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from .kit import Api, blob, detail, serving, settle, sql

WAIT = {"type": "open_condition_wait", "condition_key": "paid", "condition_definition_fingerprint": "sha256:1"}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
CHILD = {"type": "start_child_workflow", "workflow_type": "part"}
TIMER = {"type": "start_timer", "delay_seconds": 60}


async def started(api: Api) -> None:
    await api.start()


async def waiting(api: Api, *commands: dict[str, Any]) -> None:
    await api.start()
    await api.complete(await api.poll(), *commands)


async def child_ended(api: Api) -> None:
    await waiting(api, CHILD)
    await api.complete(await api.poll(), {"type": "complete_workflow", "result": blob(1)})


async def updated(api: Api) -> None:
    await waiting(api, WAIT)
    assert (await api.control("POST", "/workflows/o-1/update/rename", {"wait_for": "accepted"})).status_code == 202


async def signalled(api: Api) -> None:
    await waiting(api, WAIT)
    assert (await api.control("POST", "/workflows/o-1/signal/pay", {})).status_code == 202


async def scheduled(api: Api) -> None:
    await waiting(api, CHARGE)


async def asleep(api: Api) -> None:
    await waiting(api, TIMER)


LOST: dict[str, tuple[Callable[[Api], Awaitable[None]], str, str | None]] = {
    "workflow": (started, "workflow", None),
    "child resolution": (child_ended, "workflow", "child"),
    "accepted update": (updated, "workflow", "update"),
    "accepted signal": (signalled, "workflow", "signal"),
    "pending activity": (scheduled, "activity", None),
    "timer": (asleep, "workflow", "timer"),
}


async def lose(api: Api) -> None:
    """Rows of tasks and the wake are gone from the disk, and the memory of them with their engine's."""
    engine = api.server.engine
    sql(api, "delete from task")
    sql(api, "update workflow set next_wake = null")
    engine.matching.lanes.forget(lambda key: True)
    for entry in list(engine.cache):
        engine.discard_cached(entry)
    await settle()


@pytest.mark.contract("REPAIR-19", "REPAIR-15", "REPAIR-18")
@pytest.mark.parametrize("kind", LOST)
async def test_the_sweep_makes_lost_work_again_as_it_was(kind: str) -> None:
    reach, plane, wait_kind = LOST[kind]
    async with serving() as api:
        contract = {"signals": ["pay"], "queries": [], "updates": ["rename"]}
        types = ["order", "part"]
        await api.register(workflow_command_contracts={"order": contract}, supported_workflow_types=types)
        await reach(api)
        before = [task for task in (await detail(api))["tasks"] if not task["task_missing"]]
        await lose(api)
        lost = await detail(api)
        assert (lost["liveness_state"], lost["task_problem"]) == ("repair_needed", True)
        (missing,) = [task for task in lost["tasks"] if task["task_missing"]]
        assert (missing["transport_state"], missing["type"]) == ("missing", "timer" if kind == "timer" else plane)
        for _ in range(4):
            await api.world.advance(6)  # nobody asks for a repair
            await settle()
        healed = await detail(api)
        assert healed["liveness_state"] != "repair_needed"
        assert [task["id"] for task in healed["tasks"]] == [task["id"] for task in before]
        if kind == "timer":
            assert healed["tasks"][0]["available_at"] == before[0]["available_at"], "the same deadline"
            await api.world.advance(60)
        task = await api.poll(plane)
        assert task["workflow_id"] == "o-1"
        if plane == "workflow":
            assert task["workflow_wait_kind"] == wait_kind
            for name in (
                "open_wait_id",
                "resume_source_id",
                "child_call_id",
                "workflow_update_id",
                "workflow_signal_id",
            ):
                expected = before[0].get(name) if kind != "timer" else task[name]
                assert task[name] == expected, name
        assert "RepairRequested" not in await api.types()
