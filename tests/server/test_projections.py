"""Stored views under a running server: written after commits, compared on read, rebuilt on command, counted for operators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backstay.store.views import VIEWS

from ..store.seam import connection_of
from .kit import Api, blob, serving, sql

ACTIVITY = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([1])}
TIMER = {"type": "start_timer", "delay_seconds": 600}


async def resting(api: Api) -> dict[str, str]:
    """Runs that rest: one at an activity, one at a timer, one that has completed. Their run ids by workflow id."""
    await api.register()
    ids: dict[str, str] = {}
    for workflow_id, command in (
        ("works", ACTIVITY),
        ("sleeps", TIMER),
        ("done", {"type": "complete_workflow", "result": blob("x")}),
    ):
        ids[workflow_id] = (await api.start(workflow_id))["run_id"]
        task = await api.poll()
        assert (await api.complete(task, command)).status_code == 200
    await projected(api)
    return ids


async def projected(api: Api) -> None:
    """Let the projector have its time, and its background job as well."""
    for _ in range(4):
        await api.world.advance(1)
        await api.control("GET", "/system/projections")


def rows(api: Api, query: str, *parameters: Any) -> list[Any]:
    return connection_of(api.server.engine.store).execute(query, parameters).fetchall()


async def counts(api: Api) -> dict[str, Any]:
    found = await api.control("GET", "/system/projections")
    assert found.status_code == 200, found.text
    return found.json()["projections"]


async def rebuild(api: Api, **asked: Any) -> dict[str, Any]:
    done = await api.control("POST", "/system/projections/rebuild", asked)
    assert done.status_code == 200, done.text
    return done.json()


@pytest.mark.contract("PROJ-01", "PROJ-02", "PROJ-08")
async def test_runs_get_their_summary_and_views_after_their_commits() -> None:
    async with serving() as api:
        ids = await resting(api)
        states = dict(rows(api, "select run_id, state from workflow_run_summaries where namespace = 'default'"))
        assert states == {ids["works"]: "ready", ids["sleeps"]: "sleeping", ids["done"]: "completed"}
        for table in ("workflow_run_waits", "workflow_run_timeline_entries"):
            assert {run for (run,) in rows(api, f"select run from {table}")}
        entries = rows(api, "select timeline, events, projected from workflow_run_summaries")
        assert all(timeline == events and projected == 1 for timeline, events, projected in entries)
        assert rows(api, "select count(*) from workflow_run_timer_entries") == [(1,)]


@pytest.mark.contract("METRIC-11", "METRIC-12", "METRIC-13", "METRIC-14", "METRIC-15")
async def test_a_settled_server_needs_no_rebuild() -> None:
    async with serving() as api:
        await resting(api)
        found = await counts(api)
        assert found["run_summaries"] == {
            "runs": 3,
            "summaries": 3,
            "projected": 3,
            "missing": 0,
            "stale": 0,
            "orphaned": 0,
            "runs_to_rebuild": 0,
            "needs_rebuild": False,
        }
        assert found["run_waits"]["rows"] == 2
        assert found["run_waits"]["canonical_wait_runs"] == found["run_waits"]["projected_canonical_wait_runs"] == 2
        assert found["run_waits"]["summaries_with_open_waits"] == 2
        timeline = found["run_timeline_entries"]
        assert (
            timeline["rows"] == timeline["history_events"] == sum(n for (n,) in rows(api, "select count(*) from event"))
        )
        assert timeline["projected_runs"] == timeline["canonical_history_runs"] == 3
        assert found["run_timer_entries"]["rows"] == found["run_timer_entries"]["canonical_timer_runs"] == 1
        assert found["run_lineage_entries"]["rows"] == 0
        for group in ("run_waits", "run_timeline_entries", "run_timer_entries", "run_lineage_entries"):
            assert (found[group]["needs_rebuild"], found[group]["orphaned"]) == (False, 0), group
        assert found["complete"] is True
        metrics = (await api.control("GET", "/system/operator-metrics")).json()["operator_metrics"]
        assert metrics["projections"]["run_summaries"] == found["run_summaries"]


FALSIFIED = {
    "a summary is deleted": ("delete from workflow_run_summaries where run = ?", "run_summaries", "missing"),
    "a summary names another state": (
        "update workflow_run_summaries set stamp = stamp - 1 where run = ?",
        "run_summaries",
        "stale",
    ),
    "waits are deleted": ("delete from workflow_run_waits where run = ?", "run_waits", "missing_wait_runs"),
    "waits are changed": (
        "update workflow_run_waits set body = x'00' where run = ?",
        "run_waits",
        "stale_projected_runs",
    ),
    "the timeline is deleted": (
        "delete from workflow_run_timeline_entries where run = ?",
        "run_timeline_entries",
        "missing_history_runs",
    ),
    "the timeline is changed": (
        "update workflow_run_timeline_entries set body = x'00' where run = ?",
        "run_timeline_entries",
        "stale_projected_runs",
    ),
    "timers are deleted": (
        "delete from workflow_run_timer_entries where run = ?",
        "run_timer_entries",
        "missing_timer_runs",
    ),
    "timers are changed": (
        "update workflow_run_timer_entries set body = x'00' where run = ?",
        "run_timer_entries",
        "stale_projected_runs",
    ),
}


@pytest.mark.contract("METRIC-11", "METRIC-12", "METRIC-13", "METRIC-14", "PROJ-06")
@pytest.mark.parametrize("case", FALSIFIED)
async def test_what_is_deleted_or_changed_is_counted_and_rebuilt(case: str) -> None:
    statement, group, count = FALSIFIED[case]
    async with serving() as api:
        ids = await resting(api)
        ((run,),) = rows(api, "select key from run where run_id = ?", ids["sleeps"])
        before = {view: rows(api, f"select * from {table} where run = ?", run) for view, table in VIEWS.items()}
        assert sql(api, statement, run) == 1
        found = await counts(api)
        assert found[group][count] == 1, found[group]
        assert (found[group]["needs_rebuild"], found[group]["runs_to_rebuild"] >= 1) == (True, True)
        tried = await rebuild(api, needs_rebuild=True, dry_run=True)
        assert (tried["matched"], tried["rebuilt"]) == (1, 0)
        done = await rebuild(api, needs_rebuild=True)
        assert (done["looked_at"], done["matched"], done["rebuilt"], done["failed"]) == (3, 1, 1, 0)
        assert {view: rows(api, f"select * from {table} where run = ?", run) for view, table in VIEWS.items()} == before
        again = await counts(api)
        assert again["run_summaries"]["needs_rebuild"] is again[group]["needs_rebuild"] is False
        assert (await rebuild(api, needs_rebuild=True))["matched"] == 0


GROUPS = ("run_waits", "run_timeline_entries", "run_timer_entries", "run_lineage_entries")


@pytest.mark.contract("METRIC-12", "METRIC-13", "METRIC-14")
async def test_rows_are_counted_that_have_lost_only_their_summaries() -> None:
    async with serving() as api:
        await resting(api)
        before = await counts(api)
        sql(api, "delete from workflow_run_summaries")
        found = await counts(api)
        assert (found["run_summaries"]["missing"], found["run_summaries"]["needs_rebuild"]) == (3, True)
        for group in GROUPS:
            about_summaries = {"summaries_with_open_waits", "runs_to_rebuild", "needs_rebuild"}
            for name in found[group].keys() - about_summaries:
                assert found[group][name] == before[group][name], (group, name)


@pytest.mark.contract("METRIC-12", "METRIC-13", "METRIC-14", "METRIC-15")
async def test_runs_that_have_lost_their_summaries_and_views_are_to_be_rebuilt() -> None:
    async with serving() as api:
        await resting(api)
        for table in ("workflow_run_summaries", *VIEWS.values()):
            sql(api, f"delete from {table}")
        found = await counts(api)
        for group in GROUPS:
            assert (found[group]["needs_rebuild"], found[group]["runs_to_rebuild"]) == (True, 3), group
        timeline = found["run_timeline_entries"]
        assert (timeline["canonical_history_runs"], timeline["missing_history_runs"]) == (3, 3), "each has a history"
        assert timeline["projected_canonical_history_runs"] == 0
        assert found["run_waits"]["projected_canonical_wait_runs"] == 0


@pytest.mark.contract("METRIC-12")
async def test_only_runs_that_wait_miss_rows_of_current_waits() -> None:
    async with serving() as api:
        ids = await resting(api)
        ids["over"] = (await api.start("over"))["run_id"]
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 1})
        await api.world.advance(2)
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        await projected(api)
        waits = (await counts(api))["run_waits"]
        assert (waits["canonical_wait_runs"], waits["summaries_with_open_waits"]) == (3, 2)
        for workflow_id, missing in (("over", (1, 0)), ("sleeps", (2, 1))):
            ((run,),) = rows(api, "select key from run where run_id = ?", ids[workflow_id])
            assert sql(api, "delete from workflow_run_waits where run = ?", run) == 1
            waits = (await counts(api))["run_waits"]
            assert (waits["missing_wait_runs"], waits["missing_current_open_waits"]) == missing


@pytest.mark.contract("METRIC-12")
async def test_rows_of_a_run_that_should_have_none_are_stale() -> None:
    async with serving() as api:
        ids = await resting(api)
        before = (await counts(api))["run_waits"]
        ((run,),) = rows(api, "select key from run where run_id = ?", ids["done"])
        added = "insert into workflow_run_waits select ?, position, entries, stamp, digest, body from workflow_run_waits limit 1"
        sql(api, added, run)
        found = (await counts(api))["run_waits"]
        assert (found["stale_projected_runs"], found["missing_wait_runs"], found["needs_rebuild"]) == (1, 0, True)
        for name in ("canonical_wait_runs", "projected_canonical_wait_runs"):
            assert found[name] == before[name], name
        await rebuild(api, needs_rebuild=True)
        assert (await counts(api))["run_waits"] == before


@pytest.mark.contract("METRIC-11", "METRIC-12", "METRIC-13")
async def test_a_run_that_has_just_been_started_is_not_missing() -> None:
    async with serving() as api:
        await resting(api)
        await api.start("young")
        found = await counts(api)
        assert (found["run_summaries"]["runs"], found["run_summaries"]["summaries"]) == (4, 3)
        for name in ("run_summaries", *GROUPS):
            assert (found[name]["needs_rebuild"], found[name]["runs_to_rebuild"]) == (False, 0), name
        sql(api, "delete from workflow_run_summaries")
        await api.world.advance(0)
        assert (await counts(api))["run_summaries"]["missing"] == 3, "the others are"


LINEAGE: dict[str, tuple[str, str]] = {
    "deleted": ("delete from workflow_run_lineage_entries where run = ?", "missing_lineage_runs"),
    "changed": ("update workflow_run_lineage_entries set body = x'00' where run = ?", "stale_projected_runs"),
    "of no run": ("update workflow_run_lineage_entries set run = 7 where run = ?", "orphaned"),
}


@pytest.mark.contract("METRIC-15", "PROJ-06")
@pytest.mark.parametrize("case", LINEAGE)
async def test_links_that_are_deleted_or_changed_are_counted_and_rebuilt(case: str) -> None:
    statement, count = LINEAGE[case]
    async with serving() as api:
        await resting(api)
        parent = (await api.start("parent"))["run_id"]
        await api.complete(await api.poll(), {"type": "start_child_workflow", "workflow_type": "order"})
        await projected(api)
        settled = (await counts(api))["run_lineage_entries"]
        # The parent has a link to its child, and the child one to its parent.
        assert (settled["rows"], settled["projected_runs"]) == (2, 2)
        assert settled["canonical_lineage_runs"] == settled["projected_canonical_lineage_runs"] == 2
        assert not any(settled[name] for name in ("missing_lineage_runs", "stale_projected_runs", "orphaned"))
        assert not settled["needs_rebuild"]
        ((run,),) = rows(api, "select key from run where run_id = ?", parent)
        before = rows(api, "select * from workflow_run_lineage_entries where run = ?", run)
        assert sql(api, statement, run) == 1
        found = (await counts(api))["run_lineage_entries"]
        assert (found[count], found["needs_rebuild"]) == (1, True), found
        assert found["canonical_lineage_runs"] == 2, "what there should be has not changed"
        await rebuild(api, needs_rebuild=True, prune_stale=True)
        assert rows(api, "select * from workflow_run_lineage_entries where run = ?", run) == before
        assert (await counts(api))["run_lineage_entries"] == settled


@pytest.mark.contract("PROJ-07", "METRIC-11")
async def test_missing_summaries_are_made_and_those_of_no_run_removed() -> None:
    async with serving() as api:
        ids = await resting(api)
        sql(api, "delete from workflow_run_summaries where run_id = ?", ids["done"])
        sql(api, "update workflow_run_timeline_entries set body = x'00'")
        sql(api, "insert into workflow_run_timeline_entries values (7, 0, 1, 1, 'x', x'00')")
        columns = [name for _, name, *_ in rows(api, "pragma table_info(workflow_run_summaries)")]
        others = ", ".join(columns[1:])
        sql(
            api,
            f"insert into workflow_run_summaries (run, {others}) select 7, {others} from workflow_run_summaries limit 1",
        )
        found = await counts(api)
        assert (found["run_summaries"]["missing"], found["run_summaries"]["orphaned"]) == (1, 1)
        assert found["run_timeline_entries"]["orphaned"] == 1
        done = await rebuild(api, missing=True)
        assert (done["rebuilt"], done["pruned"]) == (1, 0)  # a summary that is there is left alone, whatever its views
        assert (await rebuild(api, needs_rebuild=True, prune_stale=True))["pruned"] == 1
        found = await counts(api)
        assert (found["run_summaries"]["orphaned"], found["run_timeline_entries"]["orphaned"]) == (0, 0)


async def test_single_runs_are_rebuilt_by_their_ids() -> None:
    async with serving() as api:
        ids = await resting(api)
        assert (await rebuild(api, run_ids=[ids["done"]]))["rebuilt"] == 1
        assert (await rebuild(api, instance_id="works"))["rebuilt"] == 1
        unknown = await api.control("POST", "/system/projections/rebuild", {"run_ids": ["01NOBODY"]})
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "run_not_found")
        wrong = await api.control("POST", "/system/projections/rebuild", {"mising": True})
        assert wrong.status_code == 422


async def test_a_run_that_closes_loses_the_summary_of_an_open_one_at_once() -> None:
    async with serving() as api:
        await api.register()
        run_id = (await api.start("o-1"))["run_id"]
        await projected(api)
        assert rows(api, "select state from workflow_run_summaries where run_id = ?", run_id) == [("ready",)]
        await api.complete(await api.poll(), {"type": "complete_workflow", "result": blob(1)})
        await api.world.advance(0.2)
        assert rows(api, "select state from workflow_run_summaries where run_id = ?", run_id) == []
        await projected(api)
        assert rows(api, "select state from workflow_run_summaries where run_id = ?", run_id) == [("completed",)]


async def test_starts_and_ends_are_counted_by_minute_and_hour() -> None:
    async with serving() as api:
        await resting(api)
        found = rows(api, "select grain, outcome, sum(n) from tally group by grain, outcome order by grain, outcome")
        assert found == [
            (60_000_000, "completed", 1),
            (60_000_000, "started", 3),
            (3_600_000_000, "completed", 1),
            (3_600_000_000, "started", 3),
        ]


async def test_without_views_nothing_is_stored_and_summaries_are_made_when_asked() -> None:
    async with serving(views=False) as api:
        await resting(api)
        assert rows(api, "select count(*) from workflow_run_summaries") == [(0,)]
        row = await api.server.store.run("default", (await api.describe("sleeps"))["run_id"])
        assert row is not None
        assert (await api.server.node.projector.summary(row)).state == "sleeping"


async def test_the_certificate_counts_open_runs_by_what_resumes_them() -> None:
    async with serving() as api:
        await resting(api)
        proven = (await api.control("GET", "/system/liveness?fresh=1")).json()
        assert (proven["status"], proven["open_runs"], proven["stranded"]) == ("ok", 2, 0)
        assert proven["resume_sources"] == {
            "task": 1,
            "wake": 1,
            "answer_of_another_instance": 0,
            "message_from_outside": 0,
        }
        assert proven["sentence"] == "2 open runs, 0 stranded, proven 0 s ago"
        await api.world.advance(9)
        kept = (await api.control("GET", "/system/liveness")).json()
        assert kept["age_ms"] >= 9000


async def test_a_stranded_run_is_named_until_it_is_mended() -> None:
    async with serving() as api:
        await resting(api)
        sql(api, "delete from task")
        proven = (await api.control("GET", "/system/liveness?fresh=1")).json()
        assert (proven["status"], proven["stranded"]) == ("stranded", 1)
        assert [one["workflow_id"] for one in proven["stranded_runs"]] == ["works"]
        assert (await api.control("POST", "/workflows/works/repair")).status_code == 200
        proven = (await api.control("GET", "/system/liveness?fresh=1")).json()
        assert (proven["status"], proven["open_runs"], proven["stranded_runs"]) == ("ok", 2, [])


async def test_nothing_of_another_namespace_is_told() -> None:
    async with serving() as api:
        await resting(api)
        await api.control("POST", "/namespaces", {"name": "other"})
        proven = (await api.control("GET", "/system/liveness?fresh=1", headers={"X-Namespace": "other"})).json()
        assert (proven["open_runs"], json.dumps(proven).count("works")) == (0, 0)
        found = (await api.control("GET", "/system/projections", headers={"X-Namespace": "other"})).json()
        assert found["projections"]["run_summaries"]["runs"] == 0
