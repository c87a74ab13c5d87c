"""OpenTelemetry: one trace follows a workflow over its tasks, activities, children and continued runs.

The trace of the caller is recorded with the start (`traceparent`, as W3C writes it) and handed on from there. Workers make a span
for each workflow task and for each attempt of an activity, as children of the caller's span; inside an activity that span is
the current one. A replay runs code again and makes no spans: there is one for the task that replays, and none for what it
repeats. Only the API is used, and only if this process has imported it already; if not, no provider is set.

Attributes are those of the semantic conventions where they have one (`messaging.*`: a start is sent, a task is processed;
`error.type`, and the event `exception`), and `backstay.*` for the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.values import Routing

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

NAME = "backstay"


def is_imported() -> bool:
    return "opentelemetry.trace" in sys.modules


def current_ids() -> dict[str, str]:
    """The ids of the current span, as log records and other systems write them. Empty if there is none."""
    if not is_imported():
        return {}
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"} if found.is_valid else {}


def outgoing(what: str, workflow_id: str | None, routing: Routing) -> str | None:
    """The trace that a start of this type belongs to: of the current span, or of a new one if a provider is set."""
    if not is_imported():
        return None
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None  # no provider is set
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        span = _tracer().start_span(
            f"start {what}",
            kind=trace.SpanKind.PRODUCER,
            attributes={
                **_message("start", "send", routing.queue, workflow_id),
                "backstay.namespace": routing.namespace,
                "backstay.workflow_type": what,
            },
        )
        span.end()
        found = span.get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def task_span(assignment: WorkflowAssignment) -> Span | None:
    """The span of a workflow task. Its maker ends it."""
    if assignment.started.traceparent is None or not is_imported():
        return None
    from opentelemetry import trace

    return _tracer().start_span(
        f"workflow {assignment.workflow_type}",
        _parent(assignment.started.traceparent),
        trace.SpanKind.CONSUMER,
        {
            **_processed("workflow task", assignment),
            "backstay.workflow_type": assignment.workflow_type,
            "backstay.task_id": assignment.task.id,
        },
    )


@contextmanager
def attempt_span(assignment: ActivityAssignment) -> Generator[Span | None]:
    """The span of an attempt, which is the current one in this block. None if there is no trace, or no provider."""
    traceparent = assignment.traceparent
    if not isinstance(traceparent, str) or not is_imported():
        yield None
        return
    from opentelemetry import trace

    with _tracer().start_as_current_span(
        f"activity {assignment.activity_type}",
        _parent(traceparent),
        trace.SpanKind.CONSUMER,
        {
            **_processed("activity", assignment),
            "backstay.activity_type": assignment.activity_type,
            "backstay.activity_execution_id": assignment.activity_execution_id,
            "backstay.step": assignment.step,
            "backstay.attempt": assignment.attempt_number,
        },
    ) as span:
        yield span


def say_outcome(span: Span | None, result: bytes | Failure) -> None:
    """Mark the span of an attempt that has failed."""
    if span is not None and isinstance(result, Failure):
        from opentelemetry import trace

        kind, shown = result.exception_type or "Exception", result.diagnostics
        raised = {"exception.type": kind, "exception.message": result.message}
        if shown is not None and shown.traceback:
            raised["exception.stacktrace"] = shown.traceback
        span.add_event("exception", raised)
        span.set_attribute("error.type", kind)
        span.set_status(trace.Status(trace.StatusCode.ERROR, result.message))


def _processed(what: str, assignment: WorkflowAssignment | ActivityAssignment) -> dict[str, str]:
    task = assignment.task
    return {
        **_message(what, "process", task.routing.queue, assignment.workflow_id),
        "messaging.message.id": task.id,
        "backstay.namespace": assignment.namespace,
        "backstay.run_id": assignment.run_id,
    }


def _message(what: str, kind: str, queue: str, workflow_id: str | None) -> dict[str, str]:
    """`workflow_id` None: the engine makes one."""
    ids = (
        {}
        if workflow_id is None
        else dict.fromkeys(("messaging.message.conversation_id", "backstay.workflow_id"), workflow_id)
    )
    return {
        "messaging.system": NAME,
        "messaging.operation.name": what,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    } | ids


def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer(NAME)


def _parent(traceparent: str) -> Context:
    """The context of a span elsewhere. The text was checked when it was recorded."""
    from opentelemetry import trace

    _, trace_id, span_id, flags = traceparent.split("-")
    remote = trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(remote))
