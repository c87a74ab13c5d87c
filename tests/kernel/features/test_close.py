"""Closing: completed or failed is final. Nothing of the run moves afterwards: no event, no task, no wake."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow, WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.workflow_task import FailWorkflowTask, HeartbeatWorkflowTask
from backstay.kernel.limits import Limits
from backstay.kernel.task import Block, Lease

from ..given import T0, WORKER, Flow, given, instant, only
from ..stored import refold, snapshot

BUSY: tuple[Command, ...] = (
    ScheduleActivity(activity_type="charge"),
    StartTimer(delay_seconds=60),
    StartTimer(delay_seconds=0),
)


def closed(*last: Command) -> Flow:
    """A run that closed while an activity ran and a timer was pending."""
    flow = given(*BUSY)
    flow.begin(1)
    flow.complete(*last)
    return flow


@pytest.mark.contract("CMD-17")
@pytest.mark.parametrize("result", [None, b"", b"done"])
def test_complete_workflow_closes_the_run_as_completed(result: bytes | None) -> None:
    flow = given()
    decision = flow.complete(CompleteWorkflow(result=result), at=4)
    assert only(decision, WorkflowCompleted).output == result
    ((_, row),) = decision.runs
    assert (row.status, row.closed_reason, row.closed_at) == ("completed", "completed", instant(4))
    assert decision.closed == [flow.run.run_id]
    assert decision.reply.run_status == "completed"


@pytest.mark.contract("CMD-18")
def test_fail_workflow_closes_the_run_as_failed_and_keeps_what_was_raised() -> None:
    flow = given()
    failure = Failure(message="no stock", exception_type="OutOfStock", details=b"sku 7")
    decision = flow.complete(
        FailWorkflow(
            message="no stock", exception_type="OutOfStock", exception_class="shop:OutOfStock", exception=failure
        )
    )
    event = only(decision, WorkflowFailed)
    assert (event.message, event.exception_type, event.exception_class) == ("no stock", "OutOfStock", "shop:OutOfStock")
    assert (event.failure_category, event.source_kind, event.source_id) == ("application", "workflow_run", "RUN1")
    assert event.exception == failure
    assert event.failure_id == "RUN1-f3"
    ((_, row),) = decision.runs
    assert (row.status, row.closed_reason) == ("failed", "failed")


@pytest.mark.parametrize("last", [CompleteWorkflow(), FailWorkflow(message="x")])
def test_a_closed_run_has_no_task_and_no_wake_whatever_it_still_waited_for(last: Command) -> None:
    flow = closed(last)
    assert flow.rows == {}
    assert flow.state.next_wake is None
    assert flow.machine.expect(flow.state) == ({}, None)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize("message", [Due(), Reconcile(incarnation="e2"), Reconcile(incarnation="e2", force=True)])
def test_the_clock_and_repair_change_nothing_after_the_close(message: Any) -> None:
    flow = closed(CompleteWorkflow())
    before = snapshot(flow)
    assert flow.when(message, at=1000).idle
    assert snapshot(flow) == before


def test_work_that_was_under_way_is_told_that_the_run_is_over() -> None:
    flow = given(*BUSY)
    flow.begin(1)
    report, failure = flow.finished(1), flow.failed(1)
    flow.complete(CompleteWorkflow())
    for message in (report, failure):
        refusal = flow.refused(message)
        assert refusal.reason == "run_completed"
        assert (refusal.fields["outcome"], refusal.fields["can_continue"]) == ("ignored", False)
        assert (refusal.fields["run_closed_reason"], refusal.fields["run_closed_at"]) == ("completed", T0)
    beat = flow.beat(1, attempt=1, owner=WORKER)
    assert beat.idle
    assert (beat.reply.can_continue, beat.reply.cancel_requested, beat.reply.reason) == (False, True, "run_completed")
    assert (beat.reply.run_closed_reason, beat.reply.run_closed_at) == ("completed", T0)


def test_a_workflow_task_of_a_closed_run_is_refused_with_the_reason_of_the_close() -> None:
    flow = given()
    task = flow.claim(flow.workflow_task.id)
    completion = flow.completion(CompleteWorkflow())
    flow.when(completion)
    late = [
        completion,
        FailWorkflowTask(task_id=task.id, owner=WORKER, attempt=1, block=Block(message="x")),
        HeartbeatWorkflowTask(task_id=task.id, owner=WORKER, attempt=1),
    ]
    for message in late:
        refusal = flow.refused(message, at=3)
        assert refusal.reason == "run_closed"
        assert (refusal.fields["can_continue"], refusal.fields["stop_reason"]) == (False, "run_completed")
        assert (refusal.fields["run_closed_reason"], refusal.fields["run_closed_at"]) == ("completed", T0)
    assert flow.refused(Claim(task_id=task.id, lease=Lease(owner="w"))).reason == "run_closed"


@pytest.mark.parametrize(
    ("limits", "value"), [(Limits(payload_size=3), 4), (Limits(payload_size=4), None), (Limits(payload_size=0), None)]
)
def test_a_result_over_the_payload_limit_fails_the_run(limits: Limits, value: int | None) -> None:
    flow = given(CompleteWorkflow(result=b"1234"), limits=limits)
    event = flow.history[-1].event
    if value is None:
        assert isinstance(event, WorkflowCompleted)
    else:
        assert isinstance(event, WorkflowFailed)
        assert (event.failure_category, event.structural_limit_kind) == ("structural_limit", "payload_size")
        assert (event.structural_limit_value, event.structural_limit_configured) == (4, 3)
        assert event.message.startswith("Structural limit exceeded:")
