"""What becomes of a child when its parent closes, and what the parent then knows of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ..sdk.kit import eventually
from .kit import Api, detail, serving, sql

CHILD = {"type": "start_child_workflow", "workflow_type": "part"}
DONE = {"type": "complete_workflow"}
NAP = {"type": "start_timer", "delay_seconds": 5}
TYPES = ["order", "part"]


async def parent_of(api: Api, policy: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A workflow with an open child: the first task of the child, and one of the workflow itself."""
    await api.register(supported_workflow_types=TYPES)
    await api.start()
    await api.complete(
        await api.poll(), CHILD | {"parent_close_policy": policy}, {"type": "start_timer", "delay_seconds": 0}
    )
    tasks = [await api.poll(timeout_seconds=10) for _ in range(2)]
    (child,) = [task for task in tasks if task["workflow_type"] == "part"]
    (parent,) = [task for task in tasks if task["workflow_type"] == "order"]
    return child, parent


STOPS = {"request_cancel": "cancelled", "terminate": "terminated"}


@pytest.mark.contract("PCP-01", "PCP-02", "PCP-03", "PCP-04")
@pytest.mark.parametrize("ending", ["completed", "failed", "timed_out", "cancelled", "terminated"])
async def test_every_ending_of_a_parent_treats_each_child_by_its_policy(ending: str) -> None:
    async with serving() as api:
        await api.register(supported_workflow_types=TYPES)
        await api.start(execution_timeout_seconds=60)
        policies = [{}, *({"parent_close_policy": policy} for policy in STOPS)]
        await api.complete(await api.poll(), *(CHILD | policy for policy in policies), NAP)
        children = {child["parent_close_policy"]: child for child in (await detail(api))["children"]}
        assert children.keys() == {"abandon", *STOPS}
        await api.world.advance(6)
        task = None
        while task is None or task["workflow_id"] != "o-1":
            task = await api.poll(timeout_seconds=10)
        match ending:
            case "completed":
                await api.complete(task, DONE)
            case "failed":
                await api.complete(task, {"type": "fail_workflow", "message": "no"})
            case "timed_out":
                await api.world.advance(60)
            case _:
                await api.control("POST", f"/workflows/o-1/{ending.removesuffix('led').removesuffix('d')}", {})

        async def stopped() -> bool:
            return (await api.types()).count("ParentClosePolicyApplied") == len(STOPS)

        await eventually(stopped, "the parent has recorded both")
        assert (await api.describe())["closed_reason"] == ending
        for policy, status in STOPS.items():
            assert (await api.describe(children[policy]["workflow_instance_id"]))["status"] == status
        left = await api.describe(children["abandon"]["workflow_instance_id"])
        assert (left["is_terminal"], left["status"]) == (False, "pending")


@pytest.mark.contract("PCP-09", "PCP-07")
@pytest.mark.parametrize("policy", ["request_cancel", "terminate"])
async def test_a_policy_that_cannot_be_applied_is_a_failure_on_record(policy: str, tmp_path: Path) -> None:
    """The child is lost with its rows, and another workflow has got its id: that one is not touched."""
    file = tmp_path / "app.db"
    async with serving(store=f"sqlite:{file}", still=False) as api:
        child, _ = await parent_of(api, policy)
    with closing(sqlite3.connect(file, isolation_level=None)) as rows:
        key, run = rows.execute("select workflow, key from run where run_id = ?", (child["run_id"],)).fetchone()
        for table, column, value in (
            ("event", "run", run),
            ("task", "workflow", key),
            ("command", "workflow", key),
            ("send", "sender", key),
            ("run", "key", run),
            ("workflow", "key", key),
        ):
            rows.execute(f"delete from {table} where {column} = ?", (value,))
    async with serving(store=f"sqlite:{file}", still=False) as api:
        await api.register(supported_workflow_types=TYPES)
        await api.start(child["workflow_id"], workflow_type="part")
        parent = None
        while parent is None:
            task = await api.poll(timeout_seconds=10)
            parent = task if task is not None and task["workflow_id"] == "o-1" else None
        await api.complete(parent, DONE)

        async def told() -> bool:
            return "ParentClosePolicyFailed" in await api.types()

        await eventually(told, "the parent has heard of it")
        failed = (await api.history())[-1]
        assert failed["event_type"] == "ParentClosePolicyFailed"
        assert (failed["payload"]["policy"], failed["payload"]["child_instance_id"]) == (policy, child["workflow_id"])
        assert "another call" in failed["payload"]["error"]
        assert "ParentClosePolicyApplied" not in await api.types()
        assert (await api.describe())["status"] == "completed", "the end of the parent stands"
        assert (await api.describe(child["workflow_id"]))["is_terminal"] is False
        (point,) = [p for p in (await detail(api))["timeline"] if p["type"] == "ParentClosePolicyFailed"]
        assert point["kind"] == "child"


@pytest.mark.contract("PCP-10", "CAN-02")
@pytest.mark.parametrize("policy", ["request_cancel", "terminate"])
async def test_a_parent_that_continues_as_new_leaves_its_child_alone_until_the_chain_ends(policy: str) -> None:
    async with serving(still=False) as api:
        child, parent = await parent_of(api, policy)
        run_id = (await api.describe())["run_id"]
        await api.complete(parent, {"type": "continue_as_new"})
        continued = await api.poll(timeout_seconds=10)
        assert (continued["workflow_id"], continued["run_id"] != run_id) == ("o-1", True)
        assert (await api.describe(child["workflow_id"]))["is_terminal"] is False
        assert not [name for name in await api.types(child["workflow_id"]) if name.endswith("Requested")]
        earlier = (await api.control("GET", f"/workflows/o-1/runs/{run_id}/history?page_size=1000")).json()["events"]
        assert not [event for event in earlier if event["event_type"].startswith("ParentClosePolicy")]
        await api.complete(continued, DONE)

        async def stopped() -> bool:
            return (await api.describe(child["workflow_id"]))["is_terminal"]

        await eventually(stopped, "the end of the chain closes it")

        async def told() -> bool:
            return "ParentClosePolicyApplied" in await api.types()

        await eventually(told, "the last run has recorded it")


@pytest.mark.contract("CHILD-20", "CHILD-07", "EXPORT-09")
async def test_what_a_parent_has_recorded_of_its_child_stands_whatever_becomes_of_the_rows_of_the_child() -> None:
    async with serving(still=False) as api:
        child, _ = await parent_of(api, "abandon")
        await api.complete(child, {"type": "fail_workflow", "message": "no", "exception_type": "E"})

        async def resolved() -> bool:
            return "ChildRunFailed" in await api.types()

        await eventually(resolved, "the parent knows")
        before = await detail(api)
        (link,) = before["children"]
        assert (link["status"], link["status_bucket"], link["closed_reason"]) == ("failed", "failed", "failed")
        assert (link["workflow_type"], link["run_number"]) == ("part", 1)
        reopened = "update run set status = 'running', closed_reason = null, closed_at = null, workflow_type = 'x'"
        assert sql(api, f"{reopened} where run_id = ?", child["run_id"]) == 1
        after = await detail(api)
        for part in ("children", "waits", "exceptions", "continuedWorkflows"):
            assert after[part] == before[part], part
        exported = (await api.control("GET", "/workflows/o-1/history/export")).json()
        assert exported["links"]["children"] == before["children"]
        assert sql(api, "delete from event where run = (select key from run where run_id = ?)", child["run_id"])
        assert (await detail(api))["children"] == before["children"]
