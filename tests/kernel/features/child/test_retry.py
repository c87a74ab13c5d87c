"""A child's failed run is tried again by the child itself, in the decision that failed it; its parent sleeps on."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.child import ChildRunFailed, ChildRunStarted
from backstay.kernel.features.child.messages import ChildReport
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.features.update import UpdateCompleted
from backstay.kernel.retry import RetryPolicy

from ...given import TALKING, instant, names, only
from ...stored import refold, snapshot
from ...world import call, calling

TWICE = RetryPolicy(max_attempts=2, backoff_seconds=[5.0], non_retryable_error_types=["Fatal"])
AT_ONCE = RetryPolicy(max_attempts=3)


def test_the_next_run_opens_in_the_decision_that_failed_the_last_one() -> None:
    world, parent = calling(call(arguments=b"a", retry_policy=TWICE))
    child = world.child_of(parent)
    first = child.run.run_id
    decision = child.complete(FailWorkflow(message="no"), at=1)
    assert names(decision.events) == ["WorkflowFailed", "StartAccepted", "WorkflowStarted"]
    began: WorkflowStarted = only(decision, WorkflowStarted)
    assert (began.retry_attempt, began.retry_of_child_workflow_run_id, began.arguments) == (2, first, b"a")
    assert began.first_task_at == instant(6)
    assert child.workflow_task.available_at == instant(6)
    assert decision.ended is None, "who waits for the child waits on"
    assert child.row is not None
    assert child.row.next_wake == instant(6)
    (send,) = decision.sends
    report: Any = send.message
    assert (report.run_number, report.retry_attempt, report.retry_of) == (2, 2, first)
    assert report.close is None
    heard = world.deliver(send)
    begun: ChildRunStarted = only(heard, ChildRunStarted)
    assert (begun.child_run_number, begun.retry_attempt, begun.retry_backoff_seconds) == (2, 2, 5.0)
    assert begun.retry_of_child_workflow_run_id == first
    assert not parent.tasks, "the parent sleeps on"


def test_the_task_of_a_retried_child_waits_for_the_backoff() -> None:
    world, parent = calling(call(retry_policy=TWICE))
    child = world.child_of(parent)
    child.complete(FailWorkflow(message="no"), at=1)
    child.due(at=6)
    child.complete(CompleteWorkflow(result=b"r"))
    world.settle()
    assert names(parent.history)[-3:] == ["ChildRunStarted", "ChildRunStarted", "ChildRunCompleted"]
    assert snapshot(child, refold(child)) == snapshot(child)


def test_only_the_last_failure_reaches_the_parent() -> None:
    world, parent = calling(call(retry_policy=AT_ONCE))
    child = world.child_of(parent)
    for message in ("one", "two", "three"):
        child.complete(FailWorkflow(message=message))
    world.settle()
    assert [e for e in names(parent.history) if e == "ChildRunFailed"] == ["ChildRunFailed"]
    failed: ChildRunFailed = parent.history[-1].event  # type: ignore[assignment]
    assert (failed.message, failed.child_run_number) == ("three", 3)


@pytest.mark.parametrize(
    "failure",
    [
        FailWorkflow(message="no", exception_type="Fatal"),
        FailWorkflow(message="no", exception_class="Fatal"),
        FailWorkflow(message="no", non_retryable=True),
    ],
)
def test_a_child_failure_that_is_not_retryable_is_not_tried_again(failure: FailWorkflow) -> None:
    world, parent = calling(call(retry_policy=TWICE))
    world.child_of(parent).complete(failure)
    world.settle()
    assert names(parent.history)[-1] == "ChildRunFailed"


def test_a_stopped_child_is_not_tried_again() -> None:
    world, parent = calling(call(retry_policy=AT_ONCE))
    world.child_of(parent).when(Cancel())
    world.settle()
    assert names(parent.history)[-1] == "ChildRunCancelled"


def test_without_a_policy_nothing_is_tried_again() -> None:
    world, parent = calling()
    world.child_of(parent).complete(FailWorkflow(message="no"))
    world.settle()
    assert names(parent.history)[-1] == "ChildRunFailed"


def test_a_run_that_took_too_long_is_tried_again_until_the_whole_has() -> None:
    forever = RetryPolicy(max_attempts=None)
    world, parent = calling(call(retry_policy=forever, execution_timeout_seconds=25, run_timeout_seconds=10))
    child = world.child_of(parent)
    child.due(at=10)
    assert child.run.number == 2
    began: Any = child.history[1].event
    assert (began.execution_deadline_at, began.run_deadline_at) == (instant(25), instant(20))
    child.due(at=20)
    assert child.run.number == 3
    child.due(at=25)
    assert (child.run.number, child.run.closed_reason) == (3, "timed_out")
    world.settle()
    failed: ChildRunFailed = parent.history[-1].event  # type: ignore[assignment]
    assert (failed.failure_category, failed.closed_reason) == ("timeout", "timed_out")


def test_a_backoff_beyond_the_deadline_ends_at_the_deadline() -> None:
    patient = RetryPolicy(max_attempts=None, backoff_seconds=[100.0])
    world, parent = calling(call(retry_policy=patient, execution_timeout_seconds=25))
    child = world.child_of(parent)
    child.complete(FailWorkflow(message="no"), at=1)
    assert child.run.number == 2
    child.due(at=25)
    world.settle()
    assert names(parent.history)[-1] == "ChildRunFailed"


def test_an_unanswered_update_of_a_failed_child_run_fails_with_that_run() -> None:
    """An update that was accepted and not answered fails in the run that failed, not in the next."""
    world, parent = calling(call(retry_policy=AT_ONCE, definition=TALKING))
    child = world.child_of(parent)
    child.lease()
    child.update()
    decision = child.complete(FailWorkflow(message="no"))
    first = child.runs[min(child.runs)]
    old = [entry.type for entry in child.histories[first.key]]
    assert "UpdateCompleted" in old
    assert old.index("UpdateCompleted") > old.index("WorkflowFailed")
    completed: UpdateCompleted = only(decision, UpdateCompleted)
    assert completed.failure_id is not None
    assert "UpdateCompleted" not in names(child.history)
    assert snapshot(child, refold(child)) == snapshot(child)


def test_the_end_of_the_backoff_offers_nothing_else_early() -> None:
    """A restart brings the past deadline back; what waits for other reasons goes on waiting."""
    world, parent = calling(call(retry_policy=TWICE))
    child = world.child_of(parent)
    child.complete(FailWorkflow(message="no"), at=1)
    child.due(at=6)
    policy = RetryPolicy(max_attempts=2, backoff_seconds=[60.0])
    child.complete(ScheduleActivity(activity_type="charge", retry_policy=policy), at=7)
    child.begin(1)
    child.fail(1)
    waits_until = child.activity_task(1).available_at
    child.reopen()
    child.due(at=8)
    assert child.activity_task(1).available_at == waits_until


def test_the_attempt_count_goes_along_when_the_child_continues() -> None:
    world, parent = calling(call(retry_policy=TWICE))
    child = world.child_of(parent)
    child.complete(FailWorkflow(message="no"))
    child.due(at=5)
    child.complete(ContinueAsNew())
    child.complete(FailWorkflow(message="again"))
    world.settle()
    assert names(parent.history)[-1] == "ChildRunFailed"


def test_asking_after_a_child_between_two_tries_brings_its_newest_run() -> None:
    world, parent = calling(call(retry_policy=TWICE))
    child = world.child_of(parent)
    child.complete(FailWorkflow(message="no"))
    report = world.one(ChildReport)
    del world.rows[report.key]  # lost
    parent.when(Reconcile(incarnation="e", ask=True))
    world.settle()
    begun: ChildRunStarted = parent.history[-1].event  # type: ignore[assignment]
    assert (begun.child_run_number, begun.child_workflow_run_id) == (2, child.run.run_id)
    assert not world.deliver(report).events
