"""The failures of a run in the order in which they were recorded, and whether code handled them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure, implied_resolution
from backstay.kernel.features.activity import ActivityFailed, ActivityRetryScheduled, ActivityTimedOut
from backstay.kernel.features.cancel import Stopped
from backstay.kernel.features.child import ChildUnsuccessful
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.failures import FailureHandled
from backstay.kernel.features.update import UpdateCompleted
from backstay.kernel.task import Block, Task
from backstay.kernel.values import Micros, failure_id

READS = (
    *(ActivityFailed, ActivityRetryScheduled, ActivityTimedOut, ChildUnsuccessful, WorkflowFailed, WorkflowTimedOut),
    *(Stopped, UpdateCompleted, FailureHandled),
)
"""The events from which failures are made."""


class FailureView(Struct, kw_only=True, omit_defaults=True):
    failure_id: str
    source_kind: str
    source_id: str
    propagation_kind: str
    failure_category: str
    message: str
    recorded_at: Micros
    sequence: int  # of the event that recorded it
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None
    non_retryable: bool = False
    handled: bool = False  # the code caught it, or another attempt follows
    attempt_number: int | None = None  # of the activity
    # The class that code gets, and where it was found: exception_type | class_alias | recorded_class, or why it was
    # not: unresolved | misconfigured | unrestorable. Only workers know classes: until a worker reports more, the
    # recorded class counts.
    resolved_class: str | None = None
    resolution_source: str | None = None
    resolution_error: str | None = None
    exception_replay_blocked: bool = False


def failures(history: Iterable[Recorded], run_id: str, tasks: Iterable[Task] = ()) -> list[FailureView]:
    """All failures, also those of attempts that were repeated. `tasks`: the open ones, which may be blocked by a failure."""
    found: dict[str, FailureView] = {}
    for entry in history:
        event: Any = entry.event
        if isinstance(event, FailureHandled):
            if event.failure_id in found:
                view = found[event.failure_id]
                view.handled = True
                view.resolved_class = event.resolved_class or view.resolved_class
                view.resolution_source = event.resolution_source or view.resolution_source
            continue
        if isinstance(event, ActivityRetryScheduled):
            found[failure_id(run_id, entry.sequence)] = _attempt(event, entry, run_id)
            continue
        source = _source(event, run_id)
        if source is None or event.failure_id is None:
            continue
        kind, id, propagation = source
        found[event.failure_id] = FailureView(
            failure_id=event.failure_id,
            source_kind=kind,
            source_id=id,
            propagation_kind=propagation,
            failure_category=event.failure_category or "application",
            message=event.message or "",
            recorded_at=entry.at,
            sequence=entry.sequence,
            exception_type=getattr(event, "exception_type", None),
            exception_class=event.exception_class,
            exception=getattr(event, "exception", None),
            non_retryable=getattr(event, "non_retryable", False),
            attempt_number=getattr(event, "attempt_number", None),
            **_recorded(getattr(event, "exception_type", None), event.exception_class),
        )
    for task in tasks:
        if task.block is not None and task.block.resolution_source is not None:
            _block(found.values(), task.block)
    return list(found.values())


def _attempt(event: ActivityRetryScheduled, entry: Recorded, run_id: str) -> FailureView:
    return FailureView(
        failure_id=failure_id(run_id, entry.sequence),
        source_kind="activity_execution",
        source_id=event.activity_execution_id,
        propagation_kind="retry",
        failure_category="timeout" if event.timeout_kind is not None else "activity",
        message=event.message,
        recorded_at=entry.at,
        sequence=entry.sequence,
        exception_type=event.exception_type,
        exception_class=event.exception_class,
        exception=event.exception,
        handled=True,
        attempt_number=event.retry_after_attempt,
        **_recorded(event.exception_type, event.exception_class),
    )


def _recorded(exception_type: str | None, exception_class: str | None) -> dict[str, Any]:
    resolved, source = implied_resolution(exception_type, exception_class)
    return {"resolved_class": resolved, "resolution_source": source}


def _block(found: Iterable[FailureView], block: Block) -> None:
    """Mark the failures that block replay, as reported by the worker that could not restore them."""
    for view in found:
        same = (view.exception_type, view.exception_class) == (block.exception_type, block.exception_class)
        if same and view.propagation_kind != "retry":
            view.resolved_class, view.exception_replay_blocked = None, block.replay_blocked
            view.resolution_source, view.resolution_error = block.resolution_source, block.resolution_error


def _source(event: Any, run_id: str) -> tuple[str, str, str] | None:
    """(source_kind, source_id, propagation_kind) of an event that records a failure."""
    match event:
        case ActivityFailed(activity_execution_id=id):
            return "activity_execution", id, "activity"
        case ActivityTimedOut(activity_execution_id=id):
            return "activity_execution", id, "timeout"
        case ChildUnsuccessful(child_workflow_run_id=id):
            return "child_workflow_run", id, "child"
        case WorkflowFailed():
            return "workflow_run", run_id, "terminal"
        case WorkflowTimedOut():
            return "workflow_run", run_id, "timeout"
        case Stopped(closed_reason=reason):
            return "workflow_run", run_id, reason
        case UpdateCompleted(update_id=id):
            return "workflow_update", id, "update"
        case _:
            return None
