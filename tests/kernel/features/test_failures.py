"""Failures that code caught: `FailureHandled`, once for each, in front of what the code did next."""

from __future__ import annotations

import pytest

from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.failures import FailureHandled, Failures
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.timer import StartTimer

from ..given import Flow, given, names, only, running
from ..stored import refold, snapshot


def failed() -> Flow:
    flow = running()
    flow.fail(1, Failure(message="declined", exception_type="CardDeclined", exception_class="shop:CardDeclined"))
    return flow


@pytest.mark.contract("FAIL-04")
def test_a_caught_failure_is_recorded_before_what_the_code_did_next() -> None:
    flow = failed()
    decision = flow.complete(RecordSideEffect(result=b"x"), handled=["RUN1-f5"])
    assert names(decision.events) == ["FailureHandled", "SideEffectRecorded"]
    assert only(decision, FailureHandled) == FailureHandled(
        failure_id="RUN1-f5",
        sequence=1,
        failure_category="activity",
        source_kind="activity_execution",
        source_id="RUN1-1",
        propagation_kind="activity",
        message="declined",
        exception_type="CardDeclined",
        exception_class="shop:CardDeclined",
    )
    assert flow.run.part(Failures).raised == {}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_failure_that_the_code_did_not_catch_is_not_recorded_as_handled() -> None:
    flow = failed()
    assert names(flow.complete(CompleteWorkflow()).events) == ["WorkflowCompleted"]
    assert set(flow.run.part(Failures).raised) == {"RUN1-f5"}


@pytest.mark.parametrize("handled", [["RUN1-f5", "RUN1-f5"], ["RUN1-f5", "RUN9-f1"]])
def test_a_failure_is_handled_once_and_only_if_it_was_raised(handled: list[str]) -> None:
    flow = failed()
    assert names(flow.complete(StartTimer(delay_seconds=0), handled=handled).events)[:-1] == [
        "FailureHandled",
        "TimerScheduled",
    ]
    assert names(flow.complete(handled=["RUN1-f5"]).events) == []


def test_a_caught_timeout_says_that_it_was_one() -> None:
    flow = given(
        ScheduleActivity(activity_type="charge", retry_policy=RetryPolicy(max_attempts=1, schedule_to_close_timeout=5))
    )
    flow.due(5)
    (id,) = flow.run.part(Failures).raised
    event = only(flow.complete(handled=[id]), FailureHandled)
    assert (event.failure_category, event.propagation_kind) == ("timeout", "timeout")


@pytest.mark.contract("FAIL-03")
def test_several_failures_keep_the_order_in_which_they_happened() -> None:
    flow = given(*(ScheduleActivity(activity_type=name) for name in "abc"))
    for step in (3, 1, 2):
        flow.begin(step)
        flow.fail(step)
    raised = list(flow.run.part(Failures).raised)
    assert [flow.run.part(Failures).raised[id].sequence for id in raised] == [3, 1, 2]
    flow.reopen()
    assert list(flow.run.part(Failures).raised) == raised
