"""Crashes: attempts that were started and never reported, because their process or worker is gone.

It is not known how far such an attempt got. The activity is started again under the same task, at once the first time
and then after a growing pause, since it may be what kills its workers. `max_crashes` bounds how often that happens in a
row. An attempt that reports, or whose heartbeat shows more progress than all attempts before, resets the count. With a
bound of 0 an activity runs at most once. Crashes are no failures of the activity: they do not count as its retries.
"""

from __future__ import annotations

from backstay.kernel.failure import Failure
from backstay.kernel.features.activity.attempts import leased_to
from backstay.kernel.features.activity.records import (
    Activities,
    ActivityFailed,
    ActivityRetryScheduled,
    Execution,
    progress_text,
)
from backstay.kernel.features.activity.schedule import task_of
from backstay.kernel.task import Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Micros, failure_id

CRASHED = "ActivityCrashed"
LONGEST = 60 * SECOND


def pause_after(crashes: int) -> Micros:
    """The pause after so many crashes: none after the first, which is most often a deploy; then a second, doubled each
    time."""
    return 0 if crashes < 2 else min(SECOND << min(crashes - 2, 10), LONGEST)


def lost(turn: Turn, task: Task, begun: bool) -> None:
    """The lease of an attempt has ended without a report."""
    execution = turn.run.part(Activities).open.get(task.step or 0)
    if execution is None or execution.task_id != task.id:
        turn.drop_task(task.id)  # nothing waits for this task any more
    elif not execution.running:
        turn.put_task(task_of(turn.instance, turn.run, execution))
    elif not leased_to(task, execution) and (execution.lease_until or turn.now + 1) > turn.now:
        # The row is wrong: history says which attempt is running.
        turn.put_task(task_of(turn.instance, turn.run, execution))
    elif not begun:
        _start_again(turn, execution, "activity_not_delivered", execution.crashes, "never reached its worker")
    else:
        _crashed(turn, execution)


def stray(turn: Turn, task: Task) -> None:
    """A row is ready although its attempt is running, or its lease ended long ago."""
    lost(turn, task, True)


def _crashed(turn: Turn, execution: Execution) -> None:
    crashes = execution.crashes + 1
    bound = execution.policy.max_crashes
    if crashes <= bound:
        _start_again(turn, execution, "activity_crashed", crashes, "never reported: its process or worker is gone")
        return
    run = turn.run
    scheduled = execution.scheduled
    turn.drop_task(execution.task_id)
    message = _conclusion(execution, crashes)
    turn.record(
        ActivityFailed(
            sequence=execution.step,
            activity_execution_id=scheduled.activity_execution_id,
            activity_type=scheduled.activity_type,
            activity_attempt_id=execution.attempt_id,
            attempt_number=execution.attempt,
            failure_id=failure_id(run.run_id, run.length + 1),
            message=message,
            non_retryable=True,
            exception_type=CRASHED,
            code=crashes,
            exception=Failure(message=message, exception_type=CRASHED, code=crashes, non_retryable=True),
        )
    )


def _conclusion(execution: Execution, crashes: int) -> str:
    name = f"activity {execution.scheduled.activity_type!r}"
    if execution.policy.max_crashes == 0:
        end = f"attempt {execution.attempt} of {name} never reported, and it may run at most once"
    else:
        end = f"the process or worker of {name} died {crashes} times in a row"
    progress = None if execution.progress is None else progress_text(execution.progress)
    last_progress = "" if progress is None else f" (last progress: {progress})"
    return f"{end}{last_progress}; it may have done its work, in part or whole"


def _start_again(turn: Turn, execution: Execution, reason: str, crashes: int, why: str) -> None:
    """Close this attempt; the same task is offered for the next one."""
    pause = pause_after(crashes) if crashes > execution.crashes else 0
    scheduled = execution.scheduled
    turn.record(
        ActivityRetryScheduled(
            sequence=execution.step,
            activity_execution_id=scheduled.activity_execution_id,
            activity_type=scheduled.activity_type,
            activity_attempt_id=execution.attempt_id,
            retry_task_id=execution.task_id,
            retry_of_task_id=execution.task_id,
            retry_available_at=turn.now + pause,
            retry_backoff_seconds=pause / SECOND,
            retry_after_attempt_id=execution.attempt_id,
            retry_after_attempt=execution.attempt,
            retry_reason=reason,
            message=f"attempt {execution.attempt} of activity {scheduled.activity_type!r} {why}",
            max_attempts=execution.policy.max_attempts,
            crashes=crashes,
        )
    )
    turn.put_task(task_of(turn.instance, turn.run, execution))
