"""The stored views of one run: how they are made, cut into rows, read back and compared.

Waits, timeline, timers and lineage are lists of plain entries. A row holds up to `TOGETHER` of them, compressed, with a digest of
its bytes and the stamp of its run. Stored entries count only if the summary of the run was made from the rows that are on disk
now, and every row of every view is there and as it was written.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.kernel.views.summary import SCHEMA, RunSummary, error_pattern
from backstay.store.views import DAMAGED, VIEWS, InstanceFacts, SummaryRow, ViewRow, digest

TOGETHER = 256  # entries of a row

Entries = list[dict[str, Any]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode
_decode_summary = msgspec.json.Decoder(RunSummary).decode


class ViewMaker(Protocol):
    """Makes the views of a run from its history and rows; the entries are JSON, as operators read them."""

    def __call__(
        self, row: RunRow, history: Sequence[Recorded], tasks: Sequence[Task], wake: Micros | None, /
    ) -> dict[str, Entries]: ...


def cut(run: int, stamp: int, entries: Entries) -> list[ViewRow]:
    """The rows of a view."""
    rows: list[ViewRow] = []
    for position, start in enumerate(range(0, len(entries), TOGETHER)):
        part = entries[start : start + TOGETHER]
        body = zlib.compress(_encode(part), 1)
        rows.append(ViewRow(run, position, len(part), stamp, digest(body), body))
    return rows


def are_right(rows: Sequence[ViewRow], stamp: int, expected: int) -> bool:
    """Whether these are all rows of a view, as they were written."""
    return (
        sum(row.entries for row in rows) == expected
        and [row.position for row in rows] == list(range(len(rows)))
        and all(row.stamp == stamp and row.is_intact for row in rows)
    )


def joined(rows: Sequence[ViewRow]) -> Entries:
    """The entries in the rows of a view."""
    return [entry for row in rows for entry in _decode(zlib.decompress(row.body))]


def summary_row(summary: RunSummary, counts: Mapping[str, int] | None = None) -> SummaryRow:
    """The row of a summary. `counts`: the entries of each view, if they are stored with it."""
    body = _encode(summary)
    stored = dict.fromkeys(VIEWS, 0) if counts is None else counts
    return SummaryRow(
        summary.run,
        summary.workflow,
        summary.namespace,
        summary.run_id,
        summary.workflow_type,
        summary.state,
        summary.attention,
        summary.liveness_state,
        summary.wait_kind,
        summary.queue,
        summary.build,
        summary.next_task_kind,
        summary.next_task_type,
        summary.since,
        summary.until,
        summary.started_at,
        summary.events,
        summary.bytes,
        None if summary.closed_at is None else summary.closed_at - summary.started_at,
        stored["waits"],
        stored["timeline"],
        stored["timers"],
        stored["lineage"],
        0 if counts is None else 1,
        SCHEMA,
        summary.stamp,
        digest(body),
        body,
        *((None, None, None) if summary.attention is None else _grouped(summary)),
    )


def _grouped(summary: RunSummary) -> tuple[str | None, str | None, str | None]:
    """The reason, the error and the worker by which a run that needs attention is grouped with others."""
    reason = summary.failing if summary.attention == "retrying" else summary.blocked_reason
    error = None if summary.last_error is None else error_pattern(summary.last_error)
    return reason, error, summary.blocked_by


def damage_row(row: RunRow, stamp: int, since: Micros) -> SummaryRow:
    """The mark of an open run whose history cannot be folded, in place of its summary: it counts as blocked. Its schema
    marks it as invalid."""
    summary = RunSummary(
        run=row.key,
        workflow=row.workflow,
        namespace=row.namespace,
        run_id=row.run_id,
        workflow_id=row.workflow_id,
        workflow_type=row.workflow_type,
        stamp=stamp,
        status=row.status,
        state="blocked",
        attention="blocked",
        liveness_state="workflow_replay_blocked",
        since=since,
        queue=row.queue,
        build=row.compatibility,
        task_problem=True,
        events=row.length,
        bytes=0,
        started_at=row.started_at,
    )
    return summary_row(summary)._replace(schema=DAMAGED)


def stored_summary(row: SummaryRow | None, run: RunRow, facts: InstanceFacts | None) -> RunSummary | None:
    """The summary in a row; None if it is missing, was changed, or was made from other rows than those on disk."""
    if row is None or facts is None or row.schema != SCHEMA or row.digest != digest(row.body):
        return None
    is_current = facts.run == run.key
    if row.stamp != (facts.last_decision if is_current else run.length):
        return None
    try:
        summary = _decode_summary(row.body)
    except msgspec.DecodeError:
        return None
    if summary != _with_columns(row, summary):
        return None
    if is_current and run.is_open and (summary.wake, summary.tasks) != (facts.next_wake, facts.tasks):
        return None
    same_run = (summary.status, summary.closed_at, summary.archived_at) == (run.status, run.closed_at, run.archived_at)
    return summary if same_run and summary.is_current_run == is_current else None


def decoded(rows: Mapping[int, SummaryRow]) -> dict[int, RunSummary]:
    """The summaries in rows as they were written, whether or not they are up to date."""
    found: dict[int, RunSummary] = {}
    for run, row in rows.items():
        with suppress(msgspec.DecodeError):
            found[run] = _decode_summary(row.body)
    return found


def _with_columns(row: SummaryRow, summary: RunSummary) -> RunSummary:
    """The summary with the columns of its row, so that a column that was changed by hand makes a difference."""
    return msgspec.structs.replace(
        summary,
        run=row.run,
        workflow=row.workflow,
        namespace=row.namespace,
        run_id=row.run_id,
        workflow_type=row.workflow_type,
        state=row.state,
        attention=row.attention,
        liveness_state=row.liveness,
        wait_kind=row.wait_kind,
        queue=row.queue,
        build=row.build,
        next_task_kind=row.task_kind,
        next_task_type=row.task_type,
        since=row.since,
        until=row.until,
        started_at=row.sort_timestamp,
        events=row.events,
        bytes=row.bytes,
    )
