"""Signals from a parent to its children: sent with the commit of the step, and checked until they have arrived.

A signal whose row was lost is sent again. The child keeps a record of each signal under its request id, whichever of
its runs received it, so it knows which have arrived. The parent records that answer, so each signal is checked only
until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from backstay.kernel import groups
from backstay.kernel.features.child.messages import AskAfterSignals, SignalFromParent, SignalsArrived
from backstay.kernel.features.child.records import (
    Child,
    ChildSignalsConfirmed,
    ChildSignalSent,
    ChildSignalSentByUpdate,
    SignalChild,
    SignalChildFromUpdate,
    child_of,
)
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.message import Refused
from backstay.kernel.turn import Turn

PAGE = 500  # signals that are checked at a time


def check(turn: Turn, command: SignalChild | SignalChildFromUpdate) -> None:
    if not command.signal_name:
        raise Refused("invalid_commands", "a signal needs its name", field="signal_name")


def signal(turn: Turn, command: SignalChild) -> None:
    event = ChildSignalSent(
        sequence=turn.run.step + 1,
        child_call_id=command.child_call_id,
        signal_name=command.signal_name,
        arguments=command.arguments,
    )
    _record_and_send(turn, event)


def signal_from_update(turn: Turn, command: SignalChildFromUpdate) -> None:
    event = ChildSignalSentByUpdate(
        update_id=command.update_id,
        number=command.number,
        child_call_id=command.child_call_id,
        signal_name=command.signal_name,
        arguments=command.arguments,
    )
    _record_and_send(turn, event)


def _record_and_send(turn: Turn, event: ChildSignalSent | ChildSignalSentByUpdate) -> None:
    turn.record(event)
    child = child_of(turn.run, event.child_call_id)
    if child is None:
        return  # it has closed, and would reject the signal
    if not groups.held_back(turn.run, child.scheduled.sequence):
        send_signal(turn, child, event)


def send_signal(turn: Turn, child: Child, event: ChildSignalSent | ChildSignalSentByUpdate) -> None:
    turn.send(
        turn.instance.namespace,
        child.scheduled.child_workflow_instance_id,
        SignalFromParent(
            child_call_id=event.child_call_id,
            signal_name=event.signal_name,
            arguments=event.arguments,
            request_id=_request_id(turn, event),
            parent_run_id=turn.run.run_id,
        ),
    )


def _request_id(turn: Turn, event: ChildSignalSent | ChildSignalSentByUpdate) -> str:
    if isinstance(event, ChildSignalSent):
        return f"parent-signal:{turn.run.run_id}:{event.sequence}"
    return f"parent-signal:{event.update_id}:{event.number}"


# -- have they arrived?


def ask_after(turn: Turn, child: Child) -> None:
    """Ask a child which of its signals have arrived. Signals that are on their way arrive before the question."""
    if child.signals:
        _ask(turn, child, child.signals)


def _ask(turn: Turn, child: Child, signals: Mapping[int, ChildSignalSent | ChildSignalSentByUpdate]) -> None:
    instance = turn.instance
    turn.send(
        instance.namespace,
        child.scheduled.child_workflow_instance_id,
        AskAfterSignals(
            child_call_id=child.scheduled.child_call_id,
            request_ids={sequence: _request_id(turn, event) for sequence, event in islice(signals.items(), PAGE)},
            parent_namespace=instance.namespace,
            parent_instance_id=instance.workflow_id,
            parent_run_id=turn.run.run_id,
        ),
    )


def receive_signals_arrived(turn: Turn, delivery: Deliver) -> None:
    """Send the signals again that the child does not have, record those that it has, and ask after the next page."""
    answer = delivery.send.message
    assert isinstance(answer, SignalsArrived)
    run = turn.instance.run
    if run is None or not run.is_open or run.run_id != answer.parent_run_id:
        return
    child = child_of(run, answer.child_call_id)
    if child is None:
        return  # it has closed
    for sequence in answer.missing:
        event = child.signals.get(sequence)
        if event is not None:
            send_signal(turn, child, event)
    later = {sequence: event for sequence, event in child.signals.items() if sequence > answer.last}
    if any(sequence <= answer.through for sequence in child.signals):
        turn.record(ChildSignalsConfirmed(child_call_id=answer.child_call_id, through=answer.through))
    if later and answer.asked == PAGE:
        _ask(turn, child, later)
