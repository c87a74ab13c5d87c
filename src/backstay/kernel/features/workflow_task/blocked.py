"""Blocked workflow tasks: the code of one worker cannot go on with a task, and workers with other code may.

The task is offered at once to live workers with other definitions. When none is left, it waits until such a worker
connects, or until an operator repairs it. Each definition gets it once (`Task.tried`), so that two of them cannot pass a
task to and fro for ever; a repair begins anew. The block names the worker.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.fleet import LiveFleet
from backstay.kernel.message import Refused
from backstay.kernel.task import Block, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND

REMEMBERED = 32  # definitions
ELSEWHERE = 5 * SECOND  # for so long a task is offered to processes of which only the code is known, not its types


def block_task(turn: Turn, task: Task, block: Block, crashes: int = 0) -> None:
    """The code of the worker that has this task was blocked: offer it to other code, or leave it until there is some."""
    worker = turn.fleet.worker(task)
    named = replace(
        block,
        worker=task.owner,
        host=None if worker is None else worker.host,
        build=None if worker is None else worker.build,
        fingerprint=block.fingerprint or (None if worker is None else worker.fingerprint),
    )
    # The report knows its own code. A worker that drains may share its id with the next release, which is registered now.
    code = named.fingerprint or (None if worker is None else worker.definition)
    tried = set[str]() if code is None else {code}
    if crashes:  # it is unknown which of them had it before
        found = turn.fleet.definitions(task)
        tried |= found.known | found.elsewhere
    known = task.tried
    now_tried = (*known, *sorted((tried or {"unknown"}).difference(known)))[-REMEMBERED:]
    put_aside(turn, replace(task, tried=now_tried, repair_count=task.repair_count + 1), named, crashes)
    # Without a new name on the list, this code would get the task again and again.
    if now_tried != known and others(turn.fleet, turn.instance.tasks[task.id]):
        offer_to_others(turn, turn.instance.tasks[task.id])


def put_aside(turn: Turn, task: Task, block: Block, crashes: int = 0) -> None:
    """Leave a blocked task until other code connects, or an operator repairs it."""
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
            last_block=None,
            crashes=crashes,
            repair_available_at=None,
        )
    )


def offer_to_others(turn: Turn, task: Task) -> None:
    """Make a blocked task ready for workers with definitions that it has not been tried with."""
    turn.put_task(
        replace(
            task,
            state="ready",
            block=None,
            last_block=task.block,
            crashes=0,
            available_at=turn.now,
            created_at=turn.now,  # created now, without a pause: due even if the clock is set back (`Task.is_due`)
        )
    )


def others(fleet: LiveFleet, task: Task) -> bool:
    """Whether a blocked task may be offered: a live worker that could take it has another definition."""
    found = fleet.definitions(task)
    return bool((found.known | found.elsewhere).difference(_tried(task)))


def withdraw(turn: Turn, task: Task) -> bool:
    """Put a task aside that was offered to other code, if none is left. Returns whether it was."""
    block = task.last_block
    if block is None:
        return False
    found = turn.fleet.definitions(task)
    if found.known.difference(task.tried):
        return False
    elsewhere = found.elsewhere.difference(task.tried)
    if elsewhere and turn.now - task.available_at < ELSEWHERE:
        return False
    put_aside(turn, replace(task, tried=(*task.tried, *sorted(elsewhere))[-REMEMBERED:]), block)
    return True


REPLAY_BLOCKED = "workflow_replay_blocked"  # the state of the run, and why it answers no query


def query_refusal(block: Block) -> Refused:
    """Why a run answers no query: its code cannot be replayed."""
    return Refused(
        "query_rejected",
        f"the run cannot be replayed with this code: {block.message}",
        query_blocked_reason=REPLAY_BLOCKED,
        replay_blocked_reason=block.reason,
        workflow_sequence=block.workflow_sequence,
        expected_history_shape=block.expected_history_shape,
        recorded_event_types=block.recorded_event_types,
    )


def _tried(task: Task) -> tuple[str, ...]:
    """The definitions that were tried. Rows of earlier releases name the last of them in the block."""
    return task.tried or ((task.block.fingerprint or "unknown",) if task.block is not None else ())
