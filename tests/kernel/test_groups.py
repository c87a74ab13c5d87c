"""Groups: who is woken when a leaf closes, and how a bound hands out the next one."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.features.activity import ActivityTimedOut, RetryPolicy, ScheduleActivity
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.child import ChildWorkflowScheduled
from backstay.kernel.features.child.messages import StartFromParent
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.pause import Pause, Unpause
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.groups import GroupEntry

from .given import Flow, given, instant, names, only
from .stored import refold, snapshot
from .world import call, calling, group, start_of


def path(*entries: tuple[str, int, int, int], limit: int | None = None) -> list[GroupEntry]:
    return [group(base, size, index, name=name, limit=limit) for name, base, size, index in entries]


def activity(where: list[GroupEntry], policy: RetryPolicy | None = None) -> Command:
    return ScheduleActivity(activity_type="ship", retry_policy=policy, parallel_group_path=where)


def flat(size: int, limit: int | None = None, policy: RetryPolicy | None = None) -> list[Command]:
    return [activity([group(1, size, index, kind="activity", limit=limit)], policy) for index in range(size)]


NESTED = [
    activity(path(("out", 1, 4, 0))),
    activity(path(("out", 1, 4, 1), ("in", 2, 2, 0))),
    activity(path(("out", 1, 4, 2), ("in", 2, 2, 1))),
    activity(path(("out", 1, 4, 3))),
]
"""[1, [2, 3], 4]"""


def closed(flow: Flow, step: int, ok: bool = True) -> bool:
    """Close an activity; whether that woke the run."""
    flow.begin(step)
    before = {task.id for task in flow.tasks.values() if task.kind == "workflow"}
    decision = flow.finish(step) if ok else flow.fail(step)
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert flow.machine.expect(flow.state).tasks.keys() == flow.tasks.keys()
    assert flow.machine.expect(refold(flow)).tasks == flow.machine.expect(flow.state).tasks
    after = {task.id for task in flow.tasks.values() if task.kind == "workflow"}
    assert decision is not None
    return after != before


# -- waking


@pytest.mark.contract("BARRIER-05")
@pytest.mark.parametrize("order", list(permutations(range(1, 4))))
def test_success_wakes_with_the_last_one_whatever_the_order(order: tuple[int, ...]) -> None:
    flow = given(*flat(3))
    assert [closed(flow, step) for step in order] == [False, False, True]


@pytest.mark.contract("BARRIER-05")
@pytest.mark.parametrize("order", list(permutations(range(1, 5))))
def test_a_nested_group_that_is_complete_wakes_no_code_by_itself(order: tuple[int, ...]) -> None:
    flow = given(*NESTED)
    assert [closed(flow, step) for step in order] == [False, False, False, True]


@pytest.mark.contract("BARRIER-04")
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_the_first_failure_wakes_at_once(step: int) -> None:
    flow = given(*NESTED)
    assert closed(flow, step, ok=False)


@pytest.mark.contract("BARRIER-08")
def test_a_member_that_ends_after_the_failure_was_seen_wakes_the_run_only_if_it_is_the_last() -> None:
    flow = given(*flat(4))
    assert closed(flow, 2, ok=False)
    flow.complete(StartTimer(delay_seconds=1000))
    assert [closed(flow, 1), closed(flow, 3, ok=False)] == [False, False]
    assert closed(flow, 4), "then nothing of the group is open any more"


def test_a_failure_inside_a_group_that_has_not_failed_wakes() -> None:
    flow = given(*NESTED)
    assert closed(flow, 1, ok=False)
    flow.complete(StartTimer(delay_seconds=1000))
    assert closed(flow, 2, ok=False), "the first of the inner group"


def test_a_failure_while_code_is_at_work_is_told_afterwards() -> None:
    flow = given(*flat(2), StartTimer(delay_seconds=1))
    flow.due(at=1)
    flow.lease()
    flow.begin(1)
    flow.fail(1)
    flow.complete()
    assert flow.workflow_task.resume.workflow_event_type == "ActivityFailed"


@pytest.mark.contract("BARRIER-01")
def test_timers_and_children_are_leaves_too() -> None:
    where = [path(("g", 1, 3, index)) for index in range(3)]
    world, parent = calling(
        activity(where[0]),
        call(parallel_group_path=where[1]),
        StartTimer(delay_seconds=5, parallel_group_path=where[2]),
    )
    parent.begin(1)
    parent.finish(1)
    assert not parent.tasks
    parent.due(at=5)
    assert not parent.tasks
    world.child_of(parent, 2).complete(CompleteWorkflow())
    world.settle()
    assert parent.workflow_task.resume.workflow_event_type == "ChildRunCompleted"


@pytest.mark.contract("BARRIER-04")
@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_child_that_ends_badly_wakes_at_once(how: str) -> None:
    where = [path(("g", 1, 2, index)) for index in range(2)]
    world, parent = calling(*(call(parallel_group_path=entry) for entry in where))
    child = world.child_of(parent, 2)
    if how == "failed":
        child.complete(FailWorkflow(message="no"))
    else:
        child.when(Cancel())
    world.settle()
    assert parent.workflow_task.resume.workflow_event_type == f"ChildRun{how.title()}"


@pytest.mark.contract("BARRIER-10", "BARRIER-13")
def test_every_event_of_a_leaf_says_where_it_belongs() -> None:
    policy = RetryPolicy(max_attempts=2)
    where = path(("out", 1, 2, 0), ("in", 1, 1, 0))
    flow = given(activity(where, policy), StartTimer(delay_seconds=1, parallel_group_path=path(("out", 1, 2, 1))))
    flow.begin(1)
    flow.fail(1)
    flow.begin(1)
    flow.finish(1)
    flow.due(at=1)
    found: list[Any] = [entry.event for entry in flow.history if entry.type.startswith(("Activity", "Timer"))]
    assert [event.parallel_group_path for event in found if event.sequence == 1] == [where] * 5
    assert {len(event.parallel_group_path) for event in found if event.sequence == 2} == {1}


@pytest.mark.contract("BARRIER-02")
def test_all_leaves_are_scheduled_in_one_completion() -> None:
    flow = given(*NESTED)
    assert names(flow.decisions[-1].events) == ["ActivityScheduled"] * 4


@pytest.mark.parametrize(
    "entry",
    [
        group(0, 2, 0),
        group(1, 0, 0),
        group(1, 2, 2),
        group(1, 2, -1),
        group(1, 2, 0, limit=0),
        group(1, 2, 0, window=0),
    ],
)
def test_a_place_that_cannot_be_is_refused(entry: GroupEntry) -> None:
    for command in (
        activity([entry]),
        call(parallel_group_path=[entry]),
        StartTimer(delay_seconds=1, parallel_group_path=[entry]),
    ):
        flow = given()
        assert flow.refused(flow.completion(command)).reason == "invalid_commands"


# -- bounds


def in_flight(flow: Flow) -> list[int]:
    return sorted(task.step or 0 for task in flow.tasks.values() if task.kind == "activity")


@pytest.mark.contract("BARRIER-14")
def test_a_bound_hands_out_the_next_in_the_decision_that_closes_one() -> None:
    flow = given(*flat(5, limit=2))
    assert names(flow.history).count("ActivityScheduled") == 5, "all are facts from the beginning"
    seen = [in_flight(flow)]
    for step in (2, 1, 3, 4):
        assert not closed(flow, step), "without a wake"
        seen.append(in_flight(flow))
    assert seen == [[1, 2], [1, 3], [3, 4], [4, 5], [5]]
    assert closed(flow, 5)


# -- windows: more leaves than are scheduled


def windowed(size: int, window: int, settles: bool = False) -> Flow:
    """The first window of a group of so many."""
    where = ([group(1, size, index, kind="activity", window=window, settles=settles)] for index in range(window))
    return given(*(activity(place) for place in where))


@pytest.mark.parametrize("order", list(permutations(range(1, 5))))
def test_a_group_that_is_not_all_scheduled_wakes_its_code_when_half_of_its_window_has_closed(
    order: tuple[int, ...],
) -> None:
    flow = windowed(10, 4)
    assert [closed(flow, step) for step in order[:2]] == [False, True]


def test_a_group_that_is_all_scheduled_wakes_no_code_before_its_end() -> None:
    flow = windowed(4, 4)
    assert [closed(flow, step) for step in (1, 2, 3, 4)] == [False, False, False, True]


def test_a_group_that_has_failed_wants_no_more_leaves() -> None:
    flow = windowed(10, 4)
    assert closed(flow, 1, ok=False)
    flow.complete()
    assert [closed(flow, step) for step in (2, 3)] == [False, False]


def test_a_failure_in_a_group_that_settles_is_an_end_like_any_other() -> None:
    flow = given(*(activity([group(1, 3, index, kind="activity", settles=True)]) for index in range(3)))
    assert [closed(flow, step, ok=step == 2) for step in (1, 2, 3)] == [False, False, True]
    flow = windowed(10, 4, settles=True)
    assert [closed(flow, step, ok=False) for step in (3, 2)] == [False, True]


def test_a_failure_beside_a_group_that_settles_is_the_first_one_of_the_whole() -> None:
    inside = [[group(1, 4, index, name="out"), group(1, 2, index, name="in", settles=True)] for index in range(2)]
    flow = given(*(activity(place) for place in inside), *(activity([group(1, 4, n, name="out")]) for n in (2, 3)))
    assert not closed(flow, 1, ok=False)
    assert closed(flow, 3, ok=False)


# -- bounds once more


def test_a_failure_lets_the_next_go_too() -> None:
    flow = given(*flat(3, limit=1))
    closed(flow, 1, ok=False)
    assert in_flight(flow) == [2]


def test_a_retry_keeps_its_place() -> None:
    flow = given(*flat(3, limit=1, policy=RetryPolicy(max_attempts=2, backoff_seconds=[10.0])))
    flow.begin(1)
    flow.fail(1)
    assert in_flight(flow) == [1]
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_the_time_to_start_counts_from_when_it_was_let_go() -> None:
    policy = RetryPolicy(max_attempts=1, schedule_to_start_timeout=10.0)
    flow = given(*flat(2, limit=1, policy=policy))
    flow.begin(1, at=8)
    assert flow.row is not None
    flow.finish(1, at=20)
    task = flow.activity_task(2)
    assert (task.available_at, task.created_at) == (instant(20), instant(20))
    assert flow.row.next_wake == instant(30)
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    decision = flow.due(at=30)
    assert only(decision, ActivityTimedOut).sequence == 2


def test_the_whole_time_counts_from_the_call_though_it_is_held_back() -> None:
    policy = RetryPolicy(max_attempts=1, schedule_to_close_timeout=10.0)
    flow = given(*flat(3, limit=1, policy=policy))
    flow.begin(1)
    decision = flow.due(at=10)
    assert names(decision.events).count("ActivityTimedOut") == 3
    assert in_flight(flow) == []
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_nested_bounds_both_hold() -> None:
    def place(index: int) -> list[GroupEntry]:
        outer = group(1, 6, index, name="out", limit=3, kind="activity")
        base = 1 if index < 3 else 4
        return [outer, group(base, 3, index - base + 1, name="in", limit=1, kind="activity")]

    flow = given(*(activity(place(index)) for index in range(6)))
    seen = [in_flight(flow)]
    while in_flight(flow):
        closed(flow, in_flight(flow)[0])
        seen.append(in_flight(flow))
    assert seen == [[1], [2, 4], [3, 4], [4], [5], [6], []]
    assert flow.workflow_task


def test_a_restart_hands_nothing_out_twice() -> None:
    flow = given(*flat(4, limit=2))
    closed(flow, 1)
    flow.begin(3, "worker-2")
    leased = flow.activity_task(3)
    flow.reopen()
    flow.when(Reconcile(incarnation="e"))
    flow.signal("go")
    assert flow.activity_task(3) == leased
    assert in_flight(flow) == [2, 3]


def test_a_lost_row_of_what_was_let_go_is_restored_and_what_is_held_back_is_not() -> None:
    flow = given(*flat(3, limit=1))
    closed(flow, 1)
    flow.lose(flow.activity_task(2).id)
    flow.when(Reconcile(incarnation="e"))
    assert in_flight(flow) == [2]


def test_a_pause_withholds_what_is_let_go() -> None:
    flow = given(*flat(2, limit=1))
    flow.begin(1)
    flow.when(Pause())
    flow.finish(1)
    flow.when(Unpause())
    assert in_flight(flow) == [2]


@pytest.mark.contract("BARRIER-14")
def test_at_most_so_many_starts_are_sent() -> None:
    where = [[group(1, 4, index, limit=2)] for index in range(4)]
    world, parent = calling(*(call(parallel_group_path=entry) for entry in where))

    def sent() -> list[int]:
        return [start_of(send).parent.sequence for send in world.log if isinstance(send.message, StartFromParent)]

    assert names(parent.history).count("ChildWorkflowScheduled") == 4
    assert sent() == [1, 2]
    assert not parent.when(Reconcile(incarnation="e", ask=True)).sends[2:], "who is held back is not asked after"
    world.settle()
    before = len(sent())
    parent.reopen()
    world.child_of(parent, 2).complete(CompleteWorkflow())
    world.settle()
    assert sent()[before:] == [3]
    assert not parent.tasks
    world.child_of(parent, 1).complete(CompleteWorkflow())
    world.settle()
    assert sent()[before:] == [3, 4]
    for step in (4, 3):
        world.child_of(parent, step).complete(CompleteWorkflow())
        world.settle()
    assert parent.workflow_task.resume.workflow_event_type == "ChildRunCompleted"
    found: list[Any] = [e.event for e in parent.history if isinstance(e.event, ChildWorkflowScheduled)]
    assert [event.parallel_group_path for event in found] == where


def test_timers_of_a_bounded_group_run_from_the_start() -> None:
    where = [[group(1, 3, index, limit=1, kind="timer")] for index in range(3)]
    flow = given(*(StartTimer(delay_seconds=5, parallel_group_path=entry) for entry in where))
    decision = flow.due(at=5)
    assert names(decision.events).count("TimerFired") == 3
    assert flow.workflow_task


@pytest.mark.parametrize("bounds", [(None, 2), (2, None), (3, 2)])
def test_a_group_that_is_all_of_another_shares_its_name_and_keeps_its_bound(
    bounds: tuple[int | None, int | None],
) -> None:
    """[[1, 2, 3]]: both groups begin at the same step and have the same leaves, so they are called the same."""
    members = [activity([group(1, 3, index, name="same", limit=limit) for limit in bounds], None) for index in range(3)]
    flow = given(*members)
    assert {task.step for task in flow.tasks.values()} == {1, 2}
    assert closed(flow, 1) is False
    assert {task.step for task in flow.tasks.values()} == {2, 3}
    assert [closed(flow, step) for step in (3, 2)] == [False, True]
