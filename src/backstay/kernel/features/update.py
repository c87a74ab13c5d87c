"""Updates. Accepted → (Applied →) Completed, or Rejected. An update is pending exactly while in `Updates.pending`.

An accepted update is on disk before its handler runs. The handler runs on a workflow task of its own, which sees
history up to the acceptance, so that updates and signals take effect in the order in which they were accepted. A
handler that raises fails its update alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from backstay.kernel.command import Command
from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Lifecycle
from backstay.kernel.features import signal
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.instance_commands import (
    NOT_CURRENT,
    NamedCommand,
    Rejection,
    accept,
    answer_retry,
    cause,
    contract_rejection,
    limit_rejection,
    reject,
    target_rejection,
    update_of,
)
from backstay.kernel.features.start import Identity
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.task import Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import CODEC, failure_id
from backstay.kernel.words import About, Phrase, Story, Words


class Update(NamedCommand, frozen=True, kw_only=True):
    """`missing`: the missing worker that would run the validator, in words. `objection`: why the validator rejected it.

    `patient`: the sender waits for signals that were accepted earlier. While one of those is not applied, the update is
    refused without a record, and the sender tries again; another sender's update is rejected.
    """

    command_type = "update"

    patient: bool = False
    missing: str | None = None
    objection: str | None = None


class CompleteUpdate(Command, frozen=True, kw_only=True, omit_defaults=True, tag="complete_update"):
    own_task = True
    update_id: str
    result: bytes | None = None


class FailUpdate(Command, frozen=True, kw_only=True, omit_defaults=True, tag="fail_update"):
    own_task = True
    update_id: str
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None
    non_retryable: bool = False


class UpdateEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str | None = None
    update_id: str
    update_name: str


class UpdateAccepted(UpdateEvent, frozen=True, kw_only=True, omit_defaults=True):
    arguments: bytes | None = None
    payload_codec: str = CODEC
    target_scope: str = "instance"


class UpdateRejected(UpdateEvent, frozen=True, kw_only=True, omit_defaults=True):
    rejection_reason: str
    outcome: str | None = None
    arguments: bytes | None = None
    payload_codec: str = CODEC
    validation_errors: dict[str, list[str]] = {}


class UpdateApplied(UpdateEvent, frozen=True, kw_only=True, omit_defaults=True):
    arguments: bytes | None = None
    payload_codec: str = CODEC
    sequence: int | None = None  # the step the run stood at


class UpdateCompleted(UpdateEvent, frozen=True, kw_only=True, omit_defaults=True):
    sequence: int | None = None
    result: bytes | None = None
    payload_codec: str = CODEC
    outcome: str = "update_completed"
    failure_id: str | None = None
    failure_category: str | None = None
    non_retryable: bool = False
    message: str | None = None
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None
    terminal_reason: str | None = None


class AcceptedUpdate(Struct, frozen=True):
    event: UpdateAccepted
    sequence: int
    context: Context


class Updates:
    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[str, AcceptedUpdate] = {}


UNAVAILABLE = "workflow_definition_unavailable"
NOT_REPLAYED = "no live worker has code that fits the history of the run; start one and try again"
PENDING = "earlier_signal_pending"
_SIGNAL_PENDING = Rejection(PENDING, "rejected_pending_signal", temporary=True)


def topic(id: str) -> str:
    """The topic for waiters of an update's end."""
    return f"update:{id}"


def update(turn: Turn, message: Update) -> None:
    if answer_retry(turn, message):
        return
    why = target_rejection(turn, message) or _invalid(turn, message)
    if message.patient and why is _SIGNAL_PENDING:
        raise Refused(PENDING, "a signal that was accepted earlier has not been applied yet")
    if why is not None:
        command = reject(turn, message, why)
        if turn.instance.run is not None and turn.run.is_open and why is not NOT_CURRENT:
            turn.record_or_buffer(
                UpdateRejected(
                    workflow_command_id=command.id,
                    update_id=update_of(command),
                    update_name=message.name,
                    rejection_reason=why.reason,
                    outcome=why.outcome,
                    arguments=message.arguments,
                    validation_errors=why.errors,
                ),
                cause(command),
            )
        return
    command = accept(turn, message, None, history_length=turn.run.length)
    turn.record_or_buffer(
        UpdateAccepted(
            workflow_command_id=command.id,
            update_id=update_of(command),
            update_name=message.name,
            arguments=message.arguments,
            target_scope=command.target_scope,
        ),
        cause(command),
    )


