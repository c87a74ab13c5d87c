"""Recorded failures are raised in the author's code as the exceptions they were, or not at all.

A failure whose class cannot be restored blocks replay. It is never delivered as a generic error, and no `except` of the
author's code can swallow the block.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

from backstay.codec.class_names import name_of
from backstay.codec.exceptions import UnresolvedFailure
from backstay.kernel.failure import Failure, implied_resolution
from backstay.kernel.feature import Thrown
from backstay.kernel.features.activity.crashes import CRASHED
from backstay.kernel.task import Block
from backstay.sdk.errors import ActivityCancelled, ActivityCrashed, ActivityTimedOut, StructuralLimitExceeded
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.failure_log import timed_out

E = TypeVar("E", bound=BaseException)

STRUCTURAL_LIMIT = "structural_limit"


def throw(live_run: LiveRun, outcome: Thrown) -> NoReturn:
    exception, source = _restore(live_run, outcome)
    failure = outcome.failure
    resolved = None if source is None or source == "external" else (name_of(type(exception)), source)
    if resolved == implied_resolution(failure.exception_type, failure.exception_class):
        resolved = None
    raise remember(live_run, outcome, exception, resolved)


def remember(live_run: LiveRun, outcome: Thrown, exception: E, resolved: tuple[str, str] | None = None) -> E:
    """Remember which failure an exception stands for: if the code goes on, it has handled the failure.

    `resolved`: the class of the exception, and how it was found, if the record of the failure implies something else.
    """
    if outcome.failure_id is not None:
        live_run.delivered.add(outcome.failure_id, exception, resolved)
    return exception


def crash(failure: Failure) -> ActivityCrashed | None:
    """Return `ActivityCrashed` for a failure that the engine recorded for a crashed activity, else None."""
    if failure.exception_type != CRASHED or failure.exception_class is not None or not isinstance(failure.code, int):
        return None
    return ActivityCrashed(failure.message, failure.code)


def _restore(live_run: LiveRun, outcome: Thrown) -> tuple[BaseException, str | None]:
    """The exception of a failure, and how its class was found; None: it is the engine's own."""
    if outcome.timeout_kind is not None:
        timed_out(live_run, outcome.failure.message)
        return ActivityTimedOut(outcome.failure.message, outcome.timeout_kind), None
    if outcome.category == "cancelled":
        return ActivityCancelled(outcome.failure.message), None
    if outcome.category == STRUCTURAL_LIMIT:
        return StructuralLimitExceeded(outcome.failure.message), None
    crashed = crash(outcome.failure)
    if crashed is not None:
        return crashed, None
    try:
        restored = live_run.exceptions.restore(outcome.failure)
        return restored.exception, restored.source
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
