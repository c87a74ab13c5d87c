"""What every store must do, whatever its dialect.

A dialect's test module mixes these classes with a fixture `database` that answers to `Database`. `Alone` needs one handle;
`Shared` opens several on the same database, as several processes do, reopens it, and changes rows behind their backs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay.kernel.decision import Decision
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.cancel import Terminate
from backstay.kernel.features.child.messages import StartFromParent
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.search import UpsertSearchAttributes
from backstay.kernel.features.start import Reserve
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.send import unpack
from backstay.kernel.task import Block
from backstay.kernel.values import SECOND
from backstay.store import ALL, Applied, Loaded, Located, RegistryEntry, RunFilter, Store
from backstay.store.errors import Unavailable

from ..kernel.world import call
from .children import child, go, hear, kill
from .instances import STEPS, T0, UNHURRIED, StoredFlow, applied, apply, expected, instant, stored, walk

ACTIVITY = ScheduleActivity(activity_type="charge", arguments=b"\x00\xff")


class Database(Protocol):
    where: str
    """Its path or URL, for another process to open."""

    async def open(self) -> Store:
        """One more handle, as a process of its own would hold it. The fixture closes what a test leaves open."""
        ...

    async def sql(self, statement: str) -> None:
        """Change rows behind the back of every handle, with SQL that all dialects understand."""
        ...


def instances(number: int, **options: Any) -> list[StoredFlow]:
    found = [StoredFlow() for _ in range(number)]
    for position, instance in enumerate(found):
        instance.start(at=position, **options)
    return found


async def pruned(store: Store, workflow: int, run: int) -> bool | Unavailable:
    stay = await pruned_all(store, Located(workflow, run))
    return stay if isinstance(stay, Unavailable) else not stay


async def pruned_all(store: Store, *runs: Located) -> frozenset[int] | Unavailable:
    done: asyncio.Future[frozenset[int] | Unavailable] = asyncio.get_running_loop().create_future()
    store.prune(runs, done.set_result)
    return await done


async def keep(store: Store, entry: RegistryEntry) -> Unavailable | None:
    done: asyncio.Future[Unavailable | None] = asyncio.get_running_loop().create_future()
    store.keep(entry, done.set_result)
    return await done


def stale(*positions: int) -> Applied:
    return Applied(stale=frozenset(positions))


class Alone:
    """What one handle on a database does."""

    # -- the registry

    async def test_an_entry_of_the_registry_is_kept_replaced_and_removed(self, database: Database) -> None:
        store = await database.open()
        for entry in (
            RegistryEntry("worker", "default", "w2", b"{}"),
            RegistryEntry("worker", "default", "w1", b"old"),
            RegistryEntry("worker", "default", "w1", b"new"),
            RegistryEntry("worker", "other", "w1", b"{}"),
            RegistryEntry("namespace", "", "default", b"{}"),
            RegistryEntry("worker", "default", "w2", None),
            RegistryEntry("worker", "default", "never there", None),
        ):
            assert await keep(store, entry) is None
        assert await store.kept("worker") == [
            RegistryEntry("worker", "default", "w1", b"new"),
            RegistryEntry("worker", "other", "w1", b"{}"),
        ]

    async def test_many_entries_of_the_registry_are_written_together(self, database: Database) -> None:
        store = await database.open()
        assert await keep(store, RegistryEntry("heartbeat", "default", "gone", b"{}")) is None
        done: asyncio.Future[Unavailable | None] = asyncio.get_running_loop().create_future()
        entries = [RegistryEntry("heartbeat", "default", f"w{number}", b"{}") for number in range(100)]
        store.keep_all([*entries, RegistryEntry("heartbeat", "default", "gone", None)], done.set_result)
        assert await done is None
        assert sorted(entry.name for entry in await store.kept("heartbeat")) == sorted(entry.name for entry in entries)

    # -- retention

    async def test_closed_runs_are_found_by_when_they_were_closed(self, database: Database) -> None:
        store = await database.open()
        early, late, open_, elsewhere = StoredFlow(), StoredFlow(), StoredFlow(), StoredFlow(namespace="other")
        for instance, at in ((late, 50), (early, 10), (elsewhere, 10)):
            instance.start(at=0)
            instance.complete(CompleteWorkflow(), at=at)
        open_.start(at=0)
        await applied(store, early, late, open_, elsewhere)
        assert [row.workflow for row in await store.expired("default", instant(100), 10)] == [early.key, late.key]
        assert [row.workflow for row in await store.expired("default", instant(100), 1)] == [early.key]
        assert [row.workflow for row in await store.expired("default", instant(50), 10)] == [early.key]
        assert [row.workflow for row in await store.expired("other", instant(100), 10)] == [elsewhere.key]

    async def test_with_the_last_run_of_an_instance_goes_the_instance(self, database: Database) -> None:
        store = await database.open()
        gone, stays = StoredFlow(), StoredFlow()
        for instance in (gone, stays):
            instance.start(at=0, request_id="r-1")
            instance.complete(CompleteWorkflow(), at=1)
        await applied(store, gone, stays)
        assert await pruned(store, gone.key, gone.run.key) is True
        assert await store.find("default", gone.workflow_id) is None
        assert (await store.load(gone.key), await store.run("default", gone.run.run_id)) == (None, None)
        assert (await store.history(gone.run.key), await store.commands(gone.key)) == ([], [])
        assert await stored(store, stays) == expected(stays)

    async def test_of_a_chain_that_goes_on_only_the_old_run_goes(self, database: Database) -> None:
        store = await database.open()
        chain = StoredFlow()
        chain.start(at=0)
        first = chain.run
        chain.complete(ContinueAsNew(), at=1)
        await applied(store, chain)
        assert await pruned(store, chain.key, first.key) is True
        assert (await store.run("default", first.run_id), await store.history(first.key)) == (None, [])
        loaded = await store.load(chain.key)
        assert loaded is not None
        assert (loaded.row, loaded.history) == (chain.row, chain.history)

    async def test_an_instance_that_owes_a_send_stays(self, database: Database) -> None:
        store = await database.open()
        parent = StoredFlow()
        parent.start(at=0)
        parent.complete(call(), at=1)
        parent.when(Terminate(), at=2)
        await applied(store, parent)
        assert await store.sends(0, 10), "the start of the child was not taken yet"
        assert await pruned(store, parent.key, parent.run.key) is False
        loaded = await store.load(parent.key)
        assert loaded is not None
        assert loaded.row == parent.row

    async def test_many_runs_go_in_one_commit_but_for_those_that_are_waited_for(self, database: Database) -> None:
        store = await database.open()
        crowd = instances(3)
        for instance in crowd:
            instance.complete(CompleteWorkflow(), at=5)
        chain, owes, stays = StoredFlow(), StoredFlow(), StoredFlow()
        chain.start(at=0)
        first = chain.run
        chain.complete(ContinueAsNew(), at=1)
        second = chain.run
        chain.complete(CompleteWorkflow(), at=2)
        owes.start(at=0)
        owes.complete(call(), at=1)
        owes.when(Terminate(), at=2)
        stays.start(at=0)
        await applied(store, *crowd, chain, owes, stays)
        asked = [Located(instance.key, instance.run.key) for instance in (*crowd, owes)]
        asked += [Located(chain.key, first.key), Located(chain.key, second.key), Located(1, 1)]
        assert await pruned_all(store, *asked) == frozenset([owes.run.key])
        for instance in (*crowd, chain):
            assert await store.load(instance.key) is None
            assert await store.runs(RunFilter(workflow_id=instance.workflow_id)) == []
            assert await store.commands(instance.key) == []
            assert await store.history(instance.run.key) == []
        for instance in (owes, stays):
            assert await stored(store, instance) == expected(instance)
        assert await pruned_all(store) == frozenset()

    # -- what is written is what is read

    async def test_a_started_instance_is_read_back_as_it_was_decided(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        instance.start(
            arguments=b"\x00\xff",
            business_key="invoice 7",
            visibility_labels={"region": "eu"},
            memo={"note": b"\x01"},
            search_attributes={"amount": 12.5, "paid": False, "tags": ["a", "b"], "none": None},
            execution_timeout_seconds=3600,
            context={"caller": {"name": "ä"}},
            request_id="r-1",
        )
        await applied(store, instance)
        assert await stored(store, instance) == expected(instance)

    async def test_an_instance_without_its_history_is_what_loading_it_gives(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["activity", "begin", "fail", "wait", "begin", "sleep", "again", "continue", "activity"])
        await applied(store, instance)
        found = await store.load(instance.key)
        opening = await store.opening(instance.key)
        assert found is not None
        assert opening is not None
        assert (opening.row, opening.run) == (found.row, found.run)
        assert sorted(task.id for task in opening.tasks) == sorted(task.id for task in found.tasks)
        assert opening.tasks
        assert opening.run is not None
        history = await store.history(opening.run.key, 0, opening.row.length)
        assert (len(history), history[-1].checksum) == (opening.row.length, opening.row.checksum)
        assert await store.opening(404) is None

    async def test_a_run_of_every_kind_of_row_is_read_back_as_it_was_decided(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["activity", "begin", "fail", "wait", "begin", "finish", "sleep", "wait", "again", "continue"])
        walk(instance, ["break", "heal", "continue", "label"])
        for decision in instance.written:
            assert await apply(store, decision) == ALL
        assert len(instance.runs) == 3
        assert await stored(store, instance) == expected(instance)

    @pytest.mark.contract("START-01")
    async def test_a_reserved_instance_is_known_and_has_no_run(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        instance.when(Reserve(namespace="default", workflow_id=instance.workflow_id, workflow_type="order"))
        await applied(store, instance)
        loaded = await store.load(instance.key)
        assert instance.row is not None
        assert loaded == Loaded(instance.row, None, [], [])
        assert loaded is not None
        assert loaded.row.reserved_at == T0
        assert await store.find("default", instance.workflow_id) == instance.key

    async def test_several_names_are_found_at_once_and_an_impossible_one_spoils_nothing(
        self, database: Database
    ) -> None:
        store = await database.open()
        here, there = StoredFlow("here"), StoredFlow("there")
        here.start()
        there.start()
        await applied(store, here, there)
        names = ["here", "nobody", "there", "here", "a\0b", "\ud800", "'", "ü"]
        assert await store.find_all("default", names) == {"here": here.key, "there": there.key}
        assert await store.find_all("another", names) == {}
        assert await store.find_all("default", []) == {}

    async def test_a_read_of_an_unknown_instance_is_none_or_empty(self, database: Database) -> None:
        store = await database.open()
        assert await store.find("default", "nobody") is None
        assert await store.locate("default", "nobody") is None
        assert await store.run("default", "nobody") is None
        assert await store.load(4711) is None
        assert await store.last_event(4711) is None
        assert await store.history(4711) == []
        assert await store.commands(4711) == []
        assert await store.runs(RunFilter()) == []
        assert await store.due(1 << 60, 10) == []
        assert await store.ready(10) == []
        assert await store.leased() == []
        assert await store.failed() == []
        assert await store.mismatched(0, 10) == ([], None)

    async def test_an_instance_is_found_by_name_within_its_namespace(self, database: Database) -> None:
        store = await database.open()
        here, there = StoredFlow("order-1", "here"), StoredFlow("order-1", "there")
        here.start()
        there.start()
        await applied(store, here, there)
        assert await store.find("here", "order-1") == here.key
        assert await store.find("there", "order-1") == there.key
        assert await store.find("default", "order-1") is None

    async def test_a_run_is_located_by_its_id_within_its_namespace(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["continue"])
        await applied(store, instance)
        first, second = instance.runs.values()
        assert await store.locate("default", first.run_id) == (instance.key, first.key)
        assert await store.locate("default", second.run_id) == (instance.key, second.key)
        assert await store.run("default", first.run_id) == first
        assert await store.run("default", second.run_id) == second
        for elsewhere in ("another", "default/streams", "", "DEFAULT"):
            assert await store.locate(elsewhere, first.run_id) is None
            assert await store.run(elsewhere, second.run_id) is None

    async def test_the_log_of_commands_is_read_backwards_over_all_instances_or_one(self, database: Database) -> None:
        store = await database.open()
        first, second = StoredFlow("log-1"), StoredFlow("log-2")
        first.start()
        second.start()
        for _ in range(3):
            first.signal("go")
        await applied(store, first, second)
        log = await store.command_log((1 << 63) - 1, 100, None)
        mine = [one for one in log if one.workflow_id in ("log-1", "log-2")]
        assert [one.position for one in log] == sorted((one.position for one in log), reverse=True)
        assert [one.record for one in mine if one.workflow_id == "log-1"] == list(reversed(first.commands))
        assert {one.namespace for one in mine} == {"default"}
        newest = next(one.position for one in mine if one.workflow_id == "log-1")
        assert [one.record for one in await store.command_log(newest, 2, first.key)] == first.commands[-2:-4:-1]
        sizes = await store.command_sizes(newest, 2, first.key)
        assert [size > 0 for size in sizes] == [True, True]
        assert await store.command_log(log[-1].position, 5, None) == []

    async def test_commands_come_back_in_the_order_they_were_decided(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["again", "continue", "again", "complete", "again"])
        instance.start()  # rejected by the closed run: a record and nothing else
        await applied(store, instance)
        found = await store.commands(instance.key)
        assert found == instance.commands
        assert await store.commands(instance.key, 1, 2) == found[1:3]
        assert await store.commands(instance.key, 4, 100) == found[4:]
        assert [command.outcome for command in found] == [
            "started_new",
            "rejected_duplicate",
            "started_new",
            "rejected_duplicate",
            "rejected_duplicate",
        ]
        assert await store.last_command(instance.key, "start") == instance.commands[-1]
        assert await store.last_command(instance.key, "pause") is None

    # -- history

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_history_read_in_pages_is_the_whole_history(self, database: Database, size: int) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["label"])
        for _ in range(4):
            walk(instance, ["activity", "begin", "finish"])
        await applied(store, instance)
        pages = [[]]
        while page := await store.history(instance.run.key, sum(map(len, pages)), size):
            assert len(page) <= size
            pages.append(page)
        assert [entry for page in pages for entry in page] == instance.history
        assert await store.history(instance.run.key) == instance.history

    async def test_history_after_its_end_is_empty(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        assert await store.history(instance.run.key, 2) == []
        assert await store.history(instance.run.key, 99) == []
        assert await store.history(instance.run.key, 0, 0) == []

    async def test_the_last_event_is_the_last(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["complete"])
        await applied(store, instance)
        assert await store.last_event(instance.run.key) == instance.history[-1]

    # -- guards

    async def test_an_empty_batch_is_applied(self, database: Database) -> None:
        store = await database.open()
        assert await apply(store) == ALL

    async def test_a_batch_of_many_instances_is_written_whole(self, database: Database) -> None:
        store = await database.open()
        many = instances(151)
        await applied(store, *many)
        for instance in many:
            instance.step(ACTIVITY)
            assert (await apply(store, *instance.written[1:])) == ALL
        for instance in many:
            assert await stored(store, instance) == expected(instance)

    async def test_a_stale_decision_is_skipped_and_its_neighbours_are_committed(self, database: Database) -> None:
        store = await database.open()
        before, torn, after = instances(3)
        await applied(store, before, torn, after)
        late = torn.twin()
        torn.step(StartTimer(delay_seconds=5))
        late.claim(late.workflow_task.id, "another worker")
        assert await apply(store, *torn.written[1:]) == ALL
        before.step(ACTIVITY)
        after.step(ACTIVITY)
        batch = [*before.written[1:], *late.written[1:], *after.written[1:]]
        assert await apply(store, *batch) == stale(2)
        for instance in (before, torn, after):
            assert await stored(store, instance) == expected(instance)

    async def test_decisions_after_a_stale_decision_of_the_same_instance_are_stale(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        late = instance.twin()
        instance.step(StartTimer(delay_seconds=5))
        walk(late, ["activity", "begin", "finish", "complete"])
        assert await apply(store, *instance.written[1:]) == ALL
        assert await apply(store, *late.written[1:]) == stale(*range(len(late.written) - 1))
        assert await stored(store, instance) == expected(instance)

    async def test_a_decision_that_was_applied_is_stale_the_second_time(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        claim, complete = instance.step(ACTIVITY)
        assert await apply(store, claim) == ALL
        assert await apply(store, claim, complete) == stale(0)
        assert await apply(store, claim, complete) == stale(0, 1)
        assert await apply(store, *instance.written) == stale(0, 1, 2)
        assert await stored(store, instance) == expected(instance)

    async def test_of_two_decisions_on_the_same_state_in_one_batch_the_first_is_taken(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        rival = instance.twin()
        instance.step(ACTIVITY)
        rival.step(StartTimer(delay_seconds=5))
        batch = [*instance.written[1:], *rival.written[1:]]
        assert await apply(store, *batch) == stale(2, 3)
        assert await stored(store, instance) == expected(instance)

    async def test_of_two_claims_of_one_task_in_one_batch_the_first_is_taken(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        rival = instance.twin()
        instance.claim(instance.workflow_task.id, "one worker")
        rival.claim(rival.workflow_task.id, "another worker")
        assert await apply(store, instance.written[1], rival.written[1]) == stale(1)
        assert await stored(store, instance) == expected(instance)

    async def test_of_two_starts_under_one_id_in_one_batch_the_first_is_taken(self, database: Database) -> None:
        store = await database.open()
        first, second = StoredFlow("order-1"), StoredFlow("order-1")
        walk(first, ["activity"])
        walk(second, ["sleep"])
        (neighbour,) = instances(1)
        batch = [*first.written, *second.written, *neighbour.written]
        assert await apply(store, *batch) == stale(3, 4, 5)
        assert await store.find("default", "order-1") == first.key
        assert await store.load(second.key) is None
        assert await store.history(second.run.key) == []
        assert await store.commands(second.key) == []
        assert await stored(store, first) == expected(first)
        assert await stored(store, neighbour) == expected(neighbour)

    @pytest.mark.parametrize("table", ["run", "send"])
    async def test_a_key_that_was_minted_twice_makes_a_decision_stale(self, database: Database, table: str) -> None:
        """Two engines may mint one key for two instances. The second decides again, and mints another."""
        store = await database.open()
        first, second, third = instances(3)
        for instance in (first, second):
            instance.step(call("packing"))
        await applied(store, first)
        opened, *rest = second.written
        taken = first.written[0].runs[0][1].key, next(send for one in first.written for send in one.sends).key
        if table == "run":
            wrong = replace(opened, runs=[(True, replace(opened.runs[0][1], key=taken[0]))], events=[])
            assert await apply(store, wrong, *third.written) == stale(0)
        else:
            wrong = [replace(one, sends=[replace(s, key=taken[1]) for s in one.sends]) for one in rest]
            assert await apply(store, opened, *wrong, *third.written) == stale(len(rest))
        assert await stored(store, third) == expected(third)

    async def test_a_start_under_an_id_that_exists_is_stale(self, database: Database) -> None:
        store = await database.open()
        first, second = StoredFlow("order-1"), StoredFlow("order-1")
        first.start()
        second.start()
        await applied(store, first)
        assert await apply(store, *second.written) == stale(0)
        assert await store.locate("default", second.run.run_id) is None
        assert await stored(store, first) == expected(first)

    # -- what cannot be written

    @pytest.mark.contract("START-04")
    @pytest.mark.parametrize("fault", ["body of a wrong type", "event twice", "number too large", "unknown object"])
    async def test_a_decision_that_cannot_be_written_fails_alone(self, database: Database, fault: str) -> None:
        store = await database.open()
        before, broken, after = instances(3)
        _spoil(broken.written[0], fault)
        batch = [*before.written, *broken.written, *after.written]
        result = await apply(store, *batch)
        assert result.stale == frozenset()
        assert result.down is None
        assert list(result.failed) == [1]
        assert await stored(store, before) == expected(before)
        assert await stored(store, after) == expected(after)
        assert await store.find("default", broken.workflow_id) is None
        assert await store.load(broken.key) is None
        assert await store.locate("default", broken.run.run_id) is None
        assert await store.history(broken.run.key) == []
        assert await store.commands(broken.key) == []
        assert {task.workflow for task in await store.ready(10)} == {before.key, after.key}

    @pytest.mark.parametrize("fault", ["body of a wrong type", "event twice", "number too large"])
    async def test_decisions_before_a_failed_decision_stay_and_those_after_it_are_stale(
        self, database: Database, fault: str
    ) -> None:
        store = await database.open()
        (instance,) = instances(1)
        instance.step(ACTIVITY)
        kept = instance.twin()
        walk(instance, ["begin", "finish", "complete"])
        _spoil(instance.written[3], fault)
        result = await apply(store, *instance.written)
        assert list(result.failed) == [3]
        assert result.stale == frozenset(range(4, len(instance.written)))
        assert await stored(store, kept) == expected(kept)

    async def test_a_store_goes_on_after_a_decision_that_could_not_be_written(self, database: Database) -> None:
        store = await database.open()
        broken, other = instances(2)
        _spoil(broken.written[0], "unknown object")
        assert list((await apply(store, *broken.written)).failed) == [0]
        await applied(store, other)
        assert await stored(store, other) == expected(other)

    # -- batches

    @settings(deadline=None, max_examples=40, suppress_health_check=UNHURRIED)
    @given(
        walks=st.lists(st.lists(st.sampled_from(STEPS), max_size=12), min_size=1, max_size=3),
        cuts=st.lists(st.integers(1, 8), max_size=20),
        seed=st.randoms(use_true_random=False),
    )
    def test_however_a_sequence_of_decisions_is_cut_into_batches_the_rows_are_the_same(
        self, database: Database, runner: asyncio.Runner, walks: list[list[str]], cuts: list[int], seed: Any
    ) -> None:
        crowd = [StoredFlow() for _ in walks]
        for instance, steps in zip(crowd, walks, strict=True):
            walk(instance, steps)
        queues = [list(instance.written) for instance in crowd]
        decisions: list[Decision] = []
        while queues := [queue for queue in queues if queue]:
            decisions.append(seed.choice(queues).pop(0))

        async def check() -> None:
            store = await database.open()
            rest = list(decisions)
            for size in [*cuts, len(rest)]:
                batch, rest = rest[:size], rest[size:]
                assert await apply(store, *batch) == ALL
            for instance in crowd:
                assert await stored(store, instance) == expected(instance)
            # A story may leave a run open with neither task nor wake, because its code asked for nothing more.
            stuck = {i.key for i in crowd if i.run.is_open and not i.state.tasks and i.state.next_wake is None}
            suspects, _ = await store.mismatched(0, 10_000)
            assert {i.key for i in crowd} & set(suspects) == stuck
            await store.close()

        runner.run(check())

    async def test_a_task_that_is_born_and_closed_in_one_batch_leaves_no_row(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["activity", "begin", "finish", "complete"])
        await applied(store, instance)
        loaded = await store.load(instance.key)
        assert loaded is not None
        assert loaded.tasks == []
        assert loaded.row.expects == 0
        assert await stored(store, instance) == expected(instance)

    async def test_a_run_of_another_type_in_the_middle_of_a_chain_renames_its_instance(
        self, database: Database
    ) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        instance.claim(instance.workflow_task.id, until=None)  # a lease without an end moves no wake
        instance.complete(ContinueAsNew(workflow_type="refund"))
        instance.claim(instance.workflow_task.id, until=None)
        assert await apply(store, *instance.written[1:]) == ALL
        loaded = await store.load(instance.key)
        assert loaded is not None
        assert loaded.row.workflow_type == "refund"
        assert await stored(store, instance) == expected(instance)

    # -- work to do

    async def test_due_instances_come_earliest_first_up_to_the_limit(self, database: Database) -> None:
        store = await database.open()
        delays = [50, 10, 40, 20, 20]
        sleepers = [StoredFlow() for _ in delays]
        for sleeper, delay in zip(sleepers, delays, strict=True):
            sleeper.start()
            sleeper.complete(StartTimer(delay_seconds=delay))
        await applied(store, *sleepers, *instances(1))
        order = [(instant(at), sleepers[which].key) for at, which in [(10, 1), (20, 3), (20, 4), (40, 2), (50, 0)]]
        order[1:3] = sorted(order[1:3])
        assert await store.due(instant(100), 10) == order
        assert await store.due(instant(100), 2) == order[:2]
        assert await store.due(instant(20), 10) == order[:3]
        assert await store.due(instant(9.999), 10) == []

    async def test_an_instance_is_no_longer_due_once_its_deadline_is_gone(self, database: Database) -> None:
        store = await database.open()
        (sleeper,) = instances(1, run_timeout_seconds=60)
        sleeper.step(StartTimer(delay_seconds=5))
        await applied(store, sleeper)
        assert await store.due(instant(100), 10) == [(instant(5), sleeper.key)]
        moved = sleeper.due(at=5)
        assert await apply(store, moved) == ALL
        assert await store.due(instant(100), 10) == [(instant(60), sleeper.key)]
        assert await apply(store, *sleeper.step(CompleteWorkflow())) == ALL
        assert await store.due(instant(100), 10) == []

    async def test_waiting_instances_that_were_written_later_than_now_are_found(self, database: Database) -> None:
        store = await database.open()
        sleepers = [StoredFlow() for _ in range(4)]
        for sleeper, at in zip(sleepers, [0, 100, 200, 300], strict=True):
            sleeper.start(at=at)
            sleeper.complete(StartTimer(delay_seconds=50))
        resting = StoredFlow()
        resting.start(at=500)
        await applied(store, *sleepers, resting)
        found = [(instant(at + 50), sleeper.key) for sleeper, at in zip(sleepers[1:], [100, 200, 300], strict=True)]
        assert await store.written_in_future(instant(99), (instant(99), 0), 10) == found
        assert await store.written_in_future(instant(99), (instant(99), 0), 2) == found[:2]
        assert await store.written_in_future(instant(99), found[0], 2) == found[1:]
        assert await store.written_in_future(instant(100), (instant(100), 0), 10) == found[1:]
        assert await store.written_in_future(instant(300), (instant(300), 0), 10) == []

    @pytest.mark.parametrize("size", [1, 2, 5, 100])
    async def test_ready_tasks_are_paged_oldest_first(self, database: Database, size: int) -> None:
        store = await database.open()
        many = instances(4)
        fan = StoredFlow()
        fan.start(at=2)  # as old as another one, and later three tasks of one age
        fan.complete(ACTIVITY, ACTIVITY, ACTIVITY)
        await applied(store, *many, fan)
        found: list[Any] = []
        after = None
        while page := await store.ready(size, after):
            assert len(page) <= size
            found += page
            after = (page[-1].available_at, page[-1].workflow, page[-1].id)
        assert len(found) == 7
        places = [(task.available_at, task.workflow, task.id) for task in found]
        assert places == sorted(places)
        assert {task.id: task for task in found} == {
            id: task for instance in (*many, fan) for id, task in instance.rows.items()
        }

    @pytest.mark.contract("REPLAY-11")
    async def test_a_task_is_ready_or_leased_or_failed_as_its_row_says(self, database: Database) -> None:
        store = await database.open()
        ready, leased, failed, closed = instances(4)
        leased.claim(leased.workflow_task.id)
        failed.break_task(Block(message="no such module"))
        closed.complete(CompleteWorkflow())
        await applied(store, ready, leased, failed, closed)
        assert await store.ready(10) == list(ready.rows.values())
        assert await store.leased() == list(leased.rows.values())
        assert await store.failed() == list(failed.rows.values())
        back = leased.due(at=1000)
        assert await apply(store, back) == ALL
        assert await store.leased() == []
        assert {task.workflow for task in await store.ready(10)} == {ready.key, leased.key}

    # -- lists

    async def test_runs_are_listed_newest_first_in_pages(self, database: Database) -> None:
        store = await database.open()
        many = instances(7)
        await applied(store, *many)
        keys = sorted((instance.run.key for instance in many), reverse=True)
        first = await store.runs(RunFilter(limit=3))
        second = await store.runs(RunFilter(limit=3, before=first[-1].key))
        third = await store.runs(RunFilter(limit=3, before=second[-1].key))
        assert [run.key for run in [*first, *second, *third]] == keys
        assert await store.runs(RunFilter(before=third[-1].key)) == []

    async def test_runs_are_filtered_by_what_their_index_row_holds(self, database: Database) -> None:
        store = await database.open()
        open_one, done, lost, plain = (StoredFlow() for _ in range(4))
        open_one.start("order", business_key="b-1", visibility_labels={"region": "eu", "a.b": "1"})
        done.start("order", business_key="b-2", visibility_labels={"region": "us"})
        lost.start("refund", business_key="b-1")
        plain.start("refund")
        done.complete(CompleteWorkflow())
        lost.complete(FailWorkflow(message="no"))
        elsewhere = StoredFlow(namespace="elsewhere")
        elsewhere.start("order", business_key="b-1")
        await applied(store, open_one, done, lost, plain, elsewhere)

        async def listed(**where: Any) -> set[str]:
            return {run.workflow_id for run in await store.runs(RunFilter(**where))}

        def ids(*wanted: StoredFlow) -> set[str]:
            return {instance.workflow_id for instance in wanted}

        assert await listed() == ids(open_one, done, lost, plain)
        assert await listed(namespace="elsewhere") == ids(elsewhere)
        assert await listed(workflow_type="order") == ids(open_one, done)
        assert await listed(workflow_type="ord") == set()
        assert await listed(status="completed") == ids(done)
        assert await listed(status="failed") == ids(lost)
        assert await listed(business_key="b-1") == ids(open_one, lost)
        assert await listed(business_key="b-1", workflow_type="order") == ids(open_one)
        assert await listed(label=("region", "eu")) == ids(open_one)
        assert await listed(label=("a.b", "1")) == ids(open_one)
        assert await listed(label=("region", "e")) == set()
        assert await listed(label=('x" or 1=1 --', "eu")) == set()
        assert await listed(workflow_id=lost.workflow_id) == ids(lost)
        assert await listed(workflow_id=lost.workflow_id, namespace="elsewhere") == set()

    async def test_the_runs_of_one_instance_are_listed_by_its_id(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["continue", "continue"])
        await applied(store, instance, *instances(2))
        found = await store.runs(RunFilter(workflow_id=instance.workflow_id))
        assert [run.number for run in found] == [3, 2, 1]

    @pytest.mark.parametrize(
        ("value", "matches"),
        [
            ("eu", {"text"}),
            ("1", {"digit"}),
            (1, {"one", "float"}),
            (1.0, {"one", "float"}),
            (2.5, {"real"}),
            (True, {"true"}),
            (False, {"false"}),
            (0, set[str]()),
            ("true", set[str]()),
            ('["eu"]', set[str]()),
        ],
    )
    async def test_a_search_attribute_matches_exactly_and_by_its_own_type(
        self, database: Database, value: Any, matches: set[str]
    ) -> None:
        store = await database.open()
        values = {
            "text": "eu",
            "digit": "1",
            "one": 1,
            "float": 1.0,
            "real": 2.5,
            "true": True,
            "false": False,
            "list": ["eu"],
            "none": None,
        }
        many = {name: StoredFlow(name) for name in values}
        for name, instance in many.items():
            instance.start(search_attributes={"x": values[name]})
        await applied(store, *many.values())
        found = await store.runs(RunFilter(search=("x", value)))
        assert {run.workflow_id for run in found} == matches

    @pytest.mark.contract("CMD-16")
    async def test_an_upserted_search_attribute_is_what_lists_filter_by(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1, search_attributes={"stage": "new", "old": 1})
        await applied(store, instance)
        upsert = instance.step(UpsertSearchAttributes(attributes={"stage": "paid", "old": None}))
        assert await apply(store, *upsert) == ALL
        (row,) = await store.runs(RunFilter(search=("stage", "paid")))
        assert row.search_attributes == {"stage": "paid"}
        assert await store.runs(RunFilter(search=("stage", "new"))) == []
        assert await store.runs(RunFilter(search=("old", 1))) == []

    @pytest.mark.parametrize("left", [{}, {"other": 2}])
    async def test_a_run_that_loses_attributes_with_its_end_is_not_found_by_them(
        self, database: Database, left: dict[str, int]
    ) -> None:
        store = await database.open()
        one, two = instances(2, search_attributes={"stage": "new", **left})
        await applied(store, one, two)
        upsert = UpsertSearchAttributes(attributes={"stage": None})
        assert await apply(store, *one.step(upsert, CompleteWorkflow()), *two.step(CompleteWorkflow())) == ALL
        found = await store.runs(RunFilter(search=("stage", "new")))
        assert [(row.workflow_id, row.status) for row in found] == [(two.workflow_id, "completed")]
        (row,) = [row for row in await store.runs(RunFilter()) if row.workflow_id == one.workflow_id]
        assert (row.status, row.search_attributes) == ("completed", left)

    # -- the end

    async def test_sends_are_read_in_their_order_until_they_are_taken(self, database: Database) -> None:
        store = await database.open()
        parent = StoredFlow()
        parent.start()
        parent.step(call("a", arguments=b"\x00\xff"), call("b"), call("c"))
        await applied(store, parent)
        made = parent.decisions[-1].sends
        found = await store.sends(0, 10)
        assert [send.key for send in found] == [send.key for send in made]
        assert [unpack(StartFromParent, send.body) for send in found] == [send.message for send in made]
        assert {(send.sender, send.kind, send.namespace) for send in found} == {
            (parent.key, "StartFromParent", "default")
        }
        assert [send.key for send in await store.sends(made[0].key, 1)] == [made[1].key]
        child = StoredFlow(made[1].workflow_id)
        child.when(Deliver(send=made[1]))
        await applied(store, child)
        assert [send.key for send in await store.sends(0, 10)] == [made[0].key, made[2].key]
        assert await stored(store, child) == expected(child)

    async def test_a_send_that_is_made_and_taken_in_one_batch_leaves_no_row(self, database: Database) -> None:
        store = await database.open()
        parent = StoredFlow()
        parent.start()
        parent.step(call())
        (send,) = parent.decisions[-1].sends
        child = StoredFlow(send.workflow_id)
        child.when(Deliver(send=send))
        await applied(store, parent, child)
        assert await store.sends(0, 10) == []

    async def test_taking_what_was_taken_before_is_no_error(self, database: Database) -> None:
        store = await database.open()
        parent = StoredFlow()
        parent.start()
        parent.step(call())
        (send,) = parent.decisions[-1].sends
        child = StoredFlow(send.workflow_id)
        child.when(Deliver(send=send))
        child.when(Deliver(send=send))
        assert len(child.written) == 2
        await applied(store, parent, child)
        assert await store.sends(0, 10) == []

    async def test_a_decision_that_is_skipped_neither_sends_nor_takes(self, database: Database) -> None:
        store = await database.open()
        parent = StoredFlow()
        parent.start()
        await applied(store, parent)
        twin = parent.twin()
        twin.when(Reconcile(incarnation="e"))
        twin.when(Terminate())
        assert await apply(store, *twin.written[1:]) == ALL
        parent.step(call())
        assert (await apply(store, *parent.written[1:])).stale
        assert await store.sends(0, 10) == []

    async def test_instances_that_wait_for_others_are_listed_in_pages(self, database: Database) -> None:
        store = await database.open()
        parents = instances(3)
        for parent in parents:
            parent.step(call(), call())
        alone = StoredFlow()
        alone.start()
        await applied(store, *parents, alone)
        keys = sorted(parent.key for parent in parents)
        assert await store.awaiting(0, 10) == keys
        assert await store.awaiting(keys[0], 1) == [keys[1]]
        before = len(parents[0].written)
        parents[0].when(Terminate())
        assert await apply(store, *parents[0].written[before:]) == ALL
        assert await store.awaiting(0, 10) == keys[1:], "it abandons its children: nobody owes it an answer"

    async def test_a_probe_of_a_working_database_finds_nothing_wrong_and_leaves_nothing(
        self, database: Database
    ) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        assert await store.probe() is None
        assert await store.notices() in ([], [instance.key])
        assert await stored(store, instance) == expected(instance)
        assert await apply(store, *instance.step(ACTIVITY)) == ALL

    async def test_a_closed_store_takes_nothing_and_says_so(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await store.close()
        await store.close()
        result = await apply(store, *instance.written)
        assert isinstance(result.down, Unavailable)
        with pytest.raises(Unavailable):
            await store.load(instance.key)


class Shared:
    """What several handles on one database do together, and what survives them."""

    @pytest.mark.contract("MATCH-01", "REPLAY-11")
    async def test_the_rows_are_there_after_closing_and_opening_again(self, database: Database) -> None:
        store = await database.open()
        crowd = [StoredFlow() for _ in range(4)]
        for instance, steps in zip(
            crowd,
            (["activity", "begin"], ["sleep"], ["activity", "begin", "fail", "label"], ["continue", "break"]),
            strict=True,
        ):
            walk(instance, steps)
        await applied(store, *crowd)
        before = (await store.due(1 << 60, 10), await store.ready(10), await store.leased(), await store.failed())
        await store.close()
        store = await database.open()
        for instance in crowd:
            assert await stored(store, instance) == expected(instance)
        after = (await store.due(1 << 60, 10), await store.ready(10), await store.leased(), await store.failed())
        assert after == before
        assert await store.mismatched(0, 10) == ([], None)

    async def test_a_commit_of_one_handle_is_read_by_another(self, database: Database) -> None:
        one, other = await database.open(), await database.open()
        (instance,) = instances(1)
        await applied(one, instance)
        assert await stored(other, instance) == expected(instance)
        assert await apply(other, *instance.step(ACTIVITY)) == ALL
        assert await stored(one, instance) == expected(instance)

    # -- races

    async def test_of_two_handles_that_decide_on_one_state_exactly_one_wins(self, database: Database) -> None:
        one, other = await database.open(), await database.open()
        (instance,) = instances(1)
        await applied(one, instance)
        rival = instance.twin()
        instance.step(ACTIVITY)
        rival.step(StartTimer(delay_seconds=5))
        results = await asyncio.gather(apply(one, *instance.written[1:]), apply(other, *rival.written[1:]))
        assert sorted(results, key=str) == sorted([ALL, stale(0, 1)], key=str)
        winner = instance if results[0] == ALL else rival
        assert await stored(one, winner) == expected(winner)
        assert await stored(other, winner) == expected(winner)

    async def test_of_two_handles_that_start_one_id_exactly_one_wins(self, database: Database) -> None:
        one, other = await database.open(), await database.open()
        first, second = StoredFlow("order-1"), StoredFlow("order-1")
        first.start()
        second.start()
        results = await asyncio.gather(apply(one, *first.written), apply(other, *second.written))
        assert sorted(results, key=str) == sorted([ALL, stale(0)], key=str)
        winner = first if results[0] == ALL else second
        assert await one.find("default", "order-1") == winner.key
        assert await stored(other, winner) == expected(winner)
        assert [run.run_id for run in await one.runs(RunFilter())] == [winner.run.run_id]

    async def test_the_loser_of_a_race_decides_again_on_what_it_reads(self, database: Database) -> None:
        one, other = await database.open(), await database.open()
        (instance,) = instances(1)
        await applied(one, instance)
        rival = instance.twin()
        assert await apply(one, *instance.step(ACTIVITY)) == ALL
        assert await apply(other, rival.start()) == stale(0)
        again = instance.start()
        loaded = await other.load(instance.key)
        assert loaded is not None
        assert loaded.row.last_decision == again.after
        assert await apply(other, again) == ALL
        assert await stored(one, instance) == expected(instance)

    # -- damage

    DAMAGE = {
        "an edited payload": ("update event set body = (select body from event where run = {run} and sequence = 1)", 3),
        "an edited context": ("update event set context = body", 3),
        "an edited time": ("update event set at = at + 1", 3),
        "an edited type": ("update event set type = 'WorkflowCompleted'", 3),
        "an edited checksum": ("update event set checksum = checksum + 1", 3),
        "a deleted event": ("delete from event", 3),
    }

    @pytest.mark.parametrize("damage", DAMAGE)
    async def test_damage_is_refused_and_names_the_run_and_the_event(self, database: Database, damage: str) -> None:
        store = await database.open()
        hurt, well = StoredFlow(), StoredFlow()
        for instance in (hurt, well):
            walk(instance, ["activity", "begin", "finish"])
        await applied(store, hurt, well)
        statement, sequence = self.DAMAGE[damage]
        run = hurt.run.key
        await database.sql(statement.format(run=run) + f" where run = {run} and sequence = {sequence}")
        with pytest.raises(HistoryDamaged) as caught:
            await store.load(hurt.key)
        assert (caught.value.run, caught.value.sequence) == (run, sequence)
        assert f"workflow {hurt.state.workflow_id!r}, run {hurt.run.run_id}" in str(caught.value)
        assert f"event {sequence}" in str(caught.value)
        with pytest.raises(HistoryDamaged):
            await store.history(run)
        with pytest.raises(HistoryDamaged) as caught:
            await store.history(run, sequence - 1, 1)
        assert caught.value.sequence == sequence
        assert await store.history(run, 0, sequence - 1) == hurt.history[: sequence - 1]
        assert await stored(store, well) == expected(well)

    async def test_a_page_that_begins_after_a_deleted_event_is_refused(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["activity", "begin", "finish"])
        await applied(store, instance)
        await database.sql(f"delete from event where run = {instance.run.key} and sequence = 3")
        with pytest.raises(HistoryDamaged) as caught:
            await store.history(instance.run.key, 3)
        assert caught.value.sequence == 3

    async def test_swapped_events_are_refused(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["activity", "begin", "finish"])
        await applied(store, instance)
        run = instance.run.key
        for old, new in ((2, -1), (3, 2), (-1, 3)):
            await database.sql(f"update event set sequence = {new} where run = {run} and sequence = {old}")
        with pytest.raises(HistoryDamaged) as caught:
            await store.load(instance.key)
        assert caught.value.sequence == 2

    async def test_a_damaged_last_event_is_refused(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["complete"])
        await applied(store, instance)
        await database.sql(f"update event set body = context where run = {instance.run.key} and sequence = 3")
        with pytest.raises(HistoryDamaged) as caught:
            await store.last_event(instance.run.key)
        assert caught.value.sequence == 3

    async def test_a_command_that_cannot_be_read_takes_no_other_with_it(self, database: Database) -> None:
        store = await database.open()
        instance, other = StoredFlow(), StoredFlow()
        walk(instance, ["again", "complete"])
        await applied(store, instance)
        await applied(store, other)
        run = instance.run.key
        await database.sql(
            f"update command set body = (select body from event where run = {run} and sequence = 1)"
            f" where workflow = {instance.key} and sequence = 1"
        )
        first, second = await store.commands(instance.key)
        assert second == instance.commands[1]
        assert (first.command_type, first.sequence, first.status) == ("start", 1, "unreadable")
        assert (first.unreadable, first.at, first.run) == ("Object missing required field `id`", None, None)
        assert first.may_be_of(run)
        assert await store.commands(other.key) == other.commands

    async def test_a_closed_run_that_lost_its_end_is_refused(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["complete"])
        await applied(store, instance)
        await database.sql(f"delete from event where run = {instance.run.key} and sequence = 3")
        with pytest.raises(HistoryDamaged) as caught:
            await store.load(instance.key)
        assert caught.value.sequence == 3

    async def test_an_open_run_that_lost_its_newest_event_is_refused(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow()
        walk(instance, ["activity", "begin"])
        await applied(store, instance)
        last = instance.run.length
        await database.sql(f"delete from event where run = {instance.run.key} and sequence = {last}")
        with pytest.raises(HistoryDamaged) as caught:
            await store.load(instance.key)
        assert caught.value.sequence == last

    async def test_an_instance_that_lost_its_run_is_refused(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        await database.sql(f"delete from run where workflow = {instance.key}")
        with pytest.raises(HistoryDamaged) as caught:
            await store.load(instance.key)
        assert caught.value.run == instance.run.key

    # -- the sweep

    @pytest.mark.contract("CAN-05")
    async def test_an_instance_whose_row_names_another_run_is_loaded_by_its_newest(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        instance.complete(ContinueAsNew())
        await applied(store, instance)
        sound = await store.load(instance.key)
        assert sound is not None
        assert sound.run is not None
        assert not sound.drifted
        for elsewhere in (f"(select key from run where workflow = {instance.key} and number = 1)", "7", "null"):
            await database.sql(f"update workflow set run = {elsewhere} where key = {instance.key}")
            assert await store.load(instance.key) == sound._replace(drifted=True)
        opening = await store.opening(instance.key)
        assert opening is not None
        assert (opening.row.run, opening.run, opening.row.length) == (None, None, sound.row.length)

    async def test_runs_and_their_histories_are_counted(self, database: Database) -> None:
        store = await database.open()
        chain, other = instances(2)
        chain.complete(ContinueAsNew())
        for instance in (chain, other):
            await applied(store, instance)
        first, second = sorted(await store.runs(RunFilter(workflow_id=chain.workflow_id)), key=lambda row: row.number)
        counted = {one.status: (one.archived, one.runs) for one in await store.count_by_status("default")}
        assert counted == {first.status: (False, 1), second.status: (False, 2)}
        assert await store.count_by_status("elsewhere") == []
        open_runs = [entry for run in (second.key, other.run.key) for entry in await store.history(run)]
        assert await store.event_types("default") == Counter(entry.type for entry in open_runs)
        histories = {run: await store.history(run) for run in (first.key, second.key, other.run.key)}
        weights = {
            run: (len(history), sum(len(entry.type) + len(entry.body) for entry in history))
            for run, history in histories.items()
        }
        assert await store.sizes([*histories, 7]) == weights
        longest, largest = (max(weights[run][part] for run in (second.key, other.run.key)) for part in (0, 1))
        assert await store.history_sizes("default", 0, 0) == (0, longest, largest)
        assert (await store.history_sizes("default", longest, 0)).over >= 1
        assert (await store.history_sizes("default", longest + 1, largest + 1)).over == 0
        assert (await store.history_sizes("default", 0, 1)).over == 2
        assert await store.history_sizes("elsewhere", 1, 1) == (0, 0, 0)

    async def test_suspects_are_the_instances_with_missing_or_surplus_task_rows(self, database: Database) -> None:
        store = await database.open()
        many = instances(5)
        many[4].complete(CompleteWorkflow())
        await applied(store, *many)
        assert await store.mismatched(0, 100) == ([], None)
        missing, surplus, closed = many[1], many[3], many[4]
        await database.sql(f"delete from task where workflow = {missing.key}")
        for instance in (surplus, closed):
            await database.sql(
                "insert into task (workflow, id, state, available_at, body)"
                f" select {instance.key}, 'surplus', state, available_at, body from task where workflow = {many[0].key}"
            )
        assert await store.mismatched(0, 100) == ([missing.key, surplus.key, closed.key], None)

    async def test_a_sweep_in_pages_finds_what_a_sweep_in_one_go_finds(self, database: Database) -> None:
        store = await database.open()
        many = instances(7)
        await applied(store, *many)
        for instance in many[::2]:
            await database.sql(f"delete from task where workflow = {instance.key}")
        found: list[int] = []
        places = [0]
        while True:
            page, after = await store.mismatched(places[-1], 2)
            found += page
            if after is None:
                break
            places.append(after)
        assert found == [instance.key for instance in many[::2]]
        assert all(earlier < later for earlier, later in pairwise(places))

    async def test_a_suspect_that_is_reconciled_is_no_longer_one(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        await database.sql(f"delete from task where workflow = {instance.key}")
        instance.lose(*list(instance.rows))
        assert await apply(store, instance.when(Reconcile(incarnation="mine"))) == ALL
        assert await store.mismatched(0, 10) == ([], None)
        assert await stored(store, instance) == expected(instance)

    async def test_a_list_says_how_long_the_history_of_an_open_run_is_by_now(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        await applied(store, instance)
        assert await apply(store, *instance.step(ACTIVITY)) == ALL
        loaded = await store.load(instance.key)
        assert loaded is not None
        assert loaded.run is not None
        (row,) = await store.runs(RunFilter())
        found = await store.run("default", loaded.run.run_id)
        assert found is not None
        assert [row.length, found.length] == [len(loaded.history)] * 2

    async def test_an_event_of_the_future_makes_a_run_unreadable_not_wrong(self, database: Database) -> None:
        store = await database.open()
        (instance,) = instances(1)
        decision: Any = instance.written[0]
        decision.events[1] = _renamed(decision)
        assert await apply(store, decision) == ALL
        with pytest.raises(HistoryDamaged) as caught:
            await store.load(instance.key)
        assert caught.value.sequence == 2
        assert "FromTheFuture" in str(caught.value)


class OneEngine:
    """A process that must be alone, for which it needs something that only one of them can hold."""

    async def test_only_one_handle_is_the_engine_until_it_closes(self, database: Database) -> None:
        one, other = await database.open(), await database.open()
        assert await one.acquire()
        assert await one.acquire()
        assert not await other.acquire()
        await one.close()
        assert await other.acquire()

    async def test_every_handle_sees_whether_there_is_an_engine(self, database: Database) -> None:
        one, other = await database.open(), await database.open()
        assert [await one.has_engine(), await other.has_engine()] == [False, False]
        assert await one.acquire()
        assert [await one.has_engine(), await other.has_engine()] == [True, True]
        assert not await other.acquire()
        await one.close()
        assert not await other.has_engine()
        assert await other.acquire(), "to look is not to take"

    async def test_an_engine_notices_what_others_commit_and_is_told_once(self, database: Database) -> None:
        engine, guest = await database.open(), await database.open()
        assert await engine.acquire()
        await engine.changed()
        first, second = instances(2)
        await applied(guest, first, second)
        assert await apply(guest, *first.step(ACTIVITY)) == ALL
        assert await engine.changed()
        assert not await engine.changed()
        assert sorted(await engine.notices()) == sorted([first.key, second.key])
        assert await engine.notices() == []
        assert await apply(guest, *second.step(ACTIVITY)) == ALL
        assert await engine.changed()
        assert await engine.notices() == [second.key]

    async def test_a_skipped_decision_of_a_guest_leaves_no_notice_of_its_own(self, database: Database) -> None:
        engine, guest = await database.open(), await database.open()
        assert await engine.acquire()
        torn, whole = instances(2)
        await applied(engine, torn, whole)
        late = torn.twin()
        assert await apply(engine, *torn.step(ACTIVITY)) == ALL
        assert await apply(guest, *late.step(ACTIVITY), *whole.step(ACTIVITY)) == stale(0, 1)
        assert await engine.notices() == [whole.key]

    async def test_commits_of_the_engine_itself_are_no_news_to_it(self, database: Database) -> None:
        engine, guest = await database.open(), await database.open()
        assert await engine.acquire()
        await engine.changed()
        await guest.changed()
        await applied(engine, *instances(1))
        assert not await engine.changed()
        assert await guest.changed()
        assert not await guest.changed()
        assert await engine.notices() == []

    async def test_a_long_absence_is_told_in_one_go(self, database: Database) -> None:
        guest = await database.open()
        many = instances(1100)
        await applied(guest, *many)
        engine = await database.open()
        assert await engine.acquire()
        assert await engine.notices() == [instance.key for instance in many]
        assert await engine.notices() == []

    async def test_a_handle_that_becomes_the_engine_stops_leaving_notices(self, database: Database) -> None:
        store = await database.open()
        assert await store.acquire()
        await applied(store, *instances(1))
        assert await store.notices() == []


class Processes:
    """What real processes do to one database, and what is left when they are killed."""

    async def test_processes_that_open_a_new_database_together_all_get_it(self, database: Database) -> None:
        with ExitStack() as stack:
            together = [stack.enter_context(child("open_together", database.where)) for _ in range(4)]
            assert [hear(process) for process in together] == ["ready"] * 4
            for process in together:
                go(process)
            assert [hear(process) for process in together] == ["opened"] * 4

    async def test_processes_that_change_one_instance_never_lose_or_double_a_change(self, database: Database) -> None:
        store = await database.open()
        instance = StoredFlow("contended")
        instance.start()
        await applied(store, instance)
        with child("contend", database.where) as a, child("contend", database.where) as b:
            assert (hear(a), hear(b)) == ("ready", "ready")
            go(a)
            go(b)
            tries = hear(a) + hear(b)
        loaded = await store.load(instance.key)
        assert loaded is not None
        assert len(loaded.history) == 2 + 20
        assert loaded.row.command_sequence == 1 + 20
        assert len(await store.commands(instance.key)) == 1 + 20
        assert tries >= 20

    @pytest.mark.contract("START-04", "MATCH-01")
    async def test_a_process_killed_while_starting_workflows_leaves_each_of_them_whole(
        self, database: Database
    ) -> None:
        acknowledged: list[str] = []
        with child("start_many", database.where) as process:
            while len(acknowledged) < 400:
                acknowledged += hear(process)
            kill(process)
        store = await database.open()
        runs = await store.runs(RunFilter(limit=1_000_000))
        assert {run.run_id for run in runs} >= set(acknowledged)
        for run in runs:
            loaded = await store.load(run.workflow)
            assert loaded is not None
            assert [entry.type for entry in loaded.history] == ["StartAccepted", "WorkflowStarted"]
            assert [task.kind for task in loaded.tasks] == ["workflow"]
            assert [command.outcome for command in await store.commands(run.workflow)] == ["started_new"]
        assert len({run.run_id for run in runs}) == len(runs)
        assert await store.mismatched(0, 1_000_000) == ([], None)


class OneEngineProcesses:
    """The same when processes are killed."""

    async def test_the_engine_lock_of_a_killed_process_is_free(self, database: Database) -> None:
        with child("hold", database.where) as holder:
            assert hear(holder) is True
            store = await database.open()
            assert not await store.acquire()
            kill(holder)
            await becomes_engine(store)

    async def test_a_forked_child_does_not_keep_the_engine_lock_of_its_dead_parent(self, database: Database) -> None:
        with child("hold_and_fork", database.where) as holder:
            assert hear(holder) == "forked"
            store = await database.open()
            assert not await store.acquire()
            kill(holder)
            await becomes_engine(store)
            go(holder)  # the forked process reads the same pipe, and ends


async def becomes_engine(store: Store) -> None:
    """A server takes a moment to notice that a client has died."""
    async with asyncio.timeout(30):
        while not await store.acquire():
            await asyncio.sleep(0.01)


def _spoil(decision: Any, fault: str) -> None:
    """Make a decision of the kernel into one that no database can take."""
    match fault:
        case "body of a wrong type":
            decision.events[-1] = replace(decision.events[-1], body=object())
        case "event twice":
            decision.events.append(decision.events[-1])
        case "number too large":
            decision.events[-1] = replace(decision.events[-1], at=1 << 70)
        case "unknown object":
            decision.commands[-1] = replace(decision.commands[-1], context={"caller": object()})
        case _:
            raise ValueError(fault)


def _renamed(decision: Decision) -> Any:
    """The second event of a start as a newer version might record it: another type, a right checksum."""
    from backstay.kernel.event import NO_CONTEXT, Event, record

    class FromTheFuture(Event, frozen=True, kw_only=True):
        when: int = SECOND

    first = decision.events[0]
    return record(first.run, 2, first.at, FromTheFuture(when=7), NO_CONTEXT, b"", first.checksum)