def _invalid(turn: Turn, message: Update) -> Rejection | None:
    started = turn.run.part(Identity).started
    why = (
        None
        if started is None
        else contract_rejection(message, started.declared_updates, started.declared_update_contracts)
    )
    if why is not None:
        return why
    missing = message.missing
    if missing is None and any(task.is_blocked for task in turn.instance.tasks.values()):
        missing = NOT_REPLAYED
    if missing is not None:
        return Rejection(UNAVAILABLE, f"rejected_{UNAVAILABLE}", {"worker": [missing]}, temporary=True)
    if signal.pending(turn.instance):
        return _SIGNAL_PENDING
    if message.objection is not None:
        return Rejection("update_validator_rejected", "rejected_by_validator", {"validator": [message.objection]})
    limits = turn.features.limits
    waiting = len(turn.run.part(Updates).pending) + len(_buffered(turn))
    return limit_rejection(
        over_count("pending_update_count", waiting + 1, limits.pending_update_count)
        or over_count("payload_size", len(message.arguments or b""), limits.payload_size)
    )


# -- commands of the worker


def check(turn: Turn, command: CompleteUpdate | FailUpdate) -> None:
    pending = turn.run.part(Updates).pending
    first = next(iter(pending), None)
    if command.update_id != first:
        problem = "is not the next one" if command.update_id in pending else "is not pending"
        raise Refused("invalid_commands", f"update {command.update_id} {problem}", field="update_id")


def complete(turn: Turn, command: CompleteUpdate) -> None:
    update = turn.run.part(Updates).pending[command.update_id].event
    step = turn.run.step
    turn.record(UpdateApplied(**_identity(update), arguments=update.arguments, sequence=step))
    _end(turn, UpdateCompleted(**_identity(update), sequence=step, result=command.result))


def fail(turn: Turn, command: FailUpdate) -> None:
    run = turn.run
    update = run.part(Updates).pending[command.update_id].event
    _end(
        turn,
        UpdateCompleted(
            **_identity(update),
            sequence=run.step,
            outcome="update_failed",
            failure_id=failure_id(run.run_id, run.length + 1),
            failure_category="application",
            non_retryable=command.non_retryable,
            message=command.message,
            exception_type=command.exception_type,
            exception_class=command.exception_class,
            exception=command.exception,
        ),
    )


def run_closed(turn: Turn) -> None:
    """Fail the updates that a closed run has not applied. In a chain that goes on, those to the instance go to the next
    run."""
    run = turn.run
    part = run.parts.get(Updates)
    if part is None and not turn.instance.buffered_events:
        return
    accepted = [] if part is None else [entry.event for entry in part.pending.values()]
    accepted += _buffered(turn)
    for update in accepted:
        if run.closed_reason == "continued" and update.target_scope == "instance":
            continue
        _end(
            turn,
            UpdateCompleted(
                **_identity(update),
                outcome="update_failed",
                failure_id=failure_id(run.run_id, run.length + 1),
                failure_category="application",
                non_retryable=True,
                message=f"the run closed ({run.closed_reason}) before the update was applied",
                terminal_reason=run.closed_reason,
            ),
        )
    turn.instance.buffered_events = [entry for entry in turn.instance.buffered_events if not _of_this_run(entry[0])]


def _of_this_run(event: Event) -> bool:
    """Whether the event concerns this run only, not the next one of the chain."""
    return isinstance(event, UpdateRejected) or (isinstance(event, UpdateAccepted) and event.target_scope == "run")


def _buffered(turn: Turn) -> list[UpdateAccepted]:
    """Updates that were accepted in the middle of a task and are not in history yet."""
    return [event for event, _ in turn.instance.buffered_events if isinstance(event, UpdateAccepted)]


def _end(turn: Turn, event: UpdateCompleted) -> None:
    turn.notify(topic(event.update_id), turn.record(event))


