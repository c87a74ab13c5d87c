"""What every store does with stored views: it keeps them as it is told, compares them with rows, and forgets them with their run."""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.engine.views.run_views import are_right, cut, damage_row, joined, stored_summary, summary_row
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.machine import Machine
from backstay.kernel.views.summary import SCHEMA, RunSummary, summarize
from backstay.store import ALL, Located, RunFilter, Store
from backstay.store.errors import Unavailable
from backstay.store.views import HOUR, MINUTE, VIEWS, TallyRow, ViewChanges, ViewCounts

from .conformance import Database, instances
from .instances import StoredFlow, applied, apply, walk

MACHINE = Machine()


async def moved(store: Store, flow: StoredFlow, step: str) -> None:
    """Lead a flow on by a step, and write what that decided."""
    before = len(flow.written)
    walk(flow, [step])
    assert await apply(store, *flow.written[before:]) == ALL


async def tally(store: Store) -> list[tuple[int, int]]:
    """How many starts are counted, by grain."""
    return [
        (grain, sum(one[1] for one in found))
        for grain in (MINUTE, HOUR)
        if (found := await store.started_and_ended("default", grain, 0, 1000))
    ]


async def put(store: Store, changes: ViewChanges) -> None:
    done: asyncio.Future[Unavailable | None] = asyncio.get_running_loop().create_future()
    store.put_views(changes, done.set_result)
    assert await done is None


def summary(flow: StoredFlow) -> RunSummary:
    return summarize(MACHINE, flow.state)


async def project(store: Store, flow: StoredFlow, **views: list[dict[str, Any]]) -> None:
    made = summary(flow)
    entries = {view: views.get(view, []) for view in VIEWS}
    rows = [(view, made.run, 0, cut(made.run, made.stamp, entries[view])) for view in VIEWS]
    counts = {view: len(found) for view, found in entries.items()}
    await put(store, ViewChanges([summary_row(made, counts)], (), rows))


