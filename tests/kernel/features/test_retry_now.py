"""Retry now: the backoff of an activity ends by a recorded command, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ActivityFailed, RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.pause import Pause, Unpause
from backstay.kernel.features.retry_now import ActivityRetryRequested, RetryNow
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.values import SECOND
from backstay.kernel.views.activities import activities
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story

from ..given import Flow, given, instant, names, only, running
from ..stored import refold, snapshot
from ..telling import PLAIN

HOURLY = RetryPolicy(max_attempts=3, backoff_seconds=[3600])


def backing_off(policy: RetryPolicy = HOURLY, step: int = 1) -> Flow:
    flow = running(policy)
    flow.fail(step, at=1)
    return flow


def test_the_next_attempt_is_due_now_and_offered() -> None:
    flow = backing_off()
    assert flow.state.next_wake == instant(3601)
    decision = flow.when(RetryNow(activity_execution_id="RUN1-1", reason="the bank is back"), at=60)
    assert (decision.reply.outcome, decision.reply.command_type) == ("retry_dispatched", "retry_now")
    assert only(decision, ActivityRetryRequested) == ActivityRetryRequested(
        workflow_command_id="RUN1-c2",
        activity_execution_id="RUN1-1",
        activity_type="charge",
        step=1,
        retry_task_id="RUN1-a1.2",
        retry_available_at=instant(3601),
        reason="the bank is back",
    )
    assert [task.id for task in decision.unassigned] == ["RUN1-a1.2"]
    assert flow.activity_task(1).available_at == instant(60)
    assert flow.state.next_wake is None, "the end of the backoff is no deadline any more"
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert flow.begin(1).attempt == 2


def test_the_event_names_its_command_and_is_told_in_words() -> None:
    flow = backing_off()
    flow.when(RetryNow(reason="the bank is back"), at=61)
    entry = flow.history[-1]
    assert (entry.context.command_id, entry.context.command_sequence) == ("RUN1-c2", 2)
    story = Story(PLAIN)
    said = [tell(story, one).text for one in flow.history][-1]
    assert said == "charge is tried again now, 3540 s early: the bank is back"
    assert story.open[1].waits(PLAIN, flow.now) == "activity charge, attempt 2 now"
    (view,) = activities(flow.history)
    assert (view.status, view.available_at) == ("pending", instant(61))


def test_the_attempts_that_are_left_stay_as_they_are() -> None:
    flow = backing_off()
    for attempt in (2, 3):
        flow.when(RetryNow())
        assert flow.begin(1).attempt == attempt
        decision = flow.fail(1)
    assert only(decision, ActivityFailed).attempt_number == 3


def test_without_an_id_every_activity_that_backs_off_is_tried_again() -> None:
    many = [ScheduleActivity(activity_type="charge", retry_policy=HOURLY) for _ in range(3)]
    flow = given(*many)
    for step in (1, 2):
        flow.begin(step)
        flow.fail(step)
    decision = flow.when(RetryNow(), at=9)
    assert names(decision.events) == ["ActivityRetryRequested"] * 2
    assert [task.id for task in decision.unassigned] == ["RUN1-a1.2", "RUN1-a2.2"]


def test_the_timeouts_of_the_next_attempt_count_from_now() -> None:
    flow = backing_off(
        RetryPolicy(max_attempts=3, backoff_seconds=[3600], schedule_to_start_timeout=5, schedule_to_close_timeout=9000)
    )
    flow.when(RetryNow(), at=60)
    assert flow.state.next_wake == instant(65), "schedule to start"
    assert flow.execution(1).total_deadline == instant(9000), "schedule to close stays"
    assert names(flow.due(66).events) == ["ActivityRetryScheduled"]


def test_the_backoff_after_a_crash_ends_as_well() -> None:
    flow = running(HOURLY)
    for at in (300, 601):
        flow.due(at)
        if at == 300:
            flow.begin(1)
    assert flow.execution(1).retry_at > flow.now
    assert flow.when(RetryNow()).reply.outcome == "retry_dispatched"
    assert flow.activity_task(1).is_due(flow.now)


def test_a_clock_that_is_set_back_afterwards_does_not_bring_the_pause_back() -> None:
    flow = backing_off()
    flow.when(RetryNow(), at=60)
    assert flow.activity_task(1).is_due(instant(60) - 50 * SECOND)


def ready() -> Flow:
    return given(ScheduleActivity(activity_type="charge"))


def other_step() -> Flow:
    return given(StartTimer(delay_seconds=60), ScheduleActivity(activity_type="charge"))


def finished() -> Flow:
    flow = running()
    flow.finish(1)
    return flow


def closed() -> Flow:
    return given(CompleteWorkflow())


REJECTED: list[tuple[Any, str | None, str, bool]] = [
    (running, "RUN1-1", "activity_running", True),
    (running, None, "no_activity_backs_off", True),
    (ready, None, "no_activity_backs_off", True),
    (finished, "RUN1-1", "activity_not_open", False),
    (other_step, "RUN1-1", "activity_not_open", False),
    (backing_off, "RUN1-2", "activity_not_found", False),
    (backing_off, "RUN1-01", "activity_not_found", False),
    (backing_off, "RUN1-" + "9" * 5000, "activity_not_found", False),
    (backing_off, "elsewhere", "activity_not_found", False),
    (closed, "RUN1-1", "run_not_active", False),
]


@pytest.mark.parametrize(("flow_of", "id", "reason", "temporary"), REJECTED)
def test_what_does_not_back_off_is_rejected_on_record(
    flow_of: Any, id: str | None, reason: str, temporary: bool
) -> None:
    flow = flow_of()
    decision = flow.when(RetryNow(activity_execution_id=id, request_id="r1"))
    assert (decision.reply.accepted, decision.reply.rejection_reason) == (False, reason)
    assert decision.events == []
    assert decision.commands[0].request_id == (None if temporary else "r1"), "a temporary refusal may be tried again"


def test_an_activity_that_is_due_already_needs_nothing() -> None:
    flow = ready()
    decision = flow.when(RetryNow(activity_execution_id="RUN1-1"))
    assert (decision.reply.outcome, decision.reply.accepted, decision.events) == ("retry_not_needed", True, [])


def test_a_repeated_request_gets_the_first_answer() -> None:
    flow = backing_off()
    message = RetryNow(activity_execution_id="RUN1-1", request_id="r1")
    first = flow.when(message)
    flow.begin(1)
    flow.fail(1)
    again = flow.again(message, at=20)
    assert again.idle, "the second backoff goes on"
    assert again.reply == replace(first.reply, repeated=True)


def test_a_paused_run_gets_its_attempt_when_it_goes_on() -> None:
    flow = backing_off()
    flow.when(Pause())
    assert flow.when(RetryNow(), at=60).unassigned == []
    assert [task.id for task in flow.when(Unpause()).unassigned] == ["RUN1-a1.2"]


def test_a_lost_row_comes_back() -> None:
    flow = backing_off()
    flow.lose("RUN1-a1.2")
    assert [task.id for task in flow.when(RetryNow(), at=60).unassigned] == ["RUN1-a1.2"]
