"""Scheduling: one event with the whole snapshot, one ready task, and a policy that is checked before it is accepted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from backstay.kernel.features.activity import ActivityScheduled, CancelActivity, RetryPolicy, ScheduleActivity
from backstay.kernel.values import Routing

from ...given import WORKER, given, instant, names, only, running
from ...stored import refold, snapshot

POLICY = RetryPolicy(
    max_attempts=3,
    backoff_seconds=[1, 2.5],
    non_retryable_error_types=["CardDeclined"],
    start_to_close_timeout=20,
    schedule_to_start_timeout=30,
    schedule_to_close_timeout=60,
    heartbeat_timeout=10,
)


@pytest.mark.contract("CMD-04")
def test_scheduling_records_the_step_and_makes_its_task() -> None:
    flow = given()
    decision = flow.complete(ScheduleActivity(activity_type="charge", arguments=b"args"), at=1)
    event = only(decision, ActivityScheduled)
    assert (event.sequence, event.activity_execution_id, event.activity_type) == (1, "RUN1-1", "charge")
    assert (event.activity.arguments, event.activity.payload_codec) == (b"args", "avro")
    (task,) = decision.unassigned
    assert (task.id, task.kind, task.state, task.step, task.attempt) == ("RUN1-a1.1", "activity", "ready", 1, 0)
    assert task.available_at == instant(1)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("CMD-05", "ACT-20")
def test_the_whole_policy_is_snapped_into_history() -> None:
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=POLICY))
    assert only(flow.decisions[-1], ActivityScheduled).activity.retry_policy == POLICY
    flow.reopen()
    assert flow.execution(1).policy == POLICY


def test_without_a_policy_an_activity_is_tried_once() -> None:
    assert given(ScheduleActivity(activity_type="charge")).execution(1).policy == RetryPolicy(max_attempts=1)


@pytest.mark.parametrize(
    ("named", "queue", "connection"),
    [({}, "slow", "eu"), ({"queue": "gpu"}, "gpu", "eu"), ({"connection": "us"}, "slow", "us")],
)
def test_an_activity_is_routed_like_its_run_unless_it_says_otherwise(
    named: dict[str, Any], queue: str, connection: str
) -> None:
    routing = Routing(
        queue="slow", connection="eu", compatibility="v2", priority=2, fairness_key="k", fairness_weight=4
    )
    flow = given(ScheduleActivity(activity_type="charge", **named), routing=routing)
    found = flow.activity_task(1).routing
    assert (found.queue, found.connection) == (queue, connection)
    assert (found.compatibility, found.priority, found.fairness_key, found.fairness_weight) == ("v2", 2, "k", 4)


@pytest.mark.contract("CMD-05")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_attempts": 0}, "retry_policy.max_attempts"),
        ({"max_attempts": -1}, "retry_policy.max_attempts"),
        ({"backoff_seconds": [-1]}, "retry_policy.backoff_seconds"),
        ({"backoff_seconds": [1, -0.5]}, "retry_policy.backoff_seconds"),
        ({"backoff_seconds": [math.inf]}, "retry_policy.backoff_seconds"),
        ({"backoff_seconds": [1, math.nan]}, "retry_policy.backoff_seconds"),
        ({"start_to_close_timeout": 0}, "start_to_close_timeout"),
        ({"schedule_to_start_timeout": -1}, "schedule_to_start_timeout"),
        ({"schedule_to_close_timeout": math.nan}, "schedule_to_close_timeout"),
        ({"heartbeat_timeout": math.inf}, "heartbeat_timeout"),
        ({"schedule_to_start_timeout": 1e-7}, "schedule_to_start_timeout"),
        ({"start_to_close_timeout": 1e10}, "start_to_close_timeout"),
        ({"heartbeat_timeout": 5, "start_to_close_timeout": 4}, "heartbeat_timeout"),
        ({"start_to_close_timeout": 5, "schedule_to_close_timeout": 4}, "start_to_close_timeout"),
    ],
)
def test_a_policy_of_the_wrong_shape_is_refused(wrong: dict[str, Any], field: str) -> None:
    flow = given()
    policy = RetryPolicy(**{"max_attempts": 1, **wrong})
    refusal = flow.refused(flow.completion(ScheduleActivity(activity_type="charge", retry_policy=policy)))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)


@pytest.mark.parametrize(
    "right",
    [
        {"max_attempts": None},
        {"backoff_seconds": [0]},
        {"schedule_to_start_timeout": 1e-6},
        {"heartbeat_timeout": 5, "start_to_close_timeout": 5, "schedule_to_close_timeout": 5},
        {"schedule_to_start_timeout": 50, "start_to_close_timeout": 5},
    ],
)
def test_a_policy_at_its_bounds_is_accepted(right: dict[str, Any]) -> None:
    policy = RetryPolicy(**{"max_attempts": 1, **right})
    assert given(ScheduleActivity(activity_type="charge", retry_policy=policy)).execution(1).policy == policy


def test_an_assignment_carries_everything_a_worker_needs() -> None:
    flow = given(ScheduleActivity(activity_type="charge", arguments=b"args", retry_policy=POLICY))
    task = flow.begin(1, at=5)
    assignment = flow.machine.assign(flow.state, task)
    assert (assignment.workflow_id, assignment.run_id, assignment.step) == ("order-1", "RUN1", 1)
    assert (assignment.activity_type, assignment.arguments, assignment.attempt_number) == ("charge", b"args", 1)
    assert (assignment.activity_execution_id, assignment.activity_attempt_id) == ("RUN1-1", "RUN1-1-1")
    assert (assignment.close_deadline_at, assignment.schedule_to_close_deadline_at) == (instant(25), instant(60))
    assert assignment.task.owner == WORKER


def test_code_that_no_longer_waits_may_cancel_what_has_not_begun() -> None:
    flow = given(ScheduleActivity(activity_type="charge"), CancelActivity(step=1))
    assert names(flow.history[2:]) == ["ActivityScheduled", "ActivityCancelled"]
    assert flow.rows == {}
    assert flow.state.next_wake is None


@pytest.mark.parametrize("step", [1, 7])
def test_cancelling_what_has_ended_or_never_was_is_no_error(step: int) -> None:
    flow = running()
    flow.finish(1)
    assert flow.complete(CancelActivity(step=step)).events == []
