"""Workflow tasks that a worker started and never reported on, because it is gone or hangs inside C.

The first time is most often a deploy, and the task is offered again at once. After that its code is suspected: the task
pauses as after a failure, and after `MOST` times in a row it is blocked, before it kills one worker after the other.
Any report resets the count, and so does a repair. The count is in the task's row and not in history, because a worker
that did not report is no fact of the run; if the row is lost, the count starts from zero.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.features.workflow_task.backoff import set_aside
from backstay.kernel.features.workflow_task.expected import serves
from backstay.kernel.features.workflow_task.messages import CRASHED
from backstay.kernel.task import Block, Task
from backstay.kernel.turn import Turn

MOST = 10


def lost(turn: Turn, task: Task, begun: bool) -> None:
    """The lease of a workflow task has ended without a report."""
    if not serves(turn.instance, task):
        turn.drop_task(task.id)  # another task is due instead
    elif task.block is not None:
        set_aside(turn, task, task.block)  # the worker had reported a failure (`keep`), so that counts
    elif not begun:
        turn.release_lease(task)
    elif task.crashes == 0:
        turn.release_lease(replace(task, crashes=1))
    else:
        set_aside(turn, task, _block(turn, task, task.crashes + 1), task.crashes + 1)


def _block(turn: Turn, task: Task, crashes: int) -> Block:
    enough = crashes >= MOST
    then = (
        f"deploy corrected code, or retry the same code with `dw repair {turn.instance.workflow_id}`"
        if enough
        else "it is retried after a pause"
    )
    return Block(
        message=(
            f"a worker died or went silent {crashes} times in a row while it ran workflow code of type {task.type!r}; the"
            " code may kill its worker (out of memory, a crash or an exit of the process) or hang in a call that cannot"
            f" be interrupted; {then}"
        ),
        type="WorkflowTaskCrashed",
        replay_blocked=enough,
        reason=CRASHED,
    )
