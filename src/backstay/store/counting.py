"""Counting runs by the values of a field, and listing these values.

A count that an index answers alone goes far (`INDEXED`); one that has to look at rows looks at `bound` of them. Each says how far
it looked. The values of a field are found by jumping through its index from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import OPEN, STATUSES, RunQuery, TaskGroup
from backstay.kernel.views.summary import OPEN_STATES
from backstay.store import rows
from backstay.store.search import RUN_COLUMNS, FoundRun, Steps, choose, joined, span_of, window_of
from backstay.store.search_conditions import STALE, STATE_OF_CLOSED, Dialect, conditions, driving_statuses

INDEXED = 100_000
"""The entries of an index of runs that a count looks at, all of its numbers together."""

FACETS = 50_000
"""The same for labels and search attributes, whose entries are longer."""

VALUES = 100
"""The most values of a field that are counted separately."""

STALE_ROWS = 500


class RunCounts(NamedTuple):
    """`groups`: how many runs have each value; None: those that have none. `stale`: runs that are not counted, because
    their value needs a new summary."""

    groups: dict[str | None, int]
    looked_at: int
    complete: bool
    stale: list[FoundRun] = []


def count(
    dialect: Dialect,
    query: RunQuery,
    group_by: str | None,
    bound: int,
    now: Micros,
    *,
    trusts: bool,
    untaken: Sequence[TaskGroup],
) -> Steps[RunCounts]:
    views = query.needs_summary or group_by in ("state", "attention")
    driver, small = yield from choose(dialect, query, bound, trusts=views and trusts, untaken=untaken)
    if not small and _is_bare(query):
        if not views and group_by in (None, "status"):
            return (yield from _statuses(query, driving_statuses(query), grouped=group_by is not None))
        if (
            driving_statuses(query) == STATUSES
            and group_by is not None
            and (group_by == "workflow_type" or group_by.startswith(("label:", "attribute:")))
        ):
            return (yield from _values(dialect, query, group_by))
        if trusts and group_by in ("state", "attention") and set(driving_statuses(query)) <= set(OPEN):
            return (yield from _summaries(query, group_by))
    where, given = conditions(dialect, query, now, views=query.needs_summary, untaken=untaken)
    window, looked = window_of(dialect, driver, span_of(query), True, bound)
    source = f"from ({window}) as looked\n{joined(dialect)}\nwhere {where}"
    value, named, also = _grouped(dialect, group_by)
    condition = f"\n  and (r.closed_at is not null or not {STALE})" if views else ""
    counted = yield (
        f"select {value}, count(*)\n{source}{also}{condition}\ngroup by 1\norder by 2 desc, 1 limit {VALUES + 1}",
        [*named[: value.count("?")], *looked, *given, *named[value.count("?") :]],
    )
    whole = (yield f"select count(*) from ({window}) as looked", looked)[0][0]
    stale: list[FoundRun] = []
    if views:
        answer = yield (
            f"select r.key, {RUN_COLUMNS}\n{source}\n  and r.closed_at is null and {STALE}\nlimit {STALE_ROWS + 1}",
            [*looked, *given],
        )
        stale = [FoundRun(rows.run(row[2:]), bool(row[1]), row[0]) for row in answer]
    groups: dict[str | None, int] = {}
    for name, number in counted[:VALUES]:
        shown = _shown(dialect, group_by, name)
        groups[shown] = groups.get(shown, 0) + number
    complete = whole < bound and len(counted) <= VALUES and len(stale) <= STALE_ROWS
    return RunCounts(groups, whole, complete, stale[:STALE_ROWS])


def _is_bare(query: RunQuery) -> bool:
    """Whether the query is about the status of runs only."""
    given = (query.q, query.labels, query.attributes, query.started_after, query.started_before)
    return (
        not any(given)
        and query.closed_after is None
        and query.closed_before is None
        and not query.fields.keys() - {"status"}
        and not query.flags.keys() - {"is_terminal"}
    )


def _grouped(dialect: Dialect, group_by: str | None) -> tuple[str, list[Any], str]:
    """The key by which runs are counted: an expression, its parameters, and a condition for runs without a value."""
    match group_by:
        case None:
            return "null", [], ""
        case "state":
            return f"case when r.closed_at is null then s.state else {STATE_OF_CLOSED} end", [], ""
        case "attention":
            return "case when r.closed_at is null then s.attention end", [], ""
        case "status" | "workflow_type" | "queue" | "compatibility":
            return f"r.{group_by}", [], ""
        case _:
            # A run has one value of a label or search attribute.
            return "(select value from facet where run = r.key and name = ?)", [group_by], ""


def _shown(dialect: Dialect, group_by: str | None, value: str | None) -> str | None:
    if value is None or group_by is None or not group_by.startswith(("label:", "attribute:")):
        return value
    return as_text(dialect, value)


def as_text(dialect: Dialect, value: str) -> str:
    """An indexed label or search attribute as people write it."""
    decoded = dialect.facet_value(value)
    if isinstance(decoded, bool):
        return "true" if decoded else "false"
    return str(int(decoded)) if isinstance(decoded, float) and decoded.is_integer() else str(decoded)


def _counted(sources: Sequence[tuple[str, list[Any]]], most: int) -> Steps[tuple[list[int], bool]]:
    """How many entries each of these has, and whether all were counted. At most `most` are: each gets its share of them, and
    those that have more get what others did not need."""
    if not sources:
        return [], True
    share = most // len(sources)
    numbers = yield from _up_to(sources, share)
    longer = [index for index, number in enumerate(numbers) if number == share]
    left = most - sum(numbers)
    if longer and left > share:
        share += left // len(longer)
        again = yield from _up_to([sources[index] for index in longer], share)
        for index, number in zip(longer, again, strict=True):
            numbers[index] = number
    return numbers, max(numbers) < share


def _up_to(sources: Sequence[tuple[str, list[Any]]], limit: int) -> Steps[list[int]]:
    each = (f"(select count(*) from (select 1 from {source} limit {limit}) as one)" for source, _ in sources)
    answer = yield f"select {', '.join(each)}", [given for _, several in sources for given in several]
    return list(answer[0])


def _told(names: Sequence[str | None], counted: tuple[Sequence[int], bool], *, grouped: bool = True) -> RunCounts:
    numbers, complete = counted
    groups: dict[str | None, int] = {}
    for name, number in zip(names, numbers, strict=True):
        if number:
            key = name if grouped else None
            groups[key] = groups.get(key, 0) + number
    return RunCounts(groups, sum(numbers), complete)


def _statuses(query: RunQuery, statuses: Sequence[str], *, grouped: bool) -> Steps[RunCounts]:
    source = "run where namespace = ? and status = ?"
    counted = yield from _counted([(source, [query.namespace, status]) for status in statuses], INDEXED)
    return _told(statuses, counted, grouped=grouped)


def _summaries(query: RunQuery, group_by: str) -> Steps[RunCounts]:
    """Open runs by state or cause, from the index of summaries."""
    states = OPEN_STATES if group_by == "state" else ("blocked", "repair_needed", "retrying", "history_budget")
    source = f"workflow_run_summaries where namespace = ? and {group_by} = ?"
    counted = yield from _counted([(source, [query.namespace, state]) for state in states], 2 * INDEXED)
    return _told(states, counted)


def _values(dialect: Dialect, query: RunQuery, group_by: str) -> Steps[RunCounts]:
    """All runs of a namespace by type, or by a label or search attribute."""
    if group_by == "workflow_type":
        names = yield from values_of("workflow_type", "run where namespace = ?", [query.namespace], "", VALUES + 1)
        sources = [
            ("run where namespace = ? and workflow_type = ?", [query.namespace, name]) for name in names[:VALUES]
        ]
    else:
        key = [query.namespace, group_by]
        names = yield from values_of("value", "facet where namespace = ? and name = ?", key, "", VALUES + 1)
        source = "facet where namespace = ? and name = ? and value = ?"
        sources = [(source, [*key, name]) for name in names[:VALUES]]
    counted = yield from _counted(sources, INDEXED if group_by == "workflow_type" else FACETS)
    counts = _told([_shown(dialect, group_by, name) for name in names[:VALUES]], counted)
    return counts._replace(complete=counts.complete and len(names) <= VALUES)


def values_of(column: str, source: str, given: list[Any], start: str, limit: int) -> Steps[list[str]]:
    """The different values of a column from `start` on, by its index, in their order."""
    answer = yield (
        f"with recursive seen (value, place) as (\n"
        f"  select (select {column} from {source} and {column} >= ? order by {column} limit 1), 1\n"
        f"  union all\n"
        f"  select (select {column} from {source} and {column} > seen.value order by {column} limit 1), place + 1\n"
        f"  from seen where seen.value is not null and place < {limit}\n)\n"
        f"select value from seen where value is not null",
        [*given, start, *given],
    )
    return [value for (value,) in answer]


def ready_groups(namespace: str, limit: int) -> Steps[dict[TaskGroup, int]]:
    """Ready tasks by queue, type and build, with the number of runs that wait for each."""
    answer = yield (
        "select queue, task_kind, task_type, build, count(*) from (\n"
        "  select queue, task_kind, task_type, build from workflow_run_summaries\n"
        f"  where namespace = ? and state = 'ready' limit {INDEXED}\n) as waiting\n"
        f"group by 1, 2, 3, 4 order by 5 desc limit {limit}",
        [namespace],
    )
    return {TaskGroup(queue, kind or "", type or "", build): number for queue, kind, type, build, number in answer}


def suggest(dialect: Dialect, namespace: str, field: str, prefix: str, limit: int) -> Steps[list[str]]:
    """Values of a field that begin like this, in their order."""
    source, given = "run where namespace = ?", [namespace]
    match field:
        case "instance_id":
            column, source = "workflow_id", "workflow where namespace = ?"
        case "workflow_type" | "business_key":
            column = field
        case "label" | "attribute":
            column, source, prefix = "name", "facet where namespace = ?", f"{field}:{prefix}"
        case _:
            column, source, given = "value", "facet where namespace = ? and name = ?", [namespace, field]
            return (yield from _suggested_values(dialect, column, source, given, prefix, limit))
    names = yield from values_of(column, source, given, prefix, limit)
    begin = f"{field}:" if column == "name" else ""
    return [name.removeprefix(begin) for name in names if name.startswith(prefix)]


def _suggested_values(
    dialect: Dialect, column: str, source: str, given: list[Any], prefix: str, limit: int
) -> Steps[list[str]]:
    """Values of a label or search attribute. Numbers and booleans are few of the same; texts are found by their beginning."""
    indexed, parameters = dialect.facet(prefix)
    start = yield f"select {indexed}", parameters
    begin: str = start[0][0]
    texts = yield from values_of(column, source, given, begin.removesuffix('"'), limit)
    others = yield from values_of(column, source, given, "b:", limit)
    suggested = [as_text(dialect, value) for value in dict.fromkeys((*texts, *others))]
    return [value for value in suggested if value.startswith(prefix)][:limit]
