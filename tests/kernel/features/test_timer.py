"""Timers: scheduled, then fired or cancelled, once. Due exactly at `fire_at`, whatever happens to rows and clocks."""

from __future__ import annotations

import math

import pytest

from backstay.kernel.feature import Plain
from backstay.kernel.features.timer import CancelTimer, StartTimer, TimerCancelled, TimerFired, TimerScheduled

from ..given import T0, Flow, given, instant, names, only
from ..stored import refold, snapshot


def timer(delay: float = 5) -> Flow:
    return given(StartTimer(delay_seconds=delay))


@pytest.mark.contract("CMD-06")
def test_starting_a_timer_records_when_it_will_fire_and_sets_the_wake() -> None:
    flow = timer(5)
    assert flow.history[-1].event == TimerScheduled(sequence=1, timer_id="RUN1-t1", delay_seconds=5, fire_at=instant(5))
    assert flow.state.next_wake == instant(5)
    assert flow.rows == {}


@pytest.mark.contract("TIMER-01", "CMD-06")
def test_a_timer_fires_when_it_is_due_and_not_before() -> None:
    flow = timer(5)
    assert flow.due(4.999999).idle
    assert flow.rows == {}
    event = only(flow.due(5), TimerFired)
    assert (event.sequence, event.timer_id, event.fire_at, event.fired_at) == (1, "RUN1-t1", instant(5), instant(5))
    assert flow.workflow_task.resume.timer_id == "RUN1-t1"
    assert flow.state.next_wake is None


def test_a_timer_that_is_delivered_late_says_so() -> None:
    event = only(timer(5).due(60), TimerFired)
    assert (event.fire_at, event.fired_at) == (instant(5), instant(60))


def test_a_timer_fires_once() -> None:
    flow = timer(5)
    flow.due(5)
    assert flow.due(6).idle


@pytest.mark.contract("TIMER-01")
def test_only_the_fired_event_ends_the_wait() -> None:
    flow = timer()
    machine = flow.machine
    assert machine.outcome(flow.history[-1].event) is None
    flow.due(5)
    assert machine.outcome(flow.history[-1].event) == Plain(True)


@pytest.mark.parametrize(
    ("delay", "fire_at"), [(0.5, T0 + 500_000), (1e-6, T0 + 1), (0.1, T0 + 100_000), (86_400.25, instant(86_400.25))]
)
def test_a_delay_may_be_fractional_and_is_echoed_exactly(delay: float, fire_at: int) -> None:
    event = timer(delay).history[-1].event
    assert isinstance(event, TimerScheduled)
    assert (event.delay_seconds, event.fire_at) == (delay, fire_at)


@pytest.mark.parametrize("delay", [0, 1e-7])
def test_a_timer_without_a_delay_fires_at_once(delay: float) -> None:
    flow = given()
    decision = flow.complete(StartTimer(delay_seconds=delay))
    assert names(decision.events) == ["TimerScheduled", "TimerFired"]
    assert [task.id for task in decision.unassigned] == ["RUN1-w4"]


@pytest.mark.parametrize("delay", [-1, -0.001, 1e10, math.inf, -math.inf, math.nan])
def test_a_delay_that_is_no_time_to_wait_is_refused(delay: float) -> None:
    flow = given()
    assert flow.refused(flow.completion(StartTimer(delay_seconds=delay))).reason == "invalid_commands"


def test_a_cancelled_timer_does_not_fire() -> None:
    flow = given(StartTimer(delay_seconds=5), StartTimer(delay_seconds=0))
    event = only(flow.complete(CancelTimer(step=1), at=3), TimerCancelled)
    assert (event.sequence, event.timer_id, event.fire_at) == (1, "RUN1-t1", instant(5))
    assert event.cancelled_at == instant(3)
    assert flow.state.next_wake is None
    assert flow.due(10).idle


@pytest.mark.parametrize("step", [1, 2, 9])
def test_cancelling_a_timer_that_already_fired_or_never_was_is_no_error(step: int) -> None:
    flow = given(StartTimer(delay_seconds=0), StartTimer(delay_seconds=0))
    assert flow.complete(CancelTimer(step=step)).events == []


def test_a_timer_may_be_cancelled_by_the_completion_that_started_it() -> None:
    flow = given(StartTimer(delay_seconds=5), CancelTimer(step=1))
    assert names(flow.history[2:]) == ["TimerScheduled", "TimerCancelled"]
    assert flow.state.next_wake is None


@pytest.mark.contract("TIMER-02", "REPAIR-09")
def test_a_timer_is_its_history_and_keeps_its_deadline_when_every_row_is_lost() -> None:
    flow = timer(5)
    live = snapshot(flow)
    flow.reopen()
    assert snapshot(flow) == live
    flow.state.next_wake = None
    assert flow.machine.expect(flow.state).next_wake == instant(5)
    assert names(flow.due(5).events) == ["TimerFired"]


@pytest.mark.contract("TIMER-06")
def test_a_stray_wake_never_resumes_the_run() -> None:
    flow = timer(5)
    flow.run.add_deadline(instant(1), "timer", 1)
    flow.run.add_deadline(instant(1), "timer", 7)
    assert flow.due(1).events == []
    assert flow.rows == {}


def test_a_clock_that_went_back_delays_a_timer_and_never_fires_it_early() -> None:
    flow = given(StartTimer(delay_seconds=5), at=100)
    assert flow.due(10).idle
    assert names(flow.due(105).events) == ["TimerFired"]
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_every_event_of_a_timer_has_the_shape_of_a_timer() -> None:
    flow = given(StartTimer(delay_seconds=5), StartTimer(delay_seconds=0), CancelTimer(step=1))
    shapes = {flow.machine.shape(entry.event).name for entry in flow.history[2:]}  # type: ignore[union-attr]
    assert shapes == {"timer"}
