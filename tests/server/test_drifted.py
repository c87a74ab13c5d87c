"""An instance whose row names an older run: its newest run is the current one everywhere, and the row is mended by itself."""

from __future__ import annotations

import pytest

from backstay.store import RunFilter

from .kit import Api, blob, serving, sql
from .test_lists import flows
from .test_projections import projected, rebuild, rows


async def drifted(api: Api) -> tuple[str, str]:
    """A workflow in its second run, at a task, whose row names its first run. The ids of both runs."""
    await api.register()
    first = (await api.start())["run_id"]
    await api.complete(await api.poll(), {"type": "continue_as_new", "arguments": blob([2])})
    task = await api.poll()
    await api.complete(task, {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])})
    await projected(api)
    drift(api, first)
    return first, task["run_id"]


def drift(api: Api, run_id: str) -> None:
    statement = "update workflow set run = (select key from run where run_id = ?) where workflow_id = 'o-1'"
    assert sql(api, statement, run_id) == 1


def named(api: Api) -> str:
    ((run_id,),) = rows(api, "select run_id from run join workflow w on w.run = run.key where w.workflow_id = 'o-1'")
    return run_id


@pytest.mark.contract("CAN-05")
async def test_the_certificate_counts_the_newest_run_and_mends_the_row() -> None:
    async with serving() as api:
        _, newest = await drifted(api)
        proven = (await api.control("GET", "/system/liveness?fresh=1")).json()
        assert (proven["status"], proven["open_runs"], proven["stranded"]) == ("ok", 1, 0)
        assert proven["resume_sources"]["task"] == 1
        assert named(api) == newest
        assert (await api.poll("activity")) is not None


async def test_a_rebuild_of_views_goes_by_the_newest_run() -> None:
    async with serving() as api:
        _, newest = await drifted(api)
        done = await rebuild(api)
        assert (done["failed"], done["rebuilt"]) == (0, 2), done
        summary = rows(api, "select state, liveness from workflow_run_summaries where run_id = ?", newest)
        assert summary == [("ready", "activity_task_ready")]


async def test_lists_show_the_newest_run_as_the_current_one() -> None:
    async with serving() as api:
        first, newest = await drifted(api)
        told = {flow["run_id"]: flow for flow in (await flows(api))["flows"]}
        assert {run_id: flow["is_current_run"] for run_id, flow in told.items()} == {first: False, newest: True}
        assert {run_id: flow["liveness_state"] for run_id, flow in told.items()} == {
            first: "closed",
            newest: "activity_task_ready",
        }
        assert named(api) == first, "not mended yet"
        for flag, found in (("true", newest), ("false", first)):
            assert [flow["run_id"] for flow in (await flows(api, is_current_run=flag))["flows"]] == [found]
        sql(api, "delete from workflow_run_summaries")
        assert {flow["run_id"]: flow["is_current_run"] for flow in (await flows(api))["flows"]} == {
            first: False,
            newest: True,
        }


async def test_a_run_that_was_continued_since_its_row_was_read_is_no_drift() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        store = api.server.engine.store
        (row,) = await store.runs(RunFilter(namespace="default", workflow_id="o-1", limit=1))
        await api.complete(await api.poll(), {"type": "continue_as_new", "arguments": blob([2])})
        summary = await api.server.node.projector.fresh_summary(row)
        assert (summary.run_id, summary.closed_at is not None) == (row.run_id, True)
