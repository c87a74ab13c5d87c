"""Condition waits: opened, then satisfied or timed out, and only a worker says which. The timeout is a timer of the step."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.feature import Plain
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import (
    Conditions,
    ConditionWaitOpened,
    ConditionWaitSatisfied,
    ConditionWaitTimedOut,
    OpenConditionWait,
    SatisfyConditionWait,
    TimeOutConditionWait,
)
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.timer import StartTimer, TimerScheduled
from backstay.kernel.features.update import CompleteUpdate

from ..deciding import vars_of
from ..given import TALKING, Flow, given, instant, names, only
from ..stored import refold, snapshot

WAIT = OpenConditionWait(condition_key="paid", condition_definition_fingerprint="f1")
TIMED = replace(WAIT, timeout_seconds=5)
SAME: dict[str, Any] = {
    "condition_wait_id": "RUN1-k1",
    "condition_key": "paid",
    "condition_definition_fingerprint": "f1",
}


def talking(*commands: Command) -> Flow:
    return given(*commands, definition=TALKING)


# -- opened, satisfied


@pytest.mark.contract("COND-01", "COND-03")
def test_opening_a_wait_records_what_it_is() -> None:
    flow = talking(WAIT)
    assert [entry.event for entry in flow.history[2:]] == [ConditionWaitOpened(sequence=1, **SAME)]
    assert flow.rows == {}
    assert flow.row is not None
    assert flow.row.waits_externally == 1


@pytest.mark.contract("COND-02")
def test_only_what_a_worker_says_ends_a_wait() -> None:
    flow = talking(TIMED)
    machine = flow.machine
    flow.signal("note")
    flow.complete()
    flow.due(5)
    assert {machine.outcome(entry.event) for entry in flow.history} == {None}
    assert list(flow.run.part(Conditions).open) == [1]
    flow.complete(TimeOutConditionWait(step=1), WAIT)
    assert machine.outcome(flow.history[-2].event) == Plain(False)
    flow.signal("note")
    flow.complete(SatisfyConditionWait(step=2))
    assert machine.outcome(flow.history[-1].event) == Plain(True)


def test_a_wait_that_holds_when_it_is_reached_starts_no_clock() -> None:
    flow = given(replace(TIMED, satisfied=True))
    assert names(flow.history[2:]) == ["ConditionWaitOpened", "ConditionWaitSatisfied"]
    assert flow.state.next_wake is None
    assert flow.run.part(Conditions).open == {}


def test_a_wait_may_come_to_hold_further_on_in_the_same_task() -> None:
    flow = given(TIMED, StartTimer(delay_seconds=60), SatisfyConditionWait(step=1))
    assert names(flow.history[2:]) == [
        *("ConditionWaitOpened", "TimerScheduled", "TimerScheduled"),
        *("TimerCancelled", "ConditionWaitSatisfied"),
    ]


@pytest.mark.contract("COND-08", "COND-09", "RESUME-06")
def test_an_update_that_makes_it_hold_cancels_the_timeout() -> None:
    flow = talking(TIMED)
    flow.update("add", at=1)
    assert flow.workflow_task.resume.workflow_update_id == "RUN1-u2.4"
    flow.complete(CompleteUpdate(update_id="RUN1-u2.4"))
    assert flow.workflow_task.state == "ready"
    decision = flow.complete(SatisfyConditionWait(step=1), at=2)
    assert names(flow.history[2:]) == [
        *("ConditionWaitOpened", "TimerScheduled", "UpdateAccepted", "UpdateApplied", "UpdateCompleted"),
        *("TimerCancelled", "ConditionWaitSatisfied"),
    ]
    assert only(decision, ConditionWaitSatisfied) == ConditionWaitSatisfied(
        sequence=1, timeout_seconds=5, timer_id="RUN1-t1", **SAME
    )
    assert flow.state.next_wake is None
    assert flow.due(60).idle


# -- timed out


@pytest.mark.contract("COND-03")
def test_the_timeout_is_a_timer_of_the_step_and_carries_the_wait() -> None:
    flow = talking(TIMED)
    timer = flow.history[-1].event
    assert isinstance(timer, TimerScheduled)
    assert (timer.sequence, timer.timer_id, timer.fire_at) == (1, "RUN1-t1", instant(5))
    assert timer.timer_kind == "condition_timeout"
    assert vars_of(timer, SAME) == SAME


@pytest.mark.contract("COND-07", "COND-12", "COND-13", "RESUME-13")
def test_a_wait_times_out_when_a_worker_was_shown_that_its_timer_fired() -> None:
    flow = talking(TIMED)
    assert names(flow.due(5).events) == ["TimerFired"]
    resume = flow.workflow_task.resume
    assert (resume.workflow_wait_kind, resume.open_wait_id, resume.timer_id) == ("condition", "RUN1-k1", "RUN1-t1")
    assert vars_of(resume, SAME) == SAME
    assert list(flow.run.part(Conditions).open) == [1]
    decision = flow.complete(TimeOutConditionWait(step=1))
    assert [entry.event for entry in decision.events] == [
        ConditionWaitTimedOut(sequence=1, timeout_seconds=5, timer_id="RUN1-t1", **SAME)
    ]
    assert flow.run.part(Conditions).open == {}


def test_a_timeout_of_no_time_fires_at_once_and_is_said_by_the_next_task() -> None:
    flow = given(replace(WAIT, timeout_seconds=0))
    assert names(flow.history[2:]) == ["ConditionWaitOpened", "TimerScheduled", "TimerFired"]
    assert names(flow.complete(TimeOutConditionWait(step=1)).events) == ["ConditionWaitTimedOut"]


@pytest.mark.contract("COND-13", "REPAIR-10", "REPAIR-15")
def test_the_task_of_a_condition_timeout_is_restored_as_it_was() -> None:
    flow = talking(TIMED)
    flow.due(5)
    lost = flow.workflow_task
    flow.lose(lost.id)
    assert flow.when(Reconcile(incarnation="engine-2")).reply.restored == [lost.id]
    assert flow.workflow_task == replace(lost, repair_count=1)


def test_a_wait_that_held_before_its_timer_fired_is_satisfied_though_the_timer_fired_meanwhile() -> None:
    flow = talking(TIMED)
    flow.signal("note", at=4)
    flow.lease()
    flow.due(5)
    decision = flow.complete(SatisfyConditionWait(step=1))
    assert names(decision.events) == ["SignalApplied", "ConditionWaitSatisfied"]
    assert flow.workflow_task.resume.timer_id == "RUN1-t1"  # the code is shown that, and has no use for it
    assert flow.complete().events == []


# -- bad completions


@pytest.mark.contract("COND-12")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (TimeOutConditionWait(step=1), "step"),  # its timer has not fired
        (TimeOutConditionWait(step=2), "step"),  # it has no timeout
        (TimeOutConditionWait(step=3), "step"),  # opened just now
        (TimeOutConditionWait(step=9), "step"),
        (SatisfyConditionWait(step=4), "step"),  # a timer
        (SatisfyConditionWait(step=9), "step"),
        (OpenConditionWait(condition_key=""), "condition_key"),
        (OpenConditionWait(condition_key="a b"), "condition_key"),
        (OpenConditionWait(condition_key="k" * 129), "condition_key"),
        (OpenConditionWait(timeout_seconds=-1), "timeout_seconds"),
        (OpenConditionWait(timeout_seconds=float("nan")), "timeout_seconds"),
        (OpenConditionWait(timeout_seconds=1e10), "timeout_seconds"),
    ],
)
def test_a_completion_that_makes_no_sense_is_refused_whole(wrong: Command, field: str) -> None:
    flow = talking(TIMED, WAIT)
    flow.signal("note")
    refusal = flow.refused(flow.completion(TIMED, StartTimer(delay_seconds=9), wrong, CompleteWorkflow()))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)
    assert names(flow.complete(SatisfyConditionWait(step=1)).events) == [
        *("SignalApplied", "TimerCancelled", "ConditionWaitSatisfied")
    ]


@pytest.mark.parametrize("key", ["k", "k" * 128, "A-z_0.9:x"])
def test_a_key_is_up_to_128_plain_characters(key: str) -> None:
    assert only(given().complete(OpenConditionWait(condition_key=key)), ConditionWaitOpened).condition_key == key


def test_ending_a_wait_that_has_ended_changes_nothing() -> None:
    flow = talking(TIMED)
    flow.due(5)
    flow.complete(TimeOutConditionWait(step=1))
    flow.signal("note")
    decision = flow.complete(SatisfyConditionWait(step=1), TimeOutConditionWait(step=1))
    assert names(decision.events) == ["SignalApplied"]


# -- workers that do not number their steps


def woken(*commands: Command) -> Flow:
    """A run with these waits, whose next task was made by a signal."""
    flow = talking(*commands)
    flow.signal("note", at=1)
    return flow


@pytest.mark.parametrize("commands", [[], [StartTimer(delay_seconds=9)], [CompleteWorkflow()]])
def test_a_worker_that_goes_on_has_found_its_condition_satisfied(commands: list[Command]) -> None:
    flow = woken(TIMED)
    decision = flow.complete(*commands, numbered=False)
    said = ["SignalApplied", "TimerCancelled", "ConditionWaitSatisfied"]
    assert names(decision.events)[:3] == said
    assert len(decision.events) == 3 + len(commands)


def test_the_same_wait_sent_again_is_the_open_one() -> None:
    flow = woken(TIMED)
    assert names(flow.complete(TIMED, numbered=False).events) == ["SignalApplied"]
    assert flow.state.next_wake == instant(5)
    assert list(flow.run.part(Conditions).open) == [1]


@pytest.mark.parametrize(
    "other", [replace(WAIT, condition_key="other"), replace(WAIT, condition_definition_fingerprint="f2")]
)
def test_another_wait_is_another_wait(other: OpenConditionWait) -> None:
    flow = woken(WAIT)
    decision = flow.complete(other, numbered=False)
    assert names(decision.events) == ["SignalApplied", "ConditionWaitSatisfied", "ConditionWaitOpened"]
    assert list(flow.run.part(Conditions).open) == [2]


def test_each_of_several_equal_waits_is_sent_again_for_itself() -> None:
    flow = woken(WAIT, WAIT)
    decision = flow.complete(WAIT, numbered=False)
    assert only(decision, ConditionWaitSatisfied).sequence == 2
    assert list(flow.run.part(Conditions).open) == [1]


@pytest.mark.parametrize("commands", [[], [StartTimer(delay_seconds=9)], [TIMED]])
def test_a_worker_that_was_shown_the_timeout_has_timed_out(commands: list[Command]) -> None:
    flow = talking(TIMED)
    flow.due(5)
    decision = flow.complete(*commands, numbered=False)
    assert decision.events[0].type == "ConditionWaitTimedOut"
    assert 1 not in flow.run.part(Conditions).open


@pytest.mark.parametrize(
    ("commands", "recorded"),
    [([StartTimer(delay_seconds=9)], ["ConditionWaitSatisfied", "TimerScheduled"]), ([TIMED], [])],
)
def test_a_timeout_that_fires_during_a_task_is_not_taken_as_shown_to_its_worker(
    commands: list[Command], recorded: list[str]
) -> None:
    flow = woken(TIMED)
    flow.lease(at=4)
    flow.due(5)
    decision = flow.complete(*commands, numbered=False)
    assert names(decision.events) == ["SignalApplied", *recorded]
    assert flow.workflow_task.resume.timer_id == "RUN1-t1"


def test_a_condition_is_not_inferred_from_a_worker_that_numbers_its_steps() -> None:
    flow = woken(WAIT)
    assert names(flow.complete(StartTimer(delay_seconds=9)).events) == ["SignalApplied", "TimerScheduled"]
    assert list(flow.run.part(Conditions).open) == [1]


def test_a_condition_is_not_inferred_from_the_task_of_an_update() -> None:
    flow = talking(WAIT)
    flow.update("add")
    decision = flow.complete(CompleteUpdate(update_id="RUN1-u2.3"), numbered=False)
    assert names(decision.events) == ["UpdateApplied", "UpdateCompleted"]
    assert list(flow.run.part(Conditions).open) == [1]


# -- laws


def test_a_wait_is_its_history() -> None:
    flow = talking(TIMED, WAIT)
    flow.due(5)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_every_event_of_a_condition_wait_has_its_shape() -> None:
    flow = talking(TIMED)
    flow.due(5)
    flow.complete(TimeOutConditionWait(step=1), replace(WAIT, satisfied=True))
    shapes: set[Any] = {flow.machine.shape(entry.event).name for entry in flow.history[2:]}  # type: ignore[union-attr]
    assert shapes == {"condition wait"}
