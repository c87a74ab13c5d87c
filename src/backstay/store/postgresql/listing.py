"""How PostgreSQL looks into the JSON of a run's index row, and how it searches runs.

It compares JSON text as we have written it. A zero byte is the one character that it refuses to read, even escaped, and a
single run with one would spoil the list: for comparing, its escape stands for another character, here and there.
"""

from __future__ import annotations

import json

from backstay.kernel.views.run_query import Value
from backstay.store import RunFilter, listing
from backstay.store.listing import Clause
from backstay.store.rows import encode
from backstay.store.search_conditions import Dialect
from backstay.store.sql import number


def select_runs(select: str, where: RunFilter) -> Clause:
    statement, parameters = listing.select_runs(select, where, _label, _search, "namespace || ''")
    return number(statement), parameters


def _label(key: str, value: str) -> Clause:
    return f"({_field('labels')})::text = ?", [key, _json(value)]


def _search(key: str, value: str | float | bool) -> Clause:
    at = _field("search_attributes")
    if isinstance(value, str | bool):
        return f"({at})::text = ?", [key, _json(value)]
    # 1 and 1.0 are the same number, spelt differently.
    number = f"case json_typeof({at}) when 'number' then ({at})::text::numeric = ?::text::numeric end"
    return number, [key, key, repr(value)]


def _field(column: str) -> str:
    return rf"replace({column}, '\u0000', '\u0001')::json -> ?::text"


def _json(value: str | bool) -> str:
    return encode(value).decode().replace(r"\u0000", r"\u0001")


def _facet(value: Value) -> Clause:
    """A value as the triggers index it."""
    if isinstance(value, bool):
        return "?::text", ["b:1" if value else "b:0"]
    if isinstance(value, str):
        return "?::text", [f"s:{_json(value)}"]
    return "'n:' || (?::text)::double precision", [repr(value)]


def _facet_value(indexed: str) -> Value:
    kind, _, value = indexed.partition(":")
    return value == "1" if kind == "b" else json.loads(value) if kind == "s" else float(value)


def _contains(text: str) -> str:
    return f"position('{text}'::bytea in s.body) > 0"


DIALECT = Dialect("join", False, True, _facet, _facet_value, _contains)