class Projecting:
    async def test_a_summary_is_found_as_it_was_put_and_tells_when_its_run_has_moved(self, database: Database) -> None:
        store = await database.open()
        one, other = instances(2)
        await applied(store, one, other)
        await put(store, ViewChanges([summary_row(summary(one))]))
        await put(store, ViewChanges([summary_row(summary(one)), summary_row(summary(other))]))
        found = await store.summaries([one.run.key, other.run.key, 12345])
        assert sorted(found) == sorted([one.run.key, other.run.key])
        row = await store.run_by_key(one.run.key)
        assert row is not None
        facts = await store.facts([one.key])
        assert stored_summary(found[one.run.key], row, facts[one.key]) == summary(one)
        await moved(store, one, "activity")
        facts = await store.facts([one.key])
        assert stored_summary(found[one.run.key], row, facts[one.key]) is None

    async def test_entries_of_a_view_are_replaced_and_the_surplus_goes(self, database: Database) -> None:
        store = await database.open()
        (one,) = instances(1)
        await applied(store, one)
        run, stamp = one.run.key, one.state.last_decision
        long = [{"sequence": number, "text": "é" * 10} for number in range(600)]
        await project(store, one, timeline=long, waits=[{"wait_id": "w"}])
        rows = await store.view_rows("timeline", run)
        assert len(rows) == 3
        assert are_right(rows, stamp, 600)
        assert joined(rows) == long
        await project(store, one, timeline=long[:2])
        assert joined(await store.view_rows("timeline", run)) == long[:2]
        assert await store.view_rows("waits", run) == []

    async def test_a_changed_row_of_a_view_is_noticed(self, database: Database) -> None:
        store = await database.open()
        one, other = instances(2)
        await applied(store, one, other)
        await project(store, one, timeline=[{"sequence": 1}])
        await project(store, other, timeline=[{"sequence": 1}])
        await database.sql(f"update workflow_run_timeline_entries set digest = 'x' where run = {one.run.key}")
        assert not are_right(await store.view_rows("timeline", one.run.key), one.state.last_decision, 1)
        counts, oldest = await store.count_summaries("default", SCHEMA, 100)
        assert (counts.runs, counts.summaries, counts.missing, counts.stale) == (2, 2, 0, 0)
        counted = ViewCounts(rows=2, runs=2, canonical=2, orphaned=0, short=0, wrong=1, unknown=0, waiting=0)
        assert await store.count_view("timeline", "default", oldest) == counted
        await database.sql(f"delete from workflow_run_timeline_entries where run = {other.run.key}")
        counted = ViewCounts(rows=1, runs=1, canonical=2, orphaned=0, short=1, wrong=1, unknown=0, waiting=1)
        assert await store.count_view("timeline", "default", oldest) == counted
        await database.sql("delete from workflow_run_summaries")
        counted = counted._replace(waiting=0)  # nothing says that it waits
        assert await store.count_view("timeline", "default", oldest) == counted, (
            "a history tells how many there should be"
        )
        nothing = ViewCounts(rows=0, runs=0, canonical=0, orphaned=0, short=0, wrong=0, unknown=2, waiting=0)
        assert await store.count_view("waits", "default", oldest) == nothing

    async def test_runs_without_views_and_with_old_ones_are_found_page_by_page(self, database: Database) -> None:
        store = await database.open()
        crowd = instances(5)
        await applied(store, *crowd)
        for one in crowd[:3]:
            await project(store, one)
        await moved(store, crowd[1], "activity")
        first = await store.unprojected(SCHEMA, 0, 3)
        second = await store.unprojected(SCHEMA, first.after or 0, 3)
        runs = [one.run.key for one in crowd]
        assert ([run for run, _ in first.right], [run for run, _ in first.outdated]) == ([runs[0], runs[2]], [runs[1]])
        assert (first.looked_at, first.missing) == (3, [])
        assert ([run for run, _ in second.missing], second.after) == (runs[3:], None)
        assert len((await store.unprojected(SCHEMA + 1, 0, 10)).outdated) == 3

    async def test_a_run_takes_its_views_with_it(self, database: Database) -> None:
        store = await database.open()
        (one,) = instances(1, visibility_labels={"team": "shop"})
        one.complete(CompleteWorkflow(), at=5)
        await applied(store, one)
        await project(store, one, timeline=[{"sequence": 1}])
        gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store.prune([Located(one.key, one.run.key)], gone.set_result)
        assert await gone == frozenset()
        assert await store.summaries([one.run.key]) == {}
        assert await store.view_rows("timeline", one.run.key) == []
        assert await store.orphaned_views(10) == []

    async def test_views_of_runs_that_do_not_exist_are_counted_and_removed(self, database: Database) -> None:
        store = await database.open()
        (one,) = instances(1)  # it is never written
        await project(store, one, timeline=[{"sequence": 1}])
        counts, oldest = await store.count_summaries("default", SCHEMA, 100)
        assert (counts.runs, counts.orphaned) == (0, 1)
        assert (await store.count_view("timeline", "default", oldest)).orphaned == 1
        assert await store.orphaned_views(10) == [one.run.key]
        await put(store, ViewChanges((), [one.run.key]))
        await store.prune_views()
        assert await store.orphaned_views(10) == []
        assert (await store.count_view("timeline", "default", 0)).orphaned == 0

    async def test_a_closed_run_with_the_summary_of_an_open_one_is_found(self, database: Database) -> None:
        store = await database.open()
        one, other = instances(2)
        await applied(store, one, other)
        await project(store, one)
        await project(store, other)
        await moved(store, one, "complete")
        assert await store.closed_but_open() == [one.run.key]

    async def test_counts_of_starts_and_ends_add_up(self, database: Database) -> None:
        store = await database.open()
        minute = TallyRow("default", MINUTE, 60, "order", "started", 0, 2)
        await put(store, ViewChanges(tallies=[minute, minute._replace(grain=HOUR, at=0)]))
        await put(store, ViewChanges(tallies=[minute]))
        assert await tally(store) == [(MINUTE, 4), (HOUR, 2)]
        await put(store, ViewChanges(old_tallies=[(HOUR, 1)]))
        assert await tally(store) == [(MINUTE, 4)]

    async def test_every_open_run_is_counted_by_what_resumes_it(self, database: Database) -> None:
        store = await database.open()
        crowd = instances(3)
        sleeper, done, _ = crowd
        walk(sleeper, ["sleep"])
        done.complete(CompleteWorkflow(), at=5)
        await applied(store, *crowd)
        page = await store.resume_sources(0, 10)
        assert page.counts["default"] == (2, 1, 1, 0, 0)
        assert (page.stranded, page.after) == ([], None)
        await database.sql(f"delete from task where workflow = {crowd[2].key}")
        page = await store.resume_sources(0, 10)
        assert page.counts["default"].stranded == 1
        assert page.stranded == [(crowd[2].key, "default", crowd[2].state.workflow_id, False)]
        first = await store.resume_sources(0, 1)
        assert (first.counts["default"].open, first.after) == (1, sleeper.key)

    async def test_the_newest_run_counts_whichever_the_row_of_its_instance_names(self, database: Database) -> None:
        store = await database.open()
        chain, ended = crowd = instances(2)
        for one in crowd:
            one.complete(ContinueAsNew())
        ended.complete(CompleteWorkflow(), at=5)
        await applied(store, *crowd)
        sound = (await store.facts([chain.key]))[chain.key]
        assert sound.run == chain.run.key
        for elsewhere in (f"(select key from run where workflow = {chain.key} and number = 1)", "7", "null"):
            await database.sql(f"update workflow set run = {elsewhere} where key = {chain.key}")
            page = await store.resume_sources(0, 10)
            assert (page.counts["default"].open, page.counts["default"].stranded) == (1, 1)
            assert page.stranded == [(chain.key, "default", chain.state.workflow_id, True)]
            assert await store.open_instances(0, 10) == ([chain.key], None)
            assert (await store.facts([chain.key]))[chain.key] == sound

    async def test_a_history_that_is_not_whole_resumes_nothing(self, database: Database) -> None:
        store = await database.open()
        short, forged, marked, longer, sound = crowd = instances(5)
        for one in crowd:
            walk(one, ["sleep"])
        await applied(store, *crowd)
        assert (await store.resume_sources(0, 10)).counts["default"].stranded == 0
        await database.sql(f"delete from event where run = {short.run.key} and sequence = 2")
        await database.sql(f"update event set checksum = 1 where run = {forged.run.key} and sequence > 1")
        await database.sql(
            "insert into event (run, sequence, type, at, body, context, checksum) select run, 50, type, at, body, context,"
            f" checksum from event where run = {longer.run.key} and sequence = 1"
        )
        (row,) = await store.runs(RunFilter(workflow_id=marked.state.workflow_id))
        await put(store, ViewChanges([damage_row(row, 7, 30)]))
        page = await store.resume_sources(0, 10)
        broken = sorted(one.key for one in (short, forged, marked, longer))
        assert sorted((place.workflow, place.resumable) for place in page.stranded) == [(key, True) for key in broken]
        assert page.counts["default"].wake == 1
        assert await store.open_instances(0, 10) == ([one.key for one in crowd], None)
        assert await store.open_instances(short.key, 2) == ([forged.key, marked.key], marked.key)
        (found,) = await store.damaged_runs("default", 10)
        assert (found.workflow, found.workflow_id, found.since, found.tasks) == (
            marked.key,
            marked.state.workflow_id,
            30,
            0,
        )
        assert sound.key not in {place.workflow for place in page.stranded}

    async def test_open_runs_without_a_summary_are_counted_with_the_oldest(self, database: Database) -> None:
        store = await database.open()
        crowd = instances(3)
        await applied(store, *crowd)
        (seen,) = await store.runs(RunFilter(workflow_id=crowd[1].state.workflow_id))
        await put(store, ViewChanges([damage_row(seen, 7, 30)]))
        oldest = min(row.started_at for row in await store.runs(RunFilter()) if row.key != seen.key)
        assert await store.runs_without_view("default", 100) == (2, oldest)
        assert await store.runs_without_view("nowhere", 100) == (0, None)
        counted = await store.count_states("default", 0)
        assert (counted.states, counted.runs, counted.without_view) == ({"blocked": 1}, 3, 2)
        before = len(crowd[1].written)
        crowd[1].complete(CompleteWorkflow(), at=5)
        assert await apply(store, *crowd[1].written[before:]) == ALL
        (closed,) = await store.runs(RunFilter(workflow_id=crowd[1].state.workflow_id))
        assert closed.closed_at is not None
        counted = await store.count_states("default", closed.closed_at - 1)
        assert (counted.states, counted.runs) == ({}, 2), "whatever its summary says"

    async def test_labels_and_attributes_are_found_by_value(self, database: Database) -> None:
        store = await database.open()
        (one,) = instances(1, visibility_labels={"team": "shop"}, search_attributes={"amount": 42, "paid": True})
        await applied(store, one)
        assert len(await store.runs(RunFilter(label=("team", "shop")))) == 1
