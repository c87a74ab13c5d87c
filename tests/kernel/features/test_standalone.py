"""Standalone activities: a run that is one activity, with the kernel as its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backstay.kernel.decision import Decision
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.pause import Pause
from backstay.kernel.features.standalone import StartActivity
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused

from ..given import MACHINE, Flow, names, only, started
from ..stored import refold, snapshot


def job(id: str = "order-1", **options: Any) -> StartActivity:
    asked = {name: options.pop(name) for name in ("arguments", "retry_policy", "queue") if name in options}
    activity = ScheduleActivity(activity_type="charge", **asked)
    return StartActivity(namespace="default", workflow_id=id, activity=activity, **options)


def begun(machine: Machine = MACHINE, **options: Any) -> Flow:
    flow = Flow(machine)
    flow.when(job(**options))
    return flow


def test_starting_asks_for_the_activity_and_for_no_workflow_task() -> None:
    flow = begun(arguments=b"[1]", queue="billing", business_key="b")
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted", "ActivityScheduled"]
    assert [(task.kind, task.type, task.routing.queue) for task in flow.rows.values()] == [
        ("activity", "charge", "billing")
    ]
    assert set(flow.machine.expect(flow.state).tasks) == set(flow.rows)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize("result", [None, b"", b"paid"])
def test_the_result_of_a_standalone_activity_closes_its_run_in_the_same_commit(result: bytes | None) -> None:
    flow = begun()
    flow.begin(1)
    decision = flow.finish(1, result, at=1)
    assert names(decision.events) == ["ActivityCompleted", "WorkflowCompleted"]
    assert only(decision, WorkflowCompleted).output == result
    assert (flow.run.status, flow.rows, flow.state.next_wake) == ("completed", {}, None)
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def too_late(flow: Flow) -> Decision:
    return flow.due(60)


def never_answered(flow: Flow) -> Decision:
    flow.begin(1)
    return flow.due(60)


def failed(flow: Flow) -> Decision:
    flow.begin(1)
    return flow.fail(1, Failure(message="no money", exception_type="Broke", non_retryable=True))


@pytest.mark.parametrize(
    ("policy", "happens", "category", "type"),
    [
        ({}, failed, "activity", "Broke"),
        ({"schedule_to_start_timeout": 5}, too_late, "timeout", "ActivityTimedOut"),
        ({"schedule_to_close_timeout": 5}, never_answered, "timeout", "ActivityTimedOut"),
        ({"start_to_close_timeout": 5}, never_answered, "timeout", "ActivityTimedOut"),
        ({"heartbeat_timeout": 5}, never_answered, "timeout", "ActivityTimedOut"),
    ],
)
def test_the_failure_of_a_standalone_activity_is_the_failure_of_its_run(
    policy: dict[str, Any], happens: Callable[[Flow], Decision], category: str, type: str
) -> None:
    flow = begun(retry_policy=RetryPolicy(max_attempts=1, **policy))
    event = only(happens(flow), WorkflowFailed)
    assert (event.failure_category, event.exception_type) == (category, type)
    assert (event.source_kind, event.source_id) == ("activity_execution", "RUN1-1")
    assert (flow.run.status, flow.rows) == ("failed", {})
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_retry_leaves_the_run_open() -> None:
    flow = begun(retry_policy=RetryPolicy(max_attempts=2, backoff_seconds=[3]))
    flow.begin(1)
    assert names(flow.fail(1).events) == ["ActivityRetryScheduled"]
    assert flow.run.is_open
    flow.begin(1, at=3)
    assert names(flow.finish(1).events) == ["ActivityCompleted", "WorkflowCompleted"]


def test_cancelling_the_run_cancels_the_activity() -> None:
    flow = begun()
    flow.begin(1)
    decision = flow.when(Cancel())
    assert names(decision.events) == ["CancelRequested", "ActivityCancelled", "WorkflowCancelled"]
    assert flow.refused(flow.finished(1)).reason == "run_cancelled"


def test_while_it_is_paused_no_worker_gets_it_and_what_was_begun_may_end() -> None:
    flow = begun()
    flow.begin(1)
    flow.when(Pause())
    assert names(flow.finish(1).events) == ["ActivityCompleted", "WorkflowCompleted"]


def test_there_is_nothing_to_signal_or_update() -> None:
    flow = begun()
    assert flow.signal("go").reply.rejection_reason == "unknown_signal"
    assert flow.update("add").reply.rejection_reason == "unknown_update"
    assert flow.run.is_open


def test_an_id_is_used_once_and_a_request_id_recalls_the_same_intent_only() -> None:
    flow = begun(request_id="r", arguments=b"[1]")
    before = len(flow.history)
    again = flow.when(flow_retry(flow, job(request_id="r", arguments=b"[1]")))
    assert (again.reply.run_id, again.reply.outcome, len(flow.history)) == ("RUN1", "started_new", before)
    assert flow.refused(flow_retry(flow, job(request_id="r", arguments=b"[2]"))).reason == "request_id_conflict"
    taken = flow.when(job())
    assert (taken.reply.accepted, taken.reply.rejection_reason) == (False, "instance_already_started")
    assert names(flow.history)[2:] == ["ActivityScheduled", "StartRejected"]


def flow_retry(flow: Flow, message: StartActivity) -> Message:
    return message.with_record(next(c for c in flow.commands if c.request_id == message.request_id))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            StartActivity(namespace="default", workflow_id="a", activity=ScheduleActivity(activity_type="")),
            "invalid_commands",
        ),
        (job("bad id"), "invalid_workflow_id"),
        (job(retry_policy=RetryPolicy(max_attempts=0)), "invalid_commands"),
        (
            job(retry_policy=RetryPolicy(max_attempts=1, heartbeat_timeout=9, start_to_close_timeout=1)),
            "invalid_commands",
        ),
        (job(arguments=b"x" * 101), "structural_limit_exceeded"),
        (job(workflow_type="order"), "invalid_workflow_type"),
        (started(workflow_type="backstay.activity"), "invalid_workflow_type"),
    ],
)
def test_a_standalone_activity_that_cannot_run_is_not_started(message: Message, reason: str) -> None:
    flow = Flow(Machine(limits=Limits(payload_size=100)))
    with pytest.raises(Refused) as refusal:
        flow.when(message)
    assert refusal.value.reason == reason
    assert flow.state.run is None
