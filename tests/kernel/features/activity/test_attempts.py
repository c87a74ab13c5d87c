"""Attempts: each claim is one, only the current one writes history, and an execution ends once however often it ran."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.failure import Failure
from backstay.kernel.feature import Thrown, Value
from backstay.kernel.features.activity import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityStarted,
    CancelActivity,
    RetryPolicy,
    ScheduleActivity,
    status,
)
from backstay.kernel.features.lease import Release
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.limits import Limits
from backstay.kernel.values import LEASE

from ...given import T0, WORKER, given, instant, names, only, running
from ...stored import refold, snapshot


@pytest.mark.contract("ACT-07", "ACT-09")
def test_every_claim_is_a_new_attempt_of_the_same_execution() -> None:
    flow = given(ScheduleActivity(activity_type="charge"))
    for number in (1, 2, 3):
        flow.begin(1, owner=f"worker-{number}", at=400 * (number - 1))
        flow.due(400 * number - 50)
    attempts = [entry.event for entry in flow.history if isinstance(entry.event, ActivityStarted)]
    assert [event.attempt_number for event in attempts] == [1, 2, 3]
    assert [event.activity_attempt_id for event in attempts] == ["RUN1-1-1", "RUN1-1-2", "RUN1-1-3"]
    assert {event.activity_execution_id for event in attempts} == {"RUN1-1"}
    assert attempts[0].lease_expires_at == T0 + LEASE


@pytest.mark.contract("ACT-26")
@pytest.mark.parametrize("result", [None, b"", b"paid"])
def test_a_completion_ends_the_execution_and_wakes_the_workflow(result: bytes | None) -> None:
    flow = running()
    decision = flow.finish(1, result, at=1)
    event = only(decision, ActivityCompleted)
    assert (event.sequence, event.activity_attempt_id, event.attempt_number) == (1, "RUN1-1-1", 1)
    assert event.result == result
    assert (decision.reply.outcome, decision.reply.recorded) == ("completed", True)
    assert set(flow.rows) == {"RUN1-w5"}
    assert flow.machine.outcome(event) == Value(result)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_the_end_remembers_who_wrote_it() -> None:
    context = running().finish(1).events[0].context
    assert (context.task_id, context.attempt, context.owner) == ("RUN1-a1.1", 1, WORKER)


@pytest.mark.contract("ACT-10", "ACT-08", "LEASE-14")
def test_a_late_result_of_an_expired_lease_is_stale_from_the_moment_it_expires() -> None:
    flow = running()
    late = flow.finished(1, b"late")
    assert flow.refused(late, at=300).reason == "stale_attempt"
    flow.due(300)
    assert flow.refused(late).reason == "stale_attempt"
    flow.begin(1, owner="worker-2")
    assert flow.refused(late).reason == "stale_attempt"
    flow.finish(1, b"now")
    assert flow.refused(late).reason == "stale_attempt"
    assert names(flow.history).count("ActivityCompleted") == 1


@pytest.mark.contract("ACT-08")
@pytest.mark.parametrize(
    ("step", "wrong"),
    [(1, {"attempt": 1}), (1, {"attempt": 3}), (1, {"attempt": 0}), (1, {"owner": "worker-9"}), (2, {})],
)
def test_only_the_current_attempt_may_complete_or_fail(step: int, wrong: dict[str, Any]) -> None:
    flow = running()
    flow.due(300)
    flow.begin(1, owner="worker-2")
    for message in (flow.finished(step, **wrong), flow.failed(step, **wrong)):
        refusal = flow.refused(message)
        assert (refusal.reason, refusal.fields["outcome"]) == ("stale_attempt", "ignored")
    assert flow.beat(step, **wrong).reply.can_continue is False


def test_an_activity_that_was_not_begun_cannot_be_ended() -> None:
    flow = given(ScheduleActivity(activity_type="charge"))
    assert flow.refused(flow.finished(1, attempt=0, owner=WORKER)).reason == "stale_attempt"


@pytest.mark.contract("LEASE-16")
def test_a_result_that_is_sent_twice_is_recorded_once() -> None:
    flow = running()
    report = flow.finished(1)
    flow.when(report)
    assert flow.refused(report).reason == "stale_attempt"


def test_a_result_counts_when_the_task_row_is_gone() -> None:
    flow = running()
    flow.lose("RUN1-a1.1")
    assert names(flow.finish(1, at=10).events) == ["ActivityCompleted"]


def test_an_attempt_that_was_given_back_is_over_when_the_next_one_begins() -> None:
    flow = running()
    late = flow.finished(1)
    flow.when(Release(task_id="RUN1-a1.1", owner=WORKER, attempt=1))
    assert flow.begin(1, owner="worker-2").attempt == 2
    assert flow.refused(late).reason == "stale_attempt"


FORGED: list[dict[str, Any]] = [
    {"state": "ready", "owner": None, "until": None},
    {"owner": "nobody/worker", "until": None},
    {"attempt": 7},
    {"until": T0},
]


@pytest.mark.parametrize("until", [None, LEASE])
@pytest.mark.parametrize("forged", FORGED)
def test_a_row_does_not_outvote_the_history_of_its_attempt(forged: dict[str, Any], until: int | None) -> None:
    for verb in ("beat", "finish", "fail"):
        flow = running(RetryPolicy(max_attempts=5), until=until)
        flow.rows["RUN1-a1.1"] = replace(flow.activity_task(1), **forged)
        flow.reopen()
        decision = getattr(flow, verb)(1, attempt=1, owner=WORKER, at=10)
        if verb == "beat":
            assert decision.reply.can_continue
            task = flow.activity_task(1)
            assert (task.state, task.owner, task.attempt) == ("leased", WORKER, 1)
        else:
            assert names(decision.events)[0] in ("ActivityCompleted", "ActivityRetryScheduled")


def test_an_attempt_that_gave_up_for_another_that_never_was_is_no_outcome() -> None:
    flow = running()  # a budget of one attempt
    told = Failure(message="not wanted", exception_type="ActivityCancelled", non_retryable=True)
    decision = flow.when(replace(flow.failed(1, told), gave_up=True))
    assert names(decision.events) == ["ActivityRetryScheduled"]
    assert (decision.reply.outcome, decision.reply.recorded) == ("released", False)
    assert flow.activity_task(1).state == "ready"
    assert flow.begin(1, owner="worker-2").attempt == 2
    assert names(flow.finish(1).events) == ["ActivityCompleted"]


@pytest.mark.contract("ACT-17", "ACT-26")
def test_a_final_failure_ends_the_execution_and_is_thrown_into_the_code() -> None:
    flow = running()
    failure = Failure(
        message="declined", exception_type="CardDeclined", exception_class="shop:CardDeclined", code=402, details=b"d"
    )
    decision = flow.fail(1, failure)
    event = only(decision, ActivityFailed)
    assert (event.message, event.exception_type, event.exception_class) == (
        "declined",
        "CardDeclined",
        "shop:CardDeclined",
    )
    assert (event.code, event.failure_category, event.failure_id) == (402, "activity", "RUN1-f5")
    assert event.exception == failure
    assert decision.reply.outcome == "failed"
    assert flow.machine.outcome(event) == Thrown(failure, "RUN1-f5", "activity")
    assert set(flow.rows) == {"RUN1-w5"}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize(
    ("limits", "type"), [(Limits(payload_size=3), "ActivityFailed"), (Limits(payload_size=4), "ActivityCompleted")]
)
def test_a_result_over_the_payload_limit_is_a_failure_that_no_retry_mends(limits: Limits, type: str) -> None:
    flow = running(RetryPolicy(max_attempts=5), limits=limits)
    decision = flow.finish(1, b"1234")
    assert names(decision.events) == [type]
    if type == "ActivityFailed":
        event = only(decision, ActivityFailed)
        assert (event.failure_category, event.non_retryable) == ("structural_limit", True)
        assert (event.structural_limit_kind, event.structural_limit_value) == ("payload_size", 4)
        assert event.structural_limit_configured == 3
        assert decision.reply.outcome == "failed"


@pytest.mark.contract("ACT-27", "ACT-26")
def test_an_activity_that_is_cancelled_while_it_runs_is_told_so_and_its_result_is_ignored() -> None:
    flow = given(ScheduleActivity(activity_type="charge"), StartTimer(delay_seconds=0))
    flow.begin(1)
    decision = flow.complete(CancelActivity(step=1), at=2)
    event = only(decision, ActivityCancelled)
    assert (event.activity_attempt_id, event.attempt_number) == ("RUN1-1-1", 1)
    assert event.cancelled_at == instant(2)
    thrown = flow.machine.outcome(event)
    assert isinstance(thrown, Thrown)
    assert thrown.category == "cancelled"
    assert flow.rows == {}
    assert flow.refused(flow.finished(1)).reason == "stale_attempt"
    reply = flow.beat(1).reply
    assert (reply.can_continue, reply.cancel_requested, reply.reason) == (False, True, "activity_closed")


@pytest.mark.contract("ACT-28")
def test_no_open_event_of_an_activity_ends_the_wait_for_it() -> None:
    flow = running(RetryPolicy(max_attempts=2))
    flow.beat(1, at=60)
    flow.fail(1)
    kinds = {entry.type for entry in flow.history if flow.machine.outcome(entry.event) is None}
    assert {"ActivityScheduled", "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityRetryScheduled"} <= kinds


@pytest.mark.contract("ACT-02")
def test_asking_for_the_status_renews_nothing() -> None:
    flow = running()
    before = snapshot(flow)
    reply = status(flow.state, "RUN1", 1, 1, WORKER, instant(100))
    assert (reply.can_continue, reply.heartbeat_recorded, reply.attempt_status) == (True, False, "running")
    assert reply.lease_expires_at == instant(300)
    assert snapshot(flow) == before


@pytest.mark.contract("ACT-02")
def test_the_status_knows_a_lease_that_a_heartbeat_has_renewed() -> None:
    flow = running()
    flow.beat(1, at=10)
    reply = status(flow.state, "RUN1", 1, 1, WORKER, instant(100))
    assert (reply.lease_expires_at, reply.last_heartbeat_at) == (instant(310), instant(10))


@pytest.mark.parametrize(
    ("attempt", "owner", "run_id", "reason", "attempt_status"),
    [
        (2, WORKER, "RUN1", "stale_attempt", "expired"),
        (1, "worker-2", "RUN1", "stale_attempt", "expired"),
        (1, WORKER, "RUN9", "run_closed", "cancelled"),
    ],
)
def test_the_status_of_an_attempt_that_is_over_says_so(
    attempt: int, owner: str, run_id: str, reason: str, attempt_status: str
) -> None:
    reply = status(running().state, run_id, 1, attempt, owner, T0)
    assert (reply.can_continue, reply.reason, reply.attempt_status) == (False, reason, attempt_status)


def test_every_event_of_an_activity_has_the_shape_of_its_type() -> None:
    flow = running(RetryPolicy(max_attempts=2))
    flow.fail(1)
    for entry in flow.history[2:]:
        shape = flow.machine.shape(entry.event)
        assert shape is not None
        assert shape.detail is not None
        assert (shape.name, shape.detail(entry.event)) == ("activity", "charge")
