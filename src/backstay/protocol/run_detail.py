"""The JSON of one run with everything that happened in it, the same for the detail route and for an export.

All of it is folded from history. Only `tasks` are rows, and their names come from history as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Diagnostics
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.start import WorkflowStarted, started_of
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views import actions
from backstay.kernel.views.activities import ActivityView, activities
from backstay.kernel.views.failures import FailureView
from backstay.kernel.views.lineage import Lineage, Link, lineage
from backstay.kernel.views.messages import SignalView, UpdateView
from backstay.kernel.views.timeline import WORDS
from backstay.kernel.views.timers import TimerView, timers
from backstay.kernel.views.waits import WaitView, back, newest_waits, waits
from backstay.kernel.words import About
from backstay.protocol.history import iso, operator_event
from backstay.protocol.origin import shown_origin
from backstay.protocol.payloads import envelope
from backstay.protocol.plain import innermost, plain
from backstay.protocol.requests import Description
from backstay.protocol.run_tasks import closed_tasks, missing_task, shown_task, timer_tasks

T = TypeVar("T")
S = TypeVar("S", ActivityView, TimerView)

# Everything shown was recorded as typed events; the contract wants a field that says so.
AUTHORITY: dict[str, Any] = {
    "history_authority": "typed_history",
    "history_unsupported_reason": None,
    "diagnostic_only": False,
}

# Statuses of runs, by the bucket that lists put them in.
BUCKETS: dict[str, tuple[str, ...]] = {
    "running": ("pending", "running", "waiting"),
    "completed": ("completed",),
    "failed": ("failed", "cancelled", "terminated"),
}
BUCKET_OF = {status: bucket for bucket, statuses in BUCKETS.items() for status in statuses}

_DECLARED = tuple(
    f"declared_{what}"
    for what in ("queries", "query_contracts", "signals", "signal_contracts", "updates", "update_contracts")
)


PROJECTION_SOURCES = dict.fromkeys(
    (f"{view}_projection_source" for view in ("waits", "timeline", "timers", "lineage")), "typed_history"
)
"""Views are folded from history at every request; no stored projection could be out of date."""


class RunParts(NamedTuple):
    """The lists of a run, each whole, as views of the kernel: only shown entries become JSON."""

    activities: list[ActivityView]
    waits: list[WaitView]
    timers: list[TimerView]
    failures: list[FailureView]
    signals: list[SignalView]
    updates: list[UpdateView]
    commands: list[CommandRecord]
    lineage: Lineage


def run_detail(
    row: RunRow,
    history: list[Recorded],
    commands: list[CommandRecord],
    found: Description,
    chain: Mapping[str, RunRow],
    shown: int | None = None,
) -> dict[str, Any]:
    """The parts of a run that follow from its history. `found` describes the run. `chain`: the runs before and after it, by
    run id. `shown`: how many entries of each list, the open and the newest ones; None: all."""
    parts = RunParts(
        activities=activities(history),
        waits=found.waits,
        timers=timers(history, row, found.next_wake),
        failures=found.failures,
        signals=found.signals,
        updates=found.updates,
        commands=commands,
        lineage=lineage(history, row.number, chain),
    )
    if row.is_open:
        serving = {view.sequence: view for view in parts.activities}
        tasks = [shown_task(view, row.run_id, serving) for view in found.tasks[:shown]]
        tasks += [missing_task(task, row.run_id, serving) for task in found.missing_tasks[:shown]]
        tasks += timer_tasks(parts.waits, found.next_wake)
        task_total = len(found.tasks) + len(found.missing_tasks) + sum(task["type"] == "timer" for task in tasks)
        tasks = tasks[:shown]
    else:
        tasks = closed_tasks(row, history, parts.activities)
        task_total = len(tasks)
        tasks = list(newest(tasks, shown))
    told = newest_first_open(parts.activities, shown)
    exceptions = [shown_failure(view) for view in newest(parts.failures, shown)]
    lists: dict[str, list[dict[str, Any]]] = {
        "commands": shown_commands(newest(commands, shown), found.signals, found.updates),
        "signals": [plain(view) for view in newest(found.signals, shown)],
        "updates": [plain(view) for view in newest(found.updates, shown)],
        "waits": [
            shown_wait(view) | actions.part_actions("waits", view, is_open=row.is_open)
            for view in (parts.waits if shown is None else newest_waits(parts.waits, shown))
        ],
        "tasks": tasks,
        "timeline": timeline(newest(history, shown), row.run_id),
        "activities": [
            shown_activity(view) | actions.part_actions("activities", view, is_open=row.is_open) for view in told
        ],
        "timers": [
            shown_timer(view) | actions.part_actions("timers", view, is_open=row.is_open)
            for view in newest_first_open(parts.timers, shown)
        ],
        "failures": exceptions,
        "parents": [shown_link(link) for link in parts.lineage.parents],
        "children": [shown_link(link) for link in newest(parts.lineage.children, shown)],
    }
    totals = {name: len(getattr(parts, name)) for name in RunParts._fields if name != "lineage"}
    totals |= {
        "tasks": task_total,
        "timeline": len(history),
        "parents": len(parts.lineage.parents),
        "children": len(parts.lineage.children),
    }
    return {
        **lists,
        "open_wait_count": sum(wait.status == "open" for wait in parts.waits),
        "exception_count": len(parts.failures),
        "totals": totals,
        "activity_views": told,
    }


def newest(entries: Sequence[T], shown: int | None) -> Sequence[T]:
    """The last entries of a list, in their order."""
    return entries if shown is None or len(entries) <= shown else entries[-shown:]


def newest_first_open(entries: list[S], shown: int | None) -> list[S]:
    """The newest entries of a list, but no closed one instead of an open one. They stay in their order."""
    if shown is None or len(entries) <= shown:
        return entries
    still_open = [place for place, view in enumerate(entries) if view.status in ("pending", "running")][-shown:]
    closed = [place for place, view in enumerate(entries) if view.status not in ("pending", "running")]
    chosen = still_open + closed[max(0, len(closed) - (shown - len(still_open))) :]
    return [entries[place] for place in sorted(chosen)]


def waits_view(
    row: RunRow, history: Iterable[Recorded], tasks: Iterable[Task], wake: Micros | None = None
) -> list[dict[str, Any]]:
    """All waits of a run, open ones first, each with the task that backs it. `tasks` and `wake` are those of its instance, if
    the run is the current one."""
    found = waits(history, row)
    back(found, tasks, wake)
    return [shown_wait(view) for view in found]


def shown_wait(view: WaitView) -> dict[str, Any]:
    return plain(view) | innermost(view.parallel_group_path) | AUTHORITY


def timers_view(row: RunRow, history: Iterable[Recorded], wake: Micros | None) -> list[dict[str, Any]]:
    """The timers of a run by step. `wake`: the next wake of its instance, None for an older run."""
    return [shown_timer(view) for view in timers(history, row, wake)]


def lineage_view(
    row: RunRow, history: Iterable[Recorded], chain: Mapping[str, RunRow]
) -> dict[str, list[dict[str, Any]]]:
    """The links of a run, under `parents` and `children`. `chain`: the runs before and after it, by run id."""
    family = lineage(history, row.number, chain)
    return {
        "parents": [shown_link(link) for link in family.parents],
        "children": [shown_link(link) for link in family.children],
    }


_INTERNAL = ("run", "history_length")


def shown_commands(
    commands: Iterable[CommandRecord], signals: Iterable[SignalView], updates: Iterable[UpdateView]
) -> list[dict[str, Any]]:
    """Records of commands, each with the signal or update that it made."""
    told = {view.command_id: view for view in (*signals, *updates) if view.command_id is not None}
    return [_command(record, told.get(record.id)) for record in commands]


def _command(record: CommandRecord, made: SignalView | UpdateView | None) -> dict[str, Any]:
    shown = {name: value for name, value in plain(record).items() if name not in _INTERNAL}
    signal = made if isinstance(made, SignalView) else None
    update = made if isinstance(made, UpdateView) else None
    return shown | {
        **shown_origin(record),
        "command_sequence": record.sequence,
        "recorded_at": shown["at"],
        "signal_id": None if signal is None else signal.signal_id,
        "signal_status": None if signal is None else signal.status,
        "signal_wait_id": None if signal is None else signal.signal_wait_id,
        "update_id": None if update is None else update.update_id,
        "update_status": None if update is None else update.status,
    }


def memo(history: Iterable[Recorded]) -> dict[str, bytes]:
    """The memo of a run as its history leaves it."""
    found: dict[str, bytes] = {}
    for entry in history:
        match entry.event:
            case WorkflowStarted(memo=begun):
                found = begun
            case MemoUpserted(merged=merged):
                found = merged
            case _:
                pass
    return found


def declared(history: list[Recorded]) -> dict[str, Any]:
    """The signals, updates and queries that the run's code declared when it began, with their contracts."""
    started = started_of(history)
    return plain(actions.declared(started)) | {name: getattr(started, name, None) or [] for name in _DECLARED}


