"""The selection of runs of a bulk operation: by a filter of the lists, or by named workflows.

The runs are selected page by page, newest first, from those that existed when the operation began. The filter is
applied when a page is selected: a run that no longer matches then is left alone. Keys only go down, so no run is
selected twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from backstay.engine.requests.api import Api
from backstay.kernel.decision import RunRow
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.views.run_query import RunPlace, RunQuery
from backstay.protocol.run_lists import SearchRuns
from backstay.server.http.errors import invalid
from backstay.server.operators.bulk_records import Action
from backstay.server.operators.run_filters import Filters, filters_of
from backstay.store import RunFilter, StoredReads


class Selected(NamedTuple):
    """Runs, and where the selection goes on; None: there are no more."""

    runs: list[RunRow]
    end: tuple[int, int] | None


def filters_in(given: dict[str, Any]) -> Filters:
    """The filter of a bulk operation, which has the fields of the lists."""
    return filters_of({name: _texts(value) for name, value in given.items()}, ())


def _texts(value: Any) -> list[str]:
    values = cast(list[Any], value) if isinstance(value, list) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in values]


def narrowed(query: RunQuery, action: Action) -> RunQuery:
    """The same query, of those runs alone that the action can do something to."""
    command = OPERATOR_COMMANDS.get(action)
    wanted = {"is_terminal": False} if command is None else command.bulk_filter
    for name, value in wanted.items():
        if query.flags.get(name, value) != value:
            raise invalid(f"filter.{name}", f"{action} does nothing to runs with {name} {query.flags[name]}")
    return replace(query, flags=query.flags | wanted, sort="started", descending=True)


async def select_runs_of(api: Api, query: RunQuery, after: tuple[int, int], limit: int) -> Selected:
    """The next runs that fit, after a place. Fewer than `limit` if they are far apart: then `end` says where to look on."""
    asked = SearchRuns(query=query, after=RunPlace(*after), limit=limit, rows_only=True, namespace=query.namespace)
    found = await api.call(asked)
    return Selected([one.row for one in found.runs], None if found.end is None else (found.end.value, found.end.key))


async def select_ids(store: StoredReads, namespace: str, ids: list[str]) -> list[tuple[str, RunRow | None]]:
    """The current runs of these workflows."""
    found: list[tuple[str, RunRow | None]] = []
    for id in ids:
        rows = await store.runs(RunFilter(namespace=namespace, workflow_id=id, current=True, limit=1))
        found.append((id, rows[0] if rows else None))
    return found


async def count_runs_of(api: Api, query: RunQuery, upper: int, most: int) -> tuple[int, list[RunRow]]:
    """How many runs fit, up to `most` and one, and the first ten of them."""
    count = 0
    examples: list[RunRow] = []
    after: tuple[int, int] | None = (upper, upper)
    while after is not None and count <= most:
        page = await select_runs_of(api, query, after, 1000)
        examples += page.runs[: 10 - len(examples)]
        count += len(page.runs)
        after = page.end
    return count, examples
