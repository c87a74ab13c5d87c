"""Retries: the workflow stays parked on one execution while attempts come and go under the policy snapped at scheduling."""

from __future__ import annotations

import pytest

from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityFailed, ActivityRetryScheduled, RetryPolicy, ScheduleActivity
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.values import SECOND

from ...given import given, instant, names, only, running
from ...stored import refold, snapshot


@pytest.mark.contract("ACT-15")
def test_a_retryable_failure_schedules_the_next_attempt_and_leaves_the_workflow_parked() -> None:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[5]))
    decision = flow.fail(1, Failure(message="boom", exception_type="Boom", exception_class="shop:Boom", code=7), at=1)
    assert names(decision.events) == ["ActivityRetryScheduled"]
    event = only(decision, ActivityRetryScheduled)
    assert (event.retry_of_task_id, event.retry_task_id) == ("RUN1-a1.1", "RUN1-a1.2")
    assert (event.retry_after_attempt_id, event.retry_after_attempt) == ("RUN1-1-1", 1)
    assert (event.retry_available_at, event.retry_backoff_seconds) == (instant(6), 5)
    assert (event.retry_reason, event.max_attempts, event.timeout_kind) == ("activity_failed", 2, None)
    assert (event.message, event.exception_type, event.exception_class, event.code) == ("boom", "Boom", "shop:Boom", 7)
    assert decision.reply.outcome == "retry_scheduled"
    assert set(flow.rows) == {"RUN1-a1.2"}
    assert (flow.activity_task(1).attempt, flow.activity_task(1).available_at) == (1, instant(6))
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("ACT-18")
def test_the_next_attempt_is_offered_when_the_backoff_is_over_and_not_before() -> None:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[5]))
    assert flow.fail(1).unassigned == []
    assert flow.state.next_wake == instant(5)
    assert flow.due(4.9).unassigned == []
    assert [task.id for task in flow.due(5).unassigned] == ["RUN1-a1.2"]
    assert flow.state.next_wake is None
    assert flow.begin(1).attempt == 2


def test_without_a_backoff_the_next_attempt_is_offered_at_once() -> None:
    flow = running(RetryPolicy(max_attempts=2))
    assert [task.id for task in flow.fail(1).unassigned] == ["RUN1-a1.2"]
    assert flow.state.next_wake is None


@pytest.mark.contract("ACT-18")
@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        ([], [0, 0, 0, 0]),
        ([3], [3, 3, 3, 3]),
        ([1, 2, 4], [1, 2, 4, 4]),
        ([0, 0.5], [0, 0.5, 0.5, 0.5]),
    ],
)
def test_the_pause_after_each_attempt_is_its_entry_and_the_last_one_from_then_on(
    backoff: list[float], pauses: list[float]
) -> None:
    flow = running(RetryPolicy(max_attempts=None, backoff_seconds=backoff))
    found = []
    for _ in pauses:
        event = only(flow.fail(1), ActivityRetryScheduled)
        found.append(event.retry_backoff_seconds)
        assert event.retry_available_at - flow.now == event.retry_backoff_seconds * SECOND
        flow.now = event.retry_available_at
        flow.begin(1)
    assert found == pauses


@pytest.mark.contract("ACT-17")
@pytest.mark.parametrize("budget", [1, 2, 5])
def test_when_the_budget_is_spent_the_last_failure_is_final(budget: int) -> None:
    flow = running(RetryPolicy(max_attempts=budget))
    for _ in range(budget - 1):
        assert names(flow.fail(1).events) == ["ActivityRetryScheduled"]
        flow.begin(1)
    assert only(flow.fail(1), ActivityFailed).attempt_number == budget
    assert names(flow.history).count("ActivityStarted") == budget


def test_an_unlimited_budget_is_never_spent() -> None:
    flow = running(RetryPolicy(max_attempts=None))
    for _ in range(50):
        assert names(flow.fail(1).events) == ["ActivityRetryScheduled"]
        flow.begin(1)


@pytest.mark.contract("ACT-18")
@pytest.mark.parametrize(
    ("failure", "retried"),
    [
        (Failure(message="x"), True),
        (Failure(message="x", non_retryable=True), False),
        (Failure(message="x", exception_type="CardDeclined"), False),
        (Failure(message="x", exception_type="Timeout"), True),
        (Failure(message="x", exception_class="shop:Fraud"), False),
        (Failure(message="CardDeclined"), True),
    ],
)
def test_a_failure_that_is_not_retryable_is_not_retried(failure: Failure, retried: bool) -> None:
    policy = RetryPolicy(max_attempts=9, non_retryable_error_types=["CardDeclined", "shop:Fraud"])
    decision = running(policy).fail(1, failure)
    assert names(decision.events) == ["ActivityRetryScheduled" if retried else "ActivityFailed"]


def test_a_lost_lease_does_not_spend_the_budget() -> None:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[1, 60]))
    for at in (300, 620, 950):  # each redelivery waits longer than the one before
        flow.due(at)
        flow.due(at + 20)
        flow.begin(1)
    event = only(flow.fail(1), ActivityRetryScheduled)
    assert (event.retry_after_attempt, event.retry_backoff_seconds) == (4, 1)
    flow.due(971)
    flow.begin(1)
    assert only(flow.fail(1), ActivityFailed).attempt_number == 5


@pytest.mark.contract("ACT-16")
def test_the_policy_of_a_later_command_does_not_touch_an_open_execution() -> None:
    once = RetryPolicy(max_attempts=1)
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=once), StartTimer(delay_seconds=0))
    flow.begin(1)
    flow.complete(ScheduleActivity(activity_type="charge", retry_policy=RetryPolicy(max_attempts=9)))
    assert names(flow.fail(1).events) == ["ActivityFailed"]


@pytest.mark.contract("ACT-09", "LEASE-16")
def test_all_attempts_belong_to_one_execution_that_ends_once() -> None:
    flow = running(RetryPolicy(max_attempts=3))
    flow.fail(1)
    flow.begin(1)
    flow.fail(1)
    flow.begin(1)
    flow.finish(1)
    assert names(flow.history[2:]) == [
        "ActivityScheduled",
        *("ActivityStarted", "ActivityRetryScheduled") * 2,
        "ActivityStarted",
        "ActivityCompleted",
    ]
    assert {entry.event.activity_execution_id for entry in flow.history[2:]} == {"RUN1-1"}  # type: ignore[attr-defined]


def test_a_report_of_the_attempt_before_the_retry_is_stale() -> None:
    flow = running(RetryPolicy(max_attempts=2))
    late = flow.finished(1)
    flow.fail(1)
    assert flow.refused(late).reason == "stale_attempt"
    flow.begin(1)
    assert flow.refused(late).reason == "stale_attempt"
