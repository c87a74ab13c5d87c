"""Reconcile: expected minus actual and actual minus expected. Missing transport comes back equal; running work is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ActivityStarted, RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.workflow_task import CompleteWorkflowTask
from backstay.kernel.task import Block, Lease, Task

from ..deciding import to
from ..given import WORKER, Flow, given, instant, names, running
from ..stored import snapshot

ACTIVITY = ScheduleActivity(activity_type="charge", arguments=b"args", queue="gpu")


def reconcile(incarnation: str = "engine-2", **named: Any) -> Reconcile:
    return Reconcile(incarnation=incarnation, **named)


def timer_fired() -> Flow:
    flow = given(StartTimer(delay_seconds=5))
    flow.due(5)
    return flow


def activity_ended() -> Flow:
    flow = running()
    flow.finish(1)
    return flow


def retry_pending() -> Flow:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[60]))
    flow.fail(1)
    return flow


def retry_ready() -> Flow:
    flow = running(RetryPolicy(max_attempts=2))
    flow.fail(1)
    return flow


MISSING = [given, timer_fired, activity_ended, lambda: given(ACTIVITY), retry_pending, retry_ready]


@pytest.mark.contract("REPAIR-04", "REPAIR-08", "REPAIR-15", "REPAIR-21")
@pytest.mark.parametrize(
    "flow_of", MISSING, ids=["start", "timer", "resolution", "activity", "retry in backoff", "retry due"]
)
def test_a_missing_task_is_restored_from_history_with_the_metadata_it_had(flow_of: Any) -> None:
    flow = flow_of()
    (lost,) = flow.rows.values()
    flow.lose(lost.id)
    decision = flow.when(reconcile())
    assert decision.reply.restored == [lost.id]
    assert decision.events == []
    assert flow.rows[lost.id] == replace(lost, repair_count=1)


@pytest.mark.contract("REPAIR-01")
@pytest.mark.parametrize("flow_of", MISSING)
def test_a_restored_task_is_offered_like_any_other(flow_of: Any) -> None:
    flow = flow_of()
    (lost,) = flow.rows.values()
    flow.lose(lost.id)
    decision = flow.when(reconcile(), at=100, offer=to("worker-7"))
    assert [task.id for task in decision.leased] == [lost.id]
    assert decision.leased[0].attempt == lost.attempt + 1


def test_beside_the_owner_a_lease_without_an_end_is_left_alone() -> None:
    flow = given(ACTIVITY)
    flow.begin(1, owner="engine-1/0", until=None)
    before = dict(flow.rows)
    assert not flow.when(reconcile("engine-2", force=True).beside_owner()).reply.changed
    assert flow.rows == before
    flow.lose("RUN1-a1.1")
    assert not flow.when(reconcile("engine-2", force=True).beside_owner()).reply.changed


def test_a_late_report_from_before_its_row_was_lost_does_not_pass_for_one_of_the_restored_task() -> None:
    """History does not count the attempts of a workflow task, and the same worker may have it again."""
    flow = given()
    before = flow.lease()
    flow.signal("note")
    flow.lose(before.id)
    flow.reopen()
    flow.when(reconcile())
    assert flow.workflow_task.attempt == before.attempt
    again = flow.lease()
    assert (again.id, again.owner) == (before.id, before.owner)
    late = CompleteWorkflowTask(task_id=before.id, owner=WORKER, attempt=before.attempt, commands=[])
    assert flow.refused(late).reason == "workflow_task_attempt_mismatch"


@pytest.mark.contract("REPAIR-15")
def test_a_restored_workflow_task_still_names_the_first_event_it_resumes_from() -> None:
    flow = given(StartTimer(delay_seconds=1), StartTimer(delay_seconds=2))
    flow.due(1)
    before = flow.workflow_task
    flow.due(2)
    flow.lose(before.id)
    flow.when(reconcile())
    assert (flow.workflow_task.id, flow.workflow_task.resume) == (before.id, before.resume)


@pytest.mark.contract("REPAIR-09")
def test_a_lost_wake_is_found_again_with_the_same_deadline() -> None:
    flow = given(StartTimer(delay_seconds=5))
    flow.reopen()
    flow.state.next_wake = None
    decision = flow.when(reconcile(), at=1)
    assert (decision.wake_moved, decision.instance.next_wake) == (True, instant(5))


@pytest.mark.contract("REPAIR-13", "REPAIR-20")
@pytest.mark.parametrize(("until", "owner"), [(300_000_000, "worker-1"), (None, "engine-2/0")])
@pytest.mark.parametrize("force", [False, True])
def test_a_running_activity_without_a_row_is_left_alone(until: int | None, owner: str, force: bool) -> None:
    flow = given(ACTIVITY)
    flow.begin(1, owner=owner, until=until)
    flow.lose("RUN1-a1.1")
    decision = flow.when(reconcile("engine-2", force=force), at=200)
    assert not decision.reply.changed
    assert flow.rows == {}
    assert names(flow.finish(1).events) == ["ActivityCompleted"]


def test_a_lost_row_is_not_made_up_for_by_one_too_many() -> None:
    """The sweep compares numbers: what is left out on purpose has to show in them."""
    flow = running()
    stray = replace(flow.activity_task(1), id="RUN1-a7.1", step=7)
    flow.lose("RUN1-a1.1")
    flow.rows[stray.id] = flow.tasks[stray.id] = stray
    decision = flow.when(reconcile(), at=1)
    assert decision.reply.dropped == [stray.id]
    assert decision.instance.expects == 1
    assert flow.rows == {}
    assert flow.when(reconcile(), at=330).reply.restored == ["RUN1-a1.1"]


@pytest.mark.contract("REPAIR-20")
def test_a_running_activity_without_a_row_is_redelivered_when_its_lease_and_the_grace_are_over() -> None:
    flow = running()
    flow.lose("RUN1-a1.1")
    assert not flow.when(reconcile(), at=329.9).reply.changed
    assert flow.when(reconcile(), at=330).reply.restored == ["RUN1-a1.1"]
    task = flow.activity_task(1)
    assert (task.state, task.attempt, task.owner, task.until) == ("ready", 1, None, None)
    assert flow.begin(1, owner="worker-2").attempt == 2


def test_a_heartbeat_that_was_recorded_prolongs_that_grace() -> None:
    flow = running()
    flow.beat(1, at=100)
    flow.lose("RUN1-a1.1")
    assert not flow.when(reconcile(), at=429.9).reply.changed
    assert flow.when(reconcile(), at=430).reply.restored == ["RUN1-a1.1"]


def test_an_activity_that_ran_inside_an_engine_that_is_gone_is_redelivered_at_once() -> None:
    flow = given(ACTIVITY)
    flow.begin(1, owner="engine-1/0", until=None)
    flow.lose("RUN1-a1.1")
    assert flow.when(reconcile("engine-2")).reply.restored == ["RUN1-a1.1"]


@pytest.mark.parametrize(
    ("owner", "until", "at", "over"),
    [
        ("engine-1/0", None, 0, True),
        ("engine-2/0", None, 10_000, False),
        ("worker-1", 300_000_000, 299, False),
        ("worker-1", 300_000_000, 300, True),
        ("engine-1/0", 300_000_000, 0, False),
    ],
)
@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_a_lease_that_is_over_is_given_back(owner: str, until: int | None, at: float, over: bool, kind: str) -> None:
    flow = given() if kind == "workflow" else given(ACTIVITY)
    (id,) = flow.rows
    flow.claim(id, owner=owner, until=until)
    flow.reopen()
    decision = flow.when(reconcile("engine-2"), at=at)
    assert decision.reply.released == ([id] if over else [])
    assert flow.rows[id].state == ("ready" if over else "leased")
    assert flow.rows[id].attempt == 1


@pytest.mark.parametrize(
    ("until", "holding", "over"),
    [
        (None, frozenset({"RUN1-a1.1"}), False),
        (None, frozenset(), True),
        (None, None, False),
        (300_000_000, frozenset(), False),
    ],
)
def test_a_lease_inside_the_engine_that_no_worker_there_holds_is_given_back(
    until: int | None, holding: frozenset[str] | None, over: bool
) -> None:
    flow = given(ACTIVITY)
    flow.begin(1, owner="engine-2/0", until=until)
    decision = flow.when(reconcile("engine-2", holding=holding), at=1)
    assert decision.reply.released == (["RUN1-a1.1"] if over else [])


@pytest.mark.parametrize(("asked_at", "over"), [(0.9, False), (1.0, False), (1.1, True)])
def test_a_list_of_held_leases_says_nothing_about_leases_granted_since(asked_at: float, over: bool) -> None:
    """Two of these may wait for one load; the first leads to a lease that the second cannot know of."""
    flow = given(ACTIVITY)
    flow.now = instant(1)
    flow.begin(1, owner="engine-2/0", until=None)
    decision = flow.when(reconcile("engine-2", holding=frozenset(), asked_at=instant(asked_at)), at=2)
    assert decision.reply.released == (["RUN1-a1.1"] if over else [])


@pytest.mark.contract("ACT-31")
def test_a_row_that_history_does_not_know_is_dropped() -> None:
    flow = given(ACTIVITY)
    stray = replace(flow.activity_task(1), id="RUN1-a7.1", step=7)
    flow.rows[stray.id] = flow.tasks[stray.id] = stray
    assert flow.when(reconcile()).reply.dropped == [stray.id]
    assert set(flow.rows) == {"RUN1-a1.1"}
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted", "ActivityScheduled"]


def test_a_row_of_an_earlier_retry_is_dropped() -> None:
    flow = running(RetryPolicy(max_attempts=2))
    stale = flow.activity_task(1)
    flow.fail(1)
    flow.rows[stale.id] = flow.tasks[stale.id] = stale
    assert flow.when(reconcile()).reply.dropped == [stale.id]


def test_a_row_of_a_closed_run_is_dropped() -> None:
    flow = given()
    stray: Task = flow.workflow_task
    flow.complete(CompleteWorkflow())
    flow.rows[stray.id] = flow.tasks[stray.id] = stray
    assert flow.when(reconcile()).reply.dropped == [stray.id]
    assert flow.rows == {}


def test_a_ready_task_is_offered_again() -> None:
    flow = given(ACTIVITY)
    decision = flow.when(reconcile(), offer=to("worker-7"))
    assert [task.id for task in decision.leased] == ["RUN1-a1.1"]
    assert not decision.reply.changed


def test_a_retry_in_its_backoff_is_not_offered() -> None:
    flow = retry_pending()
    assert flow.when(reconcile(), offer=to("worker-7")).idle


BLOCKED = Block(message="diverged", replay_blocked=True, fingerprint="f1")


@pytest.mark.parametrize(
    ("block", "deployed", "force", "revived"),
    [
        (BLOCKED, {}, False, False),
        (BLOCKED, {"order": "f1"}, False, False),
        (BLOCKED, {"order": None}, False, True),
        (replace(BLOCKED, fingerprint=None), {"order": None}, False, False),
        (BLOCKED, {"other": "f2"}, False, False),
        (BLOCKED, {"order": "f2"}, False, True),
        (replace(BLOCKED, fingerprint=None), {"order": "f2"}, False, True),
        (BLOCKED, {}, True, True),
        (Block(message="boom"), {"order": "f2"}, False, False),
        (Block(message="boom"), {}, True, True),
    ],
)
def test_a_blocked_task_is_tried_again_under_another_definition_or_on_demand(
    block: Block, deployed: dict[str, str | None], force: bool, revived: bool
) -> None:
    flow = given()
    flow.break_task(block)
    flow.deployed = deployed
    decision = flow.when(reconcile(force=force), at=1)
    assert decision.reply.revived == (["RUN1-w2"] if revived else [])
    assert flow.workflow_task.state == ("ready" if revived else "failed")
    assert [task.id for task in decision.unassigned] == (["RUN1-w2"] if revived else [])
    if revived:
        assert flow.workflow_task.block is None
        assert flow.state.next_wake is None


@pytest.mark.parametrize(
    "flow_of",
    [
        lambda: given(StartTimer(delay_seconds=5)),
        running,
        lambda: given(CompleteWorkflow()),
        retry_pending,
    ],
    ids=["timer", "running", "closed", "backoff"],
)
def test_a_healthy_run_needs_no_repair(flow_of: Any) -> None:
    flow = flow_of()
    flow.reopen()
    before = snapshot(flow)
    decision = flow.when(reconcile(), at=1)
    assert decision.idle
    assert not decision.reply.changed
    assert snapshot(flow) == before


def test_reconciling_twice_changes_nothing_more() -> None:
    flow = given(ACTIVITY, StartTimer(delay_seconds=0))
    flow.lose(*flow.rows)
    assert flow.when(reconcile()).reply.changed
    rows = dict(flow.rows)
    assert not flow.when(reconcile()).reply.changed
    assert flow.rows == rows


def forged(flow: Flow, task: Task) -> Task:
    """A row that nobody in their right mind has written: the task of no event."""
    row = replace(task, id=task.id + "9")
    flow.rows[row.id] = row
    flow.reopen()
    return row


@pytest.mark.parametrize("mine_first", [True, False])
def test_a_second_leased_workflow_task_is_not_believed(mine_first: bool) -> None:
    flow = given()
    real = flow.claim(flow.workflow_task.id, "engine-2/worker", until=None)
    row = forged(flow, real)
    if not mine_first:
        flow.rows = {row.id: row, real.id: real}
        flow.reopen()
    decision = flow.when(reconcile(holding=frozenset([real.id])))
    assert decision.reply.dropped == [row.id]
    assert list(flow.rows) == [real.id]
    assert names(flow.signal().events) == [], "code is in the middle of its task: the signal is held"


def test_a_real_task_without_a_holder_is_offered_again_alone() -> None:
    flow = given()
    real = flow.claim(flow.workflow_task.id, "engine-1/worker", until=None)
    forged(flow, real)
    decision = flow.when(reconcile(), offer=to("engine-2/worker"))
    assert [task.id for task in decision.leased] == [real.id]
    assert list(flow.rows) == [real.id]


@pytest.mark.parametrize("lease", [None, Lease(owner=WORKER)])
def test_a_forged_workflow_task_is_closed_at_its_claim(lease: Lease | None) -> None:
    flow = given()
    row = forged(flow, flow.workflow_task)
    if lease is None:
        refusal = flow.refused(Claim(task_id=row.id, lease=Lease(owner=WORKER), kind="workflow"))
    else:
        refusal = flow.refused(
            CompleteWorkflowTask(
                task_id=row.id, owner=WORKER, attempt=1, commands=[StartTimer(delay_seconds=5)], lease=lease
            )
        )
    assert refusal.reason == "task_not_found"


def test_a_second_row_of_an_activity_gets_no_attempt_of_its_own() -> None:
    flow = given(ACTIVITY)
    real = flow.begin(1)
    row = forged(flow, real)
    decision = flow.when(Due(), at=300, offer=to("worker-2"))
    assert [task.id for task in decision.leased] == [real.id]
    assert [e.event.attempt_number for e in decision.events if isinstance(e.event, ActivityStarted)] == [2]
    assert row.id not in flow.rows


def test_a_row_that_is_not_leased_says_nothing_about_what_its_code_has_seen() -> None:
    flow = given(StartTimer(delay_seconds=5))
    flow.signal()
    real = flow.claim(flow.workflow_task.id)
    flow.due(5)
    flow.rows[real.id] = replace(real, state="ready", owner=None, until=None)
    flow.reopen()
    assert flow.machine.assign(flow.state, flow.state.tasks[real.id]).last_sequence == flow.run.length
