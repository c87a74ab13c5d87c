"""Workflow tasks that nobody reports: offered again at once, then after growing pauses, and at last blocked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.deadline import Due
from backstay.kernel.features.lease import Release
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.workflow_task import CRASHED, DEADLINE_EXCEEDED, FailWorkflowTask
from backstay.kernel.features.workflow_task.crashed import MOST
from backstay.kernel.machine import Machine
from backstay.kernel.task import Block
from backstay.kernel.values import LEASE, SECOND
from backstay.kernel.views.liveness import liveness

from ..given import TALKING, WORKER, Flow, given
from ..stored import refold, snapshot

Lost = Callable[[Flow], Any]


def worker_is_gone(flow: Flow, begun: bool = True) -> None:
    task = flow.lease()
    flow.when(Release(task_id=task.id, owner=WORKER, attempt=task.attempt, begun=begun))


def lease_expires(flow: Flow) -> None:
    flow.lease()
    flow.now += LEASE
    flow.when(Due())


def engine_dies(flow: Flow) -> None:
    flow.claim(flow.workflow_task.id, owner="engine-1/worker", until=None)
    flow.when(Reconcile(incarnation="engine-2"))


WAYS = pytest.mark.parametrize("lost", [worker_is_gone, lease_expires, engine_dies])


def goes_on(flow: Flow) -> None:
    """The pause of the task is over."""
    if flow.workflow_task.repair_available_at is not None:
        flow.now = flow.workflow_task.repair_available_at
        flow.when(Due())


def crashed(times: int, flow: Flow | None = None, lost: Lost = worker_is_gone) -> Flow:
    flow = flow or given()
    for _ in range(times):
        goes_on(flow)
        lost(flow)
    return flow


@WAYS
def test_the_first_time_it_is_offered_again_at_once(lost: Lost) -> None:
    flow = crashed(1, lost=lost)
    task = flow.workflow_task
    assert (task.state, task.crashes, task.block, task.owner, task.seen) == ("ready", 1, None, None, None)
    assert task.is_due(flow.now)


@WAYS
def test_then_the_pauses_grow_and_it_is_blocked_in_the_end(lost: Lost) -> None:
    flow = given()
    pauses: list[float | None] = []
    for _ in range(MOST):
        goes_on(flow)
        lost(flow)
        at = flow.workflow_task.repair_available_at
        pauses.append(None if at is None else (at - flow.now) / SECOND)
    assert pauses == [None, 3, 6, 12, 24, 48, 60, 60, 60, None]
    task = flow.workflow_task
    assert task.state == "failed"
    assert task.block is not None
    assert (task.block.replay_blocked, task.block.reason) == (True, CRASHED)
    assert "10 times in a row" in task.block.message
    assert "`dw repair order-1`" in task.block.message
    assert liveness(flow.machine, flow.state, flow.now) == "workflow_replay_blocked"
    assert flow.state.next_wake is None
    assert flow.run.is_open


def test_the_longest_pause_is_the_one_that_is_set() -> None:
    flow = crashed(4, given(machine=Machine(failure_backoff=5 * SECOND)))
    assert flow.workflow_task.repair_available_at == flow.now + 5 * SECOND


def test_during_a_pause_it_says_why() -> None:
    block = crashed(3).workflow_task.block
    assert block is not None
    assert (block.replay_blocked, block.reason) == (False, CRASHED)
    assert "3 times in a row" in block.message


def test_a_workflow_task_that_never_reached_a_worker_counts_no_crash() -> None:
    flow = crashed(1)
    for _ in range(MOST):
        worker_is_gone(flow, begun=False)
    assert (flow.workflow_task.state, flow.workflow_task.crashes) == ("ready", 1)


def completes(flow: Flow) -> None:
    flow.complete(StartTimer(delay_seconds=5))
    flow.now += 5 * SECOND
    flow.when(Due())


def reports_a_failure(flow: Flow) -> None:
    flow.break_task(Block(message="boom"))
    goes_on(flow)


def is_repaired(flow: Flow) -> None:
    flow.when(Repair(work=Reconcile(incarnation="engine-2", force=True)))


@pytest.mark.parametrize("report", [completes, reports_a_failure])
def test_the_count_begins_anew(report: Lost) -> None:
    flow = crashed(MOST - 1)
    goes_on(flow)
    report(flow)
    assert flow.workflow_task.crashes == 0
    worker_is_gone(flow)
    assert (flow.workflow_task.state, flow.workflow_task.crashes) == ("ready", 1)


def test_the_count_is_kept_across_engines() -> None:
    flow = crashed(MOST - 1)
    flow.reopen()
    goes_on(flow)
    flow.reopen()
    worker_is_gone(flow)
    block = flow.workflow_task.block
    assert block is not None
    assert block.replay_blocked
    assert snapshot(flow) == snapshot(flow, refold(flow))


@pytest.mark.parametrize(
    ("deployed", "released"), [({}, False), ({"order": "f1"}, False), ({"other": "f2"}, False), ({"order": "f2"}, True)]
)
def test_another_definition_releases_it(deployed: dict[str, str | None], released: bool) -> None:
    flow = given()
    flow.deployed = {"order": "f1"}
    crashed(MOST, flow)
    flow.deployed = deployed
    flow.when(Reconcile(incarnation="engine-2"))
    assert (flow.workflow_task.state, flow.workflow_task.crashes) == (("ready", 0) if released else ("failed", MOST))


def test_a_deployment_cuts_no_pause_short() -> None:
    flow = crashed(2)
    flow.deployed = {"order": "f2"}
    flow.when(Reconcile(incarnation="engine-2"))
    assert flow.workflow_task.state == "failed"


def test_an_operator_releases_it() -> None:
    flow = crashed(MOST)
    is_repaired(flow)
    task = flow.workflow_task
    assert (task.state, task.block, task.crashes) == ("ready", None, 0)


@pytest.mark.parametrize("times", [1, 2, MOST])
def test_a_worker_that_hung_and_says_so_late_explains_the_silence(times: int) -> None:
    flow = given()
    task = flow.lease()
    flow.when(Release(task_id=task.id, owner=WORKER, attempt=1))
    crashed(times - 1, flow)
    hung = Block(message="it ran on and on", replay_blocked=True, reason=DEADLINE_EXCEEDED)
    flow.when(FailWorkflowTask(task_id=task.id, owner=WORKER, attempt=1, block=hung))
    assert flow.workflow_task.block == replace(hung, worker=WORKER)
    assert flow.workflow_task.crashes == 0
    refused = flow.refused(FailWorkflowTask(task_id=task.id, owner=WORKER, attempt=1, block=hung))
    assert refused.reason == "task_not_leased"


def test_signals_are_taken_while_it_is_blocked_and_seen_once_it_is_released() -> None:
    flow = crashed(MOST, given(definition=TALKING))
    flow.signal("go")
    assert flow.workflow_task.state == "failed"
    is_repaired(flow)
    assert flow.lease().seen == flow.run.length


def test_an_update_has_a_task_with_a_count_of_its_own() -> None:
    flow = crashed(MOST - 1, given(definition=TALKING))
    flow.update("add")
    assert flow.workflow_task.state == "ready"
    assert (flow.workflow_task.crashes, flow.workflow_task.history_limit) == (0, flow.run.length)


def test_the_pause_is_the_right_one_after_the_clock_was_set_back() -> None:
    flow = crashed(2)
    flow.now -= 3600 * SECOND
    flow.state = refold(flow)
    flow.machine.agenda.restart_after_clock_change(flow.state, flow.now, {})
    wake = flow.machine.agenda.next_wake(flow.state)
    assert wake == flow.now + 3 * SECOND
