"""Dynamic filters of the run list: a filter becomes (sql, parameters). Column names are ours, never a caller's."""

from __future__ import annotations

from typing import Any

from holdfast.store import RunFilter

_EQUAL = ("workflow_type", "status", "business_key", "queue", "run_id", "compatibility")


def select_runs(select: str, where: RunFilter) -> tuple[str, list[Any]]:
    clauses = ["namespace = ?"]
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
    if where.label is not None:
        clauses.append("labels ->> ? = ?")
        parameters += [_path(where.label[0]), where.label[1]]
    for searched in (where.search, *where.searches):
        if searched is None:
            continue
        clause, values = _search(*searched)
        clauses.append(clause)
        parameters += values
    if where.before is not None:
        clauses.append("key < ?")
        parameters.append(where.before)
    parameters.append(where.limit)
    return f"{select}\nwhere {' and '.join(clauses)}\norder by key desc\nlimit ?", parameters


def _search(key: str, value: str | float | bool) -> tuple[str, list[Any]]:
    """SQLite reads a JSON true as 1 and a JSON list as text, so the JSON type must agree too."""
    path = _path(key)
    if isinstance(value, bool):
        return "json_type(search_attributes, ?) = ?", [path, "true" if value else "false"]
    types = "'text'" if isinstance(value, str) else "'integer', 'real'"
    clause = f"json_type(search_attributes, ?) in ({types}) and search_attributes ->> ? = ?"
    return clause, [path, path, value]


def _path(key: str) -> str:
    return '$."' + key.replace('"', "") + '"'
