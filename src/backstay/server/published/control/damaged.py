"""The detail of a run whose history is damaged: its rows, as evidence only.

Such a run does not go on and is not repaired, because only history says what is next. Claims of rows are marked:
`mutable_open_fallback` for work that seems open, `unsupported_terminal_without_history` for an end that no event of the run
has, `failure_row_fallback` for a failure that only the index knows of.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.task import Resume, Task
from backstay.kernel.values import execution_id
from backstay.kernel.views.actions import REPAIR_REASONS
from backstay.kernel.views.liveness import transport_state
from backstay.protocol.requests import TaskView
from backstay.protocol.run_detail import plain, shown_task
from backstay.protocol.tasks import optional_iso
from backstay.server.published.control.workflow_json import listed
from backstay.server.server import Server

REASON = "unsupported_history"
STATE = "workflow_replay_blocked"
SUMMARY: dict[str, Any] = {
    "is_current_run": True,
    "declared_entry_mode": None,
    "declared_contract_source": "unavailable",
    "liveness_state": STATE,
    **dict.fromkeys(("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id")),
    **dict.fromkeys(("next_task_id", "next_task_type", "next_task_status")),
    "can_repair": False,
    "repair_blocked_reason": REASON,
    "repair_attention": REPAIR_REASONS[REASON].badge_visible,
    "task_problem": True,
}
_VERBS = ("query", "signal", "update", "repair", "archive", "cancel", "terminate")
_NOTHING = (
    *("timeline", "parents", "children", "continuedWorkflows"),
    *("signals", "updates", "logs", "chartData"),
)
_MISSING = {
    "activity": "terminal_activity_row_without_typed_history",
    "timer": "terminal_timer_row_without_typed_history",
    "child": "terminal_child_link_without_typed_parent_history",
}
"""Kinds of work whose end a workflow task delivers, and the message if no event records that end."""


async def damaged_detail(server: Server, row: RunRow, damage: HistoryDamaged) -> dict[str, Any]:
    now = server.now
    tasks = [task for task in await server.store.tasks(row.workflow) if task.run == row.key]
    waits = [_evidence(task, row) for task in tasks]
    failures = [_failure(row)] if row.status == "failed" else []
    return (
        listed(row)
        | SUMMARY
        | {
            "actions": {f"can_{verb}": False for verb in _VERBS}
            | {f"{verb}_blocked_reason": REASON for verb in _VERBS},
            "repair_blocked": msgspec.to_builtins(REPAIR_REASONS[REASON]),
            "history_damage": {"sequence": damage.sequence, "message": str(damage)},
            "waits": waits,
            "activities": [_step(wait) for wait in waits if wait["kind"] == "activity"],
            "timers": [_step(wait) for wait in waits if wait["kind"] == "timer"],
            "failures": failures,
            "exceptions": failures,
            "exception_count": len(failures),
            "open_wait_count": 0,
            "tasks": [
                shown_task(TaskView(task=task, transport_state=transport_state(task, now)), row.run_id, ())
                for task in tasks
            ],
            "commands": [
                plain(command) for command in await server.store.commands(row.workflow) if command.may_be_of(row.key)
            ],
            **{name: [] for name in _NOTHING},
        }
    )


def _evidence(task: Task, row: RunRow) -> dict[str, Any]:
    """What a row seems to wait for or to deliver. Nothing in it could resume the run."""
    resume = task.resume
    scheduled = None if task.kind != "activity" or task.step is None else execution_id(row.run_id, task.step)
    ended = None if scheduled is not None else _ended(resume)
    kind = "activity" if scheduled is not None else ended or resume.workflow_wait_kind or "workflow-task"
    execution = scheduled or resume.activity_execution_id
    return {
        "wait_id": f"activity:{execution}"
        if execution is not None
        else resume.open_wait_id or f"workflow-task:{task.id}",
        "kind": kind,
        "status": "open" if ended is None else "unsupported",
        "source_status": task.state if ended is None else "unsupported",
        "row_status": task.state if ended is None else _END.get(resume.workflow_event_type or "", task.state),
        "target_name": task.type if scheduled is not None else resume.activity_type or resume.signal_name,
        "activity_execution_id": execution,
        "timer_id": resume.timer_id,
        "child_call_id": resume.child_call_id,
        "child_workflow_run_id": resume.child_workflow_run_id,
        "resume_source_kind": None,
        "resume_source_id": None,
        "history_authority": "mutable_open_fallback" if ended is None else "unsupported_terminal_without_history",
        "history_unsupported_reason": None if ended is None else _MISSING[ended],
        "diagnostic_only": True,
    }


def _ended(resume: Resume) -> str | None:
    """The kind of work whose end a workflow task delivers, if any."""
    if resume.activity_execution_id is not None:
        return "activity"
    if resume.workflow_wait_kind == "child":
        return "child"
    return "timer" if resume.timer_id is not None and resume.condition_wait_id is None else None


_END = {
    "ActivityCompleted": "completed",
    "ActivityFailed": "failed",
    "ActivityTimedOut": "failed",
    "ActivityCancelled": "cancelled",
    "TimerFired": "fired",
    "ChildRunCompleted": "completed",
    "ChildRunFailed": "failed",
    "ChildRunCancelled": "cancelled",
    "ChildRunTerminated": "terminated",
}


def _step(wait: dict[str, Any]) -> dict[str, Any]:
    """The same evidence as an activity or a timer, without result and end."""
    id = wait["activity_execution_id"] if wait["kind"] == "activity" else wait["timer_id"]
    return wait | {"id": id, "activity_type": wait["target_name"], "result": None, "closed_at": None}


def _failure(row: RunRow) -> dict[str, Any]:
    """The failure of the run. The index says that it failed; only history says why."""
    return {
        "failure_id": None,
        "source_kind": "workflow_run",
        "source_id": row.run_id,
        "propagation_kind": "terminal",
        "message": None,
        "recorded_at": optional_iso(row.closed_at),
        "history_authority": "failure_row_fallback",
        "diagnostic_only": True,
    }
