"""How PostgreSQL looks into the JSON of a run's index row.

It compares the JSON text itself, as we have written it. Reading values out of it would fail on characters that the type
`text` cannot hold, and one such run would spoil the list.
"""

from __future__ import annotations

from itertools import count

from holdfast.store import RunFilter, listing
from holdfast.store.listing import Clause
from holdfast.store.rows import encode


def select_runs(select: str, where: RunFilter) -> Clause:
    statement, parameters = listing.select_runs(select, where, _label, _search)
    numbers = count(1)
    parts = statement.split("?")
    return "".join(part + f"${next(numbers)}" for part in parts[:-1]) + parts[-1], parameters


def _label(key: str, value: str) -> Clause:
    return "(labels::json -> ?::text)::text = ?", [key, encode(value).decode()]


def _search(key: str, value: str | float | bool) -> Clause:
    at = "search_attributes::json -> ?::text"
    if isinstance(value, str | bool):
        return f"({at})::text = ?", [key, encode(value).decode()]
    # 1 and 1.0 are the same number, spelt differently.
    number = f"case json_typeof({at}) when 'number' then ({at})::text::numeric = ?::text::numeric end"
    return number, [key, key, repr(value)]
