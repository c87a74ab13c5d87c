"""Cancel and terminate: typed history, nothing left open. A workflow that handles cancellation gets until its deadline."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.features.activity import Activities, ScheduleActivity
from backstay.kernel.features.cancel import (
    Cancel,
    CancelRequested,
    CancelWorkflow,
    Terminate,
    TerminateRequested,
    WorkflowCancelled,
    WorkflowTerminated,
    requested,
)
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.start import Reserve
from backstay.kernel.features.timer import StartTimer, Timers
from backstay.kernel.features.update import UpdateCompleted
from backstay.kernel.task import Lease
from backstay.kernel.values import SECOND

from ..deciding import vars_of
from ..given import TALKING, Flow, given, instant, names, only
from ..stored import refold, snapshot

LATER = StartTimer(delay_seconds=600)
HANDLING = replace(TALKING, cleanup_seconds=30.0)
BOTH = pytest.mark.parametrize(
    ("message", "word"), [(Cancel(reason="why"), "cancelled"), (Terminate(reason="why"), "terminated")]
)


def handling(*commands: Command, **options: Any) -> Flow:
    """A run of a workflow that handles cancellation and may take thirty seconds for it."""
    return given(*(commands or (LATER,)), definition=HANDLING, **options)


def asked(flow: Flow, at: float = 1) -> Flow:
    flow.when(Cancel(reason="why"), at)
    return flow


# -- at once


@pytest.mark.contract("CANCEL-01", "CANCEL-02", "CANCEL-03", "CANCEL-05")
@BOTH
def test_the_run_closes_at_once_and_takes_along_what_is_open(message: Any, word: str) -> None:
    flow = given(ScheduleActivity(activity_type="a"), LATER, OpenConditionWait(timeout_seconds=9), definition=TALKING)
    flow.begin(1)
    flow.update("add")
    decision = flow.when(message, at=1)
    request = "CancelRequested" if word == "cancelled" else "TerminateRequested"
    end = "WorkflowCancelled" if word == "cancelled" else "WorkflowTerminated"
    assert names(decision.events) == [
        *(request, "ActivityCancelled", "TimerCancelled", "TimerCancelled", end, "UpdateCompleted")
    ]
    assert (decision.reply.outcome, decision.reply.accepted) == (word, True)
    assert (flow.run.status, flow.run.closed_reason, flow.run.closed_at) == (word, word, instant(1))
    assert flow.rows == {}
    assert flow.state.next_wake is None
    assert flow.run.part(Activities).open == {}
    assert flow.run.part(Timers).pending == {}
    assert decision.closed == ["RUN1"]
    assert only(decision, UpdateCompleted).terminal_reason == word
    assert {entry.context.command_id for entry in decision.events} == {"RUN1-c3"}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("CANCEL-03")
@BOTH
def test_the_history_says_who_asked_and_why(message: Any, word: str) -> None:
    flow = given(LATER)
    decision = flow.when(message)
    kinds = (CancelRequested, WorkflowCancelled) if word == "cancelled" else (TerminateRequested, WorkflowTerminated)
    request, end = (only(decision, kind) for kind in kinds)
    assert vars_of(request, ("workflow_command_id", "command_type", "reason")) == {
        "workflow_command_id": "RUN1-c2",
        "command_type": decision.reply.command_type,
        "reason": "why",
    }
    fields = ("workflow_command_id", "failure_id", "failure_category", "closed_reason", "message", "reason")
    assert vars_of(end, fields) == {
        "workflow_command_id": "RUN1-c2",
        "failure_id": "RUN1-f6",
        "failure_category": word,
        "closed_reason": word,
        "message": f"the run was {word}: why",
        "reason": "why",
    }


@BOTH
def test_work_under_way_is_told_at_its_next_word(message: Any, word: str) -> None:
    flow = given()
    flow.lease()
    completion = flow.completion(LATER)
    flow.when(message)
    refusal = flow.refused(completion)
    assert (refusal.reason, refusal.fields["stop_reason"]) == ("run_closed", f"run_{word}")
    assert refusal.fields["cancel_requested"]


# -- rejected


def reserved() -> Flow:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    return flow


def second_run() -> Flow:
    flow = given()
    flow.complete(ContinueAsNew())
    return flow


@pytest.mark.contract("CANCEL-04", "REC-06")
@BOTH
@pytest.mark.parametrize(
    ("flow_of", "run_id", "reason", "outcome"),
    [
        (reserved, None, "instance_not_started", "rejected_not_started"),
        (second_run, "RUN1", "selected_run_not_current", "rejected_not_current"),
        (lambda: given(CompleteWorkflow()), None, "run_not_active", "rejected_not_active"),
    ],
)
def test_a_rejected_request_is_on_record(
    message: Any, word: str, flow_of: Any, run_id: str | None, reason: str, outcome: str
) -> None:
    flow = flow_of()
    decision = flow.when(replace(message, run_id=run_id))
    (command,) = decision.commands
    assert (command.status, command.rejection_reason, command.outcome) == ("rejected", reason, outcome)
    assert not decision.reply.accepted
    assert decision.events == []


# -- with a cleanup


@pytest.mark.contract("CANCEL-01")
def test_a_workflow_that_handles_it_is_asked_and_gets_a_deadline() -> None:
    flow = handling()
    decision = flow.when(Cancel(reason="why"), at=1)
    assert (decision.reply.outcome, decision.reply.accepted) == ("cancel_requested", True)
    assert [entry.event for entry in decision.events] == [
        CancelRequested(
            workflow_command_id="RUN1-c2", command_type="cancel", reason="why", cleanup_deadline_at=instant(31)
        )
    ]
    assert flow.run.is_open
    assert requested(flow.run)
    assert flow.state.next_wake == instant(31)
    resume = flow.workflow_task.resume
    assert (resume.resume_source_kind, resume.workflow_event_type) == ("workflow_command", "CancelRequested")
    assert resume.workflow_command_id == "RUN1-c2"


def test_code_that_raises_it_on_closes_cancelled() -> None:
    flow = asked(handling())
    decision = flow.complete(CancelWorkflow(), at=2)
    assert names(decision.events) == ["TimerCancelled", "WorkflowCancelled"]
    event = only(decision, WorkflowCancelled)
    assert (event.workflow_command_id, event.reason) == ("RUN1-c2", "why")
    assert (flow.run.status, flow.run.closed_reason) == ("cancelled", "cancelled")


def test_code_that_returns_closes_completed() -> None:
    flow = asked(handling())
    flow.complete(CompleteWorkflow())
    assert (flow.run.status, flow.run.closed_reason) == ("completed", "completed")


def test_code_that_compensates_goes_on_until_the_deadline() -> None:
    flow = asked(handling())
    flow.complete(ScheduleActivity(activity_type="undo"), at=2)
    assert flow.due(30.9).idle
    decision = flow.due(31)
    assert names(decision.events) == ["ActivityCancelled", "TimerCancelled", "WorkflowCancelled"]
    assert only(decision, WorkflowCancelled).workflow_command_id == "RUN1-c2"
    assert flow.rows == {}


def test_the_deadline_survives_a_restart() -> None:
    flow = asked(handling())
    flow.reopen()
    assert flow.machine.expect(flow.state).next_wake == instant(31)
    assert names(flow.due(31).events)[-1] == "WorkflowCancelled"


@pytest.mark.parametrize("held", [False, True])
def test_the_second_request_closes_at_once(held: bool) -> None:
    flow = handling(StartTimer(delay_seconds=0))
    if held:
        flow.lease()
    asked(flow)
    decision = flow.when(Cancel(reason="now"), at=2)
    assert decision.reply.outcome == "cancelled"
    assert names(decision.events) == ["CancelRequested", "WorkflowCancelled"]
    assert only(decision, CancelRequested).cleanup_deadline_at is None
    assert flow.state.buffered_events == []


def test_terminate_never_waits() -> None:
    flow = handling()
    assert flow.when(Terminate()).reply.outcome == "terminated"
    assert not flow.run.is_open


def test_a_request_in_the_middle_of_a_task_is_seen_by_the_next_one_and_its_clock_runs_from_now() -> None:
    flow = handling(StartTimer(delay_seconds=0))
    flow.lease()
    decision = flow.when(Cancel(), at=1)
    assert decision.events == []
    decision = flow.complete(LATER, at=10)
    assert names(decision.events) == ["TimerScheduled", "CancelRequested"]
    assert only(decision, CancelRequested).cleanup_deadline_at == instant(31)
    assert flow.workflow_task.resume.workflow_event_type == "CancelRequested"


def test_a_request_after_which_code_continues_as_new_reaches_the_next_run() -> None:
    flow = handling(StartTimer(delay_seconds=0))
    flow.lease()
    flow.when(Cancel(), at=1)
    decision = flow.complete(ContinueAsNew(), at=2)
    assert names(decision.events)[1:] == ["StartAccepted", "WorkflowStarted", "CancelRequested"]
    assert flow.state.next_wake == instant(31)


def test_a_task_that_never_answers_does_not_outlive_the_deadline() -> None:
    flow = asked(handling())
    flow.when(Claim(task_id=flow.workflow_task.id, lease=Lease(owner="w", until=instant(1) + 600 * SECOND)))
    assert names(flow.due(31).events)[-1] == "WorkflowCancelled"


@pytest.mark.parametrize("cleanup", [0.0, 0.5])
def test_a_cleanup_of_little_time_still_asks(cleanup: float) -> None:
    flow = given(LATER, definition=replace(TALKING, cleanup_seconds=cleanup))
    assert flow.when(Cancel()).reply.outcome == "cancel_requested"
    assert names(flow.due(cleanup).events)[-1] == "WorkflowCancelled"
