"""Leases: a claim is durable before anybody works, the fence lets one attempt through, a lost lease is delivered again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ActivityStarted, RetryPolicy, ScheduleActivity
from backstay.kernel.features.lease import Claim, Claimant, Offer, Release, Renew, claim_status, never_heard_of
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask, HeartbeatWorkflowTask
from backstay.kernel.message import Message
from backstay.kernel.task import Block, Lease, Task
from backstay.kernel.values import LEASE, SECOND, Routing

from ..deciding import to
from ..given import T0, WORKER, Flow, given, instant, names, only, running
from ..stored import refold, snapshot

FAST_RETRY = RetryPolicy(max_attempts=3, backoff_seconds=[60])


def claim(task_id: str, owner: str = WORKER, kind: str | None = None) -> Claim:
    return Claim(task_id=task_id, lease=Lease(owner=owner, until=T0 + LEASE), kind=kind)


@pytest.mark.contract("LEASE-03")
def test_a_claim_leases_the_task_for_five_minutes() -> None:
    flow = given()
    task = flow.claim(flow.workflow_task.id)
    assert (task.state, task.owner, task.attempt) == ("leased", WORKER, 1)
    assert task.until is not None
    assert task.leased_at is not None
    assert task.until - task.leased_at == 300 * SECOND
    assert flow.rows[task.id] == task
    assert flow.state.next_wake == task.until


def test_a_workflow_task_is_leased_at_the_history_it_will_see() -> None:
    flow = given()
    assert flow.claim(flow.workflow_task.id).seen == 2


def test_a_lease_inside_the_engine_has_no_end_and_needs_no_wake() -> None:
    flow = given()
    task = flow.claim(flow.workflow_task.id, owner="engine-1/0", until=None)
    assert task.until is None
    assert flow.state.next_wake is None


def _future() -> Flow:
    flow = running(FAST_RETRY)
    flow.fail(1)
    return flow


@pytest.mark.contract("LEASE-04")
@pytest.mark.parametrize(
    ("flow", "task_id", "kind", "reason"),
    [
        (given(), "RUN1-w9", None, "task_not_found"),
        (given(), "RUN1-w2", "activity", "task_not_activity"),
        (given(ScheduleActivity(activity_type="a")), "RUN1-a1.1", "workflow", "task_not_workflow"),
        (running(), "RUN1-a1.1", None, "task_not_ready"),
        (_future(), "RUN1-a1.2", None, "task_not_due"),
    ],
)
def test_a_claim_is_refused_for_a_typed_reason(flow: Flow, task_id: str, kind: str | None, reason: str) -> None:
    assert claim_status(flow.state, task_id, kind, flow.now) == reason
    assert flow.refused(claim(task_id, kind=kind)).reason == reason


@pytest.mark.contract("LEASE-04")
def test_a_leased_or_failed_workflow_task_cannot_be_claimed() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    assert flow.refused(claim("RUN1-w2", owner="worker-2")).reason == "task_not_claimable"
    flow.break_task(Block(message="x"))
    assert flow.refused(claim("RUN1-w2", owner="worker-2")).reason == "task_not_claimable"


MARKED = Routing(compatibility="build-2", connection="redis")


@pytest.mark.contract("LEASE-04", "MATCH-06")
@pytest.mark.parametrize(
    ("claimant", "workflow", "activity"),
    [
        (Claimant(), "compatibility_blocked", "compatibility_unsupported"),
        (Claimant(compatibility=frozenset({"build-1"})), "compatibility_blocked", "compatibility_unsupported"),
        (Claimant(compatibility=frozenset({"*"}), connection="sqs"), "backend_unavailable", "backend_unsupported"),
        (Claimant(compatibility=frozenset({"build-1", "build-2"})), None, None),
        (Claimant(compatibility=frozenset({"*"}), connection="redis"), None, None),
        (None, None, None),
    ],
)
def test_a_claim_of_a_worker_that_cannot_run_it_leaves_the_row_untouched(
    claimant: Claimant | None, workflow: str | None, activity: str | None
) -> None:
    for flow, task_id, reason in (
        (given(routing=MARKED), "RUN1-w2", workflow),
        (given(ScheduleActivity(activity_type="a"), routing=MARKED), "RUN1-a1.1", activity),
    ):
        assert claim_status(flow.state, task_id, None, flow.now, claimant) == reason
        message = Claim(task_id=task_id, lease=Lease(owner=WORKER, until=T0 + LEASE), by=claimant)
        if reason is None:
            assert flow.when(message).reply.owner == WORKER
        else:
            assert flow.refused(message).reason == reason


def test_a_task_that_can_be_claimed_says_so() -> None:
    flow = given()
    assert claim_status(flow.state, "RUN1-w2", "workflow", flow.now) is None


WRONG: list[tuple[dict[str, Any], float, str]] = [
    ({"task_id": "RUN1-w9"}, 0, "task_not_found"),
    ({"owner": "worker-2"}, 0, "lease_owner_mismatch"),
    ({"attempt": 0}, 0, "workflow_task_attempt_mismatch"),
    ({"attempt": 2}, 0, "workflow_task_attempt_mismatch"),
    ({}, 300, "lease_expired"),
]


@pytest.mark.contract("LEASE-09", "LEASE-10")
@pytest.mark.parametrize(("wrong", "at", "reason"), WRONG)
def test_a_completion_that_does_not_hold_the_lease_is_refused_and_none_of_its_commands_is_applied(
    wrong: dict[str, Any], at: float, reason: str
) -> None:
    flow = given()
    flow.claim("RUN1-w2")
    commands = [RecordSideEffect(result=b"1"), StartTimer(delay_seconds=1), ScheduleActivity(activity_type="a")]
    message = {"task_id": "RUN1-w2", "owner": WORKER, "attempt": 1, "commands": commands, **wrong}
    assert flow.refused(CompleteWorkflowTask(**message), at=at).reason == reason
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted"]


@pytest.mark.contract("LEASE-09")
@pytest.mark.parametrize(("wrong", "at", "reason"), WRONG)
@pytest.mark.parametrize("verb", [HeartbeatWorkflowTask, Release])
def test_heartbeat_and_release_need_the_lease_too(
    verb: type[Message], wrong: dict[str, Any], at: float, reason: str
) -> None:
    flow = given()
    flow.claim("RUN1-w2")
    message = verb(**{"task_id": "RUN1-w2", "owner": WORKER, "attempt": 1, **wrong})
    assert flow.refused(message, at=at).reason == reason


def test_the_lease_of_an_activity_does_not_speak_for_a_workflow_task() -> None:
    flow = running()
    held = {"task_id": "RUN1-a1.1", "owner": WORKER, "attempt": 1}
    late = [
        CompleteWorkflowTask(**held, commands=[]),
        FailWorkflowTask(**held, block=Block(message="x")),
        HeartbeatWorkflowTask(**held),
    ]
    assert {flow.refused(message).reason for message in late} == {"task_not_workflow"}


def test_a_task_that_no_worker_holds_cannot_be_completed() -> None:
    flow = given()
    message = CompleteWorkflowTask(task_id="RUN1-w2", owner=WORKER, attempt=0, commands=[])
    assert flow.refused(message).reason == "task_not_leased"


@pytest.mark.contract("LEASE-14", "LEASE-10")
def test_an_expired_lease_is_delivered_again_with_a_higher_attempt_and_the_late_report_is_stale() -> None:
    flow = given()
    late = flow.completion(RecordSideEffect(result=b"late"), owner="worker-1")
    assert flow.due(299.999).idle
    expired = flow.due(300)
    assert [task.id for task in expired.unassigned] == ["RUN1-w2"]
    assert flow.refused(late).reason == "task_not_leased"
    assert flow.claim("RUN1-w2", owner="worker-2").attempt == 2
    assert flow.refused(late).reason == "lease_owner_mismatch"
    flow.complete(RecordSideEffect(result=b"now"), owner="worker-2")
    assert flow.refused(late).reason == "task_not_found"
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted", "SideEffectRecorded"]


@pytest.mark.contract("LEASE-14")
def test_the_same_worker_on_a_later_attempt_does_not_revive_its_earlier_one() -> None:
    flow = given()
    late = flow.completion(RecordSideEffect(result=b"late"))
    flow.due(300)
    flow.claim("RUN1-w2")
    assert flow.refused(late).reason == "workflow_task_attempt_mismatch"


@pytest.mark.contract("LEASE-15")
def test_redelivery_is_no_retry_of_the_workflow() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    flow.due(300)
    task = flow.claim("RUN1-w2", owner="worker-2")
    assert task.seen == 2
    assert names(flow.history).count("WorkflowStarted") == 1
    assert flow.run.number == 1


@pytest.mark.contract("LEASE-07")
def test_a_heartbeat_extends_the_lease_and_tells_the_run_status() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    reply = flow.when(HeartbeatWorkflowTask(task_id="RUN1-w2", owner=WORKER, attempt=1), at=200).reply
    assert (reply.lease_expires_at, reply.run_status, reply.outcome) == (instant(500), "pending", "renewed")
    assert flow.due(300).events == []
    assert flow.workflow_task.state == "leased"
    flow.due(500)
    assert flow.workflow_task.state == "ready"


def test_asking_about_a_lease_does_not_extend_it() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    decision = flow.when(HeartbeatWorkflowTask(task_id="RUN1-w2", owner=WORKER, attempt=1, renew=False), at=200)
    assert decision.idle
    assert decision.reply.lease_expires_at == instant(300)


def test_a_released_task_is_offered_again_at_once() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    decision = flow.when(Release(task_id="RUN1-w2", owner=WORKER, attempt=1), at=1)
    assert [task.id for task in decision.unassigned] == ["RUN1-w2"]
    assert (flow.workflow_task.state, flow.workflow_task.attempt) == ("ready", 1)
    assert (flow.workflow_task.owner, flow.workflow_task.until, flow.workflow_task.seen) == (None, None, None)
    assert flow.state.next_wake is None


def test_a_task_that_comes_out_ready_is_leased_to_a_waiting_worker() -> None:
    flow = Flow()
    flow.start()
    decision = flow.when(Offer(task_id="RUN1-w2"), offer=to("worker-7", until=T0 + LEASE))
    (task,) = decision.leased
    assert (task.owner, task.attempt, task.state) == ("worker-7", 1, "leased")
    assert decision.unassigned == []
    assert flow.rows["RUN1-w2"] == task


@pytest.mark.contract("ACT-13")
def test_an_activity_that_is_born_leased_is_started_in_the_same_decision() -> None:
    flow = given()
    decision = flow.when(flow.completion(ScheduleActivity(activity_type="a")), offer=to("worker-7", until=T0 + LEASE))
    assert names(decision.events) == ["ActivityScheduled", "ActivityStarted"]
    assert only(decision, ActivityStarted).lease_expires_at == T0 + LEASE
    assert [task.id for task in decision.leased] == ["RUN1-a1.1"]
    claimed = given(ScheduleActivity(activity_type="a"))
    claimed.begin(1, owner="worker-7")
    assert only(decision, ActivityStarted) == claimed.history[-1].event


def test_a_row_that_serves_nothing_is_closed_and_takes_up_no_room() -> None:
    flow = given(ScheduleActivity(activity_type="a"))
    forged = flow.rows["RUN1-a7.1"] = replace(flow.activity_task(1), id="RUN1-a7.1", step=7)
    flow.reopen()
    offered: list[Task] = []
    flow.when(Offer(task_id=forged.id), offer=offered.append)
    assert offered == []
    assert forged.id not in flow.rows


def test_a_row_of_an_attempt_that_is_over_ends_its_activity_and_wakes_the_code() -> None:
    flow = running(RetryPolicy(max_attempts=1, max_crashes=0))
    (row,) = flow.rows.values()
    flow.rows[row.id] = replace(row, state="ready", owner=None, leased_at=None, until=None)
    flow.reopen()
    decision = flow.when(Offer(task_id=row.id), at=1000)
    assert names(decision.events) == ["ActivityFailed"]
    assert list(flow.rows) == ["RUN1-w5"]


def test_an_offer_that_finds_no_worker_leaves_the_task_ready() -> None:
    flow = given()
    decision = flow.when(Offer(task_id="RUN1-w2"))
    assert [task.id for task in decision.unassigned] == ["RUN1-w2"]
    assert flow.workflow_task.state == "ready"


@pytest.mark.parametrize("offer", [Offer(task_id="RUN1-w9"), Offer(task_id="RUN1-w2", quiet=True)])
def test_an_offer_of_nothing_or_a_quiet_one_changes_nothing(offer: Offer) -> None:
    flow = given()
    assert flow.when(offer, offer=to("worker-7")).idle
    assert flow.workflow_task.state == "ready"


def test_a_lease_survives_a_restart() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    flow.reopen()
    flow.due(300)
    assert flow.workflow_task.state == "ready"


def test_events_remember_the_lease_that_caused_them() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    (entry,) = flow.complete(RecordSideEffect(result=b"x"), at=2).events
    context = entry.context
    assert (context.task_id, context.attempt, context.owner) == ("RUN1-w2", 1, WORKER)
    assert (context.decided_after, context.leased_at, context.lease_expires_at) == (2, T0, T0 + LEASE)


def test_a_decision_about_a_leased_task_delivers_it_only_once() -> None:
    flow = running(RetryPolicy(max_attempts=1, heartbeat_timeout=30))
    assert flow.beat(1).leased == []


def test_a_lease_that_was_renewed_is_not_released_as_one_that_no_worker_has_heard_of() -> None:
    """At the same moment, too: two processes with one clock."""
    flow = given()
    task = flow.claim(flow.workflow_task.id)
    flow.when(Renew(task_id=task.id, owner=WORKER, attempt=task.attempt))
    assert flow.rows[task.id].until != task.until
    flow.when(never_heard_of(task))
    assert flow.rows[task.id].state == "leased"
    flow.when(never_heard_of(flow.rows[task.id]))
    assert flow.rows[task.id].state == "ready"
