"""A run whose history does not add up, as far as it can be shown: its rows, as evidence and nothing more.

Nothing of it moves and nothing of it is repaired, because only history says what should come next. What rows still claim
is marked as such: `mutable_open_fallback` for work that seems open, `unsupported_terminal_without_history` for an end that
no event of the run has.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.task import Task
from backstay.kernel.values import execution_id
from backstay.kernel.views.actions import REPAIR_REASONS
from backstay.kernel.views.liveness import transport_state
from backstay.protocol import detail as show
from backstay.protocol.requests import TaskView
from backstay.server.control.views import listed
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
    *("timeline", "activities", "timers", "failures", "exceptions", "parents", "children", "continuedWorkflows"),
    *("signals", "updates", "logs", "chartData"),
)


async def damaged_detail(server: Server, row: RunRow, damage: HistoryDamaged) -> dict[str, Any]:
    now = server.now
    tasks = [task for task in await server.store.tasks(row.workflow) if task.run == row.key]
    return (
        listed(row)
        | SUMMARY
        | {
            "actions": {f"can_{verb}": False for verb in _VERBS}
            | {f"{verb}_blocked_reason": REASON for verb in _VERBS},
            "repair_blocked": msgspec.to_builtins(REPAIR_REASONS[REASON]),
            "history_damage": {"sequence": damage.sequence, "message": str(damage)},
            "waits": [_evidence(task, row) for task in tasks],
            "open_wait_count": 0,
            "tasks": [
                show.shown_task(TaskView(task=task, transport_state=transport_state(task, now)), row.run_id, ())
                for task in tasks
            ],
            "commands": [
                show.plain(command) for command in await server.store.commands(row.workflow) if command.run == row.key
            ],
            **{name: [] for name in _NOTHING},
        }
    )


def _evidence(task: Task, row: RunRow) -> dict[str, Any]:
    """What a row seems to wait for. It names no source that could resume the run."""
    resume = task.resume
    child = resume.workflow_wait_kind == "child"
    execution = None if task.kind != "activity" or task.step is None else execution_id(row.run_id, task.step)
    return {
        "wait_id": f"activity:{execution}"
        if execution is not None
        else resume.open_wait_id or f"workflow-task:{task.id}",
        "kind": "activity" if execution is not None else resume.workflow_wait_kind or "workflow-task",
        "status": "unsupported" if child else "open",
        "source_status": "unsupported" if child else task.state,
        "row_status": task.state,
        "target_name": task.type if execution is not None else resume.signal_name,
        "child_call_id": resume.child_call_id,
        "child_workflow_run_id": resume.child_workflow_run_id,
        "resume_source_kind": None,
        "resume_source_id": None,
        "history_authority": "unsupported_terminal_without_history" if child else "mutable_open_fallback",
        "history_unsupported_reason": "terminal_child_link_without_typed_parent_history" if child else None,
        "diagnostic_only": True,
    }
