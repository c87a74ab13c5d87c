"""Dynamic filters of the run list: a filter becomes (sql, parameters); column names come from here, never from callers."""

from __future__ import annotations

from typing import Any

from holdfast.store import RunFilter

_EQUAL = ("workflow_id", "workflow_type", "status", "business_key")


def select_runs(select: str, where: RunFilter) -> tuple[str, list[Any]]:
    clauses = ["namespace = ?"]
    parameters: list[Any] = [where.namespace]
    for column in _EQUAL:
        value = getattr(where, column)
        if value is not None:
            clauses.append(f"{column} = ?")
            parameters.append(value)
    for column, pair in (("labels", where.label), ("search_attributes", where.search)):
        if pair is not None:
            clauses.append(f"{column} ->> ? = ?")
            parameters += ['$."' + pair[0].replace('"', "") + '"', pair[1]]
    if where.before is not None:
        clauses.append("key < ?")
        parameters.append(where.before)
    parameters.append(where.limit)
    return f"{select}\nwhere {' and '.join(clauses)}\norder by key desc\nlimit ?", parameters
