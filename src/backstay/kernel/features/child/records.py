"""Events and state of children, on the side of the parent: Scheduled → RunStarted+ → Completed | Failed | Cancelled |
Terminated.

A child is open exactly while in `Children.open`. The parent's own history is the only authority for its outcome.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.kernel import groups
from backstay.kernel.call_options import ChildCallOptions
from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Event, Recorded, StepEvent, clock
from backstay.kernel.failure import Failure
from backstay.kernel.features.failures import UnhandledFailure, remember
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.groups import GroupEntry
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.state import Run
from backstay.kernel.values import CODEC, Micros, Routing

POLICIES = ("abandon", "request_cancel", "terminate")


class TimeoutPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None


class _ChildCommand(StepCommand, frozen=True, kw_only=True, omit_defaults=True):
    workflow_type: str
    arguments: bytes | None = None
    queue: str | None = None
    connection: str | None = None


class StartChildWorkflow(
    _ChildCommand, ChildCallOptions, frozen=True, kw_only=True, omit_defaults=True, tag="start_child_workflow"
):
    retry_policy: RetryPolicy | None = None
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    definition: RecordedDefinition | None = None
    parallel_group_path: list[GroupEntry] = []


class CancelChild(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_child"):
    """The code no longer waits for this child: ask the child to stop."""

    step: int


class SignalChild(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="signal_child"):
    child_call_id: str
    signal_name: str
    arguments: bytes | None = None


class SignalChildFromUpdate(Command, frozen=True, kw_only=True, omit_defaults=True, tag="signal_child_from_update"):
    """A signal that the handler of an update sends; `number` counts them within the update."""

    own_task = True
    answers = False
    update_id: str
    number: int
    child_call_id: str
    signal_name: str
    arguments: bytes | None = None


class ChildEvent(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    workflow_link_id: str
    child_call_id: str
    child_workflow_instance_id: str
    child_workflow_run_id: str
    child_workflow_type: str
    child_workflow_class: str | None = None
    parallel_group_path: list[GroupEntry] = []


class ChildWorkflowScheduled(ChildEvent, ChildCallOptions, frozen=True, kw_only=True, omit_defaults=True):
    retry_policy: RetryPolicy | None = None
    timeout_policy: TimeoutPolicy = TimeoutPolicy()
    arguments: bytes | None = None
    routing: Routing = Routing()
    definition: RecordedDefinition | None = None  # of a child that a bounded group holds back, for its start later on


class ChildRunStarted(ChildEvent, frozen=True, kw_only=True, omit_defaults=True):
    child_run_number: int = 1
    child_status: str = "pending"
    retry_attempt: int | None = None
    retry_of_child_workflow_run_id: str | None = None
    retry_backoff_seconds: float | None = None


class ChildClosed(ChildEvent, frozen=True, kw_only=True, omit_defaults=True):
    child_run_number: int
    child_status: str
    closed_reason: str
    closed_at: Micros


class ChildRunCompleted(ChildClosed, frozen=True, kw_only=True, omit_defaults=True):
    output: bytes | None = None
    payload_codec: str = CODEC


class ChildUnsuccessful(ChildClosed, frozen=True, kw_only=True, omit_defaults=True):
    failure_id: str
    failure_category: str
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None


class ChildRunFailed(ChildUnsuccessful, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ChildRunCancelled(ChildUnsuccessful, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ChildRunTerminated(ChildUnsuccessful, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ChildSignalSent(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    child_call_id: str
    signal_name: str
    arguments: bytes | None = None


class ChildSignalSentByUpdate(Event, frozen=True, kw_only=True, omit_defaults=True):
    update_id: str
    number: int
    child_call_id: str
    signal_name: str
    arguments: bytes | None = None


class ChildSignalsConfirmed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Every signal to this child has arrived that stands in this history up to the sequence `through`."""

    child_call_id: str
    through: int


