"""A run calls a child: what both histories say, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.features.child import Children, ChildRunFailed, ChildRunStarted, ChildWorkflowScheduled
from backstay.kernel.features.child.messages import ChildReport, StartFromParent
from backstay.kernel.features.close import CompleteWorkflow, WorkflowFailed
from backstay.kernel.features.memo import UpsertMemo
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import Identity, RecordedDefinition, StartAccepted, WorkflowStarted
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.values import Routing

from ...given import instant, names, only, started
from ...stored import refold, snapshot
from ...world import World, call, calling, start_of


@pytest.mark.contract("CHILD-01", "CHILD-03", "PCP-06")
def test_the_call_is_two_facts_and_one_send_in_one_decision() -> None:
    world = World()
    parent = world.start()
    policy = RetryPolicy(max_attempts=3, backoff_seconds=[1.0])
    asked = call(
        arguments=b"a", parent_close_policy="terminate", retry_policy=policy, execution_timeout_seconds=9, queue="q"
    )
    decision = parent.complete(asked)
    assert names(decision.events) == ["ChildWorkflowScheduled", "ChildRunStarted"]
    scheduled: ChildWorkflowScheduled = only(decision, ChildWorkflowScheduled)
    begun: ChildRunStarted = only(decision, ChildRunStarted)
    assert scheduled.child_call_id == begun.child_call_id == scheduled.workflow_link_id
    assert scheduled.child_workflow_run_id == begun.child_workflow_run_id
    assert scheduled.child_workflow_instance_id == begun.child_workflow_instance_id
    assert (scheduled.parent_close_policy, scheduled.retry_policy) == ("terminate", policy)
    assert scheduled.timeout_policy.execution_timeout_seconds == 9
    assert scheduled.routing.queue == "q"
    assert begun.child_run_number == 1
    (send,) = decision.sends
    message = start_of(send)
    assert send.workflow_id == scheduled.child_workflow_instance_id
    assert (message.run_id, message.arguments, message.workflow_type) == (scheduled.child_workflow_run_id, b"a", "ship")
    assert decision.instance.unanswered == 1
    assert decision.instance.waits_externally, "nothing has to move the parent until the child does"


@pytest.mark.contract("CHILD-02", "CHILD-04")
def test_the_child_is_an_ordinary_run_with_its_own_accepted_start() -> None:
    world, parent = calling(call(arguments=b"a", execution_timeout_seconds=9, run_timeout_seconds=5))
    child = world.child_of(parent)
    assert names(child.history) == ["StartAccepted", "WorkflowStarted"]
    (command,) = child.commands
    assert (command.command_type, command.status, command.source) == ("start", "accepted", "workflow")
    scheduled: Any = parent.history[2].event
    assert command.context == {
        "workflow": {
            "parent_instance_id": "parent",
            "parent_run_id": parent.run.run_id,
            "sequence": 1,
            "child_call_id": scheduled.child_call_id,
        }
    }
    began: Any = child.history[1].event
    assert began.child_call_id == scheduled.child_call_id
    assert (began.parent_workflow_instance_id, began.parent_workflow_run_id) == ("parent", parent.run.run_id)
    assert (began.parent_sequence, began.parent_namespace) == (1, "default")
    assert began.workflow_run_id == scheduled.child_workflow_run_id == child.run.run_id
    assert (began.execution_deadline_at, began.run_deadline_at) == (instant(9), instant(5))
    assert isinstance(child.history[0].event, StartAccepted)
    assert child.workflow_task.state == "ready"
    assert not world.rows


def test_memo_search_attributes_and_routing_are_inherited_but_no_labels() -> None:
    world, parent = calling(
        UpsertMemo(entries={"b": b"2"}),
        call(),
        memo={"a": b"1"},
        search_attributes={"x": 7},
        business_key="key",
        visibility_labels={"l": "v"},
        routing=Routing(queue="slow", compatibility="v2"),
    )
    began: Any = world.child_of(parent, 2).history[1].event
    assert (began.memo, began.search_attributes) == ({"a": b"1", "b": b"2"}, {"x": 7})
    assert (began.business_key, began.visibility_labels) == (None, {})
    assert (began.routing.queue, began.routing.compatibility) == ("slow", "v2")


def test_the_definition_travels_with_the_start() -> None:
    known = RecordedDefinition(workflow_class="shop:Ship", fingerprint="f1", signals=["go"], cleanup_seconds=4.0)
    world, parent = calling(call(definition=known))
    began: WorkflowStarted | None = world.child_of(parent).run.part(Identity).started
    assert began is not None
    assert (began.workflow_class, began.workflow_definition_fingerprint) == ("shop:Ship", "f1")
    assert (began.declared_signals, began.declared_cleanup_seconds) == (["go"], 4.0)


def test_a_start_that_comes_twice_starts_once() -> None:
    world, parent = calling(deliver=False)
    send = world.one(StartFromParent)
    first = world.deliver(send)
    child = world.child_of(parent)
    before = len(child.history)
    again = world.deliver(send)
    assert len(child.history) == before
    assert (first.taken_sends, again.taken_sends) == ([send.key], [send.key]), "it is off the table either way"
    assert not world.rows


def test_a_start_sent_again_to_a_child_that_is_over_brings_its_outcome() -> None:
    world, parent = calling(deliver=False)
    send = world.one(StartFromParent)
    world.deliver(send)
    child = world.child_of(parent)
    child.complete(CompleteWorkflow(result=b"r"))
    world.rows.clear()  # the report is lost
    world.deliver(send)
    assert isinstance(world.one(ChildReport).message, ChildReport)
    world.settle()
    assert names(parent.history)[-1] == "ChildRunCompleted"


def test_an_instance_that_another_call_started_refuses_and_says_so() -> None:
    world, parent = calling(deliver=False)
    send = world.one(StartFromParent)
    taken = world.flow(send.workflow_id)
    taken.when(started(send.workflow_id, "ship"))
    world.settle()
    failed: Any = parent.history[-1].event
    assert isinstance(failed, ChildRunFailed)
    assert "another" in failed.message
    assert names(taken.history) == ["StartAccepted", "WorkflowStarted"]


def test_a_start_that_cannot_be_accepted_comes_back_as_a_failure() -> None:
    world, parent = calling(call(arguments=b"x" * 50), deliver=False)
    world.machine = Machine(limits=Limits(payload_size=10))
    world.settle()
    failed: Any = parent.history[-1].event
    assert isinstance(failed, ChildRunFailed)
    assert "payload_size" in failed.message
    assert parent.workflow_task.resume.workflow_event_type == "ChildRunFailed"
    assert not world.rows


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (call(""), "workflow_type"),
        (call(parent_close_policy="ignore"), "parent_close_policy"),
        (call(execution_timeout_seconds=0), "execution_timeout_seconds"),
        (call(run_timeout_seconds=-1), "run_timeout_seconds"),
    ],
)
def test_nonsense_is_refused_before_anything_is_recorded(asked: Any, field: str) -> None:
    parent = World().start()
    refusal = parent.refused(parent.completion(call(), asked))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)


def test_too_many_children_at_once_fail_the_run_by_the_limit() -> None:
    world, parent = calling(call(), call(), machine=Machine(limits=Limits(pending_child_count=3)))
    world.child_of(parent, 1).complete(CompleteWorkflow())
    world.settle()
    decision = parent.complete(call(), call(), call())
    failed: WorkflowFailed = only(decision, WorkflowFailed)
    assert (failed.structural_limit_kind, failed.structural_limit_value) == ("pending_child_count", 4)
    assert not world.on_their_way(StartFromParent)


def test_arguments_beyond_the_limit_fail_the_run() -> None:
    _, parent = calling(call(arguments=b"123456"), machine=Machine(limits=Limits(payload_size=5)))
    failed: Any = parent.history[-1].event
    assert failed.structural_limit_kind == "payload_size"


@pytest.mark.contract("CHILD-22")
def test_asking_sends_the_start_again_and_changes_nothing() -> None:
    world, parent = calling(call(), call())
    world.child_of(parent, 2).complete(CompleteWorkflow(result=b"2"))
    world.settle()
    parent.complete()
    decision = parent.when(Reconcile(incarnation="e", ask=True))
    assert [start_of(send).parent.sequence for send in decision.sends] == [1], "only those that are still open"
    before = snapshot(world.child_of(parent, 1))
    world.settle()
    after = snapshot(world.child_of(parent, 1))
    assert {**after, "last_decision": 0} == {**before, "last_decision": 0}


def test_asking_finds_a_child_that_was_never_started() -> None:
    world, parent = calling(deliver=False)
    world.rows.clear()  # the start is lost
    parent.when(Reconcile(incarnation="e", ask=True))
    world.settle()
    child = world.child_of(parent)
    child.complete(CompleteWorkflow(result=b"r"))
    world.settle()
    assert names(parent.history)[-1] == "ChildRunCompleted"


def test_a_parent_folds_back_to_what_it_was() -> None:
    world, parent = calling(call(), call())
    world.child_of(parent, 2).complete(CompleteWorkflow(result=b"2"))
    world.settle()
    assert snapshot(parent, refold(parent)) == snapshot(parent)
    assert list(refold(parent).current.part(Children).open) == [1]
    child = world.child_of(parent, 1)
    assert snapshot(child, refold(child)) == snapshot(child)
