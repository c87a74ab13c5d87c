"""The failures of a run in the order in which they were recorded, and whether code handled them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityFailed, ActivityTimedOut
from backstay.kernel.features.cancel import Stopped
from backstay.kernel.features.child import ChildUnsuccessful
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.failures import FailureHandled
from backstay.kernel.features.update import UpdateCompleted
from backstay.kernel.values import Micros

READS = (
    *(ActivityFailed, ActivityTimedOut, ChildUnsuccessful, WorkflowFailed, WorkflowTimedOut),
    *(Stopped, UpdateCompleted, FailureHandled),
)
"""The events that failures are told from."""


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
    handled: bool = False


def failures(history: Iterable[Recorded], run_id: str) -> list[FailureView]:
    found: dict[str, FailureView] = {}
    for entry in history:
        event: Any = entry.event
        if isinstance(event, FailureHandled):
            if event.failure_id in found:
                found[event.failure_id].handled = True
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
        )
    return list(found.values())


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
