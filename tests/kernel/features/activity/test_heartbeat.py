"""Heartbeats renew the lease each time, and are recorded only when they say something new or half the timeout is gone."""

from __future__ import annotations

import itertools

import pytest

from backstay.kernel.features.activity import ActivityHeartbeatRecorded, Progress, RetryPolicy
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.limits import Limits

from ...given import WORKER, instant, names, only, running
from ...stored import refold, snapshot


def policy(timeout: float | None) -> RetryPolicy:
    return RetryPolicy(max_attempts=1, heartbeat_timeout=timeout)


@pytest.mark.contract("ACT-03", "ACT-04")
def test_a_heartbeat_extends_the_lease_and_says_how_things_stand() -> None:
    flow = running()
    reply = flow.beat(1, at=100, progress=Progress(current=1)).reply
    assert (reply.can_continue, reply.cancel_requested, reply.reason) == (True, False, None)
    assert (reply.run_status, reply.attempt_status, reply.task_status) == ("waiting", "running", "leased")
    assert (reply.lease_expires_at, reply.last_heartbeat_at) == (instant(400), instant(100))
    assert flow.activity_task(1).until == instant(400)
    assert flow.due(300).events == []
    assert flow.activity_task(1).state == "leased"


def test_a_heartbeat_inside_the_engine_has_no_lease_to_extend() -> None:
    flow = running(until=None)
    assert flow.beat(1, at=100).reply.lease_expires_at is None
    assert flow.activity_task(1).until is None


@pytest.mark.parametrize(
    ("timeout", "beats", "recorded"),
    [
        (None, [1, 29, 29.9], []),
        (None, [30], [30]),
        (None, [10, 20, 30, 59, 60], [30, 60]),
        (20, [1, 9.9, 10, 15, 19, 20], [10, 20]),
        (90, [29, 30, 44, 59, 60], [30, 60]),
        (1, [0.5, 0.9, 1.0, 1.5], [1.0]),
    ],
)
def test_without_news_a_heartbeat_is_recorded_after_half_the_timeout_at_most_thirty_seconds(
    timeout: float | None, beats: list[float], recorded: list[float]
) -> None:
    flow = running(policy(timeout))
    assert [at for at in beats if flow.beat(1, at=at).reply.heartbeat_recorded] == recorded
    assert names(flow.history).count("ActivityHeartbeatRecorded") == len(recorded)


@pytest.mark.contract("ACT-24")
def test_new_progress_is_recorded_at_most_once_a_second_and_the_first_at_once() -> None:
    flow = running()
    beats = [(0.1, 1), (0.2, 2), (1.0, 3), (1.1, 4), (2.1, 4), (3.5, 4), (4.0, 5)]
    recorded = [
        at for at, done in beats if flow.beat(1, at=at, progress=Progress(current=done)).reply.heartbeat_recorded
    ]
    assert recorded == [0.1, 1.1, 4.0]


@pytest.mark.parametrize("timeout", [None, 120])
def test_however_long_an_activity_makes_progress_its_heartbeats_leave_room_in_history(timeout: float | None) -> None:
    flow = running(policy(timeout), until=None)
    recorded = [
        at for at in range(1, 20_001) if flow.beat(1, at=at, progress=Progress(current=at)).reply.heartbeat_recorded
    ]
    assert recorded[:1000] == list(range(1, 1001))
    assert 3000 < len(recorded) < 5000
    assert max(later - at for at, later in itertools.pairwise(recorded)) <= 30
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_heartbeats_do_not_count_against_the_limit_of_a_history() -> None:
    flow = running(limits=Limits(history_length=20))
    for at in range(1, 101):
        flow.beat(1, at=at, progress=Progress(current=at))
    flow.finish(1)
    assert names(flow.complete(CompleteWorkflow()).events)[-1] == "WorkflowCompleted"


@pytest.mark.contract("ACT-24")
def test_the_recorded_progress_is_one_normal_object() -> None:
    flow = running()
    progress = Progress(message="halfway", current=1, total=2.5, unit="files", details={"last": "a.txt"})
    event = only(flow.beat(1, at=2, progress=progress), ActivityHeartbeatRecorded)
    assert (event.progress, event.heartbeat_at, event.lease_expires_at) == (progress, instant(2), instant(302))
    assert (event.activity_attempt_id, event.attempt_number) == ("RUN1-1-1", 1)
    flow.reopen()
    assert flow.execution(1).progress == progress


def test_a_heartbeat_without_progress_keeps_the_progress_that_is_known() -> None:
    flow = running()
    flow.beat(1, at=2, progress=Progress(current=1))
    flow.beat(1, at=60)
    assert flow.execution(1).progress == Progress(current=1)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_an_unrecorded_heartbeat_inside_the_engine_writes_nothing_at_all() -> None:
    flow = running(policy(60), until=None)
    assert flow.beat(1, at=10).idle


@pytest.mark.parametrize("until", [None, 300_000_000])
def test_an_unrecorded_heartbeat_holds_the_timeout_off_too(until: int | None) -> None:
    flow = running(policy(60), until=until)
    flow.beat(1, at=20)
    assert flow.due(60).events == []
    assert flow.due(79).events == []
    assert names(flow.due(80).events) == ["ActivityTimedOut"]


def test_after_a_restart_a_beating_attempt_has_at_least_half_its_timeout_left() -> None:
    flow = running(policy(40))
    flow.beat(1, at=19)
    flow.reopen()
    assert flow.due(38).events == []
    assert flow.beat(1, at=38).reply.heartbeat_recorded
    assert flow.due(77).events == []


def test_a_heartbeat_when_the_row_is_gone_keeps_the_attempt_alive() -> None:
    flow = running(policy(20))
    flow.lose("RUN1-a1.1")
    assert flow.beat(1, at=15).reply.can_continue
    assert flow.due(20).events == []
    assert flow.rows == {}


def test_a_heartbeat_of_an_expired_lease_is_told_to_stop() -> None:
    flow = running()
    reply = flow.beat(1, at=300).reply
    assert (reply.can_continue, reply.reason, reply.attempt_status) == (False, "stale_attempt", "expired")
    assert flow.activity_task(1).until == instant(300)


def test_a_heartbeat_of_another_worker_does_not_renew_the_lease() -> None:
    flow = running()
    assert flow.beat(1, at=10, owner="worker-2").idle
    assert flow.activity_task(1).until == instant(300)
    assert flow.activity_task(1).owner == WORKER
