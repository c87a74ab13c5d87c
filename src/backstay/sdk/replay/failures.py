"""Recorded failures are raised in the author's code as the exceptions they were, or not at all.

A failure whose class cannot be restored blocks replay. It is never delivered as a generic error, and no `except` of the
author's code can swallow the block.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

from backstay.codec.exceptions import UnresolvedFailure
from backstay.kernel.failure import Failure
from backstay.kernel.feature import Thrown
from backstay.kernel.features.activity.crashes import CRASHED
from backstay.kernel.task import Block
from backstay.sdk.errors import ActivityCancelled, ActivityCrashed, ActivityTimedOut, StructuralLimitExceeded
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.failure_log import timed_out

E = TypeVar("E", bound=BaseException)

STRUCTURAL_LIMIT = "structural_limit"


def throw(live_run: LiveRun, outcome: Thrown) -> NoReturn:
    raise remember(live_run, outcome, _restore(live_run, outcome))


def remember(live_run: LiveRun, outcome: Thrown, exception: E) -> E:
    """Remember which failure an exception stands for: if the code goes on, it has handled the failure."""
    if outcome.failure_id is not None:
        live_run.delivered.add(outcome.failure_id, exception)
    return exception


def crash(failure: Failure) -> ActivityCrashed | None:
    """Return `ActivityCrashed` for a failure that the engine recorded for a crashed activity, else None."""
    if failure.exception_type != CRASHED or failure.exception_class is not None or not isinstance(failure.code, int):
        return None
    return ActivityCrashed(failure.message, failure.code)


def _restore(live_run: LiveRun, outcome: Thrown) -> BaseException:
    if outcome.timeout_kind is not None:
        timed_out(live_run, outcome.failure.message)
        return ActivityTimedOut(outcome.failure.message, outcome.timeout_kind)
    if outcome.category == "cancelled":
        return ActivityCancelled(outcome.failure.message)
    if outcome.category == STRUCTURAL_LIMIT:
        return StructuralLimitExceeded(outcome.failure.message)
    crashed = crash(outcome.failure)
    if crashed is not None:
        return crashed
    try:
        return live_run.exceptions.restore(outcome.failure).exception
    except UnresolvedFailure as unresolved:
        block = Block(
            message=f"cannot restore the failure {outcome.failure.message!r}: {unresolved}",
            type="UnresolvedWorkflowFailureException",
            replay_blocked=True,
            reason="failure_resolution",
            exception_class=unresolved.exception_class,
            exception_type=unresolved.exception_type,
            resolution_source=unresolved.resolution_source,
            resolution_error=unresolved.resolution_error,
            fingerprint=live_run.fingerprint,
        )
    live_run.park(block)
    raise AssertionError("a parked greenlet never continues")
