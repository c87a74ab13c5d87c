"""What every store must do for several processes that own shards of one database, whatever its dialect. As `conformance.py`."""

from __future__ import annotations

from typing import Any, Protocol

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.lease import Claim, Release
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.state import Instance
from backstay.kernel.task import Block, Lease
from backstay.kernel.values import KEY_BITS, KEY_EPOCH, SECOND, Micros, Routing
from backstay.store import Applied, RegistryEntry, Store
from backstay.store.errors import Deposed
from backstay.store.ownership import SILENT, NodeFacts

from ..kernel.world import call
from .conformance import Database, instances, keep
from .instances import StoredFlow, applied, apply, instant

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

    retains = True
    """Whether runs that have expired can be listed."""

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
            if self.retains:
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
        uncounted = RegistryEntry("heartbeat", "default", "w", b"1", counted=False)
        assert await keep(store, uncounted) is None
        assert await store.keep_if(uncounted._replace(body=b"2"), b"1")
        assert await store.registry_version() == removed
        assert (before is None) == self.exclusive

    async def test_an_entry_of_the_registry_is_written_only_if_it_is_as_was_read(self, database: Database) -> None:
        store, beside = await database.open(), await database.open()
        first, second, gone = (RegistryEntry("session", "default", "s", body) for body in (b"1", b"2", None))
        assert not await store.keep_if(second, b"1"), "there is none"
        assert await store.keep_if(first, None)
        before = await store.registry_version()
        assert not await beside.keep_if(second, None), "there is one"
        assert not await beside.keep_if(second, b"other")
        assert not await beside.keep_if(gone, b"other")
        assert await store.kept("session") == [first]
        assert await beside.keep_if(second, b"1")
        assert await store.kept("session") == [second]
        assert self.exclusive or await store.registry_version() != before
        assert not await store.keep_if(RegistryEntry("session", "default", "s", b"3"), b"1"), "it was another's"
        assert await store.keep_if(gone, b"2")
        assert not await beside.keep_if(gone, b"2")
        assert await store.kept("session") == []

    async def test_a_leased_task_is_found_by_the_poll_that_got_it(self, database: Database) -> None:
        store = await database.open()
        flow, other, claimed = StoredFlow(), StoredFlow(namespace="other"), StoredFlow()
        for one, lease in (
            (flow, Lease(owner="w", until=FAR, call="poll-1")),
            (other, Lease(owner="w", until=FAR, call="poll-1")),
            (claimed, Lease(owner="w", until=FAR)),
        ):
            one.start(routing=Routing(namespace=one.state.namespace))
            one.when(Claim(task_id=one.workflow_task.id, lease=lease))
        await applied(store, flow, other, claimed)
        (found,) = await store.leased_by("default", "w", "poll-1")
        assert (found.workflow, found.owner, found.call) == (flow.key, "w", "poll-1")
        for namespace, owner, call_id in (("default", "w", "poll-2"), ("default", "v", "poll-1"), ("x", "w", "poll-1")):
            assert await store.leased_by(namespace, owner, call_id) == []
        written = len(flow.decisions)
        flow.when(Release(task_id=flow.workflow_task.id, owner="w", attempt=1))
        assert await apply(store, *flow.decisions[written:]) == Applied()
        assert await store.leased_by("default", "w", "poll-1") == []


class Nodes(Database, Protocol):
    """A database whose processes can be made to look dead."""

    async def silence(self, store: Any, length: Micros) -> None:
        """The process of a handle was not heard for so long."""
        ...

    async def lose_session(self, store: Any) -> None:
        """The session in which it writes ends, and it has not noticed."""
        ...


FACTS = NodeFacts(weight=3, address="http://10.0.0.7:8008", name="box/7", draining=True)
MANY = list(range(256))


async def owners(store: Store) -> dict[int, int]:
    """Who owns which shard; those that are free are left out."""
    return {shard: row.owner for shard, row in enumerate((await store.look()).shards) if row.owner is not None}


async def id_of(store: Store) -> int:
    return (await store.look()).me


async def joined(database: Database) -> tuple[Store, int]:
    """One more process that may own shards, and its id."""
    store = await database.open()
    assert await store.mark(NodeFacts(), 1)
    return store, await id_of(store)


