"""The four activity timeouts: a retry while the budget lasts, the end when it does not or `schedule_to_close` is past."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.feature import Thrown
from backstay.kernel.features.activity import ActivityRetryScheduled, ActivityTimedOut, RetryPolicy, ScheduleActivity

from ...given import Flow, given, instant, names, only, running
from ...stored import refold, snapshot

KINDS = ("start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat")


def policy(attempts: int | None = 1, **timeouts: Any) -> RetryPolicy:
    return RetryPolicy(max_attempts=attempts, **{f"{kind}_timeout": timeout for kind, timeout in timeouts.items()})


def overrunning(kind: str, attempts: int | None, **more: Any) -> Flow:
    """An activity that passes this timeout after ten seconds: pending or running, as the timeout needs it."""
    found = policy(attempts, **{kind: 10}, **more)
    if kind == "schedule_to_start":
        return given(ScheduleActivity(activity_type="charge", retry_policy=found))
    return running(found)


@pytest.mark.contract("ACT-19")
@pytest.mark.parametrize("kind", KINDS)
def test_an_overrun_without_budget_is_final(kind: str) -> None:
    flow = overrunning(kind, attempts=1)
    assert flow.state.next_wake == instant(10)
    assert flow.due(9.9).events == []
    decision = flow.due(10)
    event = only(decision, ActivityTimedOut)
    assert (event.timeout_kind, event.failure_category) == (kind, "timeout")
    assert set(flow.rows) == {flow.workflow_task.id}
    thrown = flow.machine.outcome(event)
    assert isinstance(thrown, Thrown)
    assert (thrown.category, thrown.timeout_kind, thrown.failure_id) == ("timeout", kind, event.failure_id)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("ACT-19")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "schedule_to_close"])
def test_an_overrun_with_budget_is_a_retry(kind: str) -> None:
    flow = overrunning(kind, attempts=2)
    decision = flow.due(10)
    assert names(decision.events) == ["ActivityRetryScheduled"]
    event = only(decision, ActivityRetryScheduled)
    assert (event.retry_reason, event.timeout_kind) == ("activity_timed_out", kind)
    assert [task.id for task in decision.unassigned] == ["RUN1-a1.2"]
    assert set(flow.rows) == {"RUN1-a1.2"}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("ACT-19")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "schedule_to_close"])
def test_overrunning_again_and_again_spends_the_budget(kind: str) -> None:
    flow = overrunning(kind, attempts=3)
    ends = []
    for turn in (1, 2, 3):
        ends += names(flow.due(10 * turn).events)
        if kind != "schedule_to_start" and turn < 3:
            flow.begin(1)
    assert ends == ["ActivityRetryScheduled", "ActivityRetryScheduled", "ActivityTimedOut"]


@pytest.mark.contract("ACT-19")
def test_schedule_to_close_is_never_retried_and_spans_all_attempts() -> None:
    flow = running(policy(None, schedule_to_close=10))
    flow.fail(1, at=4)
    flow.begin(1, at=5)
    assert flow.state.next_wake == instant(10)
    event = only(flow.due(10), ActivityTimedOut)
    assert (event.timeout_kind, event.attempt_number) == ("schedule_to_close", 2)
    assert event.schedule_to_close_deadline_at == instant(10)


def test_schedule_to_close_ends_an_activity_that_waits_for_its_retry() -> None:
    flow = running(RetryPolicy(max_attempts=None, backoff_seconds=[60], schedule_to_close_timeout=10))
    flow.fail(1, at=1)
    assert names(flow.due(10).events) == ["ActivityTimedOut"]
    assert set(flow.rows) == {flow.workflow_task.id}
    assert flow.state.next_wake is None


def test_schedule_to_start_is_over_when_a_worker_has_begun() -> None:
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=policy(1, schedule_to_start=10)))
    flow.begin(1, at=9)
    assert flow.due(100).events == []


@pytest.mark.parametrize("backoff", [0, 5])
def test_schedule_to_start_counts_anew_from_when_the_retry_is_available(backoff: float) -> None:
    found = RetryPolicy(max_attempts=3, backoff_seconds=[backoff], schedule_to_start_timeout=10)
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=found))
    flow.begin(1, at=8)
    flow.fail(1, at=9)
    assert flow.execution(1).start_deadline == instant(9 + backoff + 10)
    assert flow.due(9 + backoff + 9.9).events == []
    assert only(flow.due(9 + backoff + 10), ActivityRetryScheduled).timeout_kind == "schedule_to_start"


def test_start_to_close_counts_from_each_start() -> None:
    flow = running(policy(2, start_to_close=10))
    flow.fail(1, at=9)
    flow.begin(1, at=15)
    assert flow.due(24.9).events == []
    assert only(flow.due(25), ActivityTimedOut).close_deadline_at == instant(25)


def test_a_heartbeat_holds_off_only_the_heartbeat_timeout() -> None:
    flow = running(policy(1, heartbeat=10, start_to_close=15))
    flow.beat(1, at=9)
    assert flow.due(10).events == []
    assert only(flow.due(15), ActivityTimedOut).timeout_kind == "start_to_close"


@pytest.mark.contract("ACT-08")
def test_the_attempt_that_timed_out_can_no_longer_report() -> None:
    flow = running(policy(2, start_to_close=10))
    late = flow.finished(1)
    flow.due(10)
    assert flow.refused(late).reason == "stale_attempt"
    assert flow.beat(1, attempt=1, owner="worker-1").reply.can_continue is False


def test_the_timeout_of_an_attempt_ends_with_its_lease_and_that_of_the_activity_does_not() -> None:
    flow = running(policy(1, start_to_close=400, schedule_to_close=500))
    flow.due(300)
    assert flow.activity_task(1).state == "ready"
    assert flow.due(400).events == []
    assert only(flow.due(500), ActivityTimedOut).timeout_kind == "schedule_to_close"
    assert set(flow.rows) == {flow.workflow_task.id}


def test_an_attempt_that_a_worker_lost_has_its_schedule_to_start_timeout_again() -> None:
    flow = running(policy(1, schedule_to_start=60))
    flow.due(300)
    assert only(flow.due(360), ActivityTimedOut).timeout_kind == "schedule_to_start"


@pytest.mark.parametrize(
    ("timeouts", "kind"),
    [
        ({"schedule_to_close": 10, "start_to_close": 10, "heartbeat": 10}, "schedule_to_close"),
        ({"schedule_to_close": 20, "start_to_close": 15, "heartbeat": 10}, "schedule_to_close"),
        ({"start_to_close": 10, "heartbeat": 10}, "heartbeat"),
        ({"start_to_close": 15, "heartbeat": 10}, "heartbeat"),
    ],
)
@pytest.mark.parametrize("attempts", [1, None])
def test_of_several_timeouts_that_passed_unseen_the_most_final_one_counts(
    timeouts: dict[str, float], kind: str, attempts: int | None
) -> None:
    flow = running(policy(attempts, **timeouts))
    (entry,) = flow.due(30).events
    assert entry.event.timeout_kind == kind  # type: ignore[attr-defined]


def test_an_attempt_that_never_began_has_no_attempt_id() -> None:
    flow = overrunning("schedule_to_start", attempts=2)
    retry = only(flow.due(10), ActivityRetryScheduled)
    assert (retry.retry_after_attempt, retry.activity_attempt_id, retry.retry_after_attempt_id) == (0, None, None)
    final = only(flow.due(20), ActivityTimedOut)
    assert (final.activity_attempt_id, final.attempt_number) == (None, 0)


def test_a_timeout_of_a_row_that_is_gone_is_still_a_timeout() -> None:
    flow = running(policy(1, start_to_close=10))
    flow.lose("RUN1-a1.1")
    assert names(flow.due(10).events) == ["ActivityTimedOut"]


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat"])
def test_an_attempt_that_no_server_could_hear_has_until_workers_are_expected_back(kind: str) -> None:
    flow = overrunning(kind, attempts=1)
    assert flow.due(25, unreachable=(25, 35)).events == []
    assert flow.state.next_wake == instant(35)
    assert flow.due(34.9, unreachable=(25, 35)).events == []
    assert flow.due(34.9, unreachable=(25, 35)).idle, "it is put off once"
    assert only(flow.due(35, unreachable=(25, 35)), ActivityTimedOut).timeout_kind == kind


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat"])
def test_an_attempt_that_was_put_off_can_report(kind: str) -> None:
    flow = overrunning(kind, attempts=1)
    flow.due(25, unreachable=(25, 35))
    assert names(flow.finish(1, at=26).events)[0] == "ActivityCompleted"
    assert flow.due(35, unreachable=(25, 35)).events == []


def test_heartbeats_count_again_from_the_first_one_that_is_heard() -> None:
    flow = overrunning("heartbeat", attempts=1)
    flow.due(25, unreachable=(25, 60))
    flow.beat(1, at=26)
    assert flow.due(35.9, unreachable=(25, 60)).events == []
    assert only(flow.due(36, unreachable=(25, 60)), ActivityTimedOut).timeout_kind == "heartbeat"


@pytest.mark.parametrize("kind", ["schedule_to_start", "schedule_to_close"])
def test_a_timeout_that_does_not_depend_on_hearing_a_worker_is_not_put_off(kind: str) -> None:
    assert only(overrunning(kind, attempts=1).due(25, unreachable=(25, 35)), ActivityTimedOut).timeout_kind == kind


def test_schedule_to_close_ends_an_attempt_whose_other_timeouts_are_put_off() -> None:
    flow = running(policy(1, start_to_close=10, heartbeat=5, schedule_to_close=30))
    assert flow.due(25, unreachable=(25, 35)).events == []
    assert flow.state.next_wake == instant(30)
    assert only(flow.due(30, unreachable=(25, 35)), ActivityTimedOut).timeout_kind == "schedule_to_close"


def test_an_attempt_that_began_since_is_timed_out_in_time() -> None:
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=policy(1, start_to_close=3)))
    flow.begin(1, at=26)
    assert only(flow.due(29, unreachable=(25, 35)), ActivityTimedOut).timeout_kind == "start_to_close"


def test_a_run_that_is_folded_anew_puts_its_heartbeat_timeout_off_anew() -> None:
    flow = overrunning("heartbeat", attempts=1)
    flow.due(25, unreachable=(25, 35))
    flow.state = refold(flow)
    assert flow.due(26, unreachable=(25, 35)).events == []
    assert flow.state.next_wake == instant(35)
