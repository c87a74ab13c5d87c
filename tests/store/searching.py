"""Searching, in every dialect: any combination of filters finds what a plain look at all runs finds, however little it looks at
a time, and in the order that was asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay.kernel.decision import RunRow
from backstay.kernel.features.cancel import Terminate
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.values import Routing
from backstay.kernel.views.run_query import RunPlace, RunQuery, fits_row, sort_timestamp, sort_value
from backstay.store import RunFilter, Store

from .conformance import Database
from .instances import UNHURRIED, StoredFlow, applied

NOW = 10**17
EVERYTHING = 10_000

TYPES = ("order", "refund", "ship")
KEYS = ("k-1", "k-2", None)
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "shop"}, {"team": "bank", "tier": "gold"}, {"tier": 'it\'s "gold"'})
ATTRIBUTES: tuple[dict[str, Any], ...] = ({}, {"n": 1}, {"n": 1.0, "vip": True}, {"n": "1", "vip": False}, {"n": 2.5})


async def populated(store: Store) -> list[tuple[RunRow, bool]]:
    """A world of runs of every kind, and each with whether it is the current run of its instance."""
    flows = [StoredFlow(f"{'order' if n % 2 else 'o'}-{n}") for n in range(36)]
    for n, flow in enumerate(flows):
        flow.start(
            TYPES[n % 3],
            at=n // 2,
            business_key=KEYS[n % len(KEYS)] if n % 5 else None,
            visibility_labels=LABELS[n % len(LABELS)],
            search_attributes=ATTRIBUTES[n % len(ATTRIBUTES)],
            routing=Routing(queue="far" if n % 7 == 0 else "near", compatibility="b1" if n % 4 == 0 else None),
        )
        match n % 6:
            case 0:
                flow.complete(CompleteWorkflow())
            case 1:
                flow.complete(FailWorkflow(message="no"))
            case 2:
                flow.complete(ContinueAsNew())
            case 3:
                flow.complete(StartTimer(delay_seconds=60))
            case 4:
                flow.when(Terminate(reason="enough"))
            case _:
                pass
    elsewhere = StoredFlow("order-x", namespace="elsewhere")
    elsewhere.start("order", business_key="k-1", visibility_labels={"team": "shop"})
    await applied(store, *flows, elsewhere)
    runs = await store.runs(RunFilter(limit=EVERYTHING))
    current = {flow.row.run for flow in flows if flow.row is not None}
    return [(row, row.key in current) for row in runs]


def plainly(world: list[tuple[RunRow, bool]], query: RunQuery) -> list[int]:
    """The keys of the runs that fit, in their order."""
    found = [row for row, is_current in world if fits_row(query, row, is_current=is_current)]
    found.sort(key=lambda row: (sort_value(query, row, None, NOW), row.key), reverse=query.descending)
    return [row.key for row in found]


async def paged(store: Store, query: RunQuery, limit: int, bound: int) -> tuple[list[int], bool]:
    """All pages of a search, and whether it looked at everything."""
    found: list[int] = []
    after: RunPlace | None = None
    for _ in range(1000):
        page = await store.search(query, after, limit, bound, NOW)
        assert len(page.found) <= limit
        assert page.looked_at <= bound
        found += [one.row.key for one in page.found]
        if page.end is None:
            return found, page.complete
        after = page.end
    raise AssertionError("it never ends")


def some(*values: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(tuple)


def either(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


FIELDS = either(
    instance_id=some("o-0", "order-1", "order-3", "gone", "o"),
    workflow_type=some(*TYPES, "orde"),
    business_key=some("k-1", "k-2", "k"),
    status=some("pending", "running", "waiting", "completed", "failed", "terminated", "cancelled"),
    queue=some("far", "near"),
    compatibility=some("b1", "b2"),
    closed_reason=some("completed", "continued", "terminated"),
)
FLAGS = either(is_terminal=st.booleans(), is_current_run=st.booleans(), archived=st.booleans())


def queries(world: list[tuple[RunRow, bool]]) -> st.SearchStrategy[RunQuery]:
    starts = st.sampled_from([None, *(sort_timestamp(row.key) for row, _ in world[::5])])
    ends = st.sampled_from([None, *{row.closed_at for row, _ in world if row.closed_at is not None}])
    return st.builds(
        RunQuery,
        q=st.sampled_from((None, None, None, "order", "o", "k-1", "order-1", world[0][0].run_id, "nothing", "o\x00")),
        fields=FIELDS,
        flags=FLAGS,
        labels=either(team=some("shop", "bank", "sho"), tier=some("gold", 'it\'s "gold"')),
        attributes=either(n=some(1, 1.0, "1", True, 2.5), vip=some(True, False, 1)),
        started_after=starts,
        started_before=starts,
        closed_after=ends,
        closed_before=ends,
        sort=st.sampled_from(("started", "started", "closed", "duration", "events")),
        descending=st.booleans(),
    )


class Searching:
    """What every store must find."""

    def test_any_combination_of_filters_finds_what_a_plain_look_finds(
        self, database: Database, runner: asyncio.Runner
    ) -> None:
        store = runner.run(database.open())
        world = runner.run(populated(store))

        @settings(max_examples=250, deadline=None, suppress_health_check=UNHURRIED, database=None)
        @given(query=queries(world), limit=st.integers(1, 9), bound=st.sampled_from((1, 3, 7, 20, EVERYTHING)))
        def check(query: RunQuery, limit: int, bound: int) -> None:
            found, complete = runner.run(paged(store, query, limit, bound))
            wanted = plainly(world, query)
            first = runner.run(awaited(store.search(query, None, limit, bound, NOW)))
            if first.is_part:
                assert query.sort in ("duration", "events"), "the order of an index needs no bound"
            else:
                assert [one.row.key for one in first.found] == wanted[: len(first.found)]
            if complete:
                assert found == wanted
            else:
                assert query.sort in ("duration", "events"), "the order of an index needs no bound"
                assert found == [key for key in wanted if key in set(found)], "what was looked at is in order"

        check()

    def test_a_count_counts_what_a_list_has(self, database: Database, runner: asyncio.Runner) -> None:
        store = runner.run(database.open())
        world = runner.run(populated(store))
        groups = st.sampled_from(
            (None, "status", "workflow_type", "queue", "compatibility", "label:team", "attribute:n")
        )

        @settings(max_examples=150, deadline=None, suppress_health_check=UNHURRIED, database=None)
        @given(query=queries(world), group_by=groups, bound=st.sampled_from((5, EVERYTHING)))
        def check(query: RunQuery, group_by: str | None, bound: int) -> None:
            query = replace(query, sort="started")
            counts = runner.run(awaited(store.count(query, group_by, bound, NOW)))
            wanted = set(plainly(world, query))
            numbers = Counter(grouped(row, group_by) for row, _ in world if row.key in wanted)
            if counts.complete:
                assert without_none(counts.groups, group_by) == without_none(numbers, group_by)
            else:
                assert bound == 5
                assert all(number <= numbers[name] for name, number in counts.groups.items())

        check()

    async def test_an_order_of_ends_keeps_to_the_time_of_starts(self, database: Database) -> None:
        store = await database.open()
        world = await populated(store)
        middle = sort_timestamp(world[20][0].key)
        for query in (RunQuery(sort="closed", started_before=middle), RunQuery(sort="closed", started_after=middle)):
            for bound in (1, 3, EVERYTHING):
                assert await paged(store, query, 2, bound) == (plainly(world, query), True)

    async def test_values_are_suggested_by_their_beginning(self, database: Database) -> None:
        store = await database.open()
        await populated(store)
        for field, prefix, found in (
            ("workflow_type", "", ["order", "refund", "ship"]),
            ("workflow_type", "re", ["refund"]),
            ("business_key", "k", ["k-1", "k-2"]),
            ("instance_id", "order-1", ["order-1", "order-11", "order-13", "order-15", "order-17"]),
            ("label", "t", ["team", "tier"]),
            ("attribute", "", ["n", "vip"]),
            ("label:team", "s", ["shop"]),
            ("label:tier", "", ["gold", 'it\'s "gold"']),
            ("attribute:n", "", ["1", "2.5"]),
            ("attribute:vip", "t", ["true"]),
            ("label:none", "", []),
            ("workflow_type", "\x00", []),
        ):
            told = await store.suggest("default", field, prefix, 5)
            assert sorted(set(told))[:5] == found, (field, prefix)

    async def test_a_search_goes_on_where_it_ended_while_runs_are_added(self, database: Database) -> None:
        store = await database.open()
        world = await populated(store)
        for sort in ("started", "closed", "duration"):
            query = RunQuery(sort=sort)  # pyright: ignore[reportArgumentType]
            first = await store.search(query, None, 5, EVERYTHING, NOW)
            late = StoredFlow()
            late.start("order")
            late.complete(CompleteWorkflow())
            await applied(store, late)
            assert first.end is not None
            second = await store.search(query, first.end, EVERYTHING, EVERYTHING, NOW)
            found = [one.row.key for one in (*first.found, *second.found)]
            assert found == plainly(world, query)
            world = [(row, True) for row in await store.runs(RunFilter(limit=EVERYTHING))]


async def awaited(answer: Any) -> Any:
    return await answer


def grouped(row: RunRow, group_by: str | None) -> str | None:
    kind, _, name = (group_by or "").partition(":")
    match kind:
        case "":
            return None
        case "label":
            return row.labels.get(name)
        case "attribute":
            value = row.search_attributes.get(name)
            if isinstance(value, bool) or value is None:
                return None if value is None else str(value).lower()
            return f"{value:g}" if isinstance(value, int | float) else value
        case _:
            return getattr(row, group_by or "")


def without_none(numbers: Any, group_by: str | None) -> dict[str | None, int]:
    """By label, an index alone does not count those that have none."""
    skip = group_by is not None and ":" in group_by
    return {name: number for name, number in numbers.items() if number and not (skip and name is None)}
