"""Updates: accepted or rejected on record; applied by a task of their own, in order; each ends once, whatever the run does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.failure import Failure
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.lease import Release
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.signal import ApplySignal, OpenSignalWait
from backstay.kernel.features.start import RecordedDefinition, Reserve
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import (
    CompleteUpdate,
    FailUpdate,
    Update,
    UpdateAccepted,
    UpdateApplied,
    UpdateCompleted,
    UpdateRejected,
    Updates,
)
from backstay.kernel.features.workflow_task import WAITING_FOR_HISTORY, CompleteWorkflowTask, events_shown
from backstay.kernel.limits import Breach, Limits
from backstay.kernel.task import Block
from backstay.kernel.values import accepted_after, run_of

from ..deciding import vars_of
from ..given import TALKING, WORKER, Flow, given, names, only, parameter
from ..stored import refold, snapshot

LATER = StartTimer(delay_seconds=600)
DONE = CompleteUpdate(update_id="RUN1-u2.3", result=b"r")


def talking(*commands: Command, **options: Any) -> Flow:
    """A run that has nothing to do but answer."""
    return given(*(commands or (LATER,)), **{"definition": TALKING, **options})


# -- accepted


@pytest.mark.contract("UPD-01", "UPD-11", "REC-01", "REC-03")
def test_an_accepted_update_is_a_command_and_a_fact() -> None:
    flow = talking()
    decision = flow.update("add", arguments=b"args", values=[1], source="webhook")
    (command,) = decision.commands
    assert (command.command_type, command.status, command.outcome, command.sequence) == ("update", "accepted", None, 2)
    assert (command.target_name, command.source, command.payload) == ("add", "webhook", b"args")
    assert vars_of(decision.reply, ("accepted", "outcome", "update_id", "command_id", "command_sequence")) == {
        "accepted": True,
        "outcome": None,
        "update_id": "RUN1-u2.3",
        "command_id": "RUN1-c2",
        "command_sequence": 2,
    }
    assert [entry.event for entry in decision.events] == [
        UpdateAccepted(workflow_command_id="RUN1-c2", update_id="RUN1-u2.3", update_name="add", arguments=b"args")
    ]


@pytest.mark.contract("UPD-02", "RESUME-03", "RESUME-04", "RESUME-05", "RESUME-06", "RESUME-09")
def test_an_update_gets_a_task_of_its_own() -> None:
    flow = talking()
    flow.update("add")
    task = flow.workflow_task
    assert (task.id, task.history_limit, task.state) == ("RUN1-v4", 4, "ready")
    resume = {"workflow_wait_kind": "update", "open_wait_id": "update:RUN1-u2.3", "workflow_update_id": "RUN1-u2.3"}
    resume |= {"resume_source_kind": "workflow_update", "resume_source_id": "RUN1-u2.3"}
    assert vars_of(task.resume, resume) == resume
    assert task.resume.workflow_command_id == "RUN1-c2"


def test_the_id_of_an_update_says_where_to_look_for_it() -> None:
    flow = given(definition=TALKING)
    flow.lease()
    ids = [flow.update("add").reply.update_id for _ in range(2)]
    length = flow.run.length
    flow.complete(LATER)
    assert [accepted_after(id) for id in ids] == [length, length]
    found = {entry.event.update_id: entry.sequence for entry in flow.history if isinstance(entry.event, UpdateAccepted)}
    assert list(found) == ids
    assert all(place > length for place in found.values())
    assert [accepted_after(id) for id in ("RUN1-u2", "another", "", "x.y", "x.٣")] == [0] * 5


# -- rejected


def reserved() -> Flow:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    return flow


def second_run() -> Flow:
    flow = talking()
    flow.signal("note")
    flow.complete(ContinueAsNew())
    return flow


def signalled() -> Flow:
    flow = talking()
    flow.signal("note")
    return flow


TYPED = RecordedDefinition(
    updates=["pay"], update_contracts=[{"name": "pay", "parameters": [parameter("amount", "int")]}]
)
INVALID = ("invalid_update_arguments", "rejected_invalid_arguments")

REJECTED: list[tuple[str, Any, dict[str, Any], str, str | None, dict[str, list[str]]]] = [
    ("not started", reserved, {}, "instance_not_started", "rejected_not_started", {}),
    ("old run", second_run, {"run_id": "RUN1"}, "selected_run_not_current", "rejected_not_current", {}),
    ("closed", lambda: talking(CompleteWorkflow()), {}, "run_not_active", "rejected_not_active", {}),
    ("unknown", talking, {"name": "typo"}, "unknown_update", "rejected_unknown_update", {}),
    ("missing", lambda: given(definition=TYPED), {"name": "pay"}, *INVALID, {"amount": ["is missing"]}),
    (
        "surplus",
        lambda: given(definition=TYPED),
        {"name": "pay", "values": [1, 2]},
        *INVALID,
        {"arguments": ["1 more than the 1 that 'pay' takes"]},
    ),
    (
        "type",
        lambda: given(definition=TYPED),
        {"name": "pay", "values": ["1"]},
        *INVALID,
        {"amount": ["must be int, not string"]},
    ),
    (
        "null",
        lambda: given(definition=TYPED),
        {"name": "pay", "values": [None]},
        *INVALID,
        {"amount": ["must not be null"]},
    ),
    (
        "unlisted",
        lambda: given(definition=TYPED),
        {"name": "pay", "errors": {"x": ["is unknown"]}},
        *INVALID,
        {"x": ["is unknown"]},
    ),
    (
        "definition unavailable",
        talking,
        {"missing": "no worker"},
        "workflow_definition_unavailable",
        "rejected_workflow_definition_unavailable",
        {"worker": ["no worker"]},
    ),
    ("behind a signal", signalled, {}, "earlier_signal_pending", "rejected_pending_signal", {}),
    (
        "turned down by its validator",
        talking,
        {"objection": "too much"},
        "update_validator_rejected",
        "rejected_by_validator",
        {"validator": ["too much"]},
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


@pytest.mark.contract("UPD-03", "UPD-15", "UPD-16", "UPD-17", "UPD-18", "UPD-19", "DECL-03", "REC-01", "REC-06")
@pytest.mark.parametrize(
    ("flow_of", "message", "reason", "outcome", "errors"),
    [row[1:] for row in REJECTED],
    ids=[row[0] for row in REJECTED],
)
def test_a_rejected_update_is_on_record_and_gets_no_task(
    flow_of: Any, message: dict[str, Any], reason: str, outcome: str | None, errors: dict[str, list[str]]
) -> None:
    flow = flow_of()
    named = message.get("run_id") or (flow.state.run and flow.run.run_id)
    sequence = sum(run_of(command.id) == named for command in flow.commands)
    tasks = dict(flow.rows)
    decision = flow.when(Update(**{"name": "add", **message}))
    (command,) = decision.commands
    assert (command.status, command.rejection_reason, command.outcome) == ("rejected", reason, outcome)
    assert command.validation_errors == decision.reply.validation_errors == errors
    assert command.sequence == (None if flow.state.run is None else sequence + 1)
    assert flow.rows == tasks
    if flow.state.run is not None and flow.run.is_open and named == flow.run.run_id:
        rejected = only(decision, UpdateRejected)
        assert (rejected.rejection_reason, rejected.outcome) == (reason, outcome)
        assert rejected.validation_errors == errors
        assert (rejected.workflow_command_id, rejected.update_id) == (command.id, decision.reply.update_id)
    else:
        assert decision.events == []


def test_the_checks_come_in_the_order_of_the_contract() -> None:
    """Each of these updates has everything wrong that those behind it have; the first wins."""
    flow = given(definition=TYPED, limits=Limits(payload_size=1, pending_update_count=1))
    flow.signal("pay")  # rejected; the run declares no signals
    wrong: dict[str, Any] = {
        "arguments": b"123",
        "objection": "no",
        "missing": "no worker",
        "values": ["x"],
        "name": "typo",
    }
    reasons = []
    for undo in ({}, {"name": "pay"}, {"values": [1]}, {"missing": None}, {"objection": None}, {"arguments": b""}):
        wrong |= undo
        reasons.append(flow.when(Update(**wrong)).reply.rejection_reason)
    assert reasons == [
        *("unknown_update", "invalid_update_arguments", "workflow_definition_unavailable"),
        *("update_validator_rejected", "structural_limit_exceeded", None),
    ]
    assert list(flow.update("pay", values=[1]).reply.validation_errors) == ["pending_update_count"]


@pytest.mark.parametrize("held", [False, True])
def test_so_many_updates_may_wait_and_not_one_more(held: bool) -> None:
    flow = given(definition=TALKING, limits=Limits(pending_update_count=2))
    if held:
        flow.lease()
    flow.update("typo")
    assert [flow.update("add").reply.accepted for _ in range(3)] == [True, True, False]


@pytest.mark.contract("UPD-19", "UPD-20")
def test_an_update_after_a_signal_is_accepted_once_the_signal_is_applied() -> None:
    flow = talking(OpenSignalWait(signal_name="go"))
    flow.signal("go")
    assert not flow.update("add").reply.accepted
    flow.complete(LATER)  # seen and not applied, though a wait wants it
    assert not flow.update("add").reply.accepted
    flow.signal("note")
    flow.complete(ApplySignal(step=1, signal_id="RUN1-s2"))
    assert flow.update("add").reply.accepted


def test_without_a_contract_any_update_is_taken() -> None:
    assert given(LATER).update("whatever", values=[1, None]).reply.accepted


# -- applied, completed, failed


@pytest.mark.contract("UPD-01", "UPD-04")
def test_a_handler_that_returns_applies_and_completes_the_update() -> None:
    flow = talking()
    flow.update("add", arguments=b"args")
    decision = flow.complete(DONE)
    assert [entry.event for entry in decision.events] == [
        UpdateApplied(
            workflow_command_id="RUN1-c2", update_id="RUN1-u2.3", update_name="add", arguments=b"args", sequence=1
        ),
        UpdateCompleted(
            workflow_command_id="RUN1-c2", update_id="RUN1-u2.3", update_name="add", sequence=1, result=b"r"
        ),
    ]
    assert {entry.context.decided_after for entry in decision.events} == {4}
    assert decision.notifications == [("update:RUN1-u2.3", decision.events[1])]
    assert flow.run.part(Updates).pending == {}


@pytest.mark.contract("UPD-22")
def test_a_handler_that_raises_fails_the_update_and_not_the_run() -> None:
    flow = talking()
    flow.update("add")
    failure = Failure(message="no", exception_type="Refusal")
    decision = flow.complete(
        FailUpdate(update_id="RUN1-u2.3", message="no", exception_type="Refusal", exception=failure, non_retryable=True)
    )
    assert names(decision.events) == ["UpdateCompleted"]
    event = only(decision, UpdateCompleted)
    assert vars_of(event, ("outcome", "failure_id", "failure_category", "message", "non_retryable", "exception")) == {
        "outcome": "update_failed",
        "failure_id": "RUN1-f5",
        "failure_category": "application",
        "message": "no",
        "non_retryable": True,
        "exception": failure,
    }
    assert flow.run.is_open
    assert flow.rows == {}  # nothing has changed, so there is nothing to look at
    assert [topic for topic, _ in decision.notifications] == ["update:RUN1-u2.3"]


def test_an_ordinary_task_follows_so_that_the_code_sees_what_the_update_changed() -> None:
    flow = talking()
    flow.update("add")
    flow.complete(DONE)
    task = flow.workflow_task
    assert (task.id, task.history_limit) == ("RUN1-w5", None)
    assert task.resume.workflow_update_id is None
    assert flow.state.cursor == 2
    flow.complete()
    assert flow.state.cursor == 6
    assert flow.rows == {}


@pytest.mark.contract("UPD-04")
def test_updates_and_signals_take_effect_in_the_order_in_which_they_were_accepted() -> None:
    flow = talking()
    flow.update("add")
    flow.update("add")
    flow.signal("note")
    assert not flow.update("add").reply.accepted  # behind the signal
    tasks = []
    for _ in range(2):
        tasks.append((flow.workflow_task.id, flow.workflow_task.history_limit))
        flow.complete(CompleteUpdate(update_id=flow.workflow_task.resume.workflow_update_id or ""))
    tasks.append((flow.workflow_task.id, flow.workflow_task.history_limit))
    assert tasks == [("RUN1-v4", 4), ("RUN1-v5", 5), ("RUN1-w6", None)]
    assert names(flow.complete().events) == ["SignalApplied"]


def test_the_task_of_an_update_goes_ahead_of_the_ordinary_one() -> None:
    flow = given(definition=TALKING)
    assert flow.workflow_task.id == "RUN1-w2"
    decision = flow.update("add")
    assert {change.task_id: change.task is not None for change in decision.tasks} == {"RUN1-v3": True, "RUN1-w2": False}
    flow.complete(CompleteUpdate(update_id=decision.reply.update_id))
    assert flow.workflow_task.id == "RUN1-w2"


def test_the_task_of_an_update_looks_no_further_than_its_acceptance() -> None:
    flow = talking(StartTimer(delay_seconds=5))
    flow.update("add")
    flow.due(5)
    task = flow.lease()
    assert task.seen == 4
    assignment = flow.machine.assign(flow.state, task)
    assert names(events_shown(assignment, flow.history)) == [
        *("StartAccepted", "WorkflowStarted", "TimerScheduled", "UpdateAccepted")
    ]
    flow.complete(DONE)
    assert flow.workflow_task.resume.timer_id == "RUN1-t1"


def test_an_update_accepted_during_the_task_of_another_update_comes_after_it() -> None:
    flow = talking()
    flow.update("add")
    flow.lease()
    flow.update("add")
    decision = flow.complete(DONE)
    assert names(decision.events) == ["UpdateApplied", "UpdateCompleted", "UpdateAccepted"]
    assert flow.workflow_task.id == "RUN1-v7"
    flow.complete(CompleteUpdate(update_id="RUN1-u3.4"))
    assert flow.workflow_task.id == "RUN1-w5"


def test_a_failed_task_of_an_update_stays_and_keeps_its_place() -> None:
    flow = talking()
    flow.update("add")
    flow.break_task(Block(message="boom"))
    flow.signal("note")
    task = flow.workflow_task
    assert (task.id, task.state, task.repair_count) == ("RUN1-v4", "failed", 1)
    flow.due(3)
    assert names(flow.complete(DONE).events) == ["UpdateApplied", "UpdateCompleted"]


def test_a_worker_that_has_nothing_to_do_in_the_task_of_an_update_has_failed_it() -> None:
    flow = talking()
    flow.update("add")
    flow.break_task(Block(message="nothing yet", type=WAITING_FOR_HISTORY))
    task = flow.workflow_task
    assert (task.id, task.state, task.attempt, task.repair_count) == ("RUN1-v4", "failed", 1, 1)


@pytest.mark.contract("UPD-13", "REPAIR-06", "REPAIR-15")
def test_a_lost_task_of_an_update_is_restored_as_it_was() -> None:
    flow = talking(OpenConditionWait())
    flow.update("add")
    lost = flow.workflow_task
    flow.lose(lost.id)
    assert flow.when(Reconcile(incarnation="engine-2")).reply.restored == ["RUN1-v4"]
    assert flow.workflow_task == replace(lost, repair_count=1)


def test_a_late_report_does_not_pass_for_one_of_the_task_that_had_to_wait_for_an_update() -> None:
    """Its row makes place for that of the update, and comes back: the same worker may have it again."""
    flow = talking()
    flow.due(600)
    before = flow.lease()
    flow.when(Release(task_id=before.id, owner=WORKER, attempt=before.attempt))
    flow.update("add")
    assert before.id not in flow.rows
    (update,) = flow.run.part(Updates).pending
    flow.complete(CompleteUpdate(update_id=update, result=b"r"))
    again = flow.lease()
    assert (again.id, again.attempt) == (before.id, before.attempt + 1)
    late = CompleteWorkflowTask(task_id=before.id, owner=WORKER, attempt=before.attempt, commands=[])
    assert flow.refused(late).reason == "workflow_task_attempt_mismatch"


# -- bad completions


@pytest.mark.parametrize(
    ("commands", "field"),
    [
        ([], "commands"),
        ([LATER], "commands"),
        ([DONE, LATER], "commands[1]"),
        ([LATER, DONE], "commands[0]"),
        ([DONE, CompleteWorkflow()], "commands[1]"),
        ([DONE, DONE], "commands"),
        ([DONE, FailUpdate(update_id="RUN1-u2.3", message="x")], "commands"),
        ([CompleteUpdate(update_id="RUN1-u3.4")], "update_id"),  # not the next one
        ([CompleteUpdate(update_id="RUN1-u9")], "update_id"),
        ([FailUpdate(update_id="RUN1-u3.4", message="x")], "update_id"),
    ],
)
def test_the_task_of_an_update_ends_that_update_and_nothing_else(commands: list[Command], field: str) -> None:
    flow = talking()
    flow.update("add")
    flow.update("add")
    refusal = flow.refused(flow.completion(*commands))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)
    assert names(flow.complete(DONE).events) == ["UpdateApplied", "UpdateCompleted"]


@pytest.mark.parametrize("command", [DONE, FailUpdate(update_id="RUN1-u2.3", message="x")])
def test_an_ordinary_task_cannot_end_an_update(command: Command) -> None:
    flow = given(definition=TALKING)
    flow.lease()
    flow.update("add")
    refusal = flow.refused(flow.completion(LATER, command))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", "commands[1]")
    assert names(flow.complete().events) == ["UpdateAccepted"]


# -- when the run ends first


@pytest.mark.parametrize(
    ("end", "closed_reason"), [(CompleteWorkflow(), "completed"), (FailWorkflow(message="x"), "failed")]
)
def test_updates_that_a_run_did_not_get_to_fail_with_it(end: Command, closed_reason: str) -> None:
    flow = given(definition=TALKING)
    flow.lease()
    flow.update("add")
    flow.update("add")
    decision = flow.complete(end)
    assert names(decision.events)[1:] == ["UpdateCompleted", "UpdateCompleted"]
    for position, entry in enumerate(decision.events[1:]):
        event: Any = entry.event
        assert (event.update_id, event.workflow_command_id) == (f"RUN1-u{position + 2}.2", f"RUN1-c{position + 2}")
        assert (event.outcome, event.terminal_reason, event.non_retryable) == ("update_failed", closed_reason, True)
        assert event.failure_id == f"RUN1-f{entry.sequence}"
    assert [topic for topic, _ in decision.notifications] == ["update:RUN1-u2.2", "update:RUN1-u3.2"]
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_result_beyond_the_limit_fails_the_run_and_the_update_with_it() -> None:
    flow = talking(limits=Limits(payload_size=3))
    flow.update("add")
    decision = flow.complete(CompleteUpdate(update_id="RUN1-u2.3", result=b"1234"))
    assert names(decision.events) == ["WorkflowFailed", "UpdateCompleted"]