class Owning:
    """Shards and their owners, where there can be many."""

    session: bool | None = True
    """What is told of a living process's session; None: sessions show nothing."""

    async def test_a_process_says_what_it_is_and_is_seen_by_others(self, database: Nodes) -> None:
        one, me = await joined(database)
        other = await database.open()
        assert await one.mark(FACTS, 1)
        (seen,) = (await other.look()).nodes
        assert (seen.id, seen.facts, seen.session) == (me, FACTS, self.session)
        assert 0 <= seen.silent < SILENT
        assert await id_of(other) != me
        await database.silence(one, 7 * SECOND)
        (seen,) = (await other.look()).nodes
        assert 7 * SECOND <= seen.silent < SILENT
        assert await one.mark(FACTS, 1)
        (seen,) = (await other.look()).nodes
        assert seen.silent < 7 * SECOND

    async def test_a_shard_that_is_free_is_claimed_once(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert await owners(one) == {}
        claimed = await one.claim([3, 1, 2])
        assert {shard: row.owner for shard, row in claimed.items()} == {1: first, 2: first, 3: first}
        assert await one.claim([1]) == {}
        assert list(await other.claim([2, 3, 4])) == [4]
        assert await owners(one) == await owners(other) == {1: first, 2: first, 3: first, 4: second}
        before = (await one.look()).shards[1]
        assert before == claimed[1]
        assert await one.claim([]) == {}

    async def test_the_term_grows_with_every_change(self, database: Nodes) -> None:
        (one, _), (other, second) = await joined(database), await joined(database)
        terms = [(await one.look()).shards[5].term]
        terms.append((await one.claim([5]))[5].term)
        assert await one.hand_over([5], second, 1) == [5]
        terms.append((await one.look()).shards[5].term)
        assert await other.hand_over([5], None, 1) == [5]
        terms.append((await one.look()).shards[5].term)
        terms.append((await one.claim([5]))[5].term)
        await database.silence(one, SILENT)
        assert await other.depose(await id_of(one))
        terms.append((await other.look()).shards[5].term)
        assert terms == sorted(set(terms))

    async def test_only_the_owner_hands_over_and_to_no_node_if_the_heir_is_gone(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert set(await one.claim([1, 2, 3])) == {1, 2, 3}
        assert await other.hand_over([1], second, 1) == []
        assert await one.hand_over([1, 9], second, 1) == [1]
        assert await one.hand_over([1], None, 1) == []
        assert await one.hand_over([2], 12345, 1) == [2]
        assert await owners(one) == {1: second, 3: first}
        await database.silence(other, SILENT)
        assert await one.depose(second)
        assert await one.hand_over([3], second, 1) == [3]
        assert await owners(one) == {}

    async def test_a_process_is_deposed_only_when_it_was_silent_for_long(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert set(await one.claim([1, 2])) == {1, 2}
        assert not await other.depose(first)
        assert not await other.depose(first, gone=True)
        await database.silence(one, SILENT - 5 * SECOND)
        assert not await other.depose(first)
        await database.silence(one, SILENT)
        assert await other.depose(first)
        assert not await other.depose(first)
        assert not await other.depose(12345)
        assert await owners(other) == {}
        assert [node.id for node in (await other.look()).nodes] == [second]

    async def test_a_process_whose_session_is_gone_can_be_deposed_at_once(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert set(await one.claim([1])) == {1}
        await database.lose_session(one)
        assert {node.id: node.session for node in (await other.look()).nodes} == {first: False, second: True}
        assert not await other.depose(first)
        assert await other.depose(first, gone=True)
        assert set(await other.claim([1])) == {1}

    async def test_a_process_that_was_deposed_writes_nothing_until_it_begins_anew(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert set(await one.claim([1, 2])) == {1, 2}
        before, late, after = placed(1), placed(1), placed(2)
        await applied(one, before)
        await database.silence(one, SILENT)
        assert await other.depose(first)
        assert not await one.mark(NodeFacts(), 1)
        assert await one.claim([7]) == {}
        assert await one.hand_over([1], second, 1) == []
        for _ in range(2):
            assert isinstance((await apply(one, *late.written)).down, Deposed)
        assert await other.load(late.key) is None
        assert await one.probe() is None
        assert await id_of(one) not in (first, second)
        assert await one.mark(NodeFacts(), 1)
        await applied(one, after)
        assert set(await one.claim([1])) == {1}
        assert first not in {node.id for node in (await other.look()).nodes}

    async def test_a_process_that_lost_its_connection_keeps_its_shards(self, database: Nodes) -> None:
        (one, first), (other, _) = await joined(database), await joined(database)
        assert set(await one.claim([1])) == {1}
        await database.lose_session(one)
        assert await one.probe() is None
        assert await id_of(one) == first
        assert await owners(one) == {1: first}
        await applied(one, placed(1))
        assert {node.id: node.session for node in (await other.look()).nodes}[first] is self.session

    async def test_shards_of_a_process_that_closed_are_free(self, database: Nodes) -> None:
        (one, first), (other, _) = await joined(database), await joined(database)
        assert set(await one.claim([1, 2])) == {1, 2}
        await one.close()
        await other.depose(first, gone=True)
        assert set(await other.claim([1, 2])) == {1, 2}

    async def test_keys_of_a_new_owner_can_be_later_than_those_of_all_before(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert set(await one.claim([1, 2, 3])) == {1, 2, 3}
        flow = placed(1)
        await applied(one, flow)
        written = (flow.run.key >> KEY_BITS) + KEY_EPOCH
        assert await one.hand_over([1], second, 7) == [1]
        assert written <= (await one.look()).shards[1].clock < written + SECOND
        assert await one.mark(NodeFacts(), written + 50)
        assert await one.hand_over([2], None, written + 60) == [2]
        assert (await other.claim([2]))[2].clock == written + 60
        assert await one.mark(NodeFacts(), written + 90)
        await database.silence(one, SILENT)
        assert await other.depose(first)
        assert (await other.claim([3]))[3].clock == written + 90
        assert await other.hand_over([3], None, 5) == [3]
        assert (await other.look()).shards[3].clock == written + 90, "a clock that is behind moves nothing"

    async def test_a_database_has_an_engine_while_a_living_process_owns_a_shard(self, database: Nodes) -> None:
        (one, first), (other, _) = await joined(database), await joined(database)
        assert not await other.has_engine()
        assert set(await one.claim([200])) == {200}
        assert await one.has_engine()
        assert await other.has_engine()
        await database.silence(one, SILENT)
        assert not await other.has_engine()
        assert await one.mark(NodeFacts(), 1)
        assert await other.has_engine()
        await database.lose_session(one)
        assert await other.has_engine() is (self.session is None)
        assert await other.depose(first, gone=True) is (self.session is True)

    async def test_only_commits_to_shards_of_others_leave_notices(self, database: Nodes) -> None:
        (one, _), (other, _) = await joined(database), await joined(database)
        assert set(await one.claim([1])) == {1}
        one.owned[1] = 1
        mine, theirs, more = placed(1), placed(2), placed(3)
        await applied(one, mine, theirs, more)
        assert await other.notices(shards=[1, 3, 4]) == [more.key]
        assert await other.notices(shards=[1, 3, 4]) == []
        assert await other.notices() == [theirs.key]
        one.owned[1] = 0
        mine.step(CompleteWorkflow(result=b"1"))
        await apply(one, *mine.written[1:])
        assert await other.notices(shards=[1]) == [mine.key]


class OwningBySilence(Owning):
    """Where no session shows who is there."""

    session = None

    async def test_a_process_whose_session_is_gone_can_be_deposed_at_once(self, database: Nodes) -> None:
        (one, first), (other, second) = await joined(database), await joined(database)
        assert set(await one.claim([1])) == {1}
        await database.lose_session(one)
        assert {node.id: node.session for node in (await other.look()).nodes} == {first: None, second: None}
        assert not await other.depose(first, gone=True), "only silence counts"
        await database.silence(one, SILENT)
        assert await other.depose(first)
        assert set(await other.claim([1])) == {1}


class OneOwner:
    """A database with one owner of all shards."""

    async def test_all_shards_are_claimed_together_or_none(self, database: Database) -> None:
        (one, me), (other, _) = await joined(database), await joined(database)
        assert one.exclusive
        assert await owners(one) == await owners(other) == {}
        assert set(await one.claim([4])) == set(MANY)
        assert await other.claim(MANY) == {}
        assert await owners(one) == dict.fromkeys(MANY, me)
        seen = await other.look()
        assert {row.owner for row in seen.shards} == {node.id for node in seen.nodes} - {seen.me}
        assert await other.has_engine()

    async def test_all_shards_are_given_up_or_kept(self, database: Database) -> None:
        (one, _), (other, second) = await joined(database), await joined(database)
        assert await one.hand_over(MANY, None, 1) == []
        assert await one.claim(MANY)
        assert await one.hand_over(MANY, second, 1) == []
        assert await one.hand_over([4], None, 1) == []
        assert not await other.depose(1)
        assert not await other.depose(2, gone=True)
        assert await one.hand_over(MANY, None, 1) == MANY
        assert not await other.has_engine()
        assert set(await other.claim(MANY)) == set(MANY)
        await other.close()
        assert set(await one.claim(MANY)) == set(MANY)

    async def test_who_is_not_the_owner_leaves_notices(self, database: Database) -> None:
        (one, _), (other, _) = await joined(database), await joined(database)
        assert await one.claim(MANY)
        mine, theirs, later = placed(1), placed(1), placed(2)
        await applied(one, mine)
        await applied(other, theirs)
        assert await one.notices(shards=[2]) == [theirs.key]
        assert await one.hand_over(MANY, None, 1)
        await applied(one, later)
        assert await other.notices() == [later.key]
