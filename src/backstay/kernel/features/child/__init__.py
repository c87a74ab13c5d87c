"""Child workflows: a run calls another. Chapters: `records` (events and state), `messages` (outbox messages),
`parent_side`, `signalling` (signals from a parent to its children), `child_side`.

Both sides are ordinary instances that never share a transaction. The parent creates the child's ids and records them.
The child reports its state, the parent records the report, and only that event wakes the parent's code.
"""

from __future__ import annotations

from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.feature import (
    CommandRule,
    Deciding,
    Feature,
    History,
    Lifecycle,
    Outcome,
    Plain,
    Sends,
    Shape,
    Thrown,
    Value,
    nothing_to_check,
)
from backstay.kernel.features.child import child_side, messages, parent_side, records, signalling, words
from backstay.kernel.features.child.records import (
    CancelChild,
    CarriedChildClosed,
    Child,
    ChildEvent,
    Children,
    ChildRunCancelled,
    ChildRunCompleted,
    ChildRunFailed,
    ChildRunStarted,
    ChildRunTerminated,
    ChildSignalsConfirmed,
    ChildSignalSent,
    ChildSignalSentByUpdate,
    ChildUnsuccessful,
    ChildWorkflowScheduled,
    ParentClosePolicyApplied,
    ParentClosePolicyFailed,
    SignalChild,
    SignalChildFromUpdate,
    StartChildWorkflow,
)
from backstay.kernel.groups import wakes
from backstay.kernel.state import Run
from backstay.kernel.task import Resume

__all__ = [
    "FEATURE",
    "CancelChild",
    "CarriedChildClosed",
    "Child",
    "ChildEvent",
    "ChildRunCancelled",
    "ChildRunCompleted",
    "ChildRunFailed",
    "ChildRunStarted",
    "ChildRunTerminated",
    "ChildSignalSent",
    "ChildSignalSentByUpdate",
    "ChildSignalsConfirmed",
    "ChildUnsuccessful",
    "ChildWorkflowScheduled",
    "Children",
    "ParentClosePolicyApplied",
    "ParentClosePolicyFailed",
    "SignalChild",
    "SignalChildFromUpdate",
    "StartChildWorkflow",
]


def _wake(run: Run, event: ChildRunCompleted | ChildUnsuccessful, entry: Recorded) -> Resume | None:
    if not wakes(run, event.sequence):
        return None
    return Resume(
        workflow_wait_kind="child",
        open_wait_id=f"child:{event.child_call_id}",
        resume_source_kind="child_workflow_run",
        resume_source_id=event.child_workflow_run_id,
        child_call_id=event.child_call_id,
        child_workflow_run_id=event.child_workflow_run_id,
        workflow_sequence=entry.sequence,
        workflow_event_type=entry.type,
    )


def _shape(event: ChildEvent) -> Shape:
    return Shape("child workflow", _type)


def _type(event: ChildEvent) -> str:
    return event.child_workflow_type


def _signal_shape(event: ChildSignalSent) -> Shape:
    return Shape("child signal", _signal_name)


def _signal_name(event: ChildSignalSent) -> str:
    return event.signal_name


def _value(event: ChildRunCompleted) -> Outcome:
    return Value(event.output)


def _thrown(event: ChildUnsuccessful) -> Outcome:
    failure = event.exception or Failure(message=event.message, exception_type=event.exception_type)
    return Thrown(failure, event.failure_id, event.failure_category)


def _sent(event: ChildSignalSent) -> Outcome:
    return Plain(None)


_UNSUCCESSFUL = (ChildRunFailed, ChildRunCancelled, ChildRunTerminated)

FEATURE = Feature(
    name="child",
    deciding=Deciding(
        commands={
            StartChildWorkflow: CommandRule(parent_side.check, parent_side.start),
            CancelChild: CommandRule(nothing_to_check, parent_side.cancel),
            SignalChild: CommandRule(signalling.check, signalling.signal),
            SignalChildFromUpdate: CommandRule(signalling.check, signalling.signal_from_update),
        },
        limits=parent_side.limits,
        dispatch=parent_side.dispatch,
    ),
    history=History(
        evolve={
            ChildWorkflowScheduled: records.scheduled,
            ChildRunStarted: records.run_started,
            ChildRunCompleted: records.closed,
            **dict.fromkeys(_UNSUCCESSFUL, records.closed),
            ChildSignalSent: records.signal_sent,
            ChildSignalSentByUpdate: records.signal_sent,
            ChildSignalsConfirmed: records.signals_confirmed,
            CarriedChildClosed: records.carried_closed,
            ParentClosePolicyApplied: records.answered,
            ParentClosePolicyFailed: records.answered,
        },
        resume=dict.fromkeys((ChildRunCompleted, *_UNSUCCESSFUL), _wake),
        shapes={
            **dict.fromkeys((ChildWorkflowScheduled, ChildRunStarted, ChildRunCompleted, *_UNSUCCESSFUL), _shape),
            ChildSignalSent: _signal_shape,
        },
        outcomes={ChildRunCompleted: _value, **dict.fromkeys(_UNSUCCESSFUL, _thrown), ChildSignalSent: _sent},
    ),
    lifecycle=Lifecycle(
        cancel=parent_side.cancel_open,
        on_close=parent_side.run_closed,
        after_close=child_side.run_closed,
        waits_externally=parent_side.waits_externally,
    ),
    sends=Sends(
        receive={
            messages.StartFromParent: child_side.receive_start,
            messages.SignalFromParent: child_side.receive_signal,
            messages.StopFromParent: child_side.receive_stop,
            messages.AskAfterSignals: child_side.receive_ask_after_signals,
            messages.ChildReport: parent_side.receive_child_report,
            messages.SignalsArrived: signalling.receive_signals_arrived,
            messages.PolicyAnswer: parent_side.receive_policy_answer,
        },
        unanswered=parent_side.count_unanswered,
        resend=parent_side.ask_after,
    ),
    words=words.WORDS,
)
