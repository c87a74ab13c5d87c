"""Dynamic filters of the run list: a filter becomes (sql, parameters). Column names are ours, never a caller's.

Dialects read JSON differently, so they bring the two clauses that look into it; a parameter is a `?` in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backstay.store import RunFilter

Clause = tuple[str, list[Any]]

_EQUAL = ("workflow_type", "status", "business_key", "queue", "run_id", "compatibility")


def select_runs(
    select: str,
    where: RunFilter,
    label: Callable[[str, str], Clause],
    search: Callable[[str, str | float | bool], Clause],
    unindexed_namespace: str,
) -> Clause:
    # If no index fits the query, runs are read in their order: an index on the namespace would sort all of them.
    indexed = where.status or where.statuses or where.workflow_type or where.business_key
    clauses = ["namespace = ?" if indexed else f"{unindexed_namespace} = ?"]
    parameters: list[Any] = [where.namespace]
    for column in _EQUAL:
        value = getattr(where, column)
        if value is not None:
            clauses.append(f"{column} = ?")
            parameters.append(value)
    if where.statuses is not None:
        clauses.append(f"status in ({','.join('?' * len(where.statuses))})")
        parameters += where.statuses
    if where.current:
        clauses.append("key = (select run from workflow where workflow.key = run.workflow)")
    if where.workflow_id is not None:
        # The few runs of one instance are found by its key.
        clauses.append("workflow = (select key from workflow where namespace = ? and workflow_id = ?)")
        parameters += [where.namespace, where.workflow_id]
    for looked_into in (
        None if where.label is None else label(*where.label),
        None if where.search is None else search(*where.search),
        *(search(*searched) for searched in where.searches),
    ):
        if looked_into is not None:
            clauses.append(looked_into[0])
            parameters += looked_into[1]
    if where.before is not None:
        clauses.append("key < ?")
        parameters.append(where.before)
    parameters.append(where.limit)
    return f"{select}\nwhere {' and '.join(clauses)}\norder by key desc\nlimit ?", parameters
