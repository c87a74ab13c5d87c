"""Failed workflow tasks: each is offered again after a pause, which grows with every failure.

A task whose code was blocked waits for other code instead (`blocked`).
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.feature import Deadline
from backstay.kernel.features.workflow_task.blocked import block_task
from backstay.kernel.state import Instance
from backstay.kernel.task import Block, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Micros

BACKOFF = 3 * SECOND  # doubled with every failure
LONGEST = 600 * SECOND  # the upper bound of the setting


def pause_after(failures: int) -> Micros:
    return min(BACKOFF << min(failures, 10), LONGEST)


def set_aside(turn: Turn, task: Task, block: Block, crashes: int = 0) -> None:
    """Mark a task as failed: it is tried again after a pause, or with other code if this code was blocked."""
    turn.due_task = None
    if block.replay_blocked:
        block_task(turn, task, block, crashes)
        return
    backoff = min(pause_after(task.repair_count), turn.features.failure_backoff)
    turn.put_task(
        replace(
            task,
            state="failed",
            owner=None,
            leased_at=None,
            until=None,
            call=None,
            node=None,
            seen=None,
            block=block,
            crashes=crashes,
            repair_count=task.repair_count + 1,
            repair_available_at=turn.now + backoff,
        )
    )


def _repair_armed(instance: Instance, task_id: str) -> Micros | None:
    task = instance.tasks.get(task_id)
    return None if task is None else task.repair_available_at


def _repair_length(instance: Instance, task_id: str) -> Micros:
    return pause_after(instance.tasks[task_id].repair_count - 1)


def _revive(turn: Turn, task_id: str) -> None:
    task = turn.instance.tasks[task_id]
    revive(turn, task, task.crashes)


def revive(turn: Turn, task: Task, crashes: int = 0) -> None:
    """Offer a failed task again. The count of its crashes is reset unless the caller passes it on."""
    turn.put_task(
        replace(
            task,
            state="ready",
            block=None,
            crashes=crashes,
            repair_available_at=None,
            available_at=turn.now,
            created_at=turn.now,  # created now, without a pause: due even if the clock is set back (`Task.is_due`)
        )
    )


REPAIR = Deadline(_repair_armed, _revive, _repair_length)
