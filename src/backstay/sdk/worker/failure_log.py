"""Failures in the log: one record for each, in the process where the exception was raised, never during a replay.

An attempt that is made again is a WARNING. An activity that fails for good and a workflow that fails are an ERROR. Each record
has the traceback, the ids in its message, and the same ids as fields of its own.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.views import log_ids
from backstay.sdk.replay.live_run import LiveRun

log = logging.getLogger("backstay.failures")


def attempt_failed(assignment: ActivityAssignment, error: BaseException, failure: Failure) -> None:
    policy, number = assignment.retry_policy, assignment.attempt_number
    again = (
        not failure.non_retryable
        and not policy.fatal(failure.exception_type, failure.exception_class)
        and policy.in_budget(number)
    )
    budget = "" if policy.max_attempts is None else f" of {policy.max_attempts}"
    log.log(
        logging.WARNING if again else logging.ERROR,
        "activity %r failed%s: %s: %s (attempt %s, step %s, workflow %r, run %s)",
        assignment.activity_type,
        "; it is tried again" if again else "",
        type(error).__name__,
        failure.message,
        f"{number}{budget}",
        assignment.step,
        assignment.workflow_id,
        assignment.run_id,
        exc_info=_trimmed(error),
        extra=log_ids.of_attempt(assignment),
    )


def timed_out(live_run: LiveRun, message: str) -> None:
    """Log an activity that timed out for good. No code raised it, so it is logged where its workflow gets the event."""
    if _happens(live_run):
        task = live_run.assignment
        told = "%s (workflow %r, run %s)"
        log.error(told, message, task.workflow_id, task.run_id, extra=log_ids.of_task(task))


def workflow_failed(live_run: LiveRun, error: BaseException, message: str) -> None:
    _of_run(logging.ERROR, "failed", live_run, error, message, {})


def update_failed(live_run: LiveRun, name: str, error: BaseException, message: str) -> None:
    what = f"goes on; its update {name!r} failed"
    _of_run(logging.WARNING, what, live_run, error, message, {"update_name": name})


def _of_run(level: int, what: str, live_run: LiveRun, error: BaseException, message: str, more: dict[str, Any]) -> None:
    if not _happens(live_run):
        return
    task = live_run.assignment
    log.log(
        level,
        "workflow %r %s: %s: %s (type %s, run %s)",
        task.workflow_id,
        what,
        type(error).__name__,
        message,
        task.workflow_type,
        task.run_id,
        exc_info=_trimmed(error),
        extra={**log_ids.of_task(task), **more},
    )


def _happens(live_run: LiveRun) -> bool:
    """Return whether the code runs for the first time: not in a replay, a query or while it is dropped."""
    return not (live_run.replaying or live_run.looking or live_run.abandoned)


def _trimmed(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return the exception without the frames of the SDK above those of the author."""
    shown = error.__traceback__
    while shown is not None and str(shown.tb_frame.f_globals.get("__name__")).startswith("backstay."):
        shown = shown.tb_next
    return type(error), error, shown or error.__traceback__
