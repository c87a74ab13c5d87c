"""Workflow tasks: a run has one exactly while its history has a waking event after the cursor.

The task's id derives from the first such event, so a lost row can be made again. Completing a task applies its commands
in order, all or none, and moves the cursor to what the code had seen. A failed task never fails the run: it stays,
`failed`, until its backoff ends or, when replay is blocked, until another definition is deployed or an operator repairs
it.

Five chapters: `messages`, `expected` (which task must exist, and what it may see), `completion` (complete, fail,
heartbeat), `backoff` (failed tasks), and `crashed` (the worker never reported).
"""

from __future__ import annotations

from backstay.kernel.feature import Deciding, Feature, TaskRule
from backstay.kernel.features.workflow_task.backoff import BACKOFF, LONGEST, REPAIR, revive
from backstay.kernel.features.workflow_task.completion import complete, fail, heartbeat, limits
from backstay.kernel.features.workflow_task.crashed import lost
from backstay.kernel.features.workflow_task.expected import (
    SEEN_BY_NEXT_TASK,
    WorkflowAssignment,
    assign,
    ensure_task,
    events_shown,
    expect,
    history_end,
    replay_position,
    seen_by_next_task,
    serves,
)
from backstay.kernel.features.workflow_task.messages import (
    CRASHED,
    DEADLINE_EXCEEDED,
    WAITING_FOR_HISTORY,
    CompleteWorkflowTask,
    FailWorkflowTask,
    HeartbeatWorkflowTask,
    TaskReply,
)

__all__ = [
    "BACKOFF",
    "CRASHED",
    "DEADLINE_EXCEEDED",
    "FEATURE",
    "LONGEST",
    "SEEN_BY_NEXT_TASK",
    "WAITING_FOR_HISTORY",
    "CompleteWorkflowTask",
    "FailWorkflowTask",
    "HeartbeatWorkflowTask",
    "TaskReply",
    "WorkflowAssignment",
    "events_shown",
    "history_end",
    "replay_position",
    "revive",
    "seen_by_next_task",
]

FEATURE = Feature(
    name="workflow_task",
    deciding=Deciding(
        messages={CompleteWorkflowTask: complete, FailWorkflowTask: fail, HeartbeatWorkflowTask: heartbeat},
        deadlines={"repair": REPAIR},
        tasks={"workflow": TaskRule(serves, assign, lost)},
        expect=expect,
        ensure_task=ensure_task,
        limits=limits,
    ),
)
