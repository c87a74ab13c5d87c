"""Workflow tasks: a run has one exactly while its history has a waking event after the cursor.

The task's id derives from the first such event, so a lost row can be made again. Completing a task applies its commands
in order, all or none, and moves the cursor to the last event that the code had seen. A failed task never fails the run:
it stays, `failed`, until its backoff ends or, when its code was blocked, until a worker has other code or an operator
repairs it.

Six chapters: `messages`, `expected` (the task that must exist, and the events that it may see), `completion` (complete,
fail, heartbeat), `backoff` (failed tasks), `blocked` (other code may go on), and `crashed` (the worker never reported).
"""

from __future__ import annotations

from backstay.kernel.feature import Deciding, Feature, TaskRule
from backstay.kernel.features.workflow_task.backoff import BACKOFF, LONGEST, REPAIR, revive
from backstay.kernel.features.workflow_task.blocked import (
    REPLAY_BLOCKED,
    offer_to_others,
    others,
    query_refusal,
    withdraw,
)
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
    "REPLAY_BLOCKED",
    "SEEN_BY_NEXT_TASK",
    "WAITING_FOR_HISTORY",
    "CompleteWorkflowTask",
    "FailWorkflowTask",
    "HeartbeatWorkflowTask",
    "TaskReply",
    "WorkflowAssignment",
    "events_shown",
    "history_end",
    "offer_to_others",
    "others",
    "query_refusal",
    "replay_position",
    "revive",
    "seen_by_next_task",
    "withdraw",
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