def timeline(history: Iterable[Recorded], run_id: str) -> list[dict[str, Any]]:
    """One point for each event, with its subject and every fact that it recorded."""
    return [_point(entry, run_id) for entry in history]


def _point(entry: Recorded, run_id: str) -> dict[str, Any]:
    wire = operator_event(entry, run_id)
    payload: dict[str, Any] = wire["payload"]
    about = WORDS[type(entry.event)].about
    step = payload.pop("sequence", None)
    command: dict[str, Any] = payload.get("command") or {}
    id = run_id if about.id is None else step if about.id == "sequence" else payload.get(about.id)
    return payload | {
        "id": wire["id"],
        "sequence": entry.sequence,
        "type": entry.type,
        "kind": about.kind,
        "entry_kind": "point",
        "source_kind": about.source,
        "source_id": id,
        "summary": _summary(entry, about),
        "recorded_at": wire["recorded_at"],
        "workflow_sequence": step,
        "command_id": wire["workflow_command_id"],
        "command_sequence": command.get("sequence"),
        "task_id": wire["workflow_task_id"],
    }


def _summary(entry: Recorded, about: About) -> str:
    """The name of the event in words, and that of its subject. No payload: an export may redact those."""
    spelled = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in entry.type).strip()
    named = next((name for field in about.name if (name := getattr(entry.event, field, None))), None)
    return spelled if named is None else f"{spelled}: {named}"


