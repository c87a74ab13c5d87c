"""The tasks of a run as JSON: its task rows, expected tasks without a row, its timers, and, once it has closed, the
tasks of its history. A blocked task shows the difference between its code and its history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backstay.kernel.agenda import wake_is_late
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.task import Block, Resume, Task
from backstay.kernel.values import Micros, activity_task_id, workflow_task_id
from backstay.kernel.views.activities import ActivityView
from backstay.kernel.views.waits import WaitView
from backstay.protocol.history import iso
from backstay.protocol.plain import plain
from backstay.protocol.requests import TaskView
from backstay.protocol.tasks import optional_iso


def shown_task(view: TaskView, run_id: str, activities: Mapping[int, ActivityView]) -> dict[str, Any]:
    task = view.task
    activity = _activity_of(task, activities)
    return {
        **_SHAPE,
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
        "leased_at": optional_iso(task.leased_at),
        "lease_expires_at": optional_iso(task.until),
        "available_at": iso(task.available_at),
        "repair_count": task.repair_count,
        "repair_available_at": optional_iso(task.repair_available_at),
        "last_error": None if task.block is None else task.block.message,
        "replay_blocked": task.is_blocked,
        "replay_block": None if task.block is None else shown_block(task, task.block),
        "created_at": iso(task.created_at),
        "closed_at": None,
    }


def shown_block(task: Task, block: Block) -> dict[str, Any]:
    """Why a workflow task cannot go on. `difference`: step by step, the history and the commands of the code."""
    return {
        "reason": block.reason,
        "message": block.message,
        "type": block.type,
        "replay_blocked": block.replay_blocked,
        "workflow_sequence": block.workflow_sequence,
        "expected_history_shape": block.expected_history_shape,
        "recorded_event_types": block.recorded_event_types,
        "exception_class": block.exception_class,
        "exception_type": block.exception_type,
        "resolution_source": block.resolution_source,
        "resolution_error": block.resolution_error,
        "exception_replay_blocked": block.replay_blocked and block.resolution_source is not None,
        "stack_trace": block.stack_trace,
        "difference": [_line(recorded, asked) for recorded, asked in block.difference],
        **shown_blocker(task, block),
    }


def shown_blocker(task: Task, block: Block) -> dict[str, Any]:
    """The worker whose code was blocked, and the definitions that the task was tried with since it was last repaired."""
    return {
        "workflow_definition_fingerprint": block.fingerprint,
        "worker_id": block.worker,
        "host": block.host,
        "build_id": block.build,
        "tried_definitions": list(task.tried),
    }


def _line(recorded: str, asked: str) -> dict[str, Any]:
    """One step of a difference. `recorded` begins with the number of the step."""
    number, _, said = recorded.partition(": ")
    sequence = int(number) if number.isdecimal() else None
    found = said if sequence is not None else recorded
    return {"workflow_sequence": sequence, "recorded": found or None, "expected": asked or None, "same": found == asked}


def replay_block(tasks: Iterable[Task]) -> dict[str, Any] | None:
    """The block of a run whose code does not fit its history."""
    return next((shown_block(task, task.block) for task in tasks if task.is_blocked and task.block is not None), None)


_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("id", "type", "status", "transport_state", "label")),
    "task_missing": False,
    "synthetic": False,
    "expected_task_id": None,
    **dict.fromkeys(Resume.__struct_fields__),
    **dict.fromkeys(("retry_after_attempt", "retry_available_at")),
    "attempt_count": 0,
    **dict.fromkeys(("lease_owner", "leased_at", "lease_expires_at", "available_at")),
    "repair_count": 0,
    **dict.fromkeys(("repair_available_at", "last_error")),
    "replay_blocked": False,
    **dict.fromkeys(("replay_block", "created_at", "closed_at")),
}
"""Every task has all of these: one with a row, a missing one, a timer, and one from history."""


def missing_task(task: Task, run_id: str, activities: Mapping[int, ActivityView]) -> dict[str, Any]:
    """A task that history expects and that has no row."""
    shown = shown_task(TaskView(task=task, transport_state="missing"), run_id, activities)
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
        "retry_available_at": optional_iso(activity.available_at),
    }


def timer_tasks(waiting: Iterable[WaitView], wake: Micros | None) -> list[dict[str, Any]]:
    """Waits that a timer will end, as tasks. If the instance has no wake for it, the timer counts as missing."""
    return [
        _timer_task(wait)
        | (_lost(f"timer:{wait.resume_source_id}", wait.resume_source_id) if wake_is_late(wake, at) else {})
        for wait in waiting
        if wait.status == "open" and wait.source_status != "timeout_fired" and (at := wait.deadline_at) is not None
    ]


def _timer_task(wait: WaitView) -> dict[str, Any]:
    """The timer of a wait, as a task. It has no row of its own, only a deadline."""
    return {
        **_SHAPE,
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
        "available_at": optional_iso(wait.deadline_at),
        "created_at": iso(wait.opened_at),
        "closed_at": None,
    }


def closed_tasks(row: RunRow, history: Iterable[Recorded], activities: Iterable[ActivityView]) -> list[dict[str, Any]]:
    """The tasks of a closed run, oldest first, from history: each completed, or cancelled when the run closed.

    Rows of closed tasks are deleted, but every event names the task that it came from.
    """
    found: dict[str, dict[str, Any]] = {}
    serving = {view.sequence: view for view in activities}
    started = 1
    for entry in history:
        context = entry.context
        if isinstance(entry.event, WorkflowStarted):
            started = entry.sequence
        if context.task_id is None:
            continue
        task = found.get(context.task_id)
        if task is None:
            task = found[context.task_id] = _closed(row, context.task_id, entry, serving)
        task["attempt_count"] = max(task["attempt_count"], context.attempt or 0)
        task["lease_owner"] = context.owner or task["lease_owner"]
        task["leased_at"] = optional_iso(context.leased_at) or task["leased_at"]
        task["lease_expires_at"] = optional_iso(context.lease_expires_at) or task["lease_expires_at"]
        task["closed_at"] = iso(entry.at)
    for view in serving.values():
        if view.local_activity:
            continue
        id = view.latest.task_id if view.latest is not None else None
        id = id or activity_task_id(row.run_id, view.sequence, 1)
        if id not in found:
            found[id] = _never_leased(row, id, view)
        if view.status not in ("completed", "failed"):
            found[id] |= _ended("cancelled") | {"closed_at": optional_iso(view.closed_at or row.closed_at)}
    if not any(task["type"] == "workflow" for task in found.values()):
        # It closed before a worker took its first task.
        first = workflow_task_id(row.run_id, started)
        ended = {"closed_at": optional_iso(row.closed_at)}
        found[first] = _template(row, first, "workflow", row.started_at) | _ended("cancelled") | ended
    return list(found.values())


def _closed(row: RunRow, task_id: str, entry: Recorded, activities: Mapping[int, ActivityView]) -> dict[str, Any]:
    step = _step_of(row.run_id, task_id)
    view = None if step is None else activities.get(step)
    if view is not None:
        return _never_leased(row, task_id, view) | _ended("completed")
    return _template(row, task_id, "workflow", entry.at) | _ended("completed")


def _never_leased(row: RunRow, task_id: str, view: ActivityView) -> dict[str, Any]:
    task = _template(row, task_id, "activity", view.created_at) | _serving(view) | _ended("cancelled")
    return task | {"label": f"activity {view.activity_type}, attempt {max(view.attempt_count, 1)}"}


def _ended(status: str) -> dict[str, Any]:
    return {"status": status, "transport_state": status}


def _template(row: RunRow, task_id: str, kind: str, at: Micros) -> dict[str, Any]:
    return {
        **_SHAPE,
        "id": task_id,
        "type": kind,
        "status": "completed",
        "transport_state": "completed",
        "label": "workflow task" if kind == "workflow" else "activity",
        "available_at": iso(at),
        "created_at": iso(at),
    }


def _step_of(run_id: str, task_id: str) -> int | None:
    """The step of an activity task, by its id."""
    prefix = f"{run_id}-a"
    number = task_id.removeprefix(prefix).partition(".")[0] if task_id.startswith(prefix) else ""
    return int(number) if number.isdecimal() else None


def _activity_of(task: Task, activities: Mapping[int, ActivityView]) -> ActivityView | None:
    step = _step_of(task.id.partition("-")[0], task.id)
    return None if step is None else activities.get(step)


def _label(task: Task, activity: ActivityView | None) -> str:
    if activity is not None:
        return f"activity {activity.activity_type}, attempt {max(activity.attempt_count, 1)}"
    return f"{task.kind} task, for {task.resume.workflow_wait_kind or 'the run itself'}"
