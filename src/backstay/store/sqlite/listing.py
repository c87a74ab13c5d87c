"""How SQLite looks into the JSON of a run's index row, and how it searches runs."""

from __future__ import annotations

from backstay.kernel.views.run_query import Value
from backstay.store import RunFilter, listing
from backstay.store.listing import Clause
from backstay.store.search_conditions import Dialect


def select_runs(select: str, where: RunFilter) -> Clause:
    return listing.select_runs(select, where, _label, _search, "+namespace")


def _label(key: str, value: str) -> Clause:
    return "labels ->> ? = ?", [_path(key), value]


def _search(key: str, value: str | float | bool) -> Clause:
    """SQLite reads a JSON true as 1 and a JSON list as text, so the JSON type must agree too."""
    path = _path(key)
    if isinstance(value, bool):
        return "json_type(search_attributes, ?) = ?", [path, "true" if value else "false"]
    types = "'text'" if isinstance(value, str) else "'integer', 'real'"
    clause = f"json_type(search_attributes, ?) in ({types}) and search_attributes ->> ? = ?"
    return clause, [path, path, value]


def _path(key: str) -> str:
    return '$."' + key.replace('"', "") + '"'


def _facet(value: Value) -> Clause:
    """A value as the triggers index it."""
    if isinstance(value, bool):
        return "?", ["b:1" if value else "b:0"]
    if isinstance(value, str):
        return "?", [f"s:{value}"]
    return "'n:' || cast(? as real)", [value]


def _facet_value(indexed: str) -> Value:
    kind, _, value = indexed.partition(":")
    return value == "1" if kind == "b" else value if kind == "s" else float(value)


def _contains(text: str) -> str:
    return f"instr(s.body, cast('{text}' as blob)) > 0"


DIALECT = Dialect("cross join", True, False, _facet, _facet_value, _contains)
