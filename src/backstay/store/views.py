"""Stored views: rows that are derived from history and can be made again at any time.

A store writes them as they come, and knows nothing of their contents. They are written after commits, in transactions
of their own that need not be on disk at once: views that are lost with the machine are rebuilt, because their stamp is
missing or old.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import Any, NamedTuple

from backstay.kernel.values import Micros

VIEWS = {
    "waits": "workflow_run_waits",
    "timeline": "workflow_run_timeline_entries",
    "timers": "workflow_run_timer_entries",
    "lineage": "workflow_run_lineage_entries",
}
"""The views of a run, and the table of each."""

NEVER: Micros = (1 << 63) - 1
"""A time after all others."""

MINUTE = 60_000_000
HOUR = 60 * MINUTE


class SummaryRow(NamedTuple):
    """The row of a run in `workflow_run_summaries`. `waits` to `lineage` count the entries of its views, if `projected`.
    `reason`, `error` and `worker` are why it needs attention: runs are grouped by them."""

    run: int
    workflow: int
    namespace: str
    run_id: str
    workflow_type: str
    state: str
    attention: str | None
    liveness: str
    wait_kind: str | None
    queue: str
    build: str | None
    task_kind: str | None
    task_type: str | None
    since: Micros
    until: Micros | None
    sort_timestamp: Micros
    events: int
    bytes: int
    duration: Micros | None
    waits: int
    timeline: int
    timers: int
    lineage: int
    projected: int
    schema: int
    stamp: int
    digest: str
    body: bytes
    reason: str | None = None
    error: str | None = None
    worker: str | None = None


DAMAGED = 0
"""The schema of a row that marks a run whose history cannot be folded. It is counted, and its body is never used."""


class ViewRow(NamedTuple):
    """Some entries of a view of a run."""

    run: int
    position: int
    entries: int
    stamp: int
    digest: str
    body: bytes

    @property
    def is_intact(self) -> bool:
        return self.digest == digest(self.body)


class BlockedPlace(NamedTuple):
    """An open run whose summary says that it is blocked."""

    run: int
    workflow: int
    workflow_id: str
    run_id: str


class TallyRow(NamedTuple):
    """How many runs of a type started or ended in a minute or an hour (`grain`)."""

    namespace: str
    grain: int
    at: Micros
    workflow_type: str
    outcome: str
    bucket: int
    n: int


class InstanceFacts(NamedTuple):
    """The state that a stored view is compared with: the row of an instance, and its number of task rows."""

    workflow: int
    last_decision: int
    run: int | None
    next_wake: Micros | None
    expects: int
    tasks: int


class ViewChanges(NamedTuple):
    """The rows of one transaction. `views` replaces rows of a run from a position on: (view, run, position, rows)."""

    summaries: Sequence[SummaryRow] = ()
    forgotten: Sequence[int] = ()  # runs whose summary is removed
    views: Sequence[tuple[str, int, int, Sequence[ViewRow]]] = ()
    tallies: Sequence[TallyRow] = ()
    old_tallies: Sequence[tuple[int, Micros]] = ()  # (grain, before): removed


class Unprojected(NamedTuple):
    """A page of runs whose stored views are missing or old. `after`: where the next page begins, None after the last."""

    missing: list[tuple[int, int]]  # (run, instance)
    outdated: list[tuple[int, int]]
    right: list[tuple[int, int]]
    looked_at: int
    after: int | None


class ViewCounts(NamedTuple):
    """Counts of the rows of one view."""

    rows: int  # entries
    runs: int  # that have any
    canonical: int  # runs that should have any
    orphaned: int  # rows of runs that do not exist
    short: int  # of the canonical runs those with another number of entries than they should have
    wrong: int  # runs with a row that was changed, or that should not be there
    unknown: int  # runs that have neither entries nor a summary, so that nothing says how many they should have
    waiting: int  # of the short runs those that are open and wait for something


class SummaryCounts(NamedTuple):
    runs: int
    summaries: int
    missing: int
    stale: int
    unprojected: int  # that are right, and whose views are not stored yet
    orphaned: int
    open_waits: int  # summaries of open runs that wait for something
    events: int  # of all histories


class ResumeCounts(NamedTuple):
    """Open runs of a namespace by what will resume them: a task, a wake, the answer of another instance, or something from
    outside."""

    open: int = 0
    task: int = 0
    wake: int = 0
    answer: int = 0
    outside: int = 0

    @property
    def stranded(self) -> int:
        return self.open - self.task - self.wake - self.answer - self.outside


class StrandedPlace(NamedTuple):
    """An instance whose open run nothing will resume. `resumable`: its rows would, but its history is not whole."""

    workflow: int
    namespace: str
    workflow_id: str
    resumable: bool


class ResumePage(NamedTuple):
    """A page of instances, by namespace, and those of their open runs that nothing will resume."""

    counts: dict[str, ResumeCounts]
    stranded: list[StrandedPlace]
    after: int | None  # where the next page begins


Statements = Sequence[tuple[str, Sequence[Sequence[Any]]]]
"""Named statements, each with the rows of its parameters."""


def view_statements(changes: ViewChanges) -> Statements:
    """The statements of a transaction."""
    statements: list[tuple[str, Sequence[Sequence[Any]]]] = []
    if changes.forgotten:
        statements.append(("forget_summary", [(run,) for run in changes.forgotten]))
    if changes.summaries:
        statements.append(("put_summary", changes.summaries))
    for view in VIEWS:
        of_view = [(run, position, rows) for name, run, position, rows in changes.views if name == view]
        if of_view:
            statements.append((f"forget_{view}", [(run, position + len(rows)) for run, position, rows in of_view]))
            statements.append((f"put_{view}", [row for _, _, rows in of_view for row in rows]))
    if changes.tallies:
        statements.append(("count_up", changes.tallies))
    if changes.old_tallies:
        statements.append(("forget_tally", changes.old_tallies))
    return [(name, rows) for name, rows in statements if rows]


def digest(body: bytes) -> str:
    """The digest of a body: it reveals rows that were changed by hand, and is no protection against an attacker."""
    return md5(body, usedforsecurity=False).hexdigest()
