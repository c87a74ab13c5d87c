"""Cancel and terminate. Both end everything that is open, with an event each, and close the run.

A workflow may declare that it handles cancellation. Then the request is recorded with a deadline and wakes the code;
the run closes when the code does, at the deadline, or at the second request. Terminate never waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from backstay.kernel.command import TerminalCommand
from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.feature import CommandRule, Deadline, Deciding, Feature, History, Lifecycle, nothing_to_check
from backstay.kernel.features import close
from backstay.kernel.features.instance_commands import InstanceCommand, accept, cause, may_accept
from backstay.kernel.features.start import Identity
from backstay.kernel.operator_command import CommandOutcome, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, failure_id, seconds
from backstay.kernel.words import COMMAND, RUN, Phrase, Story, Words


class Cancel(InstanceCommand, frozen=True, kw_only=True):
    command_type = "cancel"

    reason: str | None = None


class Terminate(InstanceCommand, frozen=True, kw_only=True):
    command_type = "terminate"

    reason: str | None = None


class CancelWorkflow(TerminalCommand, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_workflow"):
    """The code has handled the cancel request and ends."""


class StopRequested(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    command_type: str
    reason: str | None = None


class CancelRequested(StopRequested, frozen=True, kw_only=True, omit_defaults=True):
    cleanup_deadline_at: Micros | None = None


class TerminateRequested(StopRequested, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Stopped(Event, frozen=True, kw_only=True, omit_defaults=True):
    failure_id: str
    failure_category: str
    closed_reason: str
    message: str
    workflow_command_id: str | None = None
    exception_class: str | None = None
    reason: str | None = None


class WorkflowCancelled(Stopped, frozen=True, kw_only=True, omit_defaults=True):
    pass


class WorkflowTerminated(Stopped, frozen=True, kw_only=True, omit_defaults=True):
    pass


class CancelState:
    """The cancel request that the code is handling, if any."""

    __slots__ = ("entry", "requested")

    def __init__(self) -> None:
        self.requested: CancelRequested | None = None
        self.entry: Recorded | None = None  # the record of that request


def requested(run: Run) -> bool:
    part = run.parts.get(CancelState)
    return part is not None and part.requested is not None


def cancel(turn: Turn, message: Cancel) -> None:
    if not may_accept(turn, message):
        return
    started = turn.run.part(Identity).started
    cleanup = None if started is None else started.declared_cleanup_seconds
    already_requested = requested(turn.run) or any(
        isinstance(event, CancelRequested) for event, _ in turn.instance.buffered_events
    )
    if cleanup is not None and not already_requested:
        command = accept(turn, message, "cancel_requested")
        deadline = turn.now + seconds(cleanup)
        turn.record_or_buffer(_request(command, message.reason, deadline), cause(command))
        return
    command = accept(turn, message, "cancelled")
    turn.context = cause(command)
    turn.record(_request(command, message.reason, None))
    _stop(turn, "cancelled", message.reason, command.id)


def terminate(turn: Turn, message: Terminate) -> None:
    if not may_accept(turn, message):
        return
    command = accept(turn, message, "terminated")
    turn.context = cause(command)
    turn.record(TerminateRequested(workflow_command_id=command.id, command_type="terminate", reason=message.reason))
    _stop(turn, "terminated", message.reason, command.id)


def _request(command: CommandRecord, reason: str | None, deadline: Micros | None) -> CancelRequested:
    return CancelRequested(
        workflow_command_id=command.id, command_type="cancel", reason=reason, cleanup_deadline_at=deadline
    )


def _stop(turn: Turn, closed_reason: str, reason: str | None, command_id: str | None) -> None:
    run = turn.run
    turn.features.cancel_open(turn)
    kind = WorkflowCancelled if closed_reason == "cancelled" else WorkflowTerminated
    turn.record(
        kind(
            failure_id=failure_id(run.run_id, run.length + 1),
            failure_category=closed_reason,
            closed_reason=closed_reason,
            message=f"the run was {closed_reason}" + (f": {reason}" if reason else ""),
            workflow_command_id=command_id,
            reason=reason,
        )
    )
    close.closed(turn)


def cancel_workflow(turn: Turn, command: CancelWorkflow) -> None:
    _close_as_requested(turn)


def cleanup_overdue(turn: Turn, _: object) -> None:
    _close_as_requested(turn)


def _close_as_requested(turn: Turn) -> None:
    request = turn.run.part(CancelState).requested
    _stop(
        turn,
        "cancelled",
        None if request is None else request.reason,
        None if request is None else request.workflow_command_id,
    )


def _deadline(instance: Instance, _: object) -> Micros | None:
    request = instance.current.part(CancelState).requested
    return None if request is None else request.cleanup_deadline_at


def _length(instance: Instance, _: object) -> Micros:
    started = instance.current.part(Identity).started
    return seconds((None if started is None else started.declared_cleanup_seconds) or 0)


def _cancel_requested(run: Run, event: CancelRequested, entry: Recorded) -> None:
    if event.cleanup_deadline_at is not None:
        run.part(CancelState).requested = event
        run.part(CancelState).entry = entry
        run.add_deadline(event.cleanup_deadline_at, "cleanup", 0)


def _terminate_requested(run: Run, event: TerminateRequested, entry: Recorded) -> None:
    """The terminal event follows in the same commit."""


def _cancelled(run: Run, event: WorkflowCancelled, entry: Recorded) -> None:
    close.shut(run, entry, "cancelled", "cancelled")


def _terminated(run: Run, event: WorkflowTerminated, entry: Recorded) -> None:
    close.shut(run, entry, "terminated", "terminated")


def _wake(run: Run, event: CancelRequested, entry: Recorded) -> Resume | None:
    if event.cleanup_deadline_at is None:
        return None
    return Resume(
        resume_source_kind="workflow_command",
        resume_source_id=event.workflow_command_id,
        workflow_command_id=event.workflow_command_id,
        workflow_sequence=entry.sequence,
        workflow_event_type="CancelRequested",
    )


def _carry(run: Run) -> Iterable[tuple[int, Event, Context]]:
    """Carry the request over to the next run, with its deadline."""
    part = run.parts.get(CancelState)
    if part is not None and part.entry is not None:
        yield part.entry.sequence, part.entry.event, part.entry.context


def _say_cancel_requested(story: Story, event: CancelRequested) -> Phrase:
    until = event.cleanup_deadline_at
    left = "" if until is None else f", its code has {story.form.span(until - story.at)}"
    return Phrase("■", f"cancel requested{story.because(event.reason)}{left}", "retry")


def _say_terminate_requested(story: Story, event: TerminateRequested) -> Phrase:
    return Phrase("■", f"terminate requested{story.because(event.reason)}", "retry")


def _say_stopped(story: Story, event: Stopped) -> Phrase:
    story.close()
    return Phrase("✗", f"{story.workflow_type} {event.closed_reason}", "bad", news=True)


CANCEL = OperatorCommand(
    message=Cancel,
    request="CancelWorkflow",
    label="Cancel",
    help="Request the cancellation of {run}.",
    more=(
        "Code that handles the cancellation may clean up until its deadline; any other run closes at once."
        " This cannot be undone."
    ),
    examples=("order-1", 'order-1 --reason "the customer changed her mind"'),
    danger=True,
    outcomes={
        "cancelled": CommandOutcome("cancelled"),
        "cancel_requested": CommandOutcome(
            "cancel requested; its code cleans up, and a second cancel closes it at once", goes_on=True
        ),
    },
)
TERMINATE = OperatorCommand(
    message=Terminate,
    request="TerminateWorkflow",
    label="Terminate",
    help="Close {run} at once, without running its code.",
    more="The code cannot clean up. This cannot be undone.",
    examples=('order-1 --reason "started by mistake"',),
    danger=True,
    outcomes={"terminated": CommandOutcome("terminated")},
)


FEATURE = Feature(
    name="cancel",
    deciding=Deciding(
        messages={Cancel: cancel, Terminate: terminate},
        commands={CancelWorkflow: CommandRule(nothing_to_check, cancel_workflow)},
        deadlines={"cleanup": Deadline(_deadline, cleanup_overdue, _length)},
    ),
    history=History(
        evolve={
            CancelRequested: _cancel_requested,
            TerminateRequested: _terminate_requested,
            WorkflowCancelled: _cancelled,
            WorkflowTerminated: _terminated,
        },
        resume={CancelRequested: _wake},
    ),
    lifecycle=Lifecycle(carry=_carry),
    words={
        CancelRequested: Words(COMMAND, _say_cancel_requested),
        TerminateRequested: Words(COMMAND, _say_terminate_requested),
        WorkflowCancelled: Words(RUN, _say_stopped),
        WorkflowTerminated: Words(RUN, _say_stopped),
    },
    operator=(CANCEL, TERMINATE),
)
