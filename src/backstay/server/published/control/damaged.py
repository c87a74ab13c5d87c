"""The detail of a run whose history is damaged: its rows, as evidence only.

Such a run does not go on and is not repaired, because only history says what is next. Claims of rows are marked:
`mutable_open_fallback` for work that seems open, `unsupported_terminal_without_history` for an end that no event of the run
has, `failure_row_fallback` for a failure that only the index knows of.
"""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.task import Resume, Task
from backstay.kernel.values import execution_id
from backstay.kernel.views.liveness import transport_state
from backstay.protocol.detail_pages import SHOWN, collections
from backstay.protocol.requests import TaskView
from backstay.protocol.run_detail import PROJECTION_SOURCES, declared, shown_commands
from backstay.protocol.run_tasks import replay_block, shown_task
from backstay.protocol.tasks import optional_iso
from backstay.server.published.control.workflow_json import undescribed
from backstay.server.server import Server
from backstay.store import Opening
from backstay.store.views import ViewChanges

_MISSING = {
    "activity": "terminal_activity_row_without_typed_history",
    "timer": "terminal_timer_row_without_typed_history",
    "child": "terminal_child_link_without_typed_parent_history",
}
"""Kinds of work whose end a workflow task delivers, and the message if no event records that end."""


async def damaged_detail(server: Server, row: RunRow, damage: HistoryDamaged) -> dict[str, Any]:
    """The same fields as of any other run: what only history could tell is empty."""
    now = server.now
    await _forget_summary(server, row)
    opening = await _opening(server, row)
    own = [task for task in await server.store.tasks(row.workflow) if task.run == row.key][:SHOWN]
    waits = [_evidence(task, row) for task in own]
    failures = [_failure(row)] if row.status == "failed" else []
    commands = await server.api.looking.commands(row.workflow)
    lists: dict[str, list[dict[str, Any]]] = {
        "commands": shown_commands([command for command in commands if command.may_be_of(row.key)][-SHOWN:], (), ()),
        "signals": [],
        "updates": [],
        "waits": waits,
        "tasks": [
            shown_task(TaskView(task=task, transport_state=transport_state(task, now)), row.run_id, {}) for task in own
        ],
        "timeline": [],
        "activities": [_step(wait) for wait in waits if wait["kind"] == "activity"],
        "timers": [_step(wait) for wait in waits if wait["kind"] == "timer"],
        "failures": failures,
        "parents": [],
        "children": [],
        "logs": [],
        "chartData": [],
        "exceptions": failures,
        "continuedWorkflows": [],
    }
    return (
        undescribed(server, row)
        | lists
        | declared([])
        | PROJECTION_SOURCES
        | {
            "is_current_run": opening is None or opening.row.run == row.key,
            "current_run_id": None if opening is None or opening.run is None else opening.run.run_id,
            "workflow_determinism_source": "unavailable",
            "open_wait_count": 0,
            "exception_count": len(failures),
            "replay_block": replay_block(own),
            "history_damage": {"sequence": damage.sequence, "message": str(damage)},
            "collections": collections(lists, {name: len(entries) for name, entries in lists.items()}, {}),
            "payloads_omitted": 0,
        }
    )


async def _forget_summary(server: Server, row: RunRow) -> None:
    """Remove the stored summary of the run: what lists tell of it was true once. None is made of a damaged history."""
    if not (server.engine.holder and server.node.projector.active):
        return
    written: asyncio.Future[object] = server.engine.world.future()
    server.store.put_views(
        ViewChanges(forgotten=[row.key]), lambda error: None if written.done() else written.set_result(error)
    )
    await written


async def _opening(server: Server, row: RunRow) -> Opening | None:
    """The rows of the instance, if they can be read."""
    try:
        return await server.store.opening(row.workflow)
    except HistoryDamaged:
        return None


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
