"""Signals: each accepted or rejected command on record, applied once and in order, under one wait id from end to end."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.signal import (
    ApplySignal,
    DeliverSignal,
    OpenSignalWait,
    SignalApplied,
    SignalReceived,
    Signals,
    SignalWaitOpened,
    open_waits,
    pending,
)
from backstay.kernel.features.start import RecordedDefinition, Reserve
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.workflow_task import WAITING_FOR_HISTORY
from backstay.kernel.limits import Breach, Limits
from backstay.kernel.task import Block

from ..deciding import vars_of
from ..given import TALKING, Flow, given, instant, names, only, parameter
from ..stored import refold, snapshot

WAIT = OpenSignalWait(signal_name="go")
TIMED = OpenSignalWait(signal_name="go", timeout_seconds=5)


def talking(*commands: Command, **options: Any) -> Flow:
    return given(*commands, **{"definition": TALKING, **options})


def said(decision: Any) -> dict[str, Any]:
    """What a decision answered, and that its record says the same."""
    fields = ("accepted", "outcome", "rejection_reason", "command_sequence")
    reply = vars_of(decision.reply, fields)
    (command,) = decision.commands
    recorded = vars_of(command, ("outcome", "rejection_reason"))
    assert {**recorded, "accepted": command.status == "accepted", "command_sequence": command.sequence} == reply
    assert command.validation_errors == decision.reply.validation_errors
    return reply


# -- accepted and rejected


@pytest.mark.contract("REC-01", "REC-03", "SIG-02")
def test_an_accepted_signal_is_a_command_and_a_fact() -> None:
    flow = talking(WAIT)
    decision = flow.signal("go", at=1, arguments=b"args", source="webhook", context={"caller": {"label": "shop"}})
    assert said(decision) == {
        "accepted": True,
        "outcome": "signal_received",
        "rejection_reason": None,
        "command_sequence": 2,
    }
    (command,) = decision.commands
    assert (command.command_type, command.target_name, command.target_scope) == ("signal", "go", "instance")
    assert (command.source, command.context, command.payload) == ("webhook", {"caller": {"label": "shop"}}, b"args")
    assert (command.resolved_run_id, command.at) == ("RUN1", instant(1))
    (entry,) = decision.events
    assert entry.event == SignalReceived(
        workflow_command_id="RUN1-c2",
        signal_id="RUN1-s2",
        signal_name="go",
        signal_wait_id="RUN1-q1",
        arguments=b"args",
    )
    assert vars_of(entry.context, ("command_id", "command_sequence", "source")) == {
        "command_id": "RUN1-c2",
        "command_sequence": 2,
        "source": "webhook",
    }
    assert decision.reply.signal_id == "RUN1-s2"


@pytest.mark.contract("RESUME-07")
def test_a_signal_makes_a_task_due_that_names_it() -> None:
    flow = talking(WAIT)
    flow.signal("go")
    task = flow.workflow_task
    assert (task.id, task.history_limit) == ("RUN1-w4", None)
    assert vars_of(task.resume, ("workflow_wait_kind", "open_wait_id", "workflow_signal_id", "signal_name")) == {
        "workflow_wait_kind": "signal",
        "open_wait_id": "signal-application:RUN1-s2",
        "workflow_signal_id": "RUN1-s2",
        "signal_name": "go",
    }
    assert task.resume.signal_wait_id == "RUN1-q1"


def reserved() -> Flow:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    return flow


def second_run() -> Flow:
    flow = talking()
    flow.complete(ContinueAsNew())
    return flow


TYPED = RecordedDefinition(
    signals=["pay"],
    signal_contracts=[
        {"name": "pay", "parameters": [parameter("amount", "int"), parameter("note", "string", required=False)]}
    ],
)

REJECTED: list[tuple[str, Any, dict[str, Any], str, str | None, dict[str, list[str]]]] = [
    ("not started", reserved, {}, "instance_not_started", "rejected_not_started", {}),
    ("old run", second_run, {"run_id": "RUN1"}, "selected_run_not_current", "rejected_not_current", {}),
    ("closed", lambda: talking(CompleteWorkflow()), {}, "run_not_active", "rejected_not_active", {}),
    ("unknown", talking, {"name": "typo"}, "unknown_signal", "rejected_unknown_signal", {}),
    (
        "missing argument",
        lambda: given(definition=TYPED),
        {"name": "pay"},
        "invalid_signal_arguments",
        "rejected_invalid_arguments",
        {"amount": ["is missing"]},
    ),
    (
        "surplus argument",
        lambda: given(definition=TYPED),
        {"name": "pay", "values": [1, "x", 3]},
        "invalid_signal_arguments",
        "rejected_invalid_arguments",
        {"arguments": ["1 more than the 2 that 'pay' takes"]},
    ),
    (
        "wrong types",
        lambda: given(definition=TYPED),
        {"name": "pay", "values": ["1", 2]},
        "invalid_signal_arguments",
        "rejected_invalid_arguments",
        {"amount": ["must be int, not string"], "note": ["must be string, not int"]},
    ),
    (
        "null",
        lambda: given(definition=TYPED),
        {"name": "pay", "values": [None]},
        "invalid_signal_arguments",
        "rejected_invalid_arguments",
        {"amount": ["must not be null"]},
    ),
    (
        "arguments that could not even be listed",
        lambda: given(definition=TYPED),
        {"name": "pay", "errors": {"sum": ["is unknown"]}},
        "invalid_signal_arguments",
        "rejected_invalid_arguments",
        {"sum": ["is unknown"]},
    ),
    (
        "too large",
        lambda: talking(limits=Limits(payload_size=3)),
        {"arguments": b"1234"},
        "structural_limit_exceeded",
        None,
        {"payload_size": [Breach("payload_size", 4, 3).message]},
    ),
]


@pytest.mark.contract("SIG-01", "SIG-02", "SIG-04", "SIG-05", "DECL-03", "REC-01", "REC-06")
@pytest.mark.parametrize(
    ("flow_of", "message", "reason", "outcome", "errors"),
    [row[1:] for row in REJECTED],
    ids=[row[0] for row in REJECTED],
)
def test_a_rejected_signal_is_on_record_and_no_fact(
    flow_of: Any, message: dict[str, Any], reason: str, outcome: str | None, errors: dict[str, list[str]]
) -> None:
    flow = flow_of()
    before = flow.state.command_sequence
    decision = flow.when(DeliverSignal(**{"name": "go", **message}))
    numbered = None if flow.state.run is None else before + 1
    assert said(decision) == {
        "accepted": False,
        "outcome": outcome,
        "rejection_reason": reason,
        "command_sequence": numbered,
    }
    assert decision.reply.validation_errors == errors
    assert decision.events == []
    assert decision.tasks == []


def test_a_signal_for_an_old_run_is_told_which_run_it_should_have_hit() -> None:
    flow = second_run()
    reply = flow.signal("go", run_id="RUN1").reply
    assert (reply.requested_run_id, reply.run_id) == ("RUN1", "RUN2")
    assert flow.commands[-1].target_scope == "run"


def test_a_signal_for_the_current_run_by_its_id_is_accepted() -> None:
    assert talking().signal("go", run_id="RUN1").reply.outcome == "signal_received"


def test_without_a_contract_any_name_and_any_arguments_are_taken() -> None:
    flow = given()
    assert flow.signal("whatever", values=[1, None, "x"], errors={"x": ["is unknown"]}).reply.accepted


@pytest.mark.parametrize("held", [False, True])
def test_so_many_signals_may_wait_and_not_one_more(held: bool) -> None:
    flow = talking(limits=Limits(pending_signal_count=2, history_length=0))
    if held:
        flow.lease()
    assert [flow.signal("go").reply.accepted for _ in range(3)] == [True, True, False]
    reply = flow.signal("go").reply
    assert (reply.rejection_reason, reply.outcome) == ("structural_limit_exceeded", None)
    assert list(reply.validation_errors) == ["pending_signal_count"]


def test_only_signals_count_as_waiting_signals() -> None:
    flow = talking(limits=Limits(pending_signal_count=2))
    flow.lease()
    flow.update("typo")
    flow.update("add")
    assert [flow.signal("go").reply.accepted for _ in range(3)] == [True, True, False]


# -- applied


@pytest.mark.contract("SIG-06", "SIG-09")
def test_a_signal_after_its_wait() -> None:
    flow = talking(WAIT)
    flow.signal("go", arguments=b"v")
    decision = flow.complete(ApplySignal(step=1, signal_id="RUN1-s2", value=b"v"))
    assert names(flow.history[2:]) == ["SignalWaitOpened", "SignalReceived", "SignalApplied"]
    assert only(decision, SignalApplied) == SignalApplied(
        workflow_command_id="RUN1-c2",
        signal_id="RUN1-s2",
        signal_name="go",
        signal_wait_id="RUN1-q1",
        sequence=1,
        value=b"v",
    )
    assert wait_ids(flow) == ["RUN1-q1"] * 3
    assert flow.run.part(Signals).received == {}
    assert open_waits(flow.run) == []


@pytest.mark.contract("SIG-09")
def test_a_wait_that_opens_after_its_signal_goes_by_the_id_of_the_signal() -> None:
    flow = talking()
    flow.signal("go")
    flow.complete(WAIT, ApplySignal(step=1, signal_id="RUN1-s2"))
    assert names(flow.history[2:]) == ["SignalReceived", "SignalWaitOpened", "SignalApplied"]
    assert wait_ids(flow) == ["signal-command:RUN1-c2"] * 3


@pytest.mark.contract("SIG-08", "SIG-09", "REC-02")
def test_repeated_signals_of_one_name_keep_one_wait_id_each() -> None:
    flow = talking(WAIT)
    for _ in range(3):
        flow.signal("go")
    flow.complete(
        ApplySignal(step=1, signal_id="RUN1-s2"),
        WAIT,
        ApplySignal(step=2, signal_id="RUN1-s3"),
        WAIT,
        ApplySignal(step=3, signal_id="RUN1-s4"),
    )
    ids = {name: wait_ids(flow, name) for name in ("SignalReceived", "SignalWaitOpened", "SignalApplied")}
    expected = ["RUN1-q1", "signal-command:RUN1-c3", "signal-command:RUN1-c4"]
    assert ids == dict.fromkeys(ids, expected)


@pytest.mark.contract("SIG-09")
def test_a_wait_that_opens_in_the_task_during_which_its_signal_came_goes_by_the_id_of_the_signal() -> None:
    flow = talking()
    flow.lease()
    flow.signal("go")
    flow.complete(WAIT)
    flow.complete(ApplySignal(step=1, signal_id="RUN1-s2"))
    assert names(flow.history[2:]) == ["SignalWaitOpened", "SignalReceived", "SignalApplied"]
    assert wait_ids(flow) == ["signal-command:RUN1-c2"] * 3


@pytest.mark.contract("SIG-09")
def test_waits_for_other_names_keep_ids_of_their_own() -> None:
    flow = talking()
    flow.signal("stop")
    flow.complete(WAIT, OpenSignalWait(signal_name="stop"), OpenSignalWait(signal_name="stop"))
    assert wait_ids(flow, "SignalWaitOpened") == ["RUN1-q1", "signal-command:RUN1-c2", "RUN1-q3"]


def wait_ids(flow: Flow, name: str | None = None) -> list[str]:
    return [
        entry.event.signal_wait_id  # type: ignore[attr-defined]
        for entry in flow.history
        if entry.type.startswith("Signal") and name in (None, entry.type)
    ]


@pytest.mark.contract("SIG-08")
@pytest.mark.parametrize("definition", [TALKING, None], ids=["declared as a handler", "no contract"])
def test_handler_signals_are_applied_in_order_when_the_task_that_saw_them_closes(definition: Any) -> None:
    flow = talking(StartTimer(delay_seconds=60), definition=definition)
    for _ in range(3):
        flow.signal("note")
    decision = flow.complete(StartTimer(delay_seconds=60))
    assert names(decision.events) == [*["SignalApplied"] * 3, "TimerScheduled"]
    applied = [entry.event.signal_id for entry in decision.events[:3]]  # type: ignore[attr-defined]
    assert applied == ["RUN1-s2", "RUN1-s3", "RUN1-s4"]
    assert {entry.context.decided_after for entry in decision.events} == {6}


def test_an_acknowledgement_that_there_is_nothing_to_do_applies_handler_signals_too() -> None:
    flow = talking(StartTimer(delay_seconds=60))
    flow.signal("note")
    decision = flow.break_task(Block(message="nothing yet", type=WAITING_FOR_HISTORY))
    assert names(decision.events) == ["SignalApplied"]
    assert flow.rows == {}


def test_a_task_that_fails_applies_nothing() -> None:
    flow = talking(StartTimer(delay_seconds=60))
    flow.signal("note")
    assert flow.break_task(Block(message="boom")).events == []
    assert list(flow.run.part(Signals).received) == ["RUN1-s2"]


def test_a_signal_that_no_code_waits_for_stays_received() -> None:
    flow = talking()
    flow.signal("go")
    assert flow.complete(StartTimer(delay_seconds=60)).events[0].type == "TimerScheduled"
    assert list(flow.run.part(Signals).received) == ["RUN1-s2"]
    assert flow.rows == {}
    assert not pending(flow.state)


# -- timeouts


@pytest.mark.contract("SIG-07")
def test_a_timeout_is_a_timer_of_the_step() -> None:
    flow = talking(TIMED)
    assert names(flow.history[2:]) == ["SignalWaitOpened", "TimerScheduled"]
    timer = flow.history[-1].event
    assert vars_of(timer, ("sequence", "timer_id", "timer_kind", "signal_wait_id", "signal_name", "fire_at")) == {
        "sequence": 1,
        "timer_id": "RUN1-t1",
        "timer_kind": "signal_timeout",
        "signal_wait_id": "RUN1-q1",
        "signal_name": "go",
        "fire_at": instant(5),
    }
    assert names(flow.due(5).events) == ["TimerFired"]
    resume = flow.workflow_task.resume
    assert (resume.workflow_wait_kind, resume.open_wait_id, resume.timer_id) == ("signal", "RUN1-q1", "RUN1-t1")
    assert open_waits(flow.run) == []


def test_a_signal_in_time_cancels_the_timeout() -> None:
    flow = talking(TIMED)
    flow.signal("go", at=3)
    decision = flow.complete(ApplySignal(step=1, signal_id="RUN1-s2"))
    assert names(decision.events) == ["TimerCancelled", "SignalApplied"]
    assert flow.state.next_wake is None


def test_a_signal_that_came_before_the_timeout_fired_can_still_be_applied() -> None:
    flow = talking(TIMED)
    flow.signal("go", at=4)
    flow.due(5)
    assert names(flow.complete(ApplySignal(step=1, signal_id="RUN1-s2")).events) == ["SignalApplied"]


def test_a_signal_after_the_timeout_belongs_to_the_next_wait() -> None:
    flow = talking(TIMED)
    flow.due(5)
    flow.signal("go", at=6)
    flow.complete(WAIT, ApplySignal(step=2, signal_id="RUN1-s2"))
    assert wait_ids(flow, "SignalReceived") == wait_ids(flow, "SignalApplied") == ["signal-command:RUN1-c2"]
    assert wait_ids(flow, "SignalWaitOpened") == ["RUN1-q1", "signal-command:RUN1-c2"]


def test_a_timeout_of_no_time_fires_at_once() -> None:
    flow = talking(OpenSignalWait(signal_name="go", timeout_seconds=0))
    assert names(flow.history[2:]) == ["SignalWaitOpened", "TimerScheduled", "TimerFired"]
    assert flow.workflow_task.resume.signal_wait_id == "RUN1-q1"


# -- bad completions


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (OpenSignalWait(signal_name=""), "signal_name"),
        (OpenSignalWait(signal_name="go", timeout_seconds=-1), "timeout_seconds"),
        (OpenSignalWait(signal_name="go", timeout_seconds=float("nan")), "timeout_seconds"),
        (OpenSignalWait(signal_name="go", timeout_seconds=1e10), "timeout_seconds"),
        (ApplySignal(step=1, signal_id="RUN1-s3"), "signal_id"),  # step 1 waits for `go`, s3 is `stop`
        (ApplySignal(step=2, signal_id="RUN1-s2"), "step"),  # step 2 is a timer
        (ApplySignal(step=3, signal_id="RUN1-s3"), "signal_id"),  # opened by this completion, for `go`
        (ApplySignal(step=9, signal_id="RUN1-s2"), "step"),
    ],
)
def test_a_completion_that_makes_no_sense_is_refused_whole(wrong: Command, field: str) -> None:
    flow = talking(WAIT, StartTimer(delay_seconds=60))
    flow.signal("go")
    flow.signal("stop")
    refusal = flow.refused(flow.completion(WAIT, wrong, CompleteWorkflow()))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)
    assert names(flow.complete(ApplySignal(step=1, signal_id="RUN1-s2")).events) == ["SignalApplied"]


def test_applying_a_signal_that_was_applied_before_changes_nothing() -> None:
    flow = talking(WAIT)
    flow.signal("go")
    flow.complete(ApplySignal(step=1, signal_id="RUN1-s2"), WAIT)
    flow.signal("go")
    assert flow.complete(ApplySignal(step=1, signal_id="RUN1-s2")).events == []


# -- pending


def test_a_signal_is_pending_until_seen_and_then_only_while_a_wait_wants_it() -> None:
    flow = talking()
    assert not pending(flow.state)
    flow.signal("go")
    assert pending(flow.state)
    flow.lease()
    assert pending(flow.state)
    flow.signal("stop")  # in the middle of the task
    flow.complete(StartTimer(delay_seconds=60))
    assert pending(flow.state)
    flow.complete()
    assert not pending(flow.state)  # both seen, nobody wants them
    flow.due(60)
    flow.complete(WAIT)
    assert pending(flow.state)  # the buffered `go` would end this wait


# -- carried to the next run


def test_signals_that_a_run_did_not_apply_are_told_to_the_next_run() -> None:
    flow = talking()
    flow.signal("go", arguments=b"1")
    flow.signal("note")
    flow.lease()
    flow.signal("stop")
    flow.signal("note")
    decision = flow.complete(ContinueAsNew())
    assert names(decision.events) == [
        *("SignalApplied", "WorkflowContinuedAsNew", "StartAccepted", "WorkflowStarted"),
        *["SignalReceived"] * 3,
    ]
    assert [entry.event.signal_id for entry in flow.history[2:]] == ["RUN1-s2", "RUN1-s4", "RUN1-s5"]  # type: ignore[attr-defined]
    assert [entry.context.command_id for entry in flow.history[2:]] == ["RUN1-c2", "RUN1-c4", "RUN1-c5"]
    assert flow.workflow_task.id == "RUN2-w2"
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert flow.signal("go").reply.signal_id == "RUN2-s2"
    opened = only(flow.complete(WAIT, ApplySignal(step=1, signal_id="RUN1-s2")), SignalWaitOpened)
    assert opened.signal_wait_id == "signal-command:RUN1-c2"


def test_a_run_that_waits_for_a_signal_alone_waits_for_a_sender_outside() -> None:
    flow = talking(WAIT)
    assert flow.row is not None
    assert flow.row.waits_externally == 1
    flow.signal("go")
    assert flow.row.waits_externally == 0


def test_every_event_of_a_signal_wait_has_its_shape() -> None:
    flow = talking(TIMED)
    flow.due(5)
    shapes = {flow.machine.shape(entry.event).name for entry in flow.history[2:]}  # type: ignore[union-attr]
    assert shapes == {"signal wait"}
