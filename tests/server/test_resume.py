"""What a workflow task says about why it exists: it is part of the task, and the same for whoever gets it next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay.kernel.task import Resume

from .kit import Api, blob, detail, serving, settle, sql
from .test_projections import VIEWS, projected

CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
CHILD = {"type": "start_child_workflow", "workflow_type": "part"}
TIMER = {"type": "start_timer", "delay_seconds": 5}
WAIT = {"type": "open_condition_wait", "condition_key": "paid", "condition_definition_fingerprint": "sha256:1"}
SIGNAL = {"type": "open_signal_wait", "signal_name": "pay"}


async def worked(api: Api) -> str:
    await api.complete(await api.poll(), CHARGE)
    work = await api.poll("activity")
    await api.activity("complete", work, result=blob(1))
    return f"activity:{work['activity_execution_id']}"


async def slept(api: Api) -> str:
    await api.complete(await api.poll(), TIMER)
    (timer,) = (await detail(api))["timers"]
    await api.world.advance(6)
    return f"timer:{timer['id']}"


async def signalled(api: Api) -> str:
    await api.complete(await api.poll(), WAIT)
    sent = await api.control("POST", "/workflows/o-1/signal/pay", {})
    return f"signal-application:{sent.json()['signal_id']}"


async def updated(api: Api) -> str:
    await api.complete(await api.poll(), WAIT)
    accepted = await api.control("POST", "/workflows/o-1/update/rename", {"wait_for": "accepted"})
    return f"update:{accepted.json()['update_id']}"


async def heard_of_a_child(api: Api) -> str:
    await api.complete(await api.poll(), CHILD)
    (wait,) = (await detail(api))["waits"]
    await api.complete(await api.poll(), {"type": "complete_workflow"})
    return wait["wait_id"]


async def waited_too_long(api: Api) -> str:
    await api.complete(await api.poll(), SIGNAL | {"timeout_seconds": 5})
    (wait,) = [wait for wait in (await detail(api))["waits"] if wait["kind"] == "signal"]
    await api.world.advance(6)
    return wait["wait_id"]


CAUSES: dict[str, tuple[Callable[[Api], Awaitable[str]], str | None]] = {
    "an activity": (worked, None),
    "a timer": (slept, "timer"),
    "a signal": (signalled, "signal"),
    "an update": (updated, "update"),
    "a child": (heard_of_a_child, "child"),
    "the timeout of a signal": (waited_too_long, "signal"),
}


async def begun(api: Api) -> None:
    contract = {"signals": ["pay", "note"], "queries": [], "updates": ["rename"]}
    types = ["order", "part"]
    await api.register(workflow_command_contracts={"order": contract}, supported_workflow_types=types)
    await api.start()


def resume(task: dict[str, Any]) -> dict[str, Any]:
    return {name: task[name] for name in Resume.__struct_fields__}


@pytest.mark.contract("RESUME-04")
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_task_that_is_given_to_another_worker_names_the_same_wait(cause: str) -> None:
    reach, kind = CAUSES[cause]
    async with serving() as api:
        await begun(api)
        wait_id = await reach(api)
        first = await api.poll()
        assert (first["workflow_id"], first["open_wait_id"]) == ("o-1", wait_id)
        assert first["workflow_wait_kind"] == kind
        assert first["resume_source_kind"] is not None
        assert first["resume_source_id"] is not None
        await api.world.advance(301)  # its lease is over
        await api.register("worker-2", supported_workflow_types=["order", "part"])
        second = await api.poll(worker_id="worker-2", timeout_seconds=30)
        assert (second["task_id"], second["workflow_task_attempt"]) == (first["task_id"], 2)
        assert resume(second) == resume(first)


@pytest.mark.contract("RESUME-01")
@pytest.mark.parametrize("cause", CAUSES)
async def test_why_a_task_exists_is_part_of_it_whatever_stored_views_say_and_whatever_comes_meanwhile(
    cause: str,
) -> None:
    """Only the rows of tasks and history count: views are falsified, the memory of the run is dropped, messages arrive."""
    reach, _ = CAUSES[cause]
    async with serving() as api:
        await begun(api)
        wait_id = await reach(api)
        await projected(api)
        shown = (await api.control("GET", "/workflows/o-1/detail")).json()["tasks"]
        (before,) = [task for task in shown if task["type"] == "workflow" and task["status"] == "ready"]
        assert (await api.control("POST", "/workflows/o-1/signal/note", {})).status_code == 202
        for table in VIEWS.values():
            sql(api, f"update {table} set body = x'00'")
        sql(api, "update run set status = 'pending', workflow_type = 'other'")
        for entry in list(api.server.engine.cache):
            api.server.engine.discard_cached(entry)
        await settle()
        task = await api.poll()
        assert (task["task_id"], task["open_wait_id"]) == (before["id"], wait_id)
        for name in resume(task).keys() & before.keys():
            assert task[name] == before[name], name
        assert task["signal_name"] != "note"
