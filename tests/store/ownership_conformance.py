"""What every store must do for several processes that own shards of one database, whatever its dialect. As `conformance.py`."""

from __future__ import annotations

from typing import Any

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.state import Instance
from backstay.kernel.task import Block
from backstay.store import RegistryEntry

from ..kernel.world import call
from .conformance import Database, instances, keep
from .instances import StoredFlow, applied, instant

FAR = 1 << 61


def placed(shard: int, at: int = 0, *, started: bool = True, **options: Any) -> StoredFlow:
    """An instance of a shard."""
    flow = StoredFlow()
    key = flow.key >> 8 << 8 | shard
    flow.state = Instance(key, "default", f"order-{key}")
    if started:
        flow.start(at=at, **options)
    return flow


class OfShards:
    """Reads of some shards, and what a node asks for besides."""

    exclusive = False
    """Whether one process owns all shards, so that a read of some is one of all."""

    async def test_reads_of_some_shards_leave_out_the_others(self, database: Database) -> None:
        store = await database.open()
        here, there = placed(3), placed(200)
        for flow in (here, there):
            flow.step(ScheduleActivity(activity_type="charge"), StartTimer(delay_seconds=5), call())
        leased, elsewhere = placed(3), placed(200)
        for flow in (leased, elsewhere):
            (task,) = flow.tasks.values()
            flow.claim(task.id, until=None)
        broken, also = placed(3), placed(200)
        for flow in (broken, also):
            flow.break_task(Block(message="no such module"))
        closed, past = placed(3), placed(200)
        for flow in (closed, past):
            flow.step(CompleteWorkflow(result=b"1"))
        await applied(store, here, there, leased, elsewhere, broken, also, closed, past)
        shards = None if self.exclusive else [3, 4, 5]
        whole = {here.key, leased.key, broken.key, closed.key}
        if self.exclusive:
            whole |= {there.key, elsewhere.key, also.key, past.key}
        for asked in (shards, None):
            mine = whole if asked is shards else whole | {there.key, elsewhere.key, also.key, past.key}

            def of(*flows: StoredFlow, mine: set[int] = mine) -> set[int]:
                return {flow.key for flow in flows} & mine

            assert {key for _, key in await store.due(FAR, 99, shards=asked)} >= of(here, there)
            assert {key for _, key in await store.due(FAR, 99, shards=asked)} <= mine
            found = await store.written_in_future(instant(-9), (0, 0), 99, shards=asked)
            assert {key for _, key in found} >= of(here, there)
            assert {key for _, key in found} <= mine
            assert {task.workflow for task in await store.ready(99, shards=asked)} == of(here, there)
            assert {task.workflow for task in await store.leased(shards=asked)} == of(leased, elsewhere)
            assert {task.workflow for task in await store.endless(99, shards=asked)} == of(leased, elsewhere)
            assert {task.workflow for task in await store.failed(shards=asked)} == of(broken, also)
            assert {send.sender for send in await store.sends(0, 99, shards=asked)} == of(here, there)
            assert set(await store.awaiting(0, 99, shards=asked)) == of(here, there)
            expired = await store.expired("default", FAR, 99, shards=asked)
            assert {run.workflow for run in expired} == of(closed, past)

    async def test_a_page_of_some_shards_goes_on_behind_its_last(self, database: Database) -> None:
        store = await database.open()
        crowd = [placed(number % 4) for number in range(12)]
        await applied(store, *crowd)
        found: list[int] = []
        after: tuple[int, int, str] | None = None
        while page := await store.ready(2, after, shards=[1, 2, 250]):
            found += [task.workflow for task in page]
            after = (page[-1].available_at, page[-1].workflow, page[-1].id)
        assert sorted(found) == sorted(flow.key for flow in crowd if self.exclusive or flow.key & 255 in (1, 2))
        wrong, last = await store.mismatched(0, 3, shards=[1, 2])
        assert wrong == []
        assert last is not None
        assert self.exclusive or last & 255 in (1, 2)

    async def test_the_sends_of_some_senders_come_in_the_order_made(self, database: Database) -> None:
        store = await database.open()
        first, second, third, silent = placed(1), placed(2), placed(1), placed(1)
        for flow in (first, second, third):
            flow.step(call(), call("bill"))
        await applied(store, first, second, third, silent)
        made = [send.key for flow in (first, third) for send in flow.decisions[-1].sends]
        asked = [third.key, first.key, silent.key, 1]
        assert [send.key for send in await store.sends_of(asked)] == sorted(made)
        assert await store.sends_of([]) == []

    async def test_a_change_of_the_registry_moves_its_version_or_is_a_commit(self, database: Database) -> None:
        store = await database.open()
        before = await store.registry_version()
        await applied(store, *instances(1))
        assert await store.registry_version() == before
        assert await keep(store, RegistryEntry("worker", "default", "w", b"1")) is None
        kept = await store.registry_version()
        assert await keep(store, RegistryEntry("worker", "default", "w", None)) is None
        removed = await store.registry_version()
        assert len({before, kept, removed}) == (1 if self.exclusive else 3)
        assert (before is None) == self.exclusive
