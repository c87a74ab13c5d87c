"""Accepted signals that do not fit the code of their run. Received → Rejected.

A signal is checked against the contract of its run before it is accepted. Where no contract is known, or the types of the
code are finer than the contract, the signal is accepted, and the worker that should apply it rejects it. The run goes on
without it: its code has not seen the signal, and no replay shows it the signal.
"""

from __future__ import annotations

from backstay.kernel.command import Command
from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature import CommandRule, Deciding, Feature, History
from backstay.kernel.features.signal import ABOUT, Signals
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import Phrase, Story, Words

UNKNOWN = "unknown_signal"
INVALID = "invalid_signal_arguments"


class RejectSignal(Command, frozen=True, kw_only=True, omit_defaults=True, tag="reject_signal"):
    """The code has no such signal, or the arguments do not fit it."""

    leads = True
    signal_id: str
    rejection_reason: str
    validation_errors: dict[str, list[str]] = {}


class SignalRejected(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    signal_id: str
    signal_name: str
    signal_wait_id: str
    rejection_reason: str
    validation_errors: dict[str, list[str]] = {}


def check(turn: Turn, command: RejectSignal) -> None:
    if command.rejection_reason not in (UNKNOWN, INVALID):
        raise Refused(
            "invalid_commands",
            f"a signal is rejected as {UNKNOWN} or {INVALID}, not as {command.rejection_reason!r}",
            field="rejection_reason",
        )


def reject(turn: Turn, command: RejectSignal) -> None:
    entry = turn.run.part(Signals).received.get(command.signal_id)
    if entry is None:
        return  # an earlier completion, whose reply was lost, has rejected it
    event = entry.event
    turn.record(
        SignalRejected(
            workflow_command_id=event.workflow_command_id,
            signal_id=event.signal_id,
            signal_name=event.signal_name,
            signal_wait_id=event.signal_wait_id,
            rejection_reason=command.rejection_reason,
            validation_errors=command.validation_errors,
        )
    )


def _rejected(run: Run, event: SignalRejected, entry: Recorded) -> None:
    run.part(Signals).received.pop(event.signal_id, None)


def _say(story: Story, event: SignalRejected) -> Phrase:
    why = "the workflow has no such signal"
    if event.rejection_reason == INVALID:
        why = "; ".join(f"{name} {', '.join(said)}" for name, said in event.validation_errors.items())
    return Phrase("✗", f"signal {event.signal_name} rejected: {why}", "bad")


FEATURE = Feature(
    name="signal_rejection",
    deciding=Deciding(commands={RejectSignal: CommandRule(check, reject)}),
    history=History(evolve={SignalRejected: _rejected}),
    words={SignalRejected: Words(ABOUT, _say)},
)
