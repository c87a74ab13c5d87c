"""The summary of a run: one word for what it does, its wait with since and until, and what needs attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.child import StartChildWorkflow
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.pause import Pause
from backstay.kernel.features.signal import OpenSignalWait
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import Update
from backstay.kernel.task import Block
from backstay.kernel.values import SECOND
from backstay.kernel.views.failures import failures
from backstay.kernel.views.summary import RunSummary, summarize
from tests.kernel.given import T0, Flow, given, instant, running

CHARGE = ScheduleActivity(activity_type="charge")
TRIES = RetryPolicy(max_attempts=3, backoff_seconds=[60])


def of(flow: Flow) -> RunSummary:
    return summarize(flow.machine, flow.state)


def retrying() -> Flow:
    flow = running(TRIES)
    flow.fail(1, "carrier down", at=5)
    return flow


def paused() -> Flow:
    flow = given(OpenConditionWait())
    flow.when(Pause(reason="audit"), at=7)
    return flow


def blocked() -> Flow:
    flow = given()
    flow.break_task(Block(message="history does not fit", replay_blocked=True, reason="history_shape_mismatch"))
    return flow


def failing_task() -> Flow:
    flow = given()
    flow.break_task(Block(message="no such module"))
    return flow


def updating() -> Flow:
    flow = given(OpenConditionWait())
    flow.when(Update(name="add"))
    return flow


def lost() -> Flow:
    flow = given(CHARGE)
    flow.lose(*flow.tasks)
    return flow


def at(*commands: Command) -> Callable[[], Flow]:
    return lambda: given(*commands)


STATES: dict[str, tuple[Callable[[], Flow], dict[str, Any]]] = {
    "a task is ready": (lambda: given(), {"state": "ready", "next_task_kind": "workflow", "next_task_type": "order"}),
    "an activity is ready": (
        at(CHARGE),
        {"state": "ready", "wait_kind": "activity", "wait_name": "charge", "next_task_type": "charge", "step": 1},
    ),
    "an activity runs": (running, {"state": "working", "wait_name": "charge", "attempt": 1, "attention": None}),
    "an activity backs off": (
        retrying,
        {"state": "retrying", "attention": "retrying", "last_error": "carrier down", "attempt": 1, "attempts": 3}
        | {"until": instant(65), "since": instant(5)},
    ),
    "a workflow task backs off": (
        failing_task,
        {"state": "retrying", "attention": "retrying", "last_error": "no such module", "task_problem": True},
    ),
    "its code does not fit": (
        blocked,
        {"state": "blocked", "attention": "blocked", "blocked_reason": "history_shape_mismatch", "can_repair": True},
    ),
    "a timer": (at(StartTimer(delay_seconds=9)), {"state": "sleeping", "until": T0 + 9 * SECOND, "since": T0}),
    "a signal": (at(OpenSignalWait(signal_name="go")), {"state": "waiting", "wait_name": "go", "until": None}),
    "a signal with a timeout": (
        at(OpenSignalWait(signal_name="go", timeout_seconds=9)),
        {"state": "waiting", "until": T0 + 9 * SECOND},
    ),
    "a condition": (at(OpenConditionWait(condition_key="paid")), {"state": "waiting", "wait_name": "paid"}),
    "a child": (
        at(StartChildWorkflow(workflow_type="ship")),
        {"state": "waiting", "wait_kind": "child", "since": T0, "steps": 1, "children": 1, "open_children": 1},
    ),
    "children of one type": (
        at(StartChildWorkflow(workflow_type="ship"), StartChildWorkflow(workflow_type="ship")),
        {"children": 2, "open_children": 2, "child_type": "ship"},
    ),
    "children of two types": (
        at(StartChildWorkflow(workflow_type="ship"), StartChildWorkflow(workflow_type="bill")),
        {"children": 2, "open_children": 2, "child_type": None},
    ),
    "an update": (updating, {"state": "ready", "wait_kind": "update", "wait_name": "add"}),
    "somebody paused it": (paused, {"state": "paused", "since": instant(7), "attention": None}),
    "its task is lost": (lost, {"state": "blocked", "attention": "repair_needed", "can_repair": True}),
    "it has completed": (at(CompleteWorkflow()), {"state": "completed", "attention": None, "wait_kind": None}),
    "it has failed": (at(FailWorkflow(message="no")), {"state": "failed", "last_error": "no", "exception_count": 1}),
}


@pytest.mark.contract("LIVE-01", "LIVE-02")
@pytest.mark.parametrize("what", STATES)
def test_a_run_is_summed_up_in_a_word_with_its_wait(what: str) -> None:
    make, expected = STATES[what]
    found = of(make())
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("what", STATES)
def test_a_summary_is_the_same_after_folding_history_again(what: str) -> None:
    flow = STATES[what][0]()
    before = of(flow)
    flow.reopen()
    assert of(flow) == before


@pytest.mark.parametrize("what", STATES)
def test_a_summary_counts_the_failures_that_the_list_of_them_has(what: str) -> None:
    flow = STATES[what][0]()
    assert of(flow).exception_count == len(failures(flow.history, flow.run.run_id))


def test_a_summary_depends_on_no_clock() -> None:
    flow = retrying()
    before = of(flow)
    flow.now += 10**12
    assert of(flow) == before


def test_a_run_that_continued_says_so() -> None:
    flow = given(ContinueAsNew(workflow_type="order"))
    assert (of(flow).state, of(flow).is_current_run) == ("ready", True)
