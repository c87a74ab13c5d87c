"""How SQLite looks into the JSON of a run's index row."""

from __future__ import annotations

from backstay.store import RunFilter, listing
from backstay.store.listing import Clause


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
