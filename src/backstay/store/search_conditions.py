"""The conditions of a search, as SQL on a run `r`, its instance `w` and its summary `s`.

Those on the run are exact. Conditions on the summary let runs pass that the summary cannot decide: a missing or
outdated summary passes them all. The engine then looks at what passed (`fits_summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from backstay.kernel.names import is_storable
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import (
    CLOSED,
    COLUMNS,
    OPEN,
    STATUSES,
    RunQuery,
    TaskGroup,
    Value,
    states_as_statuses,
)
from backstay.kernel.views.summary import CLOSED_STATES, OPEN_STATES, SCHEMA

Clause = tuple[str, list[Any]]

MOST_GROUPS = 40
"""Of more kinds of ready tasks than these, a statement looks at all."""


class Dialect(NamedTuple):
    """`join`: how a table is joined to those before it, which must be read first. `keeps_order`: a join leaves the
    order of its first table as it is, and the planner would sort if the order were part of the query. `parts_ordered`:
    each part of a union is ordered and limited by itself. `facet`: a label or search attribute as it is indexed.
    `contains`: a condition that the body of a summary has this text in it."""

    join: str
    keeps_order: bool
    parts_ordered: bool
    facet: Callable[[Value], Clause]
    facet_value: Callable[[str], Value]
    contains: Callable[[str], str]


CURRENT = (
    "(w.key is not null and (r.closed_at is null or (w.run = r.key and coalesce(r.closed_reason, '') <> 'continued')))"
)
"""Whether a run is the current one of its workflow. An open run is, whichever the row of the workflow names; one that was
continued is not."""

STALE = f"""(s.run is null or s.schema <> {SCHEMA} or s.stamp <> case when {CURRENT} then w.last else r.length end
  or (r.closed_at is null and w.expects <> (select count(*) from task where task.workflow = w.key)))"""
"""The summary is missing, or was made from other rows than those on disk."""

STATE_OF_CLOSED = "case r.closed_reason when 'continued' then 'continued' else r.status end"


def possible(values: Sequence[str]) -> list[str]:
    """The values that a stored text can have: no NUL in it, and no half of a surrogate pair."""
    return [value for value in values if is_storable(value)]


def is_possible(query: RunQuery) -> bool:
    """Whether a stored run can match the query."""
    texts = (query.namespace, *query.labels, *query.attributes, query.q or "")
    values = [value for several in query.labels.values() for value in several]
    values += [value for several in query.attributes.values() for value in several if isinstance(value, str)]
    return len(possible(texts)) == len(texts) and not any(
        "\ud800" <= character <= "\udfff" for character in "".join(values)
    )


def placeholders(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values)) or "null"


def driving_statuses(query: RunQuery) -> tuple[str, ...]:
    """The statuses that a run of this search can have."""
    allowed = set(query.fields.get("status", STATUSES))
    if "is_terminal" in query.flags:
        allowed &= set(CLOSED if query.flags["is_terminal"] else OPEN)
    if "state" in query.fields:
        allowed &= set(states_as_statuses(query.fields["state"]))
    if query.sort == "closed" or query.closed_after is not None or query.closed_before is not None:
        allowed &= set(CLOSED)
    if "attention" in query.fields or "wait_kind" in query.fields:
        allowed &= set(OPEN)
    liveness = query.fields.get("liveness_state", ())
    if liveness and "closed" not in liveness and "workflow_replay_blocked" not in liveness:
        allowed &= set(OPEN)
    return tuple(status for status in STATUSES if status in allowed)


def conditions(dialect: Dialect, query: RunQuery, now: Micros, *, views: bool, untaken: Sequence[TaskGroup]) -> Clause:
    """The conditions on a run. `views`: also the conditions on its summary."""
    clauses = _Conditions()
    clauses.add("r.namespace = ?", query.namespace)
    statuses = driving_statuses(query)
    for name, column in COLUMNS.items():
        if name in query.fields and name != "status":
            values = possible(query.fields[name])
            clauses.add(f"r.{column} in ({placeholders(values)})", *values)
    if statuses != STATUSES:
        clauses.add(f"r.status in ({placeholders(statuses)})", *statuses)
    _row_flags(clauses, query)
    for kind, facets in (("label", query.labels), ("attribute", query.attributes)):
        for name, values in facets.items():
            _facets(clauses, dialect, query.namespace, f"{kind}:{name}", values)
    if query.q is not None:
        _about(clauses, query.q)
    if query.closed_after is not None:
        clauses.add("r.closed_at >= ?", query.closed_after)
    if query.closed_before is not None:
        clauses.add("r.closed_at < ?", query.closed_before)
    if views:
        _views(clauses, dialect, query, now, untaken)
    return clauses.clause()


class _Conditions:
    def __init__(self) -> None:
        self._clauses: list[str] = []
        self._given: list[Any] = []

    def add(self, clause: str, *given: Any) -> None:
        self._clauses.append(clause)
        self._given += given

    def clause(self) -> Clause:
        return "\n  and ".join(self._clauses), self._given


def _row_flags(clauses: _Conditions, query: RunQuery) -> None:
    flags = query.flags
    if "is_current_run" in flags:
        clauses.add(CURRENT if flags["is_current_run"] else f"not coalesce({CURRENT}, false)")
    if "archived" in flags:
        clauses.add(f"r.archived_at is {'not ' if flags['archived'] else ''}null")
    if "is_terminal" in flags:
        clauses.add(f"r.closed_at is {'not ' if flags['is_terminal'] else ''}null")
    if query.sort == "closed":
        clauses.add("r.closed_at is not null")


def _facets(clauses: _Conditions, dialect: Dialect, namespace: str, name: str, values: Sequence[Any]) -> None:
    indexed = [dialect.facet(value) for value in values]
    listed = ",".join(clause for clause, _ in indexed) or "null"
    clauses.add(
        f"exists (select 1 from facet where namespace = ? and name = ? and value in ({listed}) and run = r.key)",
        *(namespace, name, *(given for _, several in indexed for given in several)),
    )


def _about(clauses: _Conditions, text: str) -> None:
    if not possible((text,)):
        clauses.add("1 = 0")
        return
    clauses.add(
        "((r.workflow_id >= ? and r.workflow_id < ?) or r.workflow_type = ? or r.business_key = ? or r.run_id = ?)",
        *(text, text + "\U0010ffff", text, text, text),
    )


def _views(clauses: _Conditions, dialect: Dialect, query: RunQuery, now: Micros, untaken: Sequence[TaskGroup]) -> None:
    fields, flags = query.fields, query.flags
    waiting, groups = untaken_condition(untaken, now)
    if "state" in fields:
        opened = [state for state in fields["state"] if state in OPEN_STATES]
        closed = [state for state in fields["state"] if state in CLOSED_STATES]
        clauses.add(
            f"((r.closed_at is null and ({STALE} or s.state in ({placeholders(opened)})))\n"
            f"  or (r.closed_at is not null and {STATE_OF_CLOSED} in ({placeholders(closed)})))",
            *(*opened, *closed),
        )
    if "attention" in fields:
        causes = fields["attention"]
        late = " or s.state = 'working' or w.next_wake < ?" if "overdue" in causes else ""
        clauses.add(
            f"({STALE} or s.attention in ({placeholders(causes)}) or {waiting}{late})",
            *(*causes, *groups, *([now] if late else ())),
        )
    if "wait_kind" in fields:
        kinds = fields["wait_kind"]
        clauses.add(f"({STALE} or s.wait_kind in ({placeholders(kinds)}))", *kinds)
    if "liveness_state" in fields:
        states = fields["liveness_state"]
        clause, given = f"{STALE} or s.liveness in ({placeholders(states)})", list[Any](states)
        if any("compatible" in state for state in states):
            clause, given = f"{clause} or {waiting}", [*given, *groups]
        if "repair_needed" in states:
            clause += " or s.state = 'working'"
        clauses.add(f"({clause})", *given)
    reasons = set(fields.get("repair_blocked_reason", ()))
    if flags.get("repair_attention") is True or (reasons and reasons <= {"waiting_for_compatible_worker"}):
        clauses.add(f"({STALE} or {waiting})", *groups)
    if flags.get("task_problem") is True:
        marked = dialect.contains('"task_problem":true')
        clauses.add(f"({STALE} or s.state = 'working' or {marked})")
    if "continue_as_new_recommended" in flags:
        events, size = (limit or 1 << 62 for limit in query.budget)
        over = f"(s.events >= {events} or s.bytes >= {size})"
        clauses.add(f"({STALE} or {'' if flags['continue_as_new_recommended'] else 'not '}{over})")


def untaken_condition(untaken: Sequence[TaskGroup], now: Micros) -> Clause:
    """The next task of the run is one of those that no worker takes. An attempt whose time has come is ready, too."""
    if not untaken:
        return "1 = 0", []
    ready = f"(s.state = 'ready' or (s.state = 'retrying' and s.until <= {now}))"
    if len(untaken) > MOST_GROUPS:
        return ready, []
    groups: list[str] = []
    given: list[Any] = []
    for group in untaken:
        build = "s.build is null" if group.build is None else "s.build = ?"
        groups.append(f"(s.queue = ? and s.task_kind = ? and s.task_type = ? and {build})")
        given += [group.queue, group.kind, group.type, *([] if group.build is None else [group.build])]
    return f"({ready} and ({' or '.join(groups)}))", given
