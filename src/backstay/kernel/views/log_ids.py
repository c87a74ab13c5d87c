"""The fields that a log record about a run has: the same names in every process, in text for a search and in JSON."""

from __future__ import annotations

from typing import Any

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.start import Identity, valid_traceparent
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.state import Instance


def of_attempt(assignment: ActivityAssignment) -> dict[str, Any]:
    return {
        "namespace": assignment.namespace,
        "workflow_id": assignment.workflow_id,
        "run_id": assignment.run_id,
        "activity_type": assignment.activity_type,
        "step": assignment.step,
        "attempt": assignment.attempt_number,
    } | of_trace(assignment.traceparent or None)


def of_task(assignment: WorkflowAssignment) -> dict[str, Any]:
    return {
        "namespace": assignment.namespace,
        "workflow_id": assignment.workflow_id,
        "run_id": assignment.run_id,
        "workflow_type": assignment.workflow_type,
    } | of_trace(assignment.started.traceparent)


def of_instance(instance: Instance) -> dict[str, Any]:
    """The ids of an instance and, once it has a run, of that run."""
    ids: dict[str, Any] = {"namespace": instance.namespace, "workflow_id": instance.workflow_id}
    run = instance.run
    if run is None:
        return ids
    started = run.part(Identity).started
    return (
        ids
        | {"run_id": run.run_id, "workflow_type": run.workflow_type}
        | of_trace(None if started is None else started.traceparent)
    )


def of_damage(damage: HistoryDamaged) -> dict[str, Any]:
    return {} if damage.workflow_id is None else {"workflow_id": damage.workflow_id, "run_id": damage.run_id}


def of_trace(traceparent: str | None) -> dict[str, Any]:
    """The id of a trace, from a header or a history. A text that is no `traceparent` has none."""
    text = valid_traceparent(traceparent)
    return {} if text is None else {"trace_id": text.split("-")[1]}
