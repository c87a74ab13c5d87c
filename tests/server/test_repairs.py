"""Lost task rows under a running server: the detail shows them, and a repair over HTTP brings back the very same task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from .kit import Api, detail, serving, sql

WAIT = {"type": "open_condition_wait", "condition_key": "paid"}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
CONTRACT = {"signals": ["note"], "updates": ["change"]}


async def asking(api: Api, *commands: dict[str, Any]) -> None:
    await api.register(workflow_command_contracts={"order": CONTRACT})
    await api.start()
    if commands:
        await api.complete(await api.poll(), *commands)


async def begun(api: Api) -> None:
    await asking(api)


async def at_work(api: Api) -> None:
    await asking(api, CHARGE)


async def told(api: Api) -> None:
    await asking(api, WAIT)
    await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})


async def asked(api: Api) -> None:
    await asking(api, WAIT)
    await api.control("POST", "/workflows/o-1/update/change", {"input": [], "wait_for": "accepted"})


async def asked_at_work(api: Api) -> None:
    await asking(api, WAIT, CHARGE, {"type": "start_timer", "delay_seconds": 60})
    await api.poll("activity")  # it is under way: what is lost is the update's own task
    await api.control("POST", "/workflows/o-1/update/change", {"input": [], "wait_for": "accepted"})


async def with_a_grown_child(api: Api) -> None:
    await asking(api, {"type": "start_child_workflow", "workflow_type": "order"})
    await api.complete(await api.poll(), {"type": "complete_workflow"})


async def timed_out(api: Api) -> None:
    await asking(api, WAIT | {"timeout_seconds": 60})
    await api.world.advance(61)


LOST: dict[str, tuple[Callable[[Api], Awaitable[None]], str | None]] = {
    "a start": (begun, "workflow-task"),
    "an activity": (at_work, "activity"),
    "a signal": (told, "condition"),
    "an update": (asked, "update"),
    "an update beside an activity": (asked_at_work, "update"),
    "the end of a child": (with_a_grown_child, "workflow-task"),
    "the timeout of a condition": (timed_out, "condition"),
}


@pytest.mark.contract(
    *(
        "REPAIR-01",
        "REPAIR-04",
        "REPAIR-05",
        "REPAIR-06",
        "REPAIR-07",
        "REPAIR-08",
        "REPAIR-10",
        "REPAIR-14",
        "REPAIR-15",
    ),
    "UPD-13",
)
@pytest.mark.parametrize("what", LOST)
async def test_a_lost_task_is_seen_and_repaired_while_the_server_runs(what: str) -> None:
    make, wait_kind = LOST[what]
    async with serving() as api:
        await make(api)
        before = await detail(api)
        assert before["wait_kind"] == wait_kind
        (task,) = (task for task in before["tasks"] if task["status"] == "ready" and task["type"] != "timer")
        assert sql(api, "delete from task where id = ?", task["id"]) == 1
        lost = await detail(api)
        assert (lost["liveness_state"], lost["actions"]["can_repair"]) == ("repair_needed", True)
        if wait_kind in ("update", "activity"):
            assert [lost[name] for name in WAITS] == [before[name] for name in WAITS], "it still points there"
        answer = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert answer["outcome"] == "repair_dispatched"
        after = await detail(api)
        assert [after[name] for name in WAITS] == [before[name] for name in WAITS]
        (again,) = (one for one in after["tasks"] if one["id"] == task["id"])
        assert again == task | {"repair_count": 1}
        requested = [e["payload"] for e in await api.history() if e["event_type"] == "RepairRequested"]
        assert [(r["task_id"], r["liveness_state"]) for r in requested] == [(task["id"], "repair_needed")]
        if wait_kind in ("update", "activity"):
            assert requested[0]["wait_kind"] == wait_kind
        polled = await api.poll(task["type"])
        assert polled["task_id"] == task["id"], "and a worker gets it"
        if what == "a signal":
            assert (polled["workflow_wait_kind"], polled["signal_name"]) == ("signal", "note")
        second = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert second["outcome"] == "repair_not_needed"


WAITS = ("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id")


@pytest.mark.contract("BARRIER-12")
async def test_the_detail_counts_what_is_open() -> None:
    async with serving() as api:
        await asking(api, CHARGE, CHARGE, {"type": "start_timer", "delay_seconds": 60}, WAIT)
        assert (await detail(api))["open_wait_count"] == 4
        await api.activity("complete", await api.poll("activity"), result="done")
        assert (await detail(api))["open_wait_count"] == 3


@pytest.mark.contract("CHILD-08")
async def test_a_parent_waits_for_its_child_whatever_that_one_does() -> None:
    async with serving() as api:
        await asking(api, {"type": "start_child_workflow", "workflow_type": "order"})
        (wait,) = (await detail(api))["waits"]

        async def looks(status: str) -> None:
            assert (await api.describe(wait["target_name"]))["status"] == status
            parent = await detail(api)
            assert (parent["wait_kind"], parent["liveness_state"]) == ("child", "waiting_for_child"), status
            assert (parent["is_terminal"], parent["open_wait_id"]) == (False, wait["wait_id"])
            assert parent["resume_source_id"] == wait["resume_source_id"]

        await looks("pending")
        task = await api.poll()
        assert task["workflow_id"] == wait["target_name"]
        await looks("pending")  # a worker has its first task
        await api.complete(task, {"type": "start_timer", "delay_seconds": 5})
        await looks("waiting")
        assert await api.poll() is None, "the parent has no task"
        await api.world.advance(6)
        await looks("waiting")  # and has a task again
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        parent = await api.poll()
        assert (parent["workflow_id"], parent["workflow_wait_kind"]) == ("o-1", "child")
        assert (await detail(api))["liveness_state"] != "waiting_for_child"


@pytest.mark.contract("CHILD-08", "UPD-12")
async def test_an_update_goes_before_work_and_a_child_before_a_task_for_something_else() -> None:
    async with serving() as api:
        await asking(api, {"type": "start_child_workflow", "workflow_type": "order"})
        child = await detail(api)
        assert (child["wait_kind"], child["liveness_state"]) == ("child", "waiting_for_child")
        await api.control("POST", "/workflows/o-1/signal/note", {"input": ["hello"]})
        told = await detail(api)
        assert [told[name] for name in WAITS] == [child[name] for name in WAITS]
        assert told["liveness_state"] == "waiting_for_child"


@pytest.mark.contract("REPAIR-03", "REPAIR-14")
@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_a_repair_reclaims_a_lease_that_is_over_before_the_engine_does(kind: str) -> None:
    async with serving() as api:
        await asking(api, *([CHARGE | {"retry_policy": {"max_attempts": 2}}] if kind == "activity" else []))
        held = await api.poll(kind)
        early = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert early["outcome"] == "repair_not_needed", "its worker may still report"
        api.world._still += 301_000_000  # the lease is over, and the engine oversleeps
        over = await detail(api)
        assert (over["liveness_state"], over["can_repair"]) == ("repair_needed", True)
        answer = (await api.control("POST", "/workflows/o-1/repair", {})).json()
        assert answer["outcome"] == "repair_dispatched"
        requested = [e["payload"] for e in await api.history() if e["event_type"] == "RepairRequested"]
        assert requested[-1]["outcome"] == "repair_dispatched"
        assert requested[-1]["task_id"] == held["task_id"]
        await api.register("worker-2", workflow_command_contracts={"order": CONTRACT})
        again = await api.poll(kind, "worker-2", timeout_seconds=30)
        assert again["lease_owner"] == "worker-2"
        number = "workflow_task_attempt" if kind == "workflow" else "attempt_number"
        assert (held[number], again[number]) == (1, 2)
        if kind == "workflow":
            late = await api.complete(held, {"type": "complete_workflow"})
        else:
            late = await api.activity("complete", held, result="late")
        assert late.status_code == 409, "the worker of before is told so"


HEALTHY: dict[str, tuple[dict[str, Any], str]] = {
    "a signal": ({"type": "open_signal_wait", "signal_name": "note"}, "signal"),
    "a child": ({"type": "start_child_workflow", "workflow_type": "order"}, "child"),
    "a timer": ({"type": "start_timer", "delay_seconds": 60}, "timer"),
    "a condition": (WAIT | {"timeout_seconds": 60}, "condition"),
}


@pytest.mark.contract("REPAIR-11", "REPAIR-12", "REPAIR-14")
@pytest.mark.parametrize("what", HEALTHY)
async def test_a_repair_of_a_run_that_waits_changes_nothing_but_is_on_record(what: str) -> None:
    command, kind = HEALTHY[what]
    async with serving() as api:
        await asking(api, command)
        if what == "a child":
            await api.poll()  # a worker has the child's task, so there is nothing to do anywhere
        before = await detail(api)
        assert (before["wait_kind"], before["can_repair"]) == (kind, False)
        assert before["repair_blocked_reason"] == "repair_not_needed"
        answer = await api.control("POST", "/workflows/o-1/repair", {})
        assert (answer.status_code, answer.json()["outcome"]) == (200, "repair_not_needed")
        after = await detail(api)
        for name in ("waits", "tasks", "liveness_state", *WAITS):
            assert after[name] == before[name], name
        (requested,) = [e["payload"] for e in await api.history() if e["event_type"] == "RepairRequested"]
        assert (requested["outcome"], requested.get("task_id")) == ("repair_not_needed", None)
        assert await api.poll() is None
