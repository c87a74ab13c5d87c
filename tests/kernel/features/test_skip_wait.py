"""Skip wait: a timer or the timeout of a wait fires now by a recorded command, and everything else is as if its time had come."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.pause import Pause
from backstay.kernel.features.signal import OpenSignalWait
from backstay.kernel.features.skip_wait import NAMED, SkipWait, WaitSkipped
from backstay.kernel.features.timer import StartTimer, TimerFired
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story

from ..given import Flow, given, instant, names, only
from ..stored import refold, snapshot
from ..telling import PLAIN

HOUR = StartTimer(delay_seconds=3600)


def asleep() -> Flow:
    return given(HOUR)


@pytest.mark.parametrize("wait_id", [None, "RUN1-t1", "timer:RUN1-t1"])
def test_a_timer_fires_now_and_wakes_the_code(wait_id: str | None) -> None:
    flow = asleep()
    decision = flow.when(SkipWait(wait_id=wait_id, reason="the customer called"), at=60)
    assert (decision.reply.outcome, decision.reply.command_type) == ("wait_skipped", "skip_wait")
    assert names(decision.events) == ["WaitSkipped", "TimerFired"]
    assert only(decision, WaitSkipped) == WaitSkipped(
        workflow_command_id="RUN1-c2",
        timer_id="RUN1-t1",
        step=1,
        fire_at=instant(3600),
        reason="the customer called",
    )
    fired = only(decision, TimerFired)
    assert (fired.timer_id, fired.fire_at, fired.fired_at) == ("RUN1-t1", instant(3600), instant(60))
    assert [entry.context.command_id for entry in flow.history[-2:]] == ["RUN1-c2"] * 2
    assert flow.state.next_wake is None, "its time is no deadline any more"
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert names(flow.complete(CompleteWorkflow()).events)[-1] == "WorkflowCompleted"


def test_it_is_told_in_words() -> None:
    flow = asleep()
    flow.when(SkipWait(reason="the customer called"), at=60)
    story = Story(PLAIN)
    said = [tell(story, entry).text for entry in flow.history]
    assert said[-2:] == ["the wait is skipped, 3540 s early: the customer called", "timer fired"]


@pytest.mark.parametrize(
    ("wait", "id", "kind"),
    [
        (OpenConditionWait(condition_key="paid", timeout_seconds=60), "RUN1-k1", "condition_timeout"),
        (OpenSignalWait(signal_name="go", timeout_seconds=60), "RUN1-q1", "signal_timeout"),
    ],
)
def test_a_timed_wait_is_named_by_its_own_id_or_that_of_its_timer(wait: Any, id: str, kind: str) -> None:
    for name in (id, "RUN1-t1", None):
        flow = given(wait)
        fired = only(flow.when(SkipWait(wait_id=name), at=1), TimerFired)
        assert (fired.timer_kind, fired.fired_at) == (kind, instant(1))
        assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_timer_among_several_is_named_and_the_others_go_on() -> None:
    flow = given(HOUR, HOUR, HOUR)
    refused = flow.when(SkipWait(request_id="r1"))
    assert (refused.reply.rejection_reason, refused.reply.outcome) == ("wait_ambiguous", "rejected_ambiguous")
    assert refused.reply.validation_errors == {"wait_id": ["RUN1-t1", "RUN1-t2", "RUN1-t3"]}
    assert (refused.events, refused.commands[0].request_id) == ([], None)
    assert only(flow.when(SkipWait(wait_id="RUN1-t2", request_id="r1")), WaitSkipped).step == 2
    assert flow.state.next_wake == instant(3600)


def test_many_timers_are_not_all_named() -> None:
    flow = given(*[HOUR] * (NAMED + 5))
    named = flow.when(SkipWait()).reply.validation_errors["wait_id"]
    assert (len(named), named[-1]) == (NAMED + 1, "5 more")


def beside_an_activity() -> Flow:
    return given(ScheduleActivity(activity_type="charge"), HOUR)


def fired() -> Flow:
    flow = asleep()
    flow.due(3601)
    return flow


REJECTED: list[tuple[Any, str | None, str, bool]] = [
    (lambda: given(ScheduleActivity(activity_type="charge")), None, "no_timed_wait", True),
    (fired, None, "no_timed_wait", True),
    (beside_an_activity, "RUN1-1", "wait_not_timed", False),
    (beside_an_activity, "activity:RUN1-1", "wait_not_timed", False),
    (lambda: given(OpenConditionWait(condition_key="paid")), "RUN1-k1", "wait_not_timed", False),
    (lambda: given(OpenSignalWait(signal_name="go")), "RUN1-q1", "wait_not_timed", False),
    (fired, "RUN1-t1", "wait_not_open", False),
    (fired, "timer:RUN1-t1", "wait_not_open", False),
    (asleep, "RUN1-t2", "wait_not_found", False),
    (asleep, "RUN1-t01", "wait_not_found", False),
    (asleep, "RUN1-t" + "9" * 5000, "wait_not_found", False),
    (asleep, "RUN2-t1", "wait_not_found", False),
    (asleep, "", "wait_not_found", False),
    (lambda: given(CompleteWorkflow()), None, "run_not_active", False),
]


@pytest.mark.parametrize(("flow_of", "wait_id", "reason", "temporary"), REJECTED)
def test_what_is_no_timer_is_rejected_on_record(
    flow_of: Any, wait_id: str | None, reason: str, temporary: bool
) -> None:
    flow = flow_of()
    decision = flow.when(SkipWait(wait_id=wait_id, request_id="r1"))
    assert (decision.reply.accepted, decision.reply.rejection_reason) == (False, reason)
    assert decision.events == []
    assert decision.commands[0].request_id == (None if temporary else "r1"), "a temporary refusal may be tried again"


def test_a_repeated_request_ends_no_second_timer() -> None:
    flow = asleep()
    message = SkipWait(request_id="r1")
    first = flow.when(message)
    flow.complete(HOUR)
    again = flow.again(message, at=20)
    assert again.idle, "the second timer goes on"
    assert again.reply == replace(first.reply, repeated=True)


def test_the_code_of_a_paused_run_stays_where_it_is() -> None:
    flow = asleep()
    flow.when(Pause())
    decision = flow.when(SkipWait(), at=1)
    assert names(decision.events) == ["WaitSkipped", "TimerFired"]
    assert decision.unassigned == []


def test_its_own_time_comes_to_nothing_afterwards() -> None:
    flow = asleep()
    flow.when(SkipWait(), at=60)
    assert flow.due(3601).events == []
