"""Which runs a bulk operation takes: those of a filter of the lists, or those of named workflows.

The runs are selected page by page, newest first, from those that existed when the operation began. The filter counts when a
page is selected: a run that has left it by then is left alone. Keys only go down, so no run is selected twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from backstay.kernel.decision import RunRow
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import RunPlace, RunQuery, fits_row
from backstay.server.bulk_records import Action
from backstay.server.http_errors import invalid
from backstay.server.visibility_contract import FIELDS, check_filters
from backstay.store import RunFilter, Store

BOUND = 5000  # runs that one search looks at


class Selected(NamedTuple):
    """Runs, and where the selection goes on; None: there are no more."""

    runs: list[RunRow]
    end: tuple[int, int] | None


def query_of(namespace: str, action: Action, given: dict[str, Any]) -> RunQuery:
    """The query of a filter, which has the fields of the lists. Only runs count that the action can do something to."""
    labels: dict[str, tuple[str, ...]] = {}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        label = name.removeprefix("label[").removesuffix("]") if name.startswith("label[") else None
        if label:
            labels[label] = (str(value),)
        else:
            fields[name] = value
    checked = check_filters(fields)
    query = RunQuery(
        namespace=namespace,
        fields={name: (str(value),) for name, value in checked.items() if FIELDS[name].type == "string"},
        flags={name: bool(value) for name, value in checked.items() if FIELDS[name].type == "boolean"},
        labels=labels,
    )
    return narrowed(query, action)


def narrowed(query: RunQuery, action: Action) -> RunQuery:
    wanted = {"is_terminal": True, "archived": False} if action == "archive" else {"is_terminal": False}
    for name, value in wanted.items():
        if query.flags.get(name, value) != value:
            raise invalid(f"filter.{name}", f"{action} does nothing to runs with {name} {query.flags[name]}")
    return replace(query, flags=query.flags | wanted, sort="started", descending=True)


async def select_runs_of(
    store: Store, now: Micros, query: RunQuery, after: tuple[int, int], limit: int, bound: int = BOUND
) -> Selected:
    """The next runs that fit, after a place. Fewer than `limit` if they are far apart: then `end` says where to look on."""
    found = await store.search(query, RunPlace(*after), limit, bound, now)
    rows = [one.row for one in found.found if fits_row(query, one.row, is_current=one.is_current)]
    return Selected(rows, None if found.end is None else (found.end.value, found.end.key))


async def select_ids(store: Store, namespace: str, ids: list[str]) -> list[tuple[str, RunRow | None]]:
    """The current runs of these workflows."""
    found: list[tuple[str, RunRow | None]] = []
    for id in ids:
        rows = await store.runs(RunFilter(namespace=namespace, workflow_id=id, current=True, limit=1))
        found.append((id, rows[0] if rows else None))
    return found


async def count_runs_of(store: Store, now: Micros, query: RunQuery, upper: int, most: int) -> tuple[int, list[RunRow]]:
    """How many runs fit, up to `most` and one, and the first ten of them."""
    count = 0
    examples: list[RunRow] = []
    after: tuple[int, int] | None = (upper, upper)
    while after is not None and count <= most:
        page = await select_runs_of(store, now, query, after, 1000)
        examples += page.runs[: 10 - len(examples)]
        count += len(page.runs)
        after = page.end
    return count, examples
