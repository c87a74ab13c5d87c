"""The JSON of one run with everything that happened in it, the same for the detail route and for an export.

All of it is folded from history. Only `tasks` are rows, and their names come from history as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from backstay.kernel.agenda import wake_is_late
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros, activity_task_id
from backstay.kernel.views import actions
from backstay.kernel.views.activities import ActivityView, activities
from backstay.kernel.views.failures import failures
from backstay.kernel.views.lineage import Link, lineage
from backstay.kernel.views.messages import signals, updates
from backstay.kernel.views.timeline import WORDS
from backstay.kernel.views.timers import TimerView, timers
from backstay.kernel.views.waits import WaitView, waits
from backstay.kernel.words import About
from backstay.protocol.history import iso, operator_event, time_fields
from backstay.protocol.payloads import envelope
from backstay.protocol.requests import Description, TaskView

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


def run_detail(
    row: RunRow,
    history: list[Recorded],
    commands: list[CommandRecord],
    held: Description | None,
    chain: Mapping[str, RunRow],
) -> dict[str, Any]:
    """The parts of a run that follow from its history.

    `held` describes the instance if the run is its current one. `chain`: the runs before and after it, by run id.
    """
    done = activities(history)
    waiting = held.waits if held else waits(history, row)
    wake = held.next_wake if held else None
    tasks = [view.task for view in held.tasks] if held else []
    return {
        "commands": [plain(command) for command in commands],
        "signals": [plain(view) for view in (held.signals if held else signals(history, commands))],
        "updates": [plain(view) for view in (held.updates if held else updates(history))],
        "waits": waits_view(row, history, tasks),
        "tasks": [
            *(shown_task(view, row.run_id, done) for view in (held.tasks if held else [])),
            *(missing_task(task, row.run_id, done) for task in (held.missing_tasks if held else [])),
            *(timer_tasks(waiting, wake) if held else []),
        ],
        "timeline": timeline(history, row.run_id),
        "activities": [shown_activity(view) for view in done],
        "timers": timers_view(row, history, wake),
        "failures": [plain(view) for view in failures(history, row.run_id)],
        **lineage_view(row, history, chain),
    }


def waits_view(row: RunRow, history: Iterable[Recorded], tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """All waits of a run, open ones first. `tasks`: the task rows of the run."""
    return [plain(view) | AUTHORITY for view in waits(history, row)]


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
    started = next((entry.event for entry in history if isinstance(entry.event, WorkflowStarted)), None)
    return plain(actions.declared(started)) | {name: getattr(started, name, None) or [] for name in _DECLARED}


def plain(view: Struct) -> dict[str, Any]:
    """A view as JSON: times in ISO, payloads in envelopes, unknown values as null."""
    times = time_fields(type(view))
    return {name: _plain(getattr(view, name), name in times) for name in view.__struct_fields__}


def _plain(value: Any, is_time: bool) -> Any:
    match value:
        case None:
            return None
        case int() if is_time:
            return iso(value)
        case bytes():
            return envelope(value)
        case Struct():
            return plain(value)
        case list() | tuple():
            return [_plain(item, False) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


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


def shown_activity(view: ActivityView) -> dict[str, Any]:
    shown = plain(view)
    if view.parallel_group_path:  # the innermost group is also shown flat
        shown |= plain(view.parallel_group_path[-1])
    return shown | AUTHORITY


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
    shown = plain(view)
    if view.parallel_group_path:
        shown |= plain(view.parallel_group_path[-1])
    return shown | {"timer_id": view.id} | AUTHORITY


def shown_link(link: Link) -> dict[str, Any]:
    return plain(link) | {"status_bucket": None if link.status is None else BUCKET_OF[link.status]} | AUTHORITY


def shown_task(view: TaskView, run_id: str, views: Iterable[ActivityView]) -> dict[str, Any]:
    task = view.task
    activity = _activity_of(task, run_id, views)
    return {
        "id": task.id,
        "type": task.kind,
        "status": task.state,
        "transport_state": view.transport_state,
        "task_missing": False,
        "label": _label(task, activity),
        **plain(task.resume),
        **({} if activity is None else _serving(activity)),
        "attempt_count": task.attempt,
        "lease_owner": task.owner,
        "leased_at": None if task.leased_at is None else iso(task.leased_at),
        "lease_expires_at": None if task.until is None else iso(task.until),
        "available_at": iso(task.available_at),
        "repair_count": task.repair_count,
        "repair_available_at": None if task.repair_available_at is None else iso(task.repair_available_at),
        "last_error": None if task.block is None else task.block.message,
        "created_at": iso(task.created_at),
    }


def missing_task(task: Task, run_id: str, views: Iterable[ActivityView]) -> dict[str, Any]:
    """A task that history expects and that has no row."""
    view = TaskView(task=task, transport_state="missing")
    shown = shown_task(view, run_id, views)
    if task.kind == "activity":
        about = f"activity:{shown['activity_execution_id']}"
    else:
        about = f"workflow:{task.resume.open_wait_id or run_id}"
    return shown | _lost(about, task.id)


def _lost(about: str, expected_task_id: str | None) -> dict[str, Any]:
    return {
        "id": f"missing:{about}",
        "status": "missing",
        "transport_state": "missing",
        "task_missing": True,
        "synthetic": True,
        "expected_task_id": expected_task_id,
    }


def _serving(activity: ActivityView) -> dict[str, Any]:
    return {
        "activity_execution_id": activity.id,
        "activity_attempt_id": activity.current_attempt_id,
        "activity_type": activity.activity_type,
        "workflow_sequence": activity.sequence,
        "retry_after_attempt": activity.attempt_count if activity.available_at is not None else None,
        "retry_available_at": None if activity.available_at is None else iso(activity.available_at),
    }


def timer_tasks(waiting: Iterable[WaitView], wake: Micros | None) -> list[dict[str, Any]]:
    """Waits that a timer will end, as tasks. If the instance has no wake for it, the timer counts as missing."""
    return [
        timer_task(wait)
        | (_lost(f"timer:{wait.resume_source_id}", wait.resume_source_id) if wake_is_late(wake, at) else {})
        for wait in waiting
        if wait.status == "open" and wait.source_status != "timeout_fired" and (at := wait.deadline_at) is not None
    ]


def timer_task(wait: WaitView) -> dict[str, Any]:
    """The timer of a wait, as a task. It has no row of its own, only a deadline."""
    assert wait.deadline_at is not None
    return {
        "id": wait.resume_source_id,
        "type": "timer",
        "status": "ready",
        "transport_state": "scheduled",
        "task_missing": False,
        "label": f"timer, for {wait.kind}",
        "timer_id": wait.resume_source_id,
        "condition_wait_id": wait.wait_id if wait.kind == "condition" else None,
        "condition_key": wait.condition_key,
        "signal_wait_id": wait.wait_id if wait.kind == "signal" else None,
        "open_wait_id": wait.wait_id,
        "available_at": iso(wait.deadline_at),
        "created_at": iso(wait.opened_at),
    }


def _activity_of(task: Task, run_id: str, views: Iterable[ActivityView]) -> ActivityView | None:
    for view in views:
        if task.id.startswith(activity_task_id(run_id, view.sequence, 1).rpartition(".")[0] + "."):
            return view
    return None


def _label(task: Task, activity: ActivityView | None) -> str:
    if activity is not None:
        return f"activity {activity.activity_type}, attempt {max(activity.attempt_count, 1)}"
    return f"{task.kind} task, for {task.resume.workflow_wait_kind or 'the run itself'}"
