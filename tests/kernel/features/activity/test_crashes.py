"""Attempts that never report: begun again with a growing pause, a bounded number of times in a row, or never."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.failure import Failure
from backstay.kernel.feature import Thrown
from backstay.kernel.features.activity import (
    ActivityFailed,
    ActivityRetryScheduled,
    ActivityStarted,
    Progress,
    RetryPolicy,
    ScheduleActivity,
)
from backstay.kernel.features.activity.crashes import pause_after
from backstay.kernel.features.lease import Claim, Release
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.standalone import StartActivity
from backstay.kernel.groups import GroupEntry
from backstay.kernel.message import Refused
from backstay.kernel.retry import CRASHES, FOREVER
from backstay.kernel.task import Lease
from backstay.kernel.values import SECOND

from ...given import WORKER, Flow, given, names, only, running
from ...stored import refold, snapshot

TASK = "RUN1-a1.1"


def policy(crashes: int = CRASHES, attempts: int = 1, **more: Any) -> RetryPolicy:
    return RetryPolicy(max_attempts=attempts, max_crashes=crashes, **more)


def engine_dies(flow: Flow) -> Any:
    """A lease inside an engine ends with it; the next one finds that out."""
    return flow.when(Reconcile(incarnation="engine-2"))


def lease_expires(flow: Flow) -> Any:
    until = flow.activity_task(1).until
    assert until is not None
    flow.now = until
    return flow.due((until - 1_800_000_000 * SECOND) / SECOND)


def worker_is_gone(flow: Flow) -> Any:
    task = flow.activity_task(1)
    return flow.when(Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt))


def row_is_gone_too(flow: Flow) -> Any:
    flow.lose(flow.activity_task(1).id)
    return engine_dies(flow)


def it_gives_up(flow: Flow) -> Any:
    stopped = Failure(message="not wanted", exception_type="ActivityCancelled", non_retryable=True)
    return flow.when(replace(flow.failed(1, stopped), gave_up=True))


def an_operator_repairs(flow: Flow) -> Any:
    return flow.when(Repair(work=Reconcile(incarnation="engine-2", force=True)))


LOSSES = [
    pytest.param(engine_dies, None, id="the engine dies"),
    pytest.param(row_is_gone_too, None, id="the engine dies and the row is gone"),
    pytest.param(an_operator_repairs, None, id="an operator repairs"),
    pytest.param(it_gives_up, None, id="it gives up"),
    pytest.param(lease_expires, 300 * SECOND, id="the lease expires"),
    pytest.param(worker_is_gone, 300 * SECOND, id="the worker is gone"),
    pytest.param(it_gives_up, 300 * SECOND, id="it gives up elsewhere"),
]


@pytest.mark.parametrize(("lose", "until"), LOSSES)
def test_a_lost_attempt_is_on_record_and_its_task_is_offered_again(lose: Any, until: int | None) -> None:
    flow = running(policy(), until=until)
    event = only(lose(flow), ActivityRetryScheduled)
    assert (event.retry_reason, event.crashes, event.retry_after_attempt) == ("activity_crashed", 1, 1)
    assert event.retry_backoff_seconds == 0
    task = flow.activity_task(1)
    assert (task.id, task.state, task.attempt, task.available_at) == (TASK, "ready", 1, flow.now)
    assert flow.begin(1, owner="worker-2", until=until).attempt == 2
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize(("lose", "until"), LOSSES)
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_after_its_bound_the_activity_fails(lose: Any, until: int | None, bound: int) -> None:
    flow = running(policy(bound), until=until)
    for number in range(1, bound + 1):
        assert only(lose(flow), ActivityRetryScheduled).crashes == number
        flow.now += pause_after(number)
        flow.begin(1, until=until)
    decision = lose(flow)
    event = only(decision, ActivityFailed)
    assert (event.code, event.exception_type, event.non_retryable) == (bound + 1, "ActivityCrashed", True)
    assert event.attempt_number == bound + 1
    assert names(flow.history).count("ActivityStarted") == bound + 1
    assert TASK not in flow.rows
    assert flow.workflow_task.resume.workflow_event_type == "ActivityFailed"
    outcome = flow.machine.outcome(event)
    assert isinstance(outcome, Thrown)
    assert (outcome.failure.code, outcome.failure.message) == (bound + 1, event.message)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_one_look_both_ends_an_expired_attempt_and_counts_its_row_as_gone() -> None:
    flow = running(policy(0))
    flow.now += 310 * SECOND  # past its lease, within the grace of rows that are lost
    assert names(engine_dies(flow).events) == ["ActivityFailed"]
    assert flow.state.missing_tasks == 0


def test_the_pause_grows_from_nothing_to_a_minute() -> None:
    assert [pause_after(crashes) / SECOND for crashes in (1, 2, 3, 4, 5, 7, 8, 9, 100)] == [
        0,
        1,
        2,
        4,
        8,
        32,
        60,
        60,
        60,
    ]


def test_the_next_attempt_waits_for_its_pause() -> None:
    flow = running(policy(), until=None)
    for pause in (0, 1, 2, 4):
        engine_dies(flow)
        task = flow.activity_task(1)
        assert task.available_at == flow.now + pause * SECOND
        if pause:
            refused = flow.refused(Claim(task_id=TASK, lease=Lease(owner=WORKER), kind="activity"))
            assert refused.reason == "task_not_due"
            assert flow.state.next_wake == task.available_at
        flow.now = task.available_at
        flow.due((flow.now - 1_800_000_000 * SECOND) / SECOND)
        flow.begin(1, until=None)


def test_without_a_bound_it_is_begun_again_for_ever() -> None:
    flow = running(policy(FOREVER), until=None)
    for _ in range(50):
        assert names(engine_dies(flow).events) == ["ActivityRetryScheduled"]
        flow.now += 60 * SECOND
        flow.begin(1, until=None)


def test_crashes_spend_no_retries_and_retries_no_crashes() -> None:
    flow = running(policy(2, attempts=3), until=None)
    for _ in range(2):
        engine_dies(flow)
        flow.now += 60 * SECOND
        flow.begin(1, until=None)
    event = only(flow.fail(1), ActivityRetryScheduled)
    assert (event.retry_task_id, event.crashes) == ("RUN1-a1.2", 0)
    for number in (1, 2):  # a report has ended the row of crashes
        flow.begin(1, until=None)
        assert only(engine_dies(flow), ActivityRetryScheduled).crashes == number
        flow.now += 60 * SECOND
    flow.begin(1, until=None)
    assert names(flow.fail(1).events) == ["ActivityRetryScheduled"]
    flow.begin(1, until=None)
    assert names(flow.fail(1).events) == ["ActivityFailed"]


def test_a_crash_is_not_retried_by_the_retry_policy() -> None:
    flow = running(policy(0, attempts=9), until=None)
    assert names(engine_dies(flow).events) == ["ActivityFailed"]


@pytest.mark.parametrize(
    ("first", "later", "again"),
    [
        (Progress(current=5), Progress(current=6), True),
        (Progress(current=5), Progress(current=5), False),
        (Progress(current=5), Progress(current=4), False),
        (Progress(message="a"), Progress(message="b"), True),
        (Progress(message="a"), Progress(message="a"), False),
        (None, Progress(message="a"), True),
        (Progress(current=5), None, False),
    ],
)
def test_only_progress_beyond_the_attempts_before_starts_the_count_anew(
    first: Progress | None, later: Progress | None, again: bool
) -> None:
    flow = running(policy(), until=None)
    flow.beat(1, progress=first, at=31)
    engine_dies(flow)
    flow.begin(1, until=None, at=40)
    flow.beat(1, progress=later, at=80)
    assert only(engine_dies(flow), ActivityRetryScheduled).crashes == (1 if again else 2)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_an_activity_that_advances_survives_any_number_of_deploys() -> None:
    flow = running(policy(1), until=None)
    for part in range(20):
        flow.beat(1, progress=Progress(current=part), at=100 * part + 50)
        assert only(engine_dies(flow), ActivityRetryScheduled).retry_backoff_seconds == 0
        flow.begin(1, until=None, at=100 * part + 60)


def test_one_that_always_dies_at_the_same_place_does_not() -> None:
    flow = running(policy(3), until=None)
    for _ in range(3):
        flow.beat(1, progress=Progress(current=1), at=(flow.now - 1_800_000_000 * SECOND) / SECOND + 60)
        flow.beat(1, progress=Progress(current=2), at=(flow.now - 1_800_000_000 * SECOND) / SECOND + 60)
        engine_dies(flow)
        flow.now += 60 * SECOND
        flow.begin(1, until=None)
    event = only(engine_dies(flow), ActivityFailed)
    assert event.code == 4
    assert "last progress: 2)" in event.message


@pytest.mark.parametrize("bound", [0, 1])
def test_an_activity_task_that_never_reached_its_worker_counts_no_crash(bound: int) -> None:
    flow = running(policy(bound))
    decision = flow.when(Release(task_id=TASK, owner=WORKER, attempt=1, begun=False))
    event = only(decision, ActivityRetryScheduled)
    assert (event.retry_reason, event.crashes) == ("activity_not_delivered", 0)
    assert flow.begin(1, owner="worker-2").attempt == 2
    assert names(flow.finish(1).events) == ["ActivityCompleted"]


def test_the_last_word_of_a_lost_attempt_is_stale() -> None:
    flow = running(policy(), until=None)
    late = flow.finished(1)
    engine_dies(flow)
    assert flow.refused(late).reason == "stale_attempt"
    assert flow.beat(1, attempt=1, owner=WORKER).reply.can_continue is False


@pytest.mark.parametrize(
    "forged", [{"state": "ready", "owner": None, "until": None}, {"owner": "nobody/1", "until": None}]
)
def test_a_forged_row_begins_nothing_twice_that_may_run_once(forged: dict[str, Any]) -> None:
    flow = running(policy(0))
    flow.rows[TASK] = replace(flow.activity_task(1), **forged)
    flow.reopen()
    engine_dies(flow)
    with pytest.raises(Refused):
        flow.claim(TASK, owner="worker-2")
    assert sum(isinstance(entry.event, ActivityStarted) for entry in flow.history) == 1
    assert names(flow.finish(1, attempt=1, owner=WORKER).events) == ["ActivityCompleted"]


def test_a_standalone_activity_fails_with_its_crash() -> None:
    flow = Flow()
    flow.when(
        StartActivity(
            namespace="default",
            workflow_id="order-1",
            activity=ScheduleActivity(activity_type="charge", retry_policy=policy(0)),
        )
    )
    flow.begin(1, until=None)
    decision = engine_dies(flow)
    assert names(decision.events) == ["ActivityFailed", "WorkflowFailed"]
    assert decision.events[-1].event.exception_type == "ActivityCrashed"


def test_a_member_of_a_group_that_crashed_lets_the_next_one_go() -> None:
    def member(index: int) -> ScheduleActivity:
        path = [
            GroupEntry(
                parallel_group_id="RUN1-g1",
                parallel_group_kind="activity",
                parallel_group_base_sequence=1,
                parallel_group_size=2,
                parallel_group_index=index,
                parallel_group_limit=1,
            )
        ]
        return ScheduleActivity(activity_type="charge", retry_policy=policy(0), parallel_group_path=path)

    flow = given(member(0), member(1))
    flow.begin(1, until=None)
    engine_dies(flow)
    assert flow.activity_task(2).state == "ready"


def test_a_negative_bound_is_refused() -> None:
    flow = given()
    refused = flow.refused(flow.completion(ScheduleActivity(activity_type="charge", retry_policy=policy(-1))))
    assert (refused.reason, refused.fields["field"]) == ("invalid_commands", "retry_policy.max_crashes")
