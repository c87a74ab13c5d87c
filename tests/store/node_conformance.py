"""What every store must do for processes that watch each other's instances, whatever its dialect. As `conformance.py`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.store import ALL, Store

from .conformance import Database, instances, pruned
from .instances import applied, apply, instant


class Watching:
    async def test_the_last_decision_of_an_instance_is_what_its_row_says(self, database: Database) -> None:
        store = await database.open()
        flow, unwritten = instances(2)
        await applied(store, flow)
        assert flow.row is not None
        assert await store.last(flow.key) == flow.row.last_decision
        assert await store.last(unwritten.key) is None

    async def test_those_that_moved_are_told_with_their_last_decision(self, database: Database) -> None:
        store = await database.open()
        still, moved, gone, unknown, unwritten, late = instances(6)
        gone.step(CompleteWorkflow(result=b"1"))
        await applied(store, still, moved, gone, unknown)
        seen: dict[int, int | None] = {flow.key: await store.last(flow.key) for flow in (still, moved, gone)}
        seen |= {unknown.key: -1, unwritten.key: None, late.key: None}
        assert await store.moved(seen) == {unknown.key: await store.last(unknown.key)}
        moved.step(ScheduleActivity(activity_type="charge"))
        await apply(store, *moved.written[1:])
        await applied(store, late)
        assert await pruned(store, gone.key, gone.run.key) is True
        assert await store.moved(seen) == {
            unknown.key: await store.last(unknown.key),
            moved.key: await store.last(moved.key),
            late.key: await store.last(late.key),
            gone.key: None,
        }
        assert await store.moved({}) == {}

    async def test_many_instances_are_asked_for_at_once(self, database: Database) -> None:
        store = await database.open()
        crowd = instances(150)
        await applied(store, *crowd)
        seen = {flow.key: await store.last(flow.key) for flow in crowd}
        assert await store.moved(seen) == {}
        assert await store.moved({key: (last or 0) + 1 for key, last in seen.items()}) == seen

    @pytest.mark.parametrize("size", [1, 2, 7])
    async def test_only_leases_without_an_end_are_endless_and_come_in_pages(
        self, database: Database, size: int
    ) -> None:
        store = await database.open()
        crowd = instances(6)
        endless: list[Task] = []
        for number, flow in enumerate(crowd):
            (task,) = flow.tasks.values()
            if number % 3:
                flow.claim(task.id, until=None if number % 3 == 1 else 60 * SECOND)
            endless += [task for task in flow.rows.values() if task.state == "leased" and task.until is None]
        await applied(store, *crowd)
        assert await _pages(store, size) == sorted(endless, key=lambda task: (task.workflow, task.id))
        assert len(endless) == 2

    async def test_a_lease_that_ends_or_gets_an_end_is_not_endless_any_more(self, database: Database) -> None:
        store = await database.open()
        flow, renewed = instances(2)
        for one in (flow, renewed):
            (task,) = one.tasks.values()
            one.claim(task.id, until=None)
        await applied(store, flow, renewed)
        assert len(await store.endless(10)) == 2
        claimed = renewed.decisions[-1]
        (change,) = claimed.tasks
        assert change.task is not None
        last = renewed.state.last_decision
        again = replace(
            claimed,
            after=last,
            events=[],
            tasks=[replace(change, task=replace(change.task, until=instant(90)))],
            instance=replace(claimed.instance, last_decision=last + 1),
        )
        assert await apply(store, again) == ALL
        flow.complete(CompleteWorkflow(result=b"1"))
        await apply(store, *flow.written[2:])
        assert await store.endless(10) == []


async def _pages(store: Store, size: int) -> list[Task]:
    found: list[Task] = []
    after: tuple[int, str] | None = None
    while True:
        page = await store.endless(size, after)
        found += page
        if len(page) < size:
            return found
        after = (page[-1].workflow, page[-1].id)
