"""Lists and counts of runs: requests and answers."""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.views.present import Present
from backstay.kernel.views.run_query import RunPlace, RunQuery
from backstay.kernel.views.summary import RunSummary
from backstay.protocol.requests import Request

PAGE_MAX = 200


class ListedRun(Struct, frozen=True, kw_only=True):
    """A run of a list. `summary` None: its history is damaged."""

    row: RunRow
    is_current: bool
    summary: RunSummary | None
    present: Present
    value: int  # by which the list is ordered


class FoundRuns(Struct, frozen=True, kw_only=True):
    """One page. `end`: where the next one begins. Without it the list is at its end; if it is not `complete` then, it has an
    order of its own and covers only the runs that were looked at. `is_part`: the order is of these alone."""

    runs: list[ListedRun]
    looked_at: int
    complete: bool
    end: RunPlace | None = None
    is_part: bool = False


class CountedRuns(Struct, frozen=True, kw_only=True):
    """How many runs have each value. Not `complete`: there are at least so many."""

    groups: list[tuple[str | None, int]]
    total: int
    looked_at: int
    complete: bool


class SearchRuns(Request[FoundRuns], frozen=True, kw_only=True):
    """`view`: the id of a saved view, whose filters go together with those of `query`. `rows_only`: the answer has only
    fields of the index rows."""

    query: RunQuery
    after: RunPlace | None = None
    limit: int = 50
    rows_only: bool = False
    view: str | None = None
    namespace: str = "default"


class CountRuns(Request[CountedRuns], frozen=True, kw_only=True):
    query: RunQuery
    group_by: str | None = None
    view: str | None = None
    namespace: str = "default"
