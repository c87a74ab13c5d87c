"""Searching runs with any combination of filters: the choice of the driving index, and the bound of the search.

A driver is an index that has the runs of one filter in the order of their keys: those of a status, a type, a label, a
state. Of several drivers the shortest is taken, found by a look at the first entries of each index. At most `bound` of
its entries are looked at; the other filters are conditions on them. So a search costs no more on a million runs than on
a few thousand, and says where it stopped. Statements are made here for every dialect; a dialect runs them one after the
other (`Steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from backstay.kernel.decision import RunRow
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import RunPlace, RunQuery, TaskGroup, Value, key_at
from backstay.store import rows
from backstay.store.search_conditions import (
    CURRENT,
    MOST_GROUPS,
    Clause,
    Dialect,
    conditions,
    driving_statuses,
    placeholders,
    possible,
)
from backstay.store.views import DAMAGED

T = TypeVar("T")
Found = Sequence[Sequence[Any]]
Steps = Generator[Clause, Found, T]
"""Statements with their parameters; each is answered with its rows."""

MOST_ARMS = 60
FARTHER = 5  # times the bound: how far the first look into each index goes, which reads no rows
_STORED_CAUSES = ("blocked", "repair_needed", "retrying", "history_budget")


def walk(steps: Steps[T], ask: Callable[[str, list[Any]], Found]) -> T:
    """Run the statements one after the other."""
    try:
        statement, given = next(steps)
        while True:
            statement, given = steps.send(ask(statement, given))
    except StopIteration as end:
        return end.value


class FoundRun(NamedTuple):
    row: RunRow
    is_current: bool
    value: int  # by which the list is ordered


class SearchedRuns(NamedTuple):
    """`end`: where to look on; None: everything has been looked at, or the list has an order of its own and looks no farther.
    `is_part`: it has an order of its own, and the bound left out runs that may come before these."""

    found: list[FoundRun]
    looked_at: int
    complete: bool
    end: RunPlace | None
    is_part: bool = False


class Arm(NamedTuple):
    """One range of an index: runs whose keys are in `column`."""

    column: str
    source: str
    parameters: list[Any]


class Driver(NamedTuple):
    """`ordered`: the runs of each arm are in the order of their keys. Another driver is only taken if all of it is within the
    bound, and so are the entries of `also`, which its arms look into."""

    arms: list[Arm]
    ordered: bool = True
    also: tuple[Arm, ...] = ()


def search(
    dialect: Dialect,
    query: RunQuery,
    after: RunPlace | None,
    limit: int,
    bound: int,
    now: Micros,
    *,
    views: bool,
    trusts: bool,
    untaken: Sequence[TaskGroup],
    whole: bool = False,
) -> Steps[SearchedRuns]:
    """One page. `views`: conditions on summaries count, too; `trusts`: their indexes may drive the search; `whole`: nothing is
    found unless everything is within the bound."""
    driver, small = yield from choose(dialect, query, bound, trusts=views and trusts, untaken=untaken)
    where, given = conditions(dialect, query, now, views=views, untaken=untaken)
    by_closing = query.sort == "closed" and not small
    in_order = by_closing or (query.sort == "started" and driver.ordered)
    span = span_of(query, after if query.sort == "started" else None)
    if query.sort != "started" and after is not None and after.top is not None:
        span = (span[0], min(span[1], after.top + 1))
    if by_closing:
        window, looked = _closing_window(query, after, bound)
        where, given = f"{where}\n  and r.key >= ? and r.key < ?", [*given, *span]
    else:
        # An order of its own sorts the newest runs that it looks at, whichever way.
        window, looked = window_of(dialect, driver, span, query.descending or query.sort != "started", bound)
    if whole:
        entries = (yield f"select count(*) from ({window}) as looked", looked)[0][0]
        if entries >= bound:
            return SearchedRuns([], entries, False, None)
    down = "desc" if query.descending else "asc"
    value, timed = _value(query, now)
    if not in_order and after is not None and query.sort != "started":
        where = f"{where} and ({value}, r.key) {'<' if query.descending else '>'} (?, ?)"
        given = [*given, *timed, after.value, after.key]
    if in_order:
        first = f"looked.at {down}, " if by_closing else ""
        order = "" if dialect.keeps_order else f"\norder by {first}looked.key {down}"
    else:
        order = f"\norder by {f'1 {down}, ' if query.sort != 'started' else ''}r.key {down}"
    page = yield (
        f"select {value}, {RUN_COLUMNS}\nfrom ({window}) as looked\n{joined(dialect)}\nwhere {where}{order}\nlimit {limit + 1}",
        [*timed, *looked, *given],
    )
    runs = [FoundRun(rows.run(row[2:]), bool(row[1]), row[0]) for row in page]
    more = len(runs) > limit
    runs = runs[:limit]
    last = runs[-1] if more else None
    return (yield from _ended(dialect, query, window, looked, bound, runs, last, in_order, by_closing))


def _ended(
    dialect: Dialect,
    query: RunQuery,
    window: str,
    looked: list[Any],
    bound: int,
    runs: list[FoundRun],
    last: FoundRun | None,
    in_order: bool,
    by_closing: bool,
) -> Steps[SearchedRuns]:
    """How far a page has looked, and where the next one begins."""
    pick, most = ("min", ">=") if query.descending else ("max", "<=")
    passed, given = "count(*)", list[Any]()
    if last is not None and in_order:
        columns, given = ("(at, key)", [last.value, last.row.key]) if by_closing else ("key", [last.row.key])
        passed = f"count(*) filter (where {columns} {most} {'(?, ?)' if by_closing else '?'})"
    answer = yield f"select count(*), {passed}, {pick}(key), max(key) from ({window}) as looked", [*given, *looked]
    whole, looked_at, end, top = answer[0]
    if last is not None:
        place = RunPlace(last.value, last.row.key, None if in_order else top)
        return SearchedRuns(runs, looked_at, False, place, not in_order and whole >= bound)
    if whole < bound:
        return SearchedRuns(runs, whole, True, None)
    if not in_order:
        return SearchedRuns(runs, whole, False, None, is_part=True)
    if by_closing:
        edge = yield (
            f"select at, key from ({window}) as looked order by 1 {_rest(query)}, 2 {_rest(query)} limit 1",
            looked,
        )
        return SearchedRuns(runs, whole, False, RunPlace(edge[0][0], edge[0][1]))
    return SearchedRuns(runs, whole, False, RunPlace(end, end))


def _rest(query: RunQuery) -> str:
    return "asc" if query.descending else "desc"


def choose(
    dialect: Dialect, query: RunQuery, bound: int, *, trusts: bool, untaken: Sequence[TaskGroup]
) -> Steps[tuple[Driver, bool]]:
    """The driver that has the fewest runs, and whether it has fewer than `bound`."""
    every = Driver([_status(query, status) for status in driving_statuses(query)])
    drivers = [driver for driver in _drivers(dialect, query, bound, trusts, untaken) if len(driver.arms) <= MOST_ARMS]
    if not drivers and query.sort == "started":
        return every, False  # there is no choice, and no need to know
    drivers.append(every)
    span = span_of(query)
    probes: list[str] = []
    given: list[Any] = []
    for driver in drivers:
        if driver.ordered:
            window, parameters = window_of(dialect, driver, span, query.descending, bound * FARTHER)
            probes.append(f"(select count(*) from ({window}) as looked)")
            given += parameters
        else:
            sources = (*driver.arms, *driver.also)
            each = (f"(select count(*) from (select 1 from {arm.source} limit {bound}) as one)" for arm in sources)
            probes.append(" + ".join(each) or "0")
            given += [value for arm in sources for value in arm.parameters]
    counts = (yield (f"select {', '.join(probes)}", given))[0]
    best = min(range(len(drivers)), key=lambda n: (counts[n] >= bound and not drivers[n].ordered, counts[n], n))
    return drivers[best], counts[best] < bound


def _drivers(dialect: Dialect, query: RunQuery, bound: int, trusts: bool, untaken: Sequence[TaskGroup]) -> list[Driver]:
    namespace = query.namespace
    drivers: list[Driver] = []
    fields = query.fields
    if "run_id" in fields:
        ids = possible(fields["run_id"])
        source = f"run where run_id in ({placeholders(ids)}) and namespace = ?"
        drivers.append(Driver([Arm("key", source, [*ids, namespace])], False))
    if "instance_id" in fields:
        of_instance = "run where workflow = (select key from workflow where namespace = ? and workflow_id = ?)"
        drivers.append(Driver([Arm("key", of_instance, [namespace, id]) for id in possible(fields["instance_id"])]))
    for name in ("business_key", "workflow_type"):
        if name in fields:
            source = f"run where namespace = ? and {name} = ?"
            drivers.append(Driver([Arm("key", source, [namespace, value]) for value in possible(fields[name])]))
    for kind, facets in (("label", query.labels), ("attribute", query.attributes)):
        for name, values in facets.items():
            drivers.append(Driver([_facet(dialect, namespace, f"{kind}:{name}", value) for value in values]))
    if query.closed_after is not None or query.closed_before is not None:
        source, given = "run where namespace = ? and closed_at >= ?", [namespace, query.closed_after or 0]
        if query.closed_before is not None:
            source, given = f"{source} and closed_at < ?", [*given, query.closed_before]
        drivers.append(Driver([Arm("key", source, given)], False))
    if query.q is not None:
        drivers.append(_about(query.q, namespace, bound))
    if trusts:
        drivers += _viewed(query, untaken)
    return drivers


def _viewed(query: RunQuery, untaken: Sequence[TaskGroup]) -> list[Driver]:
    """Drivers by what summaries say, of filters that only open runs match."""
    namespace, drivers = query.namespace, list[Driver]()
    source = "workflow_run_summaries where namespace = ? and"
    states = query.fields.get("state")
    if states is not None and "".join(driving_statuses(query)) == "pendingrunningwaiting":
        drivers.append(Driver([Arm("run", f"{source} state = ?", [namespace, state]) for state in states]))
    causes = query.fields.get("attention")
    groups = [
        Arm(
            "run",
            f"{source} state = 'ready' and queue = ? and task_kind = ? and task_type = ?"
            f" and {'build is null' if group.build is None else 'build = ?'}",
            [namespace, group.queue, group.kind, group.type, *([] if group.build is None else [group.build])],
        )
        for group in untaken
    ]
    if len(groups) > MOST_GROUPS:
        groups = [Arm("run", f"{source} state = 'ready'", [namespace])]
    if groups:  # an attempt whose time has come is ready, too
        groups.append(Arm("run", f"{source} state = 'retrying'", [namespace]))
    if causes is not None:
        stored = [
            Arm("run", f"{source} attention = ?", [namespace, cause]) for cause in causes if cause in _STORED_CAUSES
        ]
        if "overdue" not in causes:
            drivers.append(Driver([*stored, *groups], False) if groups else Driver(stored))
    if query.flags.get("task_problem") is True:
        tasked = ("blocked", "working", "ready", "retrying", "paused")  # the others have no task that could be one
        drivers.append(Driver([Arm("run", f"{source} state = ?", [namespace, state]) for state in tasked]))
    if query.flags.get("repair_attention") is True or set(query.fields.get("repair_blocked_reason", ())) == {
        "waiting_for_compatible_worker"
    }:
        damaged = Arm("run", f"{source} attention = 'blocked' and schema = {DAMAGED}", [namespace])
        # Two states are in the order of keys, a group is not.
        drivers.append(Driver([damaged, *groups], not untaken or len(untaken) > MOST_GROUPS))
    return drivers


def _about(text: str, namespace: str, bound: int) -> Driver:
    if not possible((text,)):
        return Driver([], False)
    begins = Arm(
        "key",
        "workflow where namespace = ? and workflow_id >= ? and workflow_id < ?",
        [namespace, text, text + "\U0010ffff"],
    )
    arms = [
        Arm("key", f"run where workflow in (select key from {begins.source} limit {bound})", begins.parameters),
        Arm("key", "run where run_id = ? and namespace = ?", [text, namespace]),
        Arm("key", "run where namespace = ? and business_key = ?", [namespace, text]),
        Arm("key", "run where namespace = ? and workflow_type = ?", [namespace, text]),
    ]
    return Driver(arms, False, (begins,))


def _facet(dialect: Dialect, namespace: str, name: str, value: Value) -> Arm:
    indexed, given = dialect.facet(value)
    return Arm("run", f"facet where namespace = ? and name = ? and value = {indexed}", [namespace, name, *given])


def _status(query: RunQuery, status: str) -> Arm:
    return Arm("key", "run where namespace = ? and status = ?", [query.namespace, status])


def span_of(query: RunQuery, after: RunPlace | None = None) -> tuple[int, int]:
    """The keys that a search looks at: from the first up to, but not including, the second."""
    low = 0 if query.started_after is None else key_at(query.started_after)
    high = (1 << 63) - 1 if query.started_before is None else key_at(query.started_before)
    if after is not None:
        low, high = (low, min(high, after.key)) if query.descending else (max(low, after.key + 1), high)
    return low, high


def window_of(dialect: Dialect, driver: Driver, span: tuple[int, int], descending: bool, bound: int) -> Clause:
    """The keys of a driver within a span, in their order, at most `bound`."""
    down = "desc" if descending else "asc"
    parts: list[str] = []
    given: list[Any] = []
    for arm in driver.arms:
        if driver.ordered:
            part = f"select {arm.column} as key from {arm.source} and {arm.column} >= ? and {arm.column} < ?"
            if len(driver.arms) > 1 and dialect.parts_ordered:
                part = f"(select * from ({part} order by 1 {down} limit {bound}) as part)"
        else:
            every = f"select {arm.column} as key from {arm.source} limit {bound}"
            part = f"select key from ({every}) as part where key >= ? and key < ?"
        parts.append(part)
        given += [*arm.parameters, *span]
    if not parts:
        return "select key from run where 1 = 0", []
    if driver.ordered:
        return f"{' union all '.join(parts)} order by 1 {down} limit {bound}", given
    return f"{' union '.join(parts)} limit {bound}", given


def _closing_window(query: RunQuery, after: RunPlace | None, bound: int) -> Clause:
    """The closed runs of a namespace in the order of their ends."""
    down, before = ("desc", "<") if query.descending else ("asc", ">")
    clauses, given = ["namespace = ?", "closed_at >= ?"], [query.namespace, query.closed_after or 0]
    if query.closed_before is not None:
        clauses.append("closed_at < ?")
        given.append(query.closed_before)
    if after is not None:
        # The first condition only leads the planner to the right index.
        clauses += [f"closed_at {before}= ?", f"(closed_at, key) {before} (?, ?)"]
        given += [after.value, after.value, after.key]
    where = " and ".join(clauses)
    return (
        f"select key, closed_at as at from run where {where} order by closed_at {down}, key {down} limit {bound}",
        given,
    )


def _value(query: RunQuery, now: Micros) -> Clause:
    match query.sort:
        case "closed":
            return "r.closed_at", []
        case "duration":
            return f"coalesce(r.closed_at, {now}) - r.started_at", []
        case "events":
            return _LENGTH, []
        case "since":
            return "coalesce(r.closed_at, s.since, r.started_at)", []
        case _:
            return "r.key", []


_LENGTH = f"coalesce(case when {CURRENT} then w.length end, r.length)"
RUN_COLUMNS = f"""{CURRENT}, r.key, r.workflow, r.run_id, r.number, r.namespace, r.workflow_id, r.workflow_type, r.status,
  r.closed_reason, r.queue, r.connection, r.compatibility, r.business_key, r.labels, r.search_attributes, r.started_at,
  r.closed_at, {_LENGTH}, r.archived_at"""


def joined(dialect: Dialect) -> str:
    return (
        f"{dialect.join} run r on r.key = looked.key\n"
        "left join workflow w on w.key = r.workflow\n"
        "left join workflow_run_summaries s on s.run = r.key"
    )
