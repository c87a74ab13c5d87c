"""Signals from a parent to its children: sent with the commit of the step, and asked after until they have arrived.

A signal is made again if its row was lost. The child keeps a record of each under its request id, whatever run of it took
the signal, so it knows which have come; and what it says of that is recorded, so each is asked after until then and no longer.
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

PAGE = 500  # signals that are asked after at a time


def check(turn: Turn, command: SignalChild | SignalChildFromUpdate) -> None:
    if not command.signal_name:
        raise Refused("invalid_commands", "a signal needs its name", field="signal_name")


def signal(turn: Turn, command: SignalChild) -> None:
    told = ChildSignalSent(
        sequence=turn.run.step + 1,
        child_call_id=command.child_call_id,
        signal_name=command.signal_name,
        arguments=command.arguments,
    )
    _tell(turn, told)


def signal_from_update(turn: Turn, command: SignalChildFromUpdate) -> None:
    told = ChildSignalSentByUpdate(
        update_id=command.update_id,
        number=command.number,
        child_call_id=command.child_call_id,
        signal_name=command.signal_name,
        arguments=command.arguments,
    )
    _tell(turn, told)


def _tell(turn: Turn, told: ChildSignalSent | ChildSignalSentByUpdate) -> None:
    turn.record(told)
    child = child_of(turn.run, told.child_call_id)
    if child is None:
        return  # it has closed, and would reject the signal
    if not groups.held_back(turn.run, child.scheduled.sequence):
        send_signal(turn, child, told)


def send_signal(turn: Turn, child: Child, told: ChildSignalSent | ChildSignalSentByUpdate) -> None:
    turn.send(
        turn.instance.namespace,
        child.scheduled.child_workflow_instance_id,
        SignalFromParent(
            child_call_id=told.child_call_id,
            signal_name=told.signal_name,
            arguments=told.arguments,
            request_id=_request_id(turn, told),
            parent_run_id=turn.run.run_id,
        ),
    )


def _request_id(turn: Turn, told: ChildSignalSent | ChildSignalSentByUpdate) -> str:
    if isinstance(told, ChildSignalSent):
        return f"parent-signal:{turn.run.run_id}:{told.sequence}"
    return f"parent-signal:{told.update_id}:{told.number}"


# -- have they arrived?


def ask_after(turn: Turn, child: Child) -> None:
    """Ask which of its signals have arrived. What is on its way now arrives ahead of the question."""
    if child.signals:
        _ask(turn, child, child.signals)


def _ask(turn: Turn, child: Child, signals: Mapping[int, ChildSignalSent | ChildSignalSentByUpdate]) -> None:
    instance = turn.instance
    turn.send(
        instance.namespace,
        child.scheduled.child_workflow_instance_id,
        AskAfterSignals(
            child_call_id=child.scheduled.child_call_id,
            sent={place: _request_id(turn, told) for place, told in islice(signals.items(), PAGE)},
            parent_namespace=instance.namespace,
            parent_instance_id=instance.workflow_id,
            parent_run_id=turn.run.run_id,
        ),
    )


def answered(turn: Turn, message: Deliver) -> None:
    """The child has said which of its signals have arrived: the others are sent again, and then the next are asked after."""
    answer = message.send.message
    assert isinstance(answer, SignalsArrived)
    run = turn.instance.run
    if run is None or not run.is_open or run.run_id != answer.parent_run_id:
        return
    child = child_of(run, answer.child_call_id)
    if child is None:
        return  # it has closed
    for place in answer.missing:
        told = child.signals.get(place)
        if told is not None:
            send_signal(turn, child, told)
    later = {place: told for place, told in child.signals.items() if place > answer.last}
    if any(place <= answer.through for place in child.signals):
        turn.record(ChildSignalsConfirmed(child_call_id=answer.child_call_id, through=answer.through))
    if later and answer.asked == PAGE:
        _ask(turn, child, later)
