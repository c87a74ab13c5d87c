"""Pause: tasks are withheld until the run is unpaused; facts are recorded and deadlines keep running."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.lease import Claim, Offer
from backstay.kernel.features.pause import Pause, Unpause, WorkflowPaused, WorkflowUnpaused, allows
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.signal import OpenSignalWait
from backstay.kernel.features.start import Reserve
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.task import Lease

from ..deciding import to
from ..given import TALKING, Flow, given, names, only, running
from ..stored import refold, snapshot

ACTIVITY = ScheduleActivity(activity_type="charge")


def paused(flow: Flow) -> Flow:
    flow.when(Pause(reason="maintenance"))
    return flow


def test_pausing_and_unpausing_are_facts_with_a_reason() -> None:
    flow = given(ACTIVITY)
    decision = flow.when(Pause(reason="maintenance"))
    assert (decision.reply.outcome, decision.reply.command_type) == ("paused", "pause")
    assert only(decision, WorkflowPaused) == WorkflowPaused(workflow_command_id="RUN1-c2", reason="maintenance")
    assert not allows(flow.run)
    decision = flow.when(Unpause(reason="done"))
    assert (decision.reply.outcome, decision.reply.command_type) == ("unpaused", "unpause")
    assert only(decision, WorkflowUnpaused) == WorkflowUnpaused(workflow_command_id="RUN1-c3", reason="done")
    assert allows(flow.run)


@pytest.mark.parametrize("message", [Pause(), Unpause()])
def test_doing_it_twice_is_not_needed(message: Any) -> None:
    flow = given()
    if isinstance(message, Pause):
        paused(flow)
    decision = flow.when(message)
    kind = type(message).__name__.lower()
    assert (decision.reply.outcome, decision.reply.accepted) == (f"{kind}_not_needed", True)
    assert decision.events == []


def reserved() -> Flow:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    return flow


def second_run() -> Flow:
    flow = given()
    flow.complete(ContinueAsNew())
    return flow


@pytest.mark.parametrize("message", [Pause(), Unpause()])
@pytest.mark.parametrize(
    ("flow_of", "run_id", "reason", "outcome"),
    [
        (reserved, None, "instance_not_started", "rejected_not_started"),
        (second_run, "RUN1", "selected_run_not_current", "rejected_not_current"),
        (lambda: given(CompleteWorkflow()), None, "run_not_active", "rejected_not_active"),
    ],
)
def test_a_rejected_request_is_on_record(
    message: Any, flow_of: Any, run_id: str | None, reason: str, outcome: str
) -> None:
    decision = flow_of().when(replace(message, run_id=run_id))
    (command,) = decision.commands
    assert (command.status, command.rejection_reason, command.outcome) == ("rejected", reason, outcome)
    assert decision.events == []


@pytest.mark.parametrize("flow_of", [given, lambda: given(ACTIVITY)], ids=["workflow", "activity"])
def test_a_paused_run_hands_out_nothing(flow_of: Any) -> None:
    flow = paused(flow_of())
    (task_id,) = flow.rows
    refusal = flow.refused(Claim(task_id=task_id, lease=Lease(owner="worker-1")))
    assert refusal.reason == "run_paused"
    for message in (Offer(task_id=task_id), Reconcile(incarnation="engine-2")):
        decision = flow.when(message, offer=to("worker-1"))
        assert (decision.unassigned, decision.leased) == ([], [])


@pytest.mark.parametrize("flow_of", [given, lambda: given(ACTIVITY)], ids=["workflow", "activity"])
def test_unpausing_offers_what_was_withheld(flow_of: Any) -> None:
    flow = paused(flow_of())
    (task_id,) = flow.rows
    assert [task.id for task in flow.when(Unpause()).unassigned] == [task_id]
    flow = paused(flow_of())
    assert [task.id for task in flow.when(Unpause(), offer=to("worker-1")).leased] == [task_id]


def test_facts_are_recorded_while_paused_and_their_tasks_wait() -> None:
    flow = given(ACTIVITY, OpenSignalWait(signal_name="go"), StartTimer(delay_seconds=5), definition=TALKING)
    flow.begin(1)
    paused(flow)
    offer = to("worker-1")
    decisions = [
        flow.when(flow.finished(1), offer=offer),
        flow.signal("go"),
        flow.update("add"),
        flow.due(5),
    ]
    assert [names(decision.events) for decision in decisions] == [
        *(["ActivityCompleted"], ["SignalReceived"], ["UpdateRejected"], ["TimerFired"])
    ]
    assert all(decision.unassigned == decision.leased == [] for decision in decisions)
    assert flow.workflow_task.state == "ready"
    assert [task.id for task in flow.when(Unpause()).unassigned] == [flow.workflow_task.id]


def test_work_that_was_handed_out_before_may_be_reported() -> None:
    flow = given(ACTIVITY, StartTimer(delay_seconds=0))
    flow.begin(1)
    flow.lease()
    paused(flow)
    assert names(flow.complete(StartTimer(delay_seconds=60)).events) == ["TimerScheduled"]
    assert names(flow.finish(1).events) == ["ActivityCompleted"]
    assert flow.workflow_task.state == "ready"


def test_a_retry_that_comes_due_while_paused_waits() -> None:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[5]))
    flow.fail(1)
    paused(flow)
    assert flow.due(5).unassigned == []
    assert [task.id for task in flow.when(Unpause(), at=9).unassigned] == ["RUN1-a1.2"]


def test_deadlines_go_on() -> None:
    flow = paused(given(run_timeout_seconds=10))
    assert names(flow.due(10).events) == ["WorkflowTimedOut"]


def test_a_lease_that_runs_out_while_paused_is_offered_when_unpaused() -> None:
    flow = given()
    flow.lease()
    paused(flow)
    assert flow.due(301).unassigned == []
    assert [task.state for task in flow.rows.values()] == ["ready"]
    assert [task.id for task in flow.when(Unpause()).unassigned] == ["RUN1-w2"]


def test_being_paused_survives_a_restart() -> None:
    flow = paused(given())
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    flow.reopen()
    assert not allows(flow.run)


def test_pausing_in_the_middle_of_a_task_is_recorded_at_once() -> None:
    flow = given()
    flow.lease()
    assert names(flow.when(Pause()).events) == ["WorkflowPaused"]
