"""Signals and updates of a run: accepted ones from history, rejected ones from the audit trail."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.features.signal import SignalApplied, SignalReceived
from backstay.kernel.features.signal_rejection import INVALID, SignalRejected
from backstay.kernel.features.update import UpdateAccepted, UpdateApplied, UpdateCompleted, UpdateRejected
from backstay.kernel.values import Micros, run_of, signal_id

READS = (SignalReceived, SignalApplied, SignalRejected, UpdateAccepted, UpdateRejected, UpdateApplied, UpdateCompleted)
"""The events from which signals and updates are made."""


class SignalView(Struct, kw_only=True, omit_defaults=True):
    signal_id: str
    signal_name: str
    status: str  # received | applied | rejected
    outcome: str | None = None
    signal_wait_id: str | None = None
    command_id: str | None = None
    command_sequence: int | None = None
    workflow_sequence: int | None = None
    arguments: bytes | None = None
    source: str | None = None
    rejection_reason: str | None = None
    validation_errors: dict[str, list[str]] = {}
    received_at: Micros | None = None
    applied_at: Micros | None = None
    rejected_at: Micros | None = None


class UpdateView(Struct, kw_only=True, omit_defaults=True):
    update_id: str
    update_name: str
    status: str  # accepted | completed | failed | rejected
    outcome: str | None = None
    command_id: str | None = None
    command_sequence: int | None = None
    workflow_sequence: int | None = None
    arguments: bytes | None = None
    result: bytes | None = None
    source: str | None = None
    rejection_reason: str | None = None
    validation_errors: dict[str, list[str]] = {}
    failure_id: str | None = None
    failure_message: str | None = None
    accepted_at: Micros | None = None
    applied_at: Micros | None = None
    rejected_at: Micros | None = None
    closed_at: Micros | None = None


def signals(
    history: Iterable[Recorded],
    commands: Iterable[CommandRecord] = (),
    held: Iterable[tuple[Event, Context]] = (),
) -> list[SignalView]:
    """All signals of the run, in the order of their commands."""
    found: dict[str, SignalView] = {}
    for entry in history:
        match entry.event:
            case SignalReceived() as event:
                found[event.signal_id] = _received(event, entry.context, entry.at)
            case SignalApplied() as event if event.signal_id in found:
                view = found[event.signal_id]
                view.status, view.applied_at, view.workflow_sequence = "applied", entry.at, event.sequence
            case SignalRejected() as event if event.signal_id in found:
                view = found[event.signal_id]
                view.status, view.rejected_at = "rejected", entry.at
                view.outcome = (
                    "rejected_invalid_arguments" if event.rejection_reason == INVALID else "rejected_unknown_signal"
                )
                view.rejection_reason, view.validation_errors = event.rejection_reason, event.validation_errors
            case _:
                pass
    for event, context in held:
        if isinstance(event, SignalReceived):
            found[event.signal_id] = _received(event, context, None)
    for command in commands:
        if command.command_type == "signal" and command.status == "rejected" and command.sequence is not None:
            id = signal_id(run_of(command.id), command.sequence)
            found[id] = SignalView(
                signal_id=id,
                signal_name=command.target_name or "",
                status="rejected",
                outcome=command.outcome,
                command_id=command.id,
                command_sequence=command.sequence,
                arguments=command.payload,
                source=command.source,
                rejection_reason=command.rejection_reason,
                validation_errors=command.validation_errors,
                rejected_at=command.at,
            )
    return sorted(found.values(), key=lambda view: view.command_sequence or 0)


def _received(event: SignalReceived, context: Context, at: Micros | None) -> SignalView:
    return SignalView(
        signal_id=event.signal_id,
        signal_name=event.signal_name,
        status="received",
        outcome="signal_received",
        signal_wait_id=event.signal_wait_id,
        command_id=event.workflow_command_id,
        command_sequence=context.command_sequence,
        arguments=event.arguments,
        source=context.source,
        received_at=at,
    )


def updates(history: Iterable[Recorded], held: Iterable[tuple[Event, Context]] = ()) -> list[UpdateView]:
    """All updates of the run, in the order of their commands."""
    found: dict[str, UpdateView] = {}
    for entry in history:
        match entry.event:
            case UpdateAccepted() as event:
                found[event.update_id] = _accepted(event, entry.context, entry.at)
            case UpdateRejected() as event:
                found[event.update_id] = UpdateView(
                    update_id=event.update_id,
                    update_name=event.update_name,
                    status="rejected",
                    outcome=event.outcome,
                    command_id=event.workflow_command_id,
                    command_sequence=entry.context.command_sequence,
                    arguments=event.arguments,
                    source=entry.context.source,
                    rejection_reason=event.rejection_reason,
                    validation_errors=event.validation_errors,
                    rejected_at=entry.at,
                )
            case UpdateApplied() as event if event.update_id in found:
                found[event.update_id].applied_at = entry.at
                found[event.update_id].workflow_sequence = event.sequence
            case UpdateCompleted() as event:
                # A failed update has an id of its own; its command may be unknown.
                view = found.setdefault(
                    event.update_id, UpdateView(update_id=event.update_id, update_name=event.update_name, status="")
                )
                failed = event.failure_id is not None
                view.status = "failed" if failed else "completed"
                view.outcome = event.outcome
                view.result = event.result
                view.failure_id = event.failure_id
                view.failure_message = event.message
                view.closed_at = entry.at
            case _:
                pass
    for event, context in held:
        if isinstance(event, UpdateAccepted):
            found[event.update_id] = _accepted(event, context, None)
    return sorted(found.values(), key=lambda view: view.command_sequence or 0)


def _accepted(event: UpdateAccepted, context: Context, at: Micros | None) -> UpdateView:
    return UpdateView(
        update_id=event.update_id,
        update_name=event.update_name,
        status="accepted",
        command_id=event.workflow_command_id,
        command_sequence=context.command_sequence,
        arguments=event.arguments,
        source=context.source,
        accepted_at=at,
    )
