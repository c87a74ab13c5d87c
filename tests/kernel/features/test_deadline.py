"""Deadlines: one wake per workflow, never late; and the two timeouts of a run itself."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.event import clock
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.start import Reserve
from backstay.kernel.features.timer import StartTimer

from ..given import Flow, given, instant, names, only
from ..stored import refold, snapshot


@pytest.mark.parametrize(
    ("options", "at", "kind"),
    [
        ({"execution_timeout_seconds": 10}, 10, "execution_timeout"),
        ({"run_timeout_seconds": 10}, 10, "run_timeout"),
        ({"execution_timeout_seconds": 20, "run_timeout_seconds": 10}, 10, "run_timeout"),
        ({"execution_timeout_seconds": 10, "run_timeout_seconds": 20}, 10, "execution_timeout"),
        ({"execution_timeout_seconds": 10, "run_timeout_seconds": 10}, 10, "execution_timeout"),
        ({"execution_timeout_seconds": 20, "run_timeout_seconds": 10}, 25, "execution_timeout"),
        ({"execution_timeout_seconds": 0.25}, 0.25, "execution_timeout"),
    ],
)
def test_a_run_past_its_deadline_times_out(options: dict[str, Any], at: float, kind: str) -> None:
    flow = given(**options)
    decision = flow.due(at)
    event = only(decision, WorkflowTimedOut)
    assert (event.timeout_kind, event.failure_category) == (kind, "timeout")
    assert event.failure_id == "RUN1-f3"
    ((_, row),) = decision.runs
    assert (row.status, row.closed_reason, row.closed_at) == ("failed", "timed_out", instant(at))
    assert decision.closed == ["RUN1"]
    assert flow.rows == {}
    assert decision.instance.next_wake is None


@pytest.mark.parametrize("options", [{"execution_timeout_seconds": 10}, {"run_timeout_seconds": 10}])
def test_a_run_before_its_deadline_goes_on(options: dict[str, Any]) -> None:
    flow = given(**options)
    assert flow.due(9.999999).idle
    assert flow.state.next_wake == instant(10)


def test_open_steps_are_closed_with_typed_events_before_the_terminal_event() -> None:
    flow = given(
        ScheduleActivity(activity_type="a"),
        ScheduleActivity(activity_type="b"),
        StartTimer(delay_seconds=60),
        run_timeout_seconds=10,
    )
    flow.begin(2)
    decision = flow.due(10)
    assert names(decision.events) == ["ActivityCancelled", "ActivityCancelled", "TimerCancelled", "WorkflowTimedOut"]
    waiting, running = (entry.event for entry in decision.events[:2])
    assert (waiting.activity_attempt_id, waiting.attempt_number) == (None, None)  # type: ignore[attr-defined]
    assert (running.activity_attempt_id, running.attempt_number) == ("RUN1-2-1", 1)  # type: ignore[attr-defined]
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_leased_workflow_task_does_not_hold_the_deadline_off() -> None:
    flow = given(run_timeout_seconds=10)
    completion = flow.completion(CompleteWorkflow())
    flow.due(10)
    refusal = flow.refused(completion, at=11)
    assert refusal.reason == "run_closed"
    assert (refusal.fields["run_closed_reason"], refusal.fields["stop_reason"]) == ("timed_out", "run_failed")


def test_the_execution_deadline_is_met_by_whichever_run_is_current() -> None:
    flow = given(execution_timeout_seconds=10)
    flow.complete(ContinueAsNew(), at=4)
    flow.complete(ContinueAsNew(), at=8)
    event = only(flow.due(10), WorkflowTimedOut)
    assert (event.timeout_kind, event.execution_deadline_at) == ("execution_timeout", instant(10))
    assert flow.run.number == 3


def test_a_run_timeout_counts_from_the_start_of_its_own_run() -> None:
    flow = given(run_timeout_seconds=10)
    flow.complete(ContinueAsNew(), at=9)
    assert flow.due(10).events == []
    assert only(flow.due(19), WorkflowTimedOut).timeout_kind == "run_timeout"


def test_the_next_wake_is_the_earliest_of_all_deadlines() -> None:
    flow = given(
        StartTimer(delay_seconds=50),
        StartTimer(delay_seconds=20),
        ScheduleActivity(activity_type="a", retry_policy=RetryPolicy(max_attempts=1, schedule_to_start_timeout=30)),
        execution_timeout_seconds=40,
    )
    wakes = [flow.state.next_wake]
    for at in (20, 30):
        flow.due(at)
        wakes.append(flow.state.next_wake)
    assert wakes == [instant(20), instant(30), instant(40)]


def test_one_wake_delivers_everything_that_is_due() -> None:
    flow = given(StartTimer(delay_seconds=3), StartTimer(delay_seconds=1), StartTimer(delay_seconds=2))
    decision = flow.due(2)
    assert [entry.event.sequence for entry in decision.events] == [2, 3]  # type: ignore[attr-defined]
    assert decision.wake_moved
    assert decision.instance.next_wake == instant(3)


def test_an_early_wake_changes_nothing() -> None:
    flow = given(StartTimer(delay_seconds=5))
    before = snapshot(flow)
    assert flow.due(4).idle
    assert snapshot(flow) == before


def test_a_wake_of_an_instance_without_a_run_changes_nothing() -> None:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    assert flow.due(5).idle


def test_time_does_not_run_backwards_inside_an_instance() -> None:
    flow = given(StartTimer(delay_seconds=0), at=100)
    decision = flow.complete(StartTimer(delay_seconds=5), at=50)
    assert [(entry.at, clock(entry)) for entry in decision.events] == [(instant(100), instant(50))]
    assert flow.state.next_wake == instant(55), "deadlines go by the clock"
    flow.reopen()
    assert flow.due(54).idle
    (fired,) = flow.due(55).events[:1]
    assert (fired.type, fired.at) == ("TimerFired", instant(100))
