"""A clock that was set back: history still never runs backwards, and no deadline is farther away than its own length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.close import FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import Parent, RecordedDefinition
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.state import Moment
from backstay.kernel.task import Block
from backstay.kernel.values import Micros

from .features.schedule.scheduling import scheduling
from .given import MACHINE, Flow, given, instant, names, running

YEAR = 365 * 86_400
BEFORE = YEAR  # seconds: when the old clock stood there
NOW = 100  # and the new one, after the restart


PARENT = Parent(
    namespace="default",
    workflow_instance_id="parent",
    workflow_run_id="P",
    sequence=1,
    child_call_id="P-h1",
    retry_policy=RetryPolicy(max_attempts=3, backoff_seconds=[7]),
)


def timeouts(**named: Any) -> RetryPolicy:
    return RetryPolicy(max_attempts=3, backoff_seconds=[7], **named)


def retrying(**named: float) -> Flow:
    flow = running(timeouts(**named), at=BEFORE)
    flow.fail(1)
    return flow


def broken() -> Flow:
    flow = given(at=BEFORE)
    flow.break_task(Block(message="no"))
    return flow


def claimed() -> Flow:
    flow = given(at=BEFORE)
    flow.claim(flow.workflow_task.id)
    return flow


def leaving() -> Flow:
    flow = given(definition=RecordedDefinition(cleanup_seconds=50), at=BEFORE)
    flow.when(Cancel())
    return flow


def scheduled(**named: float) -> Flow:
    return given(ScheduleActivity(activity_type="a", retry_policy=timeouts(**named)), at=BEFORE)


def started(**named: float) -> Flow:
    flow = scheduled(**named)
    flow.begin(1, owner="new/worker", until=None)
    return flow


CASES: dict[str, tuple[Callable[[], Flow], float, list[str]]] = {
    "timer": (lambda: given(StartTimer(delay_seconds=5), at=BEFORE), 5, ["TimerFired"]),
    "a timer of two years": (
        lambda: given(StartTimer(delay_seconds=2 * YEAR), at=BEFORE),
        2 * YEAR,
        ["TimerFired"],
    ),
    "lease": (claimed, 300, []),
    "repair": (broken, 3, []),
    "retry": (retrying, 7, []),
    "schedule_to_start": (lambda: scheduled(schedule_to_start_timeout=20), 20, ["ActivityRetryScheduled"]),
    "schedule_to_close": (lambda: scheduled(schedule_to_close_timeout=20), 20, ["ActivityTimedOut"]),
    "start_to_close": (lambda: started(start_to_close_timeout=20), 20, ["ActivityRetryScheduled"]),
    "heartbeat": (lambda: started(heartbeat_timeout=20), 20, ["ActivityRetryScheduled"]),
    "execution_timeout": (
        lambda: given(execution_timeout_seconds=50, at=BEFORE),
        50,
        ["WorkflowTimedOut"],
    ),
    "first_task": (lambda: given(FailWorkflow(message="no"), parent=PARENT, at=BEFORE), 7, []),
    "cleanup": (leaving, 50, ["WorkflowCancelled"]),
    "run_timeout": (lambda: given(run_timeout_seconds=50, at=BEFORE), 50, ["WorkflowTimedOut"]),
    # A schedule goes by the clock on the wall: not a length from now, but the next minute that the clock of now shows.
    "schedule": (lambda: scheduling(every="PT1M", at=BEFORE).flow, 120 - NOW, ["ScheduleTriggered"]),
}


def restart(flow: Flow, at: float, known: dict[tuple[int, Moment], Micros] | None = None) -> None:
    """The engine comes up again, and the clock says this."""
    flow.now = instant(at)
    flow.reopen()
    flow.machine.agenda.restart_after_clock_change(flow.state, flow.now, {} if known is None else known)
    flow.when(Reconcile(incarnation="new", holding=None))


def test_every_deadline_knows_its_length() -> None:
    assert [kind for kind, deadline in MACHINE.agenda.deadlines.items() if deadline.length is None] == []
    assert set(MACHINE.agenda.deadlines) <= set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_deadline_farther_away_than_its_own_length_begins_again_from_now(case: str) -> None:
    make, length, expected = CASES[case]
    flow = make()
    length_before = len(flow.history)
    last = flow.history[-1].at
    restart(flow, NOW)
    assert flow.state.next_wake == instant(NOW + length)
    assert flow.row is not None
    assert flow.row.next_wake == instant(NOW + length), "written, so that the waking loop finds it"
    assert flow.due(NOW + length - 0.001).events == []
    decision = flow.due(NOW + length)
    assert names(decision.events)[: len(expected)] == expected
    assert all(entry.at >= last for entry in flow.history[length_before:]), "recorded times do not decrease"
    if not expected:
        assert decision.unassigned, "a task is offered again"
        (task,) = flow.tasks.values()
        assert task.state == "ready"
        assert task.is_due(flow.now)


@pytest.mark.parametrize("case", CASES)
def test_a_clock_that_goes_on_changes_nothing(case: str) -> None:
    flow = CASES[case][0]()
    wake = flow.state.next_wake
    restart(flow, BEFORE)
    assert flow.state.run is not None
    assert flow.state.run.moved_deadlines == {}
    assert flow.state.next_wake == wake


def test_folding_a_run_anew_does_not_put_a_deadline_off_once_more() -> None:
    flow = given(StartTimer(delay_seconds=5), at=BEFORE)
    known: dict[tuple[int, Moment], Micros] = {}
    restart(flow, NOW, known)
    restart(flow, NOW + 4, known)
    assert flow.state.next_wake == instant(NOW + 5)
    assert "TimerFired" in names(flow.due(NOW + 5).events)


def test_a_deadline_set_after_the_clock_went_back_counts_by_the_new_clock() -> None:
    flow = given(StartTimer(delay_seconds=5), at=BEFORE)
    restart(flow, NOW)
    flow.due(NOW + 5)
    flow.complete(
        StartTimer(delay_seconds=60),
        ScheduleActivity(activity_type="a", retry_policy=timeouts(schedule_to_start_timeout=30)),
        at=NOW + 6,
    )
    assert flow.state.next_wake == instant(NOW + 36)
    restart(flow, NOW + 10)
    assert flow.run.moved_deadlines == {}
    assert flow.state.next_wake == instant(NOW + 36)
    flow.begin(3, at=NOW + 20)
    flow.finish(3, at=NOW + 21)
    assert flow.state.next_wake == instant(NOW + 66)
    assert [entry.at for entry in flow.history] == sorted(entry.at for entry in flow.history)


def test_the_next_run_of_a_chain_does_not_begin_before_the_last_one_ended() -> None:
    flow = given(StartTimer(delay_seconds=5), at=BEFORE)
    restart(flow, NOW)
    flow.due(NOW + 5)
    last = flow.history[-1].at
    flow.complete(ContinueAsNew(), at=NOW + 6)
    assert flow.run.number == 2
    assert {entry.at for entry in flow.history} == {last}


@pytest.mark.parametrize("lost", [False, True])
def test_a_ready_task_of_the_old_clock_is_handed_out_at_once(lost: bool) -> None:
    flow = given(at=BEFORE)
    if lost:
        flow.lose("RUN1-w2")
    restart(flow, NOW)
    assert flow.workflow_task.is_due(flow.now)
    assert flow.claim("RUN1-w2").owner == "worker-1"


@pytest.mark.parametrize("made", [NOW // 2, NOW + 50], ids=["made before", "made after"])
def test_a_task_that_was_tried_again_by_a_clock_since_set_back_is_handed_out_at_once(made: int) -> None:
    flow = given(at=made)
    flow.break_task(Block(message="no"))
    flow.when(Reconcile(incarnation="E1", force=True), at=BEFORE)
    assert flow.workflow_task.state == "ready"
    restart(flow, NOW)
    assert flow.workflow_task.is_due(flow.now)
    assert flow.claim("RUN1-w2").owner == "worker-1"


def test_an_attempt_of_the_old_clock_whose_row_is_lost_is_delivered_again() -> None:
    flow = running(at=BEFORE)
    flow.lose("RUN1-a1.1")
    restart(flow, NOW)
    assert flow.activity_task(1).state == "ready"


def test_heartbeats_are_recorded_again_after_the_clock_went_back() -> None:
    flow = running(timeouts(heartbeat_timeout=20), at=BEFORE, until=None)
    flow.beat(1, at=BEFORE + 5)
    restart_at = NOW
    flow.now = instant(restart_at)
    flow.reopen()
    flow.machine.agenda.restart_after_clock_change(flow.state, flow.now, {})
    assert names(flow.beat(1, at=NOW + 1).events) == ["ActivityHeartbeatRecorded"]
    assert flow.beat(1, at=NOW + 1.5).events == []
    assert flow.state.next_wake == instant(NOW + 21)


@pytest.mark.parametrize("finished", [True, False])
def test_a_schedule_does_not_start_the_same_again_by_a_clock_that_went_back_a_little(finished: bool) -> None:
    one = scheduling(every="PT1M", overlap_policy="allow_all")
    one.due(60)
    if finished:
        one.finish(one.started[0])
    restart(one.flow, 53)
    assert names(one.due(60).events) == ["ScheduleTriggerSkipped"]
    assert one.state.last_skip_reason == "already_started"
    assert one.flow.state.next_wake == instant(120), "and what comes next is not lost"
    assert one.due(60.5).events == []
    assert names(one.due(120).events) == ["ScheduleTriggered"]
    assert len(one.started) == 2
