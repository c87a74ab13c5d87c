"""What a child says of itself, and what the parent makes of it: its own record, and only that wakes its code."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.failure import Failure
from backstay.kernel.features.archive import Archive
from backstay.kernel.features.cancel import Cancel, Terminate
from backstay.kernel.features.child import Children, ChildRunCompleted, ChildRunFailed, ChildRunStarted
from backstay.kernel.features.child.messages import ChildReport
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.failures import FailureHandled
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.send import Send

from ...given import instant, names, only
from ...stored import refold, snapshot
from ...world import Member, World, call, calling


def report(world: World, child: Member, **fields: Any) -> Send:
    """A report on its way, changed."""
    send = world.one(ChildReport)
    return Send(send.key, send.sender, send.namespace, send.workflow_id, replace(send.message, **fields))


def ended(child: Member, how: str) -> None:
    match how:
        case "completed":
            child.complete(CompleteWorkflow(result=b"r"))
        case "failed":
            child.complete(FailWorkflow(message="no", exception_type="Bad", exception=Failure(message="no")))
        case "cancelled":
            child.when(Cancel(reason="enough"))
        case "terminated":
            child.when(Terminate(reason="enough"))
        case _:
            child.due(at=20)


@pytest.mark.contract("CHILD-05", "CHILD-06", "CHILD-09", "CHILD-20")
@pytest.mark.parametrize(
    ("how", "event", "status", "category"),
    [
        ("completed", "ChildRunCompleted", "completed", None),
        ("failed", "ChildRunFailed", "failed", "child_workflow"),
        ("cancelled", "ChildRunCancelled", "cancelled", "cancelled"),
        ("terminated", "ChildRunTerminated", "terminated", "terminated"),
        ("timed_out", "ChildRunFailed", "failed", "timeout"),
    ],
)
def test_every_ending_is_recorded_by_the_parent_and_wakes_it(
    how: str, event: str, status: str, category: str | None
) -> None:
    world, parent = calling(call(execution_timeout_seconds=10))
    child = world.child_of(parent)
    ended(child, how)
    assert not parent.tasks, "nothing moves the parent but its own record"
    decision = world.deliver(world.one(ChildReport))
    assert names(decision.events) == [event]
    said: Any = decision.events[0].event
    assert (said.child_status, said.closed_reason, said.child_run_number) == (status, how, 1)
    assert said.closed_at == child.run.closed_at
    assert said.child_workflow_run_id == child.run.run_id
    if category is None:
        assert said.output == b"r"
    else:
        assert said.failure_category == category
        assert said.message
    resume = parent.workflow_task.resume
    assert (resume.workflow_wait_kind, resume.open_wait_id) == ("child", f"child:{said.child_call_id}")
    assert (resume.resume_source_kind, resume.resume_source_id) == ("child_workflow_run", child.run.run_id)
    assert (resume.child_call_id, resume.child_workflow_run_id) == (said.child_call_id, child.run.run_id)
    assert resume.workflow_event_type == event
    assert decision.instance.unanswered == 0
    assert snapshot(parent, refold(parent)) == snapshot(parent)


def test_a_failure_carries_the_exception_and_can_be_handled() -> None:
    world, parent = calling()
    raised = Failure(message="no", exception_type="Bad", exception_class="shop:Bad")
    world.child_of(parent).complete(
        FailWorkflow(message="no", exception_type="Bad", exception_class="shop:Bad", exception=raised)
    )
    world.settle()
    failed: ChildRunFailed = parent.history[-1].event  # type: ignore[assignment]
    assert (failed.exception, failed.exception_type, failed.exception_class) == (raised, "Bad", "shop:Bad")
    decision = parent.complete(StartTimer(delay_seconds=5), handled=[failed.failure_id])
    handled: FailureHandled = only(decision, FailureHandled)
    assert handled.failure_id == failed.failure_id
    assert handled.source_kind == "child_workflow_run"


def test_a_report_that_comes_twice_is_recorded_once() -> None:
    world, parent = calling()
    world.child_of(parent).complete(CompleteWorkflow(result=b"r"))
    send = world.one(ChildReport)
    world.deliver(send)
    before = len(parent.history)
    again = world.deliver(send)
    assert again.taken_sends == [send.key]
    assert not again.events
    assert len(parent.history) == before


@pytest.mark.contract("CHILD-07", "CHILD-20")
def test_another_outcome_afterwards_changes_nothing() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    child.complete(CompleteWorkflow(result=b"r"))
    send = world.one(ChildReport)
    world.deliver(send)
    close = send.message.close  # type: ignore[attr-defined]
    other = replace(send.message, close=replace(close, status="failed", message="forged"))
    decision = world.deliver(Send(999, send.sender, send.namespace, send.workflow_id, other))
    assert not decision.events


def test_an_unknown_call_is_taken_and_forgotten() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    child.complete(CompleteWorkflow())
    decision = world.deliver(report(world, child, child_call_id="nobody-c9"))
    assert not decision.events
    assert 1 in parent.run.part(Children).open


def test_a_parent_that_has_closed_records_no_outcome() -> None:
    world, parent = calling(call(), StartTimer(delay_seconds=1))
    parent.due(at=2)
    parent.complete(CompleteWorkflow())
    before = len(parent.history)
    world.child_of(parent).complete(CompleteWorkflow())
    world.settle()
    assert len(parent.history) == before


def test_a_parent_that_has_continued_records_no_outcome() -> None:
    world, parent = calling(call(), StartTimer(delay_seconds=1))
    child = world.child_of(parent)
    parent.due(at=2)
    parent.complete(ContinueAsNew())
    child.complete(CompleteWorkflow())
    world.settle()
    assert names(parent.history) == ["StartAccepted", "WorkflowStarted"]
    assert not world.rows


def test_a_report_of_a_child_during_a_task_is_recorded_and_wakes_the_parent_again() -> None:
    world, parent = calling(call(), StartTimer(delay_seconds=1))
    parent.due(at=2)
    parent.lease()
    world.child_of(parent).complete(CompleteWorkflow(result=b"r"))
    decision = world.deliver(world.one(ChildReport))
    assert names(decision.events) == ["ChildRunCompleted"]
    parent.complete()
    assert parent.workflow_task.resume.workflow_event_type == "ChildRunCompleted"


@pytest.mark.contract("CHILD-13", "CHILD-14", "CHILD-16")
def test_a_child_that_continues_is_followed_without_a_wake() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    first = child.run.run_id
    child.complete(ContinueAsNew(arguments=b"next"))
    decision = world.deliver(world.one(ChildReport))
    begun: ChildRunStarted = only(decision, ChildRunStarted)
    assert (begun.child_run_number, begun.child_workflow_run_id) == (2, child.run.run_id)
    assert begun.child_workflow_run_id != first
    assert begun.child_call_id == parent.history[2].event.child_call_id  # type: ignore[attr-defined]
    assert not parent.tasks
    child.complete(CompleteWorkflow(result=b"r"))
    world.settle()
    done: ChildRunCompleted = parent.history[-1].event  # type: ignore[assignment]
    assert (done.child_run_number, done.child_workflow_run_id, done.output) == (2, child.run.run_id, b"r")


def test_reports_out_of_order_never_go_back() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    child.complete(ContinueAsNew())
    second = world.one(ChildReport)
    child.complete(ContinueAsNew())
    third = world.on_their_way(ChildReport)[-1]
    world.deliver(third)
    late = world.deliver(second)
    assert not late.events
    child.complete(CompleteWorkflow())
    world.settle()
    kinds = [e for e in names(parent.history) if e.startswith("Child")]
    assert kinds == ["ChildWorkflowScheduled", "ChildRunStarted", "ChildRunStarted", "ChildRunCompleted"]


def test_a_close_that_overtakes_the_news_of_its_run_brings_it_along() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    child.complete(ContinueAsNew())
    child.complete(CompleteWorkflow())
    opened, closed = world.on_their_way(ChildReport)
    assert names(world.deliver(closed).events) == ["ChildRunStarted", "ChildRunCompleted"]
    assert not world.deliver(opened).events


def test_a_parent_out_of_reach_is_told_all_the_same() -> None:
    """An archived parent takes the report off the table."""
    world, parent = calling(call(), StartTimer(delay_seconds=1))
    parent.due(at=2)
    parent.complete(CompleteWorkflow())
    parent.when(Archive())
    world.child_of(parent).complete(CompleteWorkflow())
    world.settle()
    assert not world.rows


def test_the_time_of_the_close_is_the_childs() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    child.complete(CompleteWorkflow(), at=7)
    world.now = instant(30)
    world.settle()
    done: ChildRunCompleted = parent.history[-1].event  # type: ignore[assignment]
    assert done.closed_at == instant(7)
    assert parent.history[-1].at == instant(30)
