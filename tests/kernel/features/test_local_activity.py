"""Local activities: the events of an activity, written with the task that ran it; no task, no wake, no lease of its own."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.failure import Failure
from backstay.kernel.feature import Thrown, Value
from backstay.kernel.features.activity import (
    Activities,
    ActivityFailed,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivityTimedOut,
    RetryPolicy,
)
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.local_activity import LocalAttempt, RecordLocalActivity
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.limits import Limits

from ..given import T0, WORKER, given, names, only
from ..stored import refold, snapshot

BOOM = Failure(message="boom", exception_type="Boom", exception_class="shop:Boom", code=7)


def local(outcome: Any = "completed", *attempts: LocalAttempt, **named: Any) -> RecordLocalActivity:
    tried = list(attempts) or [LocalAttempt()]
    return RecordLocalActivity(activity_type="fetch", outcome=outcome, attempts=tried, **named)


@pytest.mark.parametrize(
    ("command", "events"),
    [
        (local(result=b"x"), ["ActivityCompleted"]),
        (local("failed", LocalAttempt(failure=BOOM)), ["ActivityFailed"]),
        (local("timed_out", LocalAttempt(failure=BOOM, timeout_kind="start_to_close")), ["ActivityTimedOut"]),
        (local("cancelled"), ["ActivityCancelled"]),
        (
            local("completed", LocalAttempt(failure=BOOM), LocalAttempt()),
            ["ActivityRetryScheduled", "ActivityStarted", "ActivityCompleted"],
        ),
        (
            local("failed", LocalAttempt(failure=BOOM), LocalAttempt(), LocalAttempt(failure=BOOM)),
            [*("ActivityRetryScheduled", "ActivityStarted") * 2, "ActivityFailed"],
        ),
    ],
)
def test_a_local_activity_is_recorded_from_start_to_end_in_one_decision(
    command: RecordLocalActivity, events: list[str]
) -> None:
    flow = given()
    decision = flow.complete(command)
    assert names(decision.events) == ["ActivityScheduled", "ActivityStarted", *events]
    marks = {(entry.event.local_activity, entry.event.execution_mode) for entry in decision.events}  # type: ignore[attr-defined]
    assert marks == {(True, "local")}
    assert {entry.event.sequence for entry in decision.events} == {1}  # type: ignore[attr-defined]
    assert {entry.context.owner for entry in decision.events} == {WORKER}
    assert flow.rows == {}
    assert flow.state.next_wake is None
    assert flow.run.part(Activities).open == {}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_the_end_of_a_local_activity_wakes_no_code_because_the_code_has_seen_it() -> None:
    flow = given(local("failed", LocalAttempt(failure=BOOM)))
    assert not flow.run.wake_events


def test_a_timeout_of_the_policy_arms_no_deadline() -> None:
    policy = RetryPolicy(
        max_attempts=2, start_to_close_timeout=5, schedule_to_start_timeout=5, schedule_to_close_timeout=9
    )
    flow = given(local("completed", LocalAttempt(failure=BOOM, backoff_seconds=3), LocalAttempt(), retry_policy=policy))
    assert flow.state.next_wake is None
    assert flow.due(100).idle


def test_the_snapshot_keeps_arguments_and_policy() -> None:
    policy = RetryPolicy(max_attempts=3)
    event = only(given(local(arguments=b"args", retry_policy=policy)).decisions[-1], ActivityScheduled)
    assert (event.activity.arguments, event.activity.retry_policy) == (b"args", policy)


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (LocalAttempt(failure=BOOM, backoff_seconds=2), "activity_failed"),
        (LocalAttempt(failure=BOOM, timeout_kind="start_to_close", backoff_seconds=2), "activity_timed_out"),
    ],
)
def test_a_retry_says_why_and_how_long_it_paused(attempt: LocalAttempt, reason: str) -> None:
    event = only(given(local("completed", attempt, LocalAttempt())).decisions[-1], ActivityRetryScheduled)
    assert (event.retry_reason, event.retry_backoff_seconds, event.retry_after_attempt) == (reason, 2, 1)
    assert (event.message, event.exception_type, event.code) == ("boom", "Boom", 7)
    assert event.retry_available_at == T0


def test_replay_is_answered_like_by_any_activity() -> None:
    flow = given(local(result=b"x"), local("failed", LocalAttempt(failure=BOOM)))
    outcomes = [found for entry in flow.history if (found := flow.machine.outcome(entry.event)) is not None]
    assert outcomes == [Value(b"x"), Thrown(BOOM, "RUN1-f8", "activity")]
    shape = flow.machine.shape(flow.history[-1].event)
    assert shape is not None
    assert shape.name == "local activity"


def test_a_failure_of_a_local_activity_is_on_its_way_to_the_code() -> None:
    flow = given(local("failed", LocalAttempt(failure=BOOM)))
    event = only(flow.decisions[-1], ActivityFailed)
    assert set(flow.run.part(Failures).raised) == {event.failure_id}


def test_a_timeout_names_its_kind() -> None:
    flow = given(local("timed_out", LocalAttempt(failure=BOOM, timeout_kind="heartbeat")))
    assert only(flow.decisions[-1], ActivityTimedOut).timeout_kind == "heartbeat"


def test_the_step_after_a_local_activity_is_the_next_one() -> None:
    flow = given(local("completed", LocalAttempt(failure=BOOM), LocalAttempt()), RecordSideEffect(result=b"x"))
    assert flow.history[-1].event.sequence == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "command",
    [
        RecordLocalActivity(activity_type="fetch", outcome="completed", attempts=[]),
        RecordLocalActivity(activity_type="", outcome="completed", attempts=[LocalAttempt()]),
        local("failed", LocalAttempt()),
        local("timed_out", LocalAttempt()),
        local("failed", LocalAttempt(failure=BOOM), LocalAttempt()),
        local(retry_policy=RetryPolicy(max_attempts=0)),
    ],
)
def test_a_local_activity_that_does_not_add_up_is_refused(command: RecordLocalActivity) -> None:
    flow = given()
    assert flow.refused(flow.completion(command)).reason == "invalid_commands"


@pytest.mark.parametrize("named", [{"arguments": b"1234"}, {"result": b"1234"}])
def test_a_payload_over_the_limit_fails_the_run(named: dict[str, bytes]) -> None:
    flow = given(local(**named), limits=Limits(payload_size=3))
    event = flow.history[-1].event
    assert isinstance(event, WorkflowFailed)
    assert (event.structural_limit_kind, event.structural_limit_value) == ("payload_size", 4)
    assert given(local(**named), limits=Limits(payload_size=4)).run.is_open