def shown_failure(view: FailureView) -> dict[str, Any]:
    """A failure; where it happened stands beside it, flat."""
    found = (None if view.exception is None else view.exception.diagnostics) or Diagnostics()
    return plain(view) | {"file": found.file, "line": found.line, "trace": list(found.trace)} | AUTHORITY


def shown_activity(view: ActivityView) -> dict[str, Any]:
    return plain(view) | innermost(view.parallel_group_path) | AUTHORITY


def log(view: ActivityView) -> dict[str, Any]:
    """An activity as a line of the log: its type, and how it ended."""
    return {
        "id": view.id,
        "index": view.sequence,
        "now": iso(view.created_at),
        "class": view.activity_class or view.activity_type,
        "activity_type": view.activity_type,
        "status": view.status,
        "attempt_count": view.attempt_count,
        "crash_count": view.crash_count,
        "result": envelope(view.result),
        "message": view.message,
        "created_at": iso(view.created_at),
        "closed_at": None if view.closed_at is None else iso(view.closed_at),
        **AUTHORITY,
    }


def chart(row: RunRow, views: Iterable[ActivityView]) -> list[dict[str, Any]]:
    """Bars over time: the run, and each activity from its schedule to its end. An open one has no end."""
    bars = [_bar("Workflow", row.workflow_type, row.started_at, row.closed_at, row.status)]
    bars += [_bar("Activity", view.activity_type, view.created_at, view.closed_at, view.status, view) for view in views]
    return bars


def _bar(
    kind: str, name: str, start: Micros, end: Micros | None, status: str, view: ActivityView | None = None
) -> dict[str, Any]:
    return {
        "x": name,
        "type": kind,
        "y": [start * 1000 // SECOND, None if end is None else end * 1000 // SECOND],
        "status": status,
        "source_id": None if view is None else view.id,
        **AUTHORITY,
    }


def shown_timer(view: TimerView) -> dict[str, Any]:
    return plain(view) | innermost(view.parallel_group_path) | {"timer_id": view.id} | AUTHORITY


def shown_link(link: Link) -> dict[str, Any]:
    return plain(link) | {"status_bucket": None if link.status is None else BUCKET_OF[link.status]} | AUTHORITY