def _identity(update: UpdateAccepted) -> dict[str, Any]:
    return {
        "workflow_command_id": update.workflow_command_id,
        "update_id": update.update_id,
        "update_name": update.update_name,
    }


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    sizes = [len(c.result or b"") for c in commands if isinstance(c, CompleteUpdate)]
    return over_count("payload_size", max(sizes), turn.features.limits.payload_size) if sizes else None


# -- folds


def _accepted(run: Run, event: UpdateAccepted, entry: Recorded) -> None:
    run.part(Updates).pending[event.update_id] = AcceptedUpdate(event, entry.sequence, entry.context)


def _completed(run: Run, event: UpdateCompleted, entry: Recorded) -> None:
    accepted = run.part(Updates).pending.pop(event.update_id, None)
    run.part(Identity).settled = True  # its handler has run, perhaps before the first ordinary task
    if event.failure_id is not None:
        run.part(Failures).count += 1
    if accepted is not None and run.own_task_events and run.own_task_events[0][0] == accepted.sequence:
        run.own_task_events.pop(0)


def _unchanged(run: Run, event: UpdateRejected | UpdateApplied, entry: Recorded) -> None:
    """Neither changes the state of the run."""


def _own_task(run: Run, event: UpdateAccepted, entry: Recorded) -> Resume:
    return _resume(event, entry)


def _wake(run: Run, event: UpdateApplied, entry: Recorded) -> Resume:
    return _resume(event, entry)


def _resume(event: UpdateEvent, entry: Recorded) -> Resume:
    return Resume(
        workflow_wait_kind="update",
        open_wait_id=f"update:{event.update_id}",
        resume_source_kind="workflow_update",
        resume_source_id=event.update_id,
        workflow_update_id=event.update_id if isinstance(event, UpdateAccepted) else None,
        workflow_command_id=event.workflow_command_id,
        workflow_sequence=entry.sequence,
        workflow_event_type=entry.type,
    )


def _carry(run: Run) -> Iterable[tuple[int, Event, Context]]:
    for accepted in run.part(Updates).pending.values():
        if accepted.event.target_scope == "instance":
            yield accepted.sequence, accepted.event, accepted.context


def _say_accepted(story: Story, event: UpdateAccepted) -> Phrase:
    return Phrase("✎", f"update {event.update_name}({story.form.arguments(event.arguments)}) accepted")


def _say_rejected(story: Story, event: UpdateRejected) -> Phrase:
    return Phrase("✗", f"update {event.update_name} rejected: {event.rejection_reason.replace('_', ' ')}", "quiet")


def _say_applied(story: Story, event: UpdateApplied) -> Phrase:
    return Phrase("✎", f"update {event.update_name} applied", "quiet", shown=False)  # its completion follows


def _say_completed(story: Story, event: UpdateCompleted) -> Phrase:
    name = f"update {event.update_name}"
    if event.outcome == "update_completed":
        return Phrase("✎", f"{name} completed → {story.form.value(event.result)}", "good")
    return Phrase("✗", f"{name} failed: {story.failure(event.exception_type, event.message or '', name)}", "bad")


_ABOUT = About("update", "workflow_update", "update_id", ("update_name",))


FEATURE = Feature(
    name="update",
    deciding=Deciding(
        messages={Update: update},
        commands={CompleteUpdate: CommandRule(check, complete), FailUpdate: CommandRule(check, fail)},
        limits=_limits,
    ),
    history=History(
        evolve={
            UpdateAccepted: _accepted,
            UpdateRejected: _unchanged,
            UpdateApplied: _unchanged,
            UpdateCompleted: _completed,
        },
        resume={UpdateApplied: _wake},
        own_task={UpdateAccepted: _own_task},
    ),
    lifecycle=Lifecycle(
        on_close=run_closed,
        carry=_carry,
    ),
    words={
        UpdateAccepted: Words(_ABOUT, _say_accepted),
        UpdateRejected: Words(_ABOUT, _say_rejected),
        UpdateApplied: Words(_ABOUT, _say_applied),
        UpdateCompleted: Words(_ABOUT, _say_completed),
    },
)
