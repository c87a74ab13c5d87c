"""Selections: the first member that ends wins, and that is recorded once, right behind its end."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.select import CancelSelectionOperation, SelectionResolved
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.groups import GroupEntry
from backstay.kernel.task import Block

from ..given import TALKING, Flow, given, names
from ..stored import refold, snapshot

NAME = "select-calls:1:4"
NOTHING_NEW = Block(message="nothing new", type="WorkflowTaskWaitingForHistory")


def member(index: int, key: str | int, base: int, size: int = 1, kind: str = "activity", **more: Any) -> GroupEntry:
    return GroupEntry(
        **{
            "parallel_group_id": NAME,
            "parallel_group_kind": "mixed",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 4,
            "parallel_group_index": index,
            "parallel_group_mode": "select",
            "selection_member_key": key,
            "selection_member_index": index,
            "selection_member_base_sequence": base,
            "selection_member_size": size,
            "selection_member_kind": kind,
            **more,
        }
    )


def inner(index: int) -> GroupEntry:
    return GroupEntry(
        parallel_group_id="parallel-activities:2:2",
        parallel_group_kind="activity",
        parallel_group_base_sequence=2,
        parallel_group_size=2,
        parallel_group_index=index,
    )


def work(*path: GroupEntry) -> Command:
    return ScheduleActivity(activity_type="ship", parallel_group_path=list(path))


FOUR = [
    work(member(0, "one", 1)),
    work(member(1, "pair", 2, 2, "group"), inner(0)),
    work(member(2, "pair", 2, 2, "group"), inner(1)),
    StartTimer(delay_seconds=60, parallel_group_path=[member(3, "late", 4, kind="timer")]),
]
"""select(one, [2, 3], timer)"""


def end(flow: Flow, step: int, ok: bool = True) -> None:
    if step == 4:
        flow.due(at=61)
    else:
        flow.begin(step)
        flow.finish(step) if ok else flow.fail(step)


def resolutions(flow: Flow) -> list[SelectionResolved]:
    return [entry.event for entry in flow.history if isinstance(entry.event, SelectionResolved)]


@pytest.mark.parametrize("order", list(permutations((1, 2, 3, 4))))
@pytest.mark.parametrize("fails", [None, 1, 2])
def test_the_first_member_of_a_selection_to_end_wins_in_any_order(order: tuple[int, ...], fails: int | None) -> None:
    flow = given(*FOUR)
    over: list[str] = []
    ended: set[int] = set()
    for step in order:
        end(flow, step, step != fails)
        ended.add(step)
        key = {1: "one", 2: "pair", 3: "pair", 4: "late"}[step]
        if key not in over and (key != "pair" or ended >= {2, 3} or step == fails):
            over.append(key)
        found = resolutions(flow)
        assert [event.member_key for event in found] == over[:1]
        assert bool(flow.run.wake_events) == bool(over), "every end of a member is told, nothing else"
        assert snapshot(flow, refold(flow)) == snapshot(flow)
    (resolved,) = resolutions(flow)
    at = next(entry.sequence for entry in flow.history if entry.event is resolved)
    before = flow.history[at - 2]
    run_id = flow.run.run_id
    assert (resolved.resolution_event_id, resolved.resolution_event_type) == (f"{run_id}-e{at - 1}", before.type)
    assert resolved.operation_identity == {"one": f"{run_id}-1", "pair": "group:2:2", "late": f"{run_id}-t4"}[over[0]]
    assert resolved.outcome == ("failed" if getattr(before.event, "sequence", 0) == fails else "completed")


def cancel(key: str, base: int, size: int = 1, kind: str = "activity") -> CancelSelectionOperation:
    return CancelSelectionOperation(
        selection_group_id=NAME,
        member_key=key,
        member_index=base - 1,
        member_base_sequence=base,
        member_size=size,
        operation_kind=kind,
        operation_identity="id",
    )


def test_a_loser_is_cancelled_once_and_code_that_waits_for_it_is_told() -> None:
    flow = given(*FOUR)
    end(flow, 1)
    flow.complete(cancel("pair", 2, 2, "group"), numbered=False)
    assert names(flow.history)[-3:] == ["ActivityCancelled", "ActivityCancelled", "SelectionOperationCancelled"]
    assert flow.workflow_task.resume.workflow_event_type == "SelectionOperationCancelled"
    length = len(flow.history)
    flow.complete(cancel("pair", 2, 2, "group"), cancel("one", 1), numbered=False)
    assert len(flow.history) == length, "one is cancelled already, the other has won"
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    flow.due(at=61)
    assert flow.refused(flow.completion(cancel("none", 9))).reason == "invalid_commands"


def test_stopping_the_run_decides_nothing() -> None:
    flow = given(*FOUR)
    flow.when(Cancel())
    assert resolutions(flow) == []
    assert names(flow.history)[-1] == "WorkflowCancelled"


WAIT = OpenConditionWait(
    condition_key="k",
    timeout_seconds=30,
    parallel_group_path=[
        member(0, "heard", 1, kind="condition", parallel_group_size=2, parallel_group_id="select-calls:1:2")
    ],
)
CLOCK = StartTimer(
    delay_seconds=60,
    parallel_group_path=[
        member(1, "late", 2, kind="timer", parallel_group_size=2, parallel_group_id="select-calls:1:2")
    ],
)


def test_a_condition_that_loses_stays_open_while_code_goes_on() -> None:
    flow = given()
    flow.complete(OpenConditionWait(parallel_group_path=WAIT.parallel_group_path), CLOCK, numbered=False)
    flow.due(at=61)
    assert [event.member_key for event in resolutions(flow)] == ["late"]
    flow.complete(StartTimer(delay_seconds=1), numbered=False)
    assert "ConditionWaitSatisfied" not in names(flow.history)
    flow.due(at=62)
    flow.complete(CompleteWorkflow())
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_condition_in_a_selection_times_out_by_itself() -> None:
    flow = given()
    flow.complete(WAIT, CLOCK, numbered=False)
    flow.due(at=31)
    assert names(flow.history)[-3:] == ["TimerFired", "ConditionWaitTimedOut", "SelectionResolved"]
    assert resolutions(flow)[0].resolution_event_type == "ConditionWaitTimedOut"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_signal_shown_to_a_published_worker_satisfies_the_wait() -> None:
    flow = given(definition=TALKING)
    flow.complete(WAIT, CLOCK, numbered=False)
    flow.signal("note")
    flow.break_task(NOTHING_NEW)
    assert names(flow.history)[-4:] == [
        "SignalApplied",
        "TimerCancelled",
        "ConditionWaitSatisfied",
        "SelectionResolved",
    ]
    assert flow.workflow_task.resume.workflow_event_type == "ConditionWaitSatisfied"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize(
    "wrong",
    [
        {"selection_member_key": None},
        {"selection_member_key": ""},
        {"selection_member_key": -1},
        {"selection_member_kind": "query"},
        {"selection_member_base_sequence": 5},
        {"selection_member_size": 9},
        {"selection_member_index": None},
    ],
)
def test_a_member_that_does_not_say_which_it_is_is_refused(wrong: dict[str, Any]) -> None:
    flow = given()
    refused = flow.refused(flow.completion(work(member(0, "one", 1, **wrong))))
    assert (refused.reason, refused.fields["field"]) == ("invalid_commands", "parallel_group_path")


def test_only_the_outermost_group_may_be_a_selection() -> None:
    flow = given()
    assert flow.refused(flow.completion(work(inner(0), member(0, "one", 1)))).reason == "invalid_commands"