class CarriedChildClosed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A child that an earlier run of the chain left open has closed: its parent-close policy is not needed any more."""

    child_call_id: str
    child_workflow_instance_id: str
    child_workflow_run_id: str
    child_status: str
    closed_reason: str


class ParentClosePolicy(Event, frozen=True, kw_only=True, omit_defaults=True):
    child_call_id: str
    child_instance_id: str
    policy: str
    reason: str
    child_run_id: str | None = None


class ParentClosePolicyApplied(ParentClosePolicy, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ParentClosePolicyFailed(ParentClosePolicy, frozen=True, kw_only=True, omit_defaults=True):
    error: str


class Child:
    """One open child. `run_id` is its newest run that the parent knows of.

    `signals` are those that are not confirmed yet, by their sequence in history. They are confirmed with the child, or
    sent with the child's start if it waits in a group.
    """

    __slots__ = ("run_id", "run_number", "scheduled", "signals", "since")

    def __init__(self, scheduled: ChildWorkflowScheduled, since: Micros) -> None:
        self.scheduled = scheduled
        self.since = since
        self.run_id = scheduled.child_workflow_run_id
        self.run_number = 1
        self.signals: dict[int, ChildSignalSent | ChildSignalSentByUpdate] = {}

    def dispatched(self, run: Run, at: Micros) -> None:
        """The decision that dispatches it also sends its start."""


class Children:
    __slots__ = ("answered", "gone", "open", "steps")

    def __init__(self) -> None:
        self.open: dict[int, Child] = {}
        self.steps: dict[str, int] = {}  # by call
        self.answered: set[str] = set()  # calls whose children have answered the parent's close
        self.gone: set[str] = set()  # calls of earlier runs of the chain whose children are over


def identity(child: Child) -> dict[str, Any]:
    """The fields that every event of a call repeats."""
    scheduled = child.scheduled
    return {
        "sequence": scheduled.sequence,
        "workflow_link_id": scheduled.workflow_link_id,
        "child_call_id": scheduled.child_call_id,
        "child_workflow_instance_id": scheduled.child_workflow_instance_id,
        "child_workflow_type": scheduled.child_workflow_type,
        "child_workflow_class": scheduled.child_workflow_class,
        "parallel_group_path": scheduled.parallel_group_path,
    }


def scheduled(run: Run, event: ChildWorkflowScheduled, entry: Recorded) -> None:
    children = run.part(Children)
    child = children.open[event.sequence] = Child(event, clock(entry))
    children.steps[event.child_call_id] = event.sequence
    groups.join(run, event.sequence, event.parallel_group_path, child)


def run_started(run: Run, event: ChildRunStarted, entry: Recorded) -> None:
    child = run.part(Children).open.get(event.sequence)
    if child is not None:
        child.run_id = event.child_workflow_run_id
        child.run_number = event.child_run_number


def closed(run: Run, event: ChildRunCompleted | ChildUnsuccessful, entry: Recorded) -> None:
    run.part(Children).open.pop(event.sequence, None)
    groups.leave(run, event.sequence, event.parallel_group_path, isinstance(event, ChildRunCompleted), clock(entry))
    if isinstance(event, ChildUnsuccessful):
        remember(
            run,
            UnhandledFailure(
                failure_id=event.failure_id,
                sequence=event.sequence,
                failure_category=event.failure_category,
                source_kind="child_workflow_run",
                source_id=event.child_workflow_run_id,
                propagation_kind="child",
                message=event.message,
                exception_type=event.exception_type,
                exception_class=event.exception_class,
                recorded=entry.sequence,
            ),
        )


def signal_sent(run: Run, event: ChildSignalSent | ChildSignalSentByUpdate, entry: Recorded) -> None:
    """Remember a signal until its arrival is confirmed."""
    child = child_of(run, event.child_call_id)
    if child is not None:
        child.signals[entry.sequence] = event


def signals_confirmed(run: Run, event: ChildSignalsConfirmed, entry: Recorded) -> None:
    child = child_of(run, event.child_call_id)
    if child is not None:
        child.signals = {sequence: signal for sequence, signal in child.signals.items() if sequence > event.through}


def child_of(run: Run, call: str) -> Child | None:
    """The open child of a call."""
    children = run.part(Children)
    step = children.steps.get(call)
    return None if step is None else children.open.get(step)


def carried_closed(run: Run, event: CarriedChildClosed, entry: Recorded) -> None:
    run.part(Children).gone.add(event.child_call_id)


def answered(run: Run, event: ParentClosePolicyApplied | ParentClosePolicyFailed, entry: Recorded) -> None:
    run.part(Children).answered.add(event.child_call_id)
