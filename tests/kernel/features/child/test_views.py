"""How a parent that waits for children looks from outside, and that a lost resume comes back as it was."""

from __future__ import annotations

import pytest

from backstay.kernel.features.child.messages import ChildReport
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.message import Message
from backstay.kernel.values import child_call_id
from backstay.kernel.views.failures import failures
from backstay.kernel.views.liveness import liveness, wait_of
from backstay.kernel.views.waits import waits

from ...given import MACHINE
from ...world import call, calling, group


@pytest.mark.contract("CHILD-08")
def test_an_open_child_is_what_the_parent_waits_for() -> None:
    world, parent = calling()
    child = world.child_of(parent)
    found = wait_of(parent.state)
    id = f"child:{child_call_id(parent.run.run_id, 1)}"
    assert (found.kind, found.id) == ("child", id)
    assert liveness(MACHINE, parent.state, parent.now) == "waiting_for_child"
    child.complete(ContinueAsNew())
    world.settle()
    again = wait_of(parent.state)
    assert (again.kind, again.id) == ("child", id), "the newest run, under the same call"
    assert again != found


@pytest.mark.contract("CHILD-16", "CHILD-17", "CHILD-20", "BARRIER-09")
def test_waits_show_children_by_their_call_and_group() -> None:
    where = [[group(1, 2, index)] for index in range(2)]
    world, parent = calling(*(call(parallel_group_path=entry) for entry in where))
    first = world.child_of(parent, 1)
    first.complete(ContinueAsNew())
    world.settle()
    shown = [wait for wait in waits(parent.history, parent.run) if wait.kind == "child"]
    assert [wait.status for wait in shown] == ["open", "open"]
    assert [wait.child_call_id for wait in shown] == [child_call_id(parent.run.run_id, step) for step in (1, 2)]
    assert shown[0].target_name == first.state.workflow_id
    assert shown[0].resume_source_id == first.run.run_id, "it follows the newest run that the parent was told of"
    assert [wait.parallel_group_path for wait in shown] == where
    first.complete(CompleteWorkflow())
    world.settle()
    after = {wait.sequence: wait for wait in waits(parent.history, parent.run) if wait.kind == "child"}
    assert (after[1].status, after[2].status) == ("resolved", "open")


@pytest.mark.contract("CHILD-12")
def test_a_handled_failure_of_a_child_stays_visible() -> None:
    world, parent = calling()
    world.child_of(parent).complete(FailWorkflow(message="no", exception_type="Bad"))
    world.settle()
    failed = parent.history[-1].event
    parent.complete(StartTimer(delay_seconds=5), handled=[failed.failure_id])  # type: ignore[attr-defined]
    (shown,) = failures(parent.history, parent.run.run_id)
    assert shown.handled
    assert shown.message == "no"


@pytest.mark.contract("CHILD-21", "CHILD-22")
@pytest.mark.parametrize(
    "message",
    [Reconcile(incarnation="e"), Repair(work=Reconcile(incarnation="e", force=True))],
    ids=["sweep", "repair"],
)
def test_a_lost_resume_is_restored_as_it_was(message: Message) -> None:
    world, parent = calling()
    world.child_of(parent).complete(CompleteWorkflow())
    world.deliver(world.one(ChildReport))
    before = parent.workflow_task
    parent.lose(before.id)
    assert not parent.tasks
    parent.when(message)
    after = parent.workflow_task
    assert (after.id, after.resume) == (before.id, before.resume)
    assert after.resume.workflow_wait_kind == "child"
