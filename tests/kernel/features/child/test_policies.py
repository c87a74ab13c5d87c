"""What closing a parent means for its children: abandon, request_cancel, terminate; and what the children answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.archive import Archive
from backstay.kernel.features.cancel import Cancel, CancelRequested, CancelWorkflow, Terminate
from backstay.kernel.features.child import (
    CancelChild,
    CarriedChildClosed,
    ParentClosePolicyApplied,
    ParentClosePolicyFailed,
)
from backstay.kernel.features.child.messages import ChildReport, PolicyAnswer, StartFromParent, StopFromParent
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.delivery import ReturnSend
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import Identity, RecordedDefinition
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.message import Refused
from backstay.kernel.send import Send

from ...given import names, only, started
from ...stored import refold, snapshot
from ...world import Member, World, call, calling, group

CLEAN = RecordedDefinition(cleanup_seconds=30.0)
ENDINGS: dict[str, Callable[[Member], Any]] = {
    "completed": lambda parent: parent.complete(CompleteWorkflow()),
    "failed": lambda parent: parent.complete(FailWorkflow(message="no")),
    "timed_out": lambda parent: parent.due(at=100),
    "cancelled": lambda parent: parent.when(Cancel()),
    "terminated": lambda parent: parent.when(Terminate()),
}


def with_child(policy: str, **options: Any) -> tuple[World, Member, Member]:
    """A parent that goes on beside its child."""
    world, parent = calling(
        call(parent_close_policy=policy, **options), StartTimer(delay_seconds=1), execution_timeout_seconds=50
    )
    parent.due(at=1)
    return world, parent, world.child_of(parent)


@pytest.mark.contract("PCP-01", "PCP-03", "PCP-04", "PCP-08", "PCP-12")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("policy", ["abandon", "request_cancel", "terminate"])
def test_every_ending_enforces_the_policy(policy: str, ending: str) -> None:
    world, parent, child = with_child(policy)
    ENDINGS[ending](parent)
    assert parent.run.closed_reason == ending
    assert parent.row is not None
    assert parent.row.unanswered == (0 if policy == "abandon" else 1)
    world.settle()
    after = names(parent.history)
    if policy == "abandon":
        assert child.run.is_open
        assert "ParentClosePolicyApplied" not in after
        return
    stopped = {"request_cancel": "cancelled", "terminate": "terminated"}[policy]
    assert child.run.closed_reason == stopped
    applied: ParentClosePolicyApplied = parent.history[-1].event  # type: ignore[assignment]
    assert (applied.policy, applied.child_instance_id) == (policy, child.state.workflow_id)
    assert applied.child_run_id == child.run.run_id
    command = child.commands[-1]
    assert (command.source, command.status) == ("workflow", "accepted")
    assert command.context["workflow"]["parent_run_id"] == parent.run.run_id
    request: Any = next(e.event for e in child.history if e.type.endswith("Requested"))
    assert f"parent workflow parent closed: {ending}" in request.reason
    assert parent.row is not None
    assert parent.row.unanswered == 0
    assert snapshot(parent, refold(parent)) == snapshot(parent)


@pytest.mark.contract("PCP-05")
def test_a_child_that_handles_cancellation_may_clean_up_first() -> None:
    world, parent, child = with_child("request_cancel", definition=CLEAN)
    parent.complete(CompleteWorkflow())
    world.settle()
    assert child.run.is_open
    asked: CancelRequested = next(e.event for e in child.history if e.type == "CancelRequested")  # type: ignore[assignment]
    assert asked.cleanup_deadline_at is not None
    assert names(parent.history)[-1] == "ParentClosePolicyApplied", "the request was taken"
    child.complete(CancelWorkflow())
    world.settle()
    assert child.run.closed_reason == "cancelled"


@pytest.mark.contract("PCP-07")
def test_a_child_that_had_closed_leaves_no_trace_on_the_parent() -> None:
    world, parent, child = with_child("terminate")
    child.complete(CompleteWorkflow())
    world.rows.clear()  # its report is not there yet
    parent.complete(CompleteWorkflow())
    before = len(parent.history)
    world.settle()
    assert len(parent.history) == before
    assert parent.row is not None
    assert parent.row.unanswered == 0
    assert not world.rows


@pytest.mark.contract("PCP-09", "PCP-07")
def test_a_child_that_is_not_ours_rejects() -> None:
    world, parent = calling(call(parent_close_policy="terminate"), StartTimer(delay_seconds=1), deliver=False)
    world.rows.clear()
    instance = world.child_of(parent)
    instance.when(started(instance.state.workflow_id, "ship"))
    parent.due(at=1)
    parent.complete(CompleteWorkflow())
    world.settle()
    failed: ParentClosePolicyFailed = parent.history[-1].event  # type: ignore[assignment]
    assert isinstance(failed, ParentClosePolicyFailed)
    assert "another call" in failed.error
    assert instance.run.is_open
    assert parent.run.closed_reason == "completed"


def test_a_stop_and_its_answer_may_come_twice() -> None:
    world, parent, child = with_child("terminate")
    parent.complete(CompleteWorkflow())
    stop = world.one(StopFromParent)
    world.deliver(stop)
    world.deliver(stop)
    assert [e for e in names(child.history) if e == "WorkflowTerminated"] == ["WorkflowTerminated"]
    first, second = world.on_their_way(PolicyAnswer)
    assert first.message == second.message
    world.settle()
    assert [e for e in names(parent.history) if e.startswith("ParentClose")] == ["ParentClosePolicyApplied"]


def test_a_lost_stop_is_asked_for_again() -> None:
    world, parent, child = with_child("terminate")
    parent.complete(CompleteWorkflow())
    world.rows.clear()
    parent.reopen()
    parent.when(Reconcile(incarnation="e", ask=True))
    world.settle()
    assert child.run.closed_reason == "terminated"
    assert names(parent.history)[-1] == "ParentClosePolicyApplied"
    assert not parent.when(Reconcile(incarnation="e", ask=True)).sends, "answered"


def test_the_answer_may_follow_the_archive() -> None:
    world, parent, _ = with_child("terminate")
    parent.complete(CompleteWorkflow())
    parent.when(Archive())
    world.settle()
    assert names(parent.history)[-1] == "ParentClosePolicyApplied"
    assert snapshot(parent, refold(parent)) == snapshot(parent)


@pytest.mark.contract("PCP-02")
def test_each_call_has_its_own_policy_in_a_group_too() -> None:
    world, parent = calling(
        call(parent_close_policy="terminate", parallel_group_path=[group(1, 3, 0)]),
        call(parent_close_policy="request_cancel", parallel_group_path=[group(1, 3, 1)]),
        call(parallel_group_path=[group(1, 3, 2)]),
    )
    parent.when(Terminate())
    world.settle()
    found = [world.child_of(parent, step).run.closed_reason for step in (1, 2, 3)]
    assert found == ["terminated", "cancelled", None]
    assert [e for e in names(parent.history) if e.startswith("ParentClose")] == ["ParentClosePolicyApplied"] * 2


def test_a_child_that_is_cleaning_up_is_not_hurried_by_the_close_of_its_parent() -> None:
    """The code gave it up before: it has been asked, and being asked twice is being asked once."""
    world, parent, child = with_child("request_cancel", definition=CLEAN)
    parent.complete(CancelChild(step=1), StartTimer(delay_seconds=1))
    world.settle()
    assert child.run.is_open
    parent.due(at=3)
    parent.complete(CompleteWorkflow())
    world.settle()
    assert child.run.is_open
    assert names(child.history).count("CancelRequested") == 1
    assert names(parent.history)[-1] == "ParentClosePolicyApplied"


# -- continue as new


@pytest.mark.contract("PCP-10")
def test_continuing_leaves_the_children_alone_and_takes_them_along() -> None:
    world, parent, child = with_child("terminate")
    decision = parent.complete(ContinueAsNew())
    assert not [send for send in decision.sends if isinstance(send.message, StopFromParent)]
    began = parent.run.part(Identity).started
    assert began is not None
    (carried,) = began.open_children
    assert (carried.child_workflow_instance_id, carried.parent_close_policy) == (child.state.workflow_id, "terminate")
    assert child.run.is_open
    parent.complete(ContinueAsNew())
    parent.complete(CompleteWorkflow())
    world.settle()
    assert child.run.closed_reason == "terminated", "the chain is over"
    assert names(parent.history)[-1] == "ParentClosePolicyApplied"


@pytest.mark.parametrize(("end", "status"), [(CompleteWorkflow(), "completed"), (FailWorkflow(message="no"), "failed")])
def test_a_child_that_has_closed_is_not_carried_to_the_next_run(end: Command, status: str) -> None:
    world, parent, child = with_child("terminate")
    parent.complete(ContinueAsNew())
    length, waiting = len(parent.history), parent.workflow_task.id
    child.complete(end)
    report = world.one(ChildReport)
    decision = world.deliver(report)
    (closed,) = [entry.event for entry in decision.events]
    assert isinstance(closed, CarriedChildClosed)
    assert (closed.child_workflow_instance_id, closed.child_status) == (child.state.workflow_id, status)
    assert (len(parent.history), parent.workflow_task.id) == (length + 1, waiting), "its code has nothing to do with it"
    assert snapshot(parent, refold(parent)) == snapshot(parent)
    assert world.deliver(report).events == [], "told before"
    parent.complete(ContinueAsNew())
    began = parent.run.part(Identity).started
    assert began is not None
    assert began.open_children == []
    decision = parent.complete(CompleteWorkflow())
    assert decision.sends == []


def test_a_chain_carries_no_more_than_is_open() -> None:
    world, parent, child = with_child("terminate")
    for leg in range(20):
        parent.complete(ContinueAsNew())
        child.complete(CompleteWorkflow())
        world.settle()
        parent.complete(call(parent_close_policy="terminate"), StartTimer(delay_seconds=1))
        world.settle()
        child = world.child_of(parent)
        parent.due(at=leg + 2)
        began = parent.run.part(Identity).started
        assert began is not None
        assert len(began.open_children) <= 1
    parent.complete(CompleteWorkflow())
    world.settle()
    assert child.run.closed_reason == "terminated"


def test_an_abandoned_child_is_not_carried() -> None:
    _, parent, _ = with_child("abandon")
    parent.complete(ContinueAsNew())
    began = parent.run.part(Identity).started
    assert began is not None
    assert began.open_children == []


def test_the_end_of_a_chain_enforces_what_every_run_left_open() -> None:
    world, parent, first = with_child("terminate")
    parent.complete(ContinueAsNew())
    parent.complete(call(parent_close_policy="request_cancel"), StartTimer(delay_seconds=1))
    world.settle()
    second = world.child_of(parent)
    parent.due(at=3)
    parent.complete(CompleteWorkflow())
    assert parent.row is not None
    assert parent.row.unanswered == 2
    world.settle()
    assert (first.run.closed_reason, second.run.closed_reason) == ("terminated", "cancelled")
    assert names(parent.history)[-2:] == ["ParentClosePolicyApplied"] * 2


def test_a_child_that_continued_is_found_by_its_instance() -> None:
    world, parent, child = with_child("terminate")
    child.complete(ContinueAsNew())
    parent.complete(CompleteWorkflow())
    world.settle()
    assert (child.run.number, child.run.closed_reason) == (2, "terminated")
    applied: ParentClosePolicyApplied = parent.history[-1].event  # type: ignore[assignment]
    assert applied.child_run_id == child.run.run_id


def test_grandchildren_follow_their_own_parents() -> None:
    world, parent, child = with_child("terminate")
    child.complete(call(parent_close_policy="terminate"))
    world.settle()
    grandchild = world.child_of(child)
    parent.complete(CompleteWorkflow())
    world.settle()
    assert grandchild.run.closed_reason == "terminated"
    assert names(child.history)[-1] == "ParentClosePolicyApplied"


def test_a_child_that_was_never_started_is_not_stopped() -> None:
    """A child that a bounded group still holds back has no instance that could answer."""
    path = [[group(1, 3, index, limit=1)] for index in range(3)]
    world, parent = calling(*(call(parent_close_policy="terminate", parallel_group_path=p) for p in path))
    decision = parent.when(Terminate())
    assert names(decision.events).count("ChildRunCancelled") == 2, "those that will never start"
    assert [send.workflow_id for send in decision.sends] == [world.child_of(parent, 1).state.workflow_id]
    assert decision.instance.unanswered == 1
    world.settle()
    assert parent.row is not None
    assert parent.row.unanswered == 0


def test_a_child_that_was_never_started_is_not_carried_to_the_next_run() -> None:
    path = [[group(1, 2, index, limit=1)] for index in range(2)]
    world, parent = calling(
        *(call(parent_close_policy="terminate", parallel_group_path=p) for p in path), StartTimer(delay_seconds=1)
    )
    parent.due(at=1)
    parent.complete(ContinueAsNew())
    began = parent.run.part(Identity).started
    assert began is not None
    assert len(began.open_children) == 1
    assert only(parent.decisions[-1], type(began)) is began
    assert isinstance(world.log[-1], Send)


def test_a_stop_lets_no_child_go_on_the_way_out() -> None:
    """The end of an activity would have let the next child of its bounded group start."""
    first = ScheduleActivity(activity_type="pack", parallel_group_path=[group(1, 2, 0, limit=1)])
    second = call(parent_close_policy="terminate", parallel_group_path=[group(1, 2, 1, limit=1)])
    _, parent = calling(first, second)
    decision = parent.when(Terminate())
    assert not decision.sends
    assert decision.instance.unanswered == 0
    assert snapshot(parent, refold(parent)) == snapshot(parent)


def test_an_activity_that_ends_after_the_close_frees_no_member_of_its_group() -> None:
    first = ScheduleActivity(activity_type="pack", parallel_group_path=[group(1, 2, 0, limit=1)])
    second = call(parent_close_policy="terminate", parallel_group_path=[group(1, 2, 1, limit=1)])
    world, parent = calling(first, second, StartTimer(delay_seconds=1))
    parent.begin(1)
    late = parent.finished(1)
    parent.due(at=1)
    parent.complete(CompleteWorkflow())
    with suppress(Refused):
        parent.when(late)
    assert parent.row is not None
    assert parent.row.unanswered == 0
    assert not world.rows
    assert snapshot(parent, refold(parent)) == snapshot(parent)


@pytest.mark.parametrize("over", [True, False])
def test_a_stop_that_finds_no_run_comes_back(over: bool) -> None:
    """The start was lost. Whoever waits for the child starts it after all; of a parent that is over the stop ends there."""
    world, parent = calling(deliver=False)
    del world.rows[world.one(StartFromParent).key]
    parent.signal()
    parent.complete(CancelChild(step=1), *((CompleteWorkflow(),) if over else ()))
    stop = world.one(StopFromParent)
    with pytest.raises(Refused) as refusal:
        world.deliver(stop)
    assert refusal.value.reason == "workflow_not_found"
    parent.when(ReturnSend(send=stop))
    if over:
        assert not world.rows
        return
    world.deliver(world.one(StartFromParent))
    world.settle()
    assert world.child_of(parent).run.closed_reason == "cancelled"
    assert names(parent.history)[-1] == "ChildRunCancelled"
