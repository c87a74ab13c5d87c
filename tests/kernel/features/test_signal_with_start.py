"""Signal with start: one intake, two commands. The signal is history before any code can run; an invalid one starts nothing."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.signal import ApplySignal, DeliverSignal, OpenSignalWait, SignalReceived
from backstay.kernel.features.signal_with_start import SignalAndStart
from backstay.kernel.features.start import RecordedDefinition, Reserve
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine

from ..deciding import to
from ..given import TALKING, Flow, given, names, only, parameter, started
from ..stored import refold, snapshot


def both(name: str = "go", definition: RecordedDefinition | None = TALKING, **more: Any) -> SignalAndStart:
    return SignalAndStart(start=started(definition=definition), signal=DeliverSignal(name=name, **more))


def reserved() -> Flow:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    return flow


def closed() -> Flow:
    return given(CompleteWorkflow(), definition=TALKING)


@pytest.mark.parametrize("flow_of", [Flow, reserved, closed], ids=["new", "reserved", "closed"])
def test_without_an_active_run_one_is_started_and_signalled_in_one_decision(flow_of: Any) -> None:
    flow = flow_of()
    decision = flow.when(both(arguments=b"v"), at=1)
    assert names(decision.events) == ["StartAccepted", "WorkflowStarted", "SignalReceived"]
    reply = decision.reply
    assert (reply.started.outcome, reply.signalled.outcome) == ("started_new", "signal_received")
    assert reply.started.run_id == reply.signalled.run_id == flow.run.run_id
    assert [(command.command_type, command.sequence) for command in decision.commands] == [("start", 1), ("signal", 2)]
    assert flow.run.number == (2 if flow_of is closed else 1)
    assert flow.workflow_task.resume.workflow_wait_kind is None  # the first task of the run is what it always is
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("SIG-09")
def test_the_signal_stands_before_anything_that_code_does() -> None:
    flow = Flow()
    decision = flow.when(both(), offer=to("worker-1"))
    (task,) = decision.leased
    assert task.seen == 3
    flow.complete(OpenSignalWait(signal_name="go"), ApplySignal(step=1, signal_id=decision.reply.signalled.signal_id))
    assert names(flow.history) == [
        *("StartAccepted", "WorkflowStarted", "SignalReceived", "SignalWaitOpened", "SignalApplied")
    ]


def test_an_active_run_is_signalled() -> None:
    flow = given(StartTimer(delay_seconds=60), definition=TALKING)
    decision = flow.when(both())
    assert names(decision.events) == ["StartAccepted", "SignalReceived"]
    assert (decision.reply.started.outcome, decision.reply.started.run_id) == ("returned_existing_active", "RUN1")
    assert [command.sequence for command in decision.commands] == [2, 3]
    assert flow.run.number == 1


def test_an_active_run_records_the_signal_after_its_task() -> None:
    flow = given(definition=TALKING)
    flow.lease()
    assert names(flow.when(both()).events) == ["StartAccepted"]
    assert names(flow.complete(StartTimer(delay_seconds=60)).events) == ["TimerScheduled", "SignalReceived"]


@pytest.mark.contract("REC-04")
@pytest.mark.parametrize("flow_of", [Flow, closed, lambda: given(definition=TALKING)])
def test_both_commands_name_the_intake_they_belong_to(flow_of: Any) -> None:
    decision = flow_of().when(both(context={"caller": {"label": "shop"}}))
    start, signal = (command.context for command in decision.commands)
    assert start["intake"] == signal["intake"]
    assert start["intake"]["mode"] == "signal_with_start"
    assert start["intake"]["group_id"]
    assert signal["caller"] == {"label": "shop"}


TYPED = RecordedDefinition(
    signals=["pay"], signal_contracts=[{"name": "pay", "parameters": [parameter("amount", "int")]}]
)
SMALL = Machine(limits=Limits(payload_size=3))
INVALID: list[tuple[str, SignalAndStart, str, str | None, list[str]]] = [
    ("unknown", both("typo"), "unknown_signal", "rejected_unknown_signal", []),
    ("arguments", both("pay", TYPED), "invalid_signal_arguments", "rejected_invalid_arguments", ["amount"]),
    ("size", both(arguments=b"1234"), "structural_limit_exceeded", None, ["payload_size"]),
]
EACH = pytest.mark.parametrize(
    ("message", "reason", "outcome", "errors"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID]
)


@pytest.mark.contract("SIG-01", "SIG-04")
@EACH
@pytest.mark.parametrize("number", [0, 1])
def test_an_invalid_signal_starts_nothing_and_is_on_record(
    message: SignalAndStart, reason: str, outcome: str | None, errors: list[str], number: int
) -> None:
    flow = Flow(SMALL)
    if number == 0:
        flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    else:
        flow.start(definition=message.start.definition)
        flow.complete(CompleteWorkflow())
    decision = flow.when(message)
    assert decision.reply.started is None
    signalled = decision.reply.signalled
    assert (signalled.accepted, signalled.rejection_reason, signalled.outcome) == (False, reason, outcome)
    assert list(signalled.validation_errors) == errors
    assert [command.command_type for command in decision.commands] == ["signal"]
    assert decision.events == []
    assert (0 if flow.state.run is None else flow.run.number) == number


@EACH
def test_an_invalid_signal_to_a_new_id_leaves_no_trace(
    message: SignalAndStart, reason: str, outcome: str | None, errors: list[str]
) -> None:
    refusal = Flow(SMALL).refused(message)
    assert (refusal.reason, refusal.fields["outcome"]) == (reason, outcome)
    assert list(refusal.fields["validation_errors"]) == errors


@pytest.mark.contract("DECL-05")
def test_the_signal_of_an_active_run_is_judged_by_what_that_run_was_started_with() -> None:
    flow = given(definition=TYPED)
    reply = flow.when(both("go", TALKING)).reply
    assert (reply.started, reply.signalled.rejection_reason) == (None, "unknown_signal")


@pytest.mark.parametrize("flow_of", [Flow, closed])
def test_signal_with_start_refuses_what_a_start_refuses(flow_of: Any) -> None:
    flow = flow_of()
    flow.machine = SMALL
    wrong = SignalAndStart(start=started(arguments=b"1234", definition=TALKING), signal=DeliverSignal(name="go"))
    assert flow.refused(wrong).reason == "structural_limit_exceeded"


@pytest.mark.parametrize("flow_of", [Flow, closed, lambda: given(definition=TALKING)])
def test_a_retry_is_answered_from_the_first_time(flow_of: Any) -> None:
    flow = flow_of()
    first = flow.when(both(request_id="r1"))
    retained = next(command for command in flow.commands if command.request_id == "r1")
    again = flow.when(both(request_id="r1", retained=retained))
    assert again.idle
    assert again.reply.signalled.repeated
    assert again.reply.signalled.signal_id == first.reply.signalled.signal_id
    assert again.reply.started is None
    assert only(first, SignalReceived).signal_id == first.reply.signalled.signal_id


def test_a_retry_of_a_rejected_one_is_rejected_the_same() -> None:
    flow = closed()
    first = flow.when(both("typo", request_id="r1"))
    again = flow.when(both("typo", request_id="r1", retained=flow.commands[-1]))
    assert again.idle
    assert again.reply.signalled.rejection_reason == first.reply.signalled.rejection_reason == "unknown_signal"
