"""Events on the wire: literal names and values, times as text, payloads as base64, and nothing that is not there."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.codec import avro
from backstay.codec.values import dumps
from backstay.kernel.event import NO_CONTEXT, Context, Event, Recorded, encode_context, record
from backstay.kernel.failure import Failure, Property
from backstay.kernel.features.activity import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivitySnapshot,
    ActivityStarted,
    ActivityTimedOut,
    Progress,
    RetryPolicy,
)
from backstay.kernel.features.archive import ArchiveRequested, WorkflowArchived
from backstay.kernel.features.cancel import (
    CancelRequested,
    TerminateRequested,
    WorkflowCancelled,
    WorkflowTerminated,
)
from backstay.kernel.features.child import (
    CarriedChildClosed,
    ChildRunCancelled,
    ChildRunCompleted,
    ChildRunFailed,
    ChildRunStarted,
    ChildRunTerminated,
    ChildSignalsConfirmed,
    ChildSignalSent,
    ChildSignalSentByUpdate,
    ChildWorkflowScheduled,
    ParentClosePolicyApplied,
    ParentClosePolicyFailed,
)
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.condition import (
    ConditionWaitCancelled,
    ConditionWaitOpened,
    ConditionWaitSatisfied,
    ConditionWaitTimedOut,
)
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.failures import FailureHandled
from backstay.kernel.features.fork import HistoryInherited, WorkflowRewound
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.message_stream import MessageCursorAdvanced, MessageCursorCarried, MessageReceived
from backstay.kernel.features.pause import WorkflowPaused, WorkflowUnpaused
from backstay.kernel.features.repair import RepairRequested
from backstay.kernel.features.retry_now import ActivityRetryRequested
from backstay.kernel.features.schedule import Action, Schedule, SchedulePlan, Spec
from backstay.kernel.features.schedule.records import (
    ScheduleActionBuffered,
    ScheduleActionClosed,
    ScheduleActionContinued,
    ScheduleCarriedOn,
    ScheduleCreated,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleRolledOver,
    ScheduleStartConfirmed,
    ScheduleTriggered,
    ScheduleTriggerSkipped,
    ScheduleUpdated,
)
from backstay.kernel.features.search import SearchAttributesUpserted
from backstay.kernel.features.select import SelectionOperationCancelled, SelectionResolved
from backstay.kernel.features.side_effect import SideEffectRecorded
from backstay.kernel.features.signal import SignalApplied, SignalReceived, SignalWaitCancelled, SignalWaitOpened
from backstay.kernel.features.signal_rejection import SignalRejected
from backstay.kernel.features.skip_wait import WaitSkipped
from backstay.kernel.features.start import StartAccepted, StartRejected, WorkflowDefinitionAdopted, WorkflowStarted
from backstay.kernel.features.stream import StreamClosed, StreamItemAppended, StreamOpened, StreamRolledOver
from backstay.kernel.features.timer import TimerCancelled, TimerFired, TimerScheduled
from backstay.kernel.features.update import UpdateAccepted, UpdateApplied, UpdateCompleted, UpdateRejected
from backstay.kernel.features.version import VersionMarkerRecorded
from backstay.kernel.machine import Machine
from backstay.kernel.values import SECOND, Routing
from backstay.protocol.history import compress, decompress, iso, to_wire

SIGNAL: dict[str, Any] = {
    "workflow_command_id": "R-c2",
    "signal_id": "R-s2",
    "signal_name": "go",
    "signal_wait_id": "R-q1",
}
CONDITION: dict[str, Any] = {"sequence": 3, "condition_wait_id": "R-k3", "condition_key": "ready"}
CHILD: dict[str, Any] = {
    "sequence": 2,
    "workflow_link_id": "R-h2",
    "child_call_id": "R-h2",
    "child_workflow_instance_id": "I",
    "child_workflow_run_id": "C",
    "child_workflow_type": "ship",
}
CLOSED: dict[str, Any] = {**CHILD, "child_run_number": 1, "closed_reason": "done", "closed_at": 0}
UNSUCCESSFUL: dict[str, Any] = {**CLOSED, "failure_id": "R-f9", "failure_category": "child_workflow", "message": "no"}
POLICY: dict[str, Any] = {"child_call_id": "R-h2", "child_instance_id": "I", "policy": "terminate", "reason": "closed"}
UPDATE: dict[str, Any] = {"workflow_command_id": "R-c4", "update_id": "R-u4", "update_name": "rename"}
STOPPED: dict[str, Any] = {"failure_id": "R-f9", "failure_category": "cancelled", "message": "stopped"}

AT = int(datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC).timestamp() * SECOND)
TEXT = "2026-01-31T12:00:00.250000Z"
LATER = AT + 90 * SECOND
LATER_TEXT = "2026-01-31T12:01:30.250000Z"
BLOB = b"\x00\xffpayload"
BLOB_TEXT = base64.b64encode(BLOB).decode()
FAILURE = Failure(
    message="no",
    exception_type="shop.declined",
    code=42,
    details=BLOB,
    details_payload_codec="avro",
    properties=[Property(declaring_class="shop:Declined", name="code", value=BLOB)],
)

ACTIVITY = {"sequence": 1, "activity_execution_id": "R-1", "activity_type": "charge"}
ATTEMPT = {**ACTIVITY, "activity_attempt_id": "R-1-1"}
RUN: dict[str, Any] = {
    "workflow_command_id": "R-c1",
    "workflow_instance_id": "order-1",
    "workflow_run_id": "R",
    "workflow_type": "order",
}

MEMBER: dict[str, Any] = {
    "selection_group_id": "select-calls:1:2",
    "member_key": 0,
    "member_index": 0,
    "member_base_sequence": 1,
    "member_size": 1,
    "operation_kind": "activity",
    "operation_identity": "R-1",
}
PLAN: dict[str, Any] = {"spec": Spec(cron_expressions=["@daily"]), "action": Action(workflow_type="order")}
SPEC_TEXT = {"cron_expressions": ["@daily"], "intervals": [], "timezone": "UTC"}
FIRED: dict[str, Any] = {"trigger_number": 1, "workflow_instance_id": "schedule:s:trigger:1", "workflow_run_id": "R"}

CASES: list[tuple[Event, dict[str, Any]]] = [
    (StartAccepted(**RUN, outcome="started_new"), {"outcome": "started_new", "workflow_command_id": "R-c1"}),
    (
        StartRejected(**RUN, outcome="rejected_duplicate", rejection_reason="instance_already_started"),
        {"rejection_reason": "instance_already_started"},
    ),
    (
        WorkflowStarted(
            **RUN,
            arguments=BLOB,
            memo={"note": BLOB},
            visibility_labels={"tenant": "a"},
            search_attributes={"size": 3},
            execution_deadline_at=LATER,
            run_deadline_at=AT,
            routing=Routing(queue="eu"),
        ),
        {
            "arguments": BLOB_TEXT,
            "memo": {"note": BLOB_TEXT},
            "execution_deadline_at": LATER_TEXT,
            "run_deadline_at": TEXT,
            "routing": {"namespace": "default", "queue": "eu", "priority": 5, "fairness_weight": 1},
        },
    ),
    (
        ActivityScheduled(
            **ACTIVITY,
            activity=ActivitySnapshot(
                retry_policy=RetryPolicy(max_attempts=3, backoff_seconds=[0.5]), routing=Routing(), arguments=BLOB
            ),
        ),
        {"activity_type": "charge", "sequence": 1},
    ),
    (ActivityStarted(**ATTEMPT, attempt_number=1, lease_expires_at=LATER), {"lease_expires_at": LATER_TEXT}),
    (
        ActivityHeartbeatRecorded(
            **ATTEMPT, attempt_number=1, heartbeat_at=AT, progress=Progress(message="half", current=1)
        ),
        {"heartbeat_at": TEXT, "progress": {"message": "half", "current": 1.0}},
    ),
    (
        ActivityRetryScheduled(
            **ATTEMPT,
            retry_task_id="R-a1.2",
            retry_of_task_id="R-a1.1",
            retry_available_at=LATER,
            retry_backoff_seconds=90,
            retry_after_attempt_id="R-1-1",
            retry_after_attempt=1,
            retry_reason="activity_failed",
            message="no",
            exception=FAILURE,
        ),
        {"retry_available_at": LATER_TEXT, "retry_backoff_seconds": 90, "retry_reason": "activity_failed"},
    ),
    (ActivityCompleted(**ATTEMPT, attempt_number=1, result=BLOB), {"result": BLOB_TEXT}),
    (
        ActivityFailed(
            **ATTEMPT,
            attempt_number=1,
            failure_id="R-f9",
            message="no",
            code=42,
            exception_type="shop.declined",
            exception=FAILURE,
        ),
        {"message": "no", "code": 42, "exception_type": "shop.declined"},
    ),
    (
        ActivityTimedOut(
            **ATTEMPT,
            attempt_number=1,
            failure_id="R-f9",
            timeout_kind="heartbeat",
            message="late",
            heartbeat_deadline_at=LATER,
        ),
        {"timeout_kind": "heartbeat", "heartbeat_deadline_at": LATER_TEXT},
    ),
    (ActivityCancelled(**ACTIVITY, cancelled_at=LATER), {"cancelled_at": LATER_TEXT}),
    (
        TimerScheduled(sequence=2, timer_id="R-t2", delay_seconds=90.5, fire_at=LATER),
        {"timer_id": "R-t2", "delay_seconds": 90.5, "fire_at": LATER_TEXT},
    ),
    (
        TimerFired(sequence=2, timer_id="R-t2", delay_seconds=90, fire_at=LATER, fired_at=AT),
        {"fire_at": LATER_TEXT, "fired_at": TEXT},
    ),
    (
        TimerCancelled(sequence=2, timer_id="R-t2", delay_seconds=90, fire_at=LATER, cancelled_at=AT),
        {"fire_at": LATER_TEXT, "cancelled_at": TEXT},
    ),
    (
        SignalReceived(**SIGNAL, arguments=BLOB),
        {"signal_id": "R-s2", "signal_wait_id": "R-q1", "arguments": BLOB_TEXT, "payload_codec": "avro"},
    ),
    (
        SignalWaitOpened(sequence=1, signal_name="go", signal_wait_id="R-q1", timeout_seconds=0.5),
        {"signal_name": "go", "timeout_seconds": 0.5},
    ),
    (SignalApplied(**SIGNAL, sequence=1, value=BLOB), {"sequence": 1, "value": BLOB_TEXT}),
    (ConditionWaitOpened(**CONDITION), {"condition_wait_id": "R-k3", "condition_key": "ready"}),
    (ConditionWaitSatisfied(**CONDITION, timer_id="R-t3"), {"timer_id": "R-t3"}),
    (ConditionWaitTimedOut(**CONDITION, timer_id="R-t3"), {"timer_id": "R-t3"}),
    (ConditionWaitCancelled(**CONDITION, timer_id="R-t3"), {"timer_id": "R-t3"}),
    (SignalWaitCancelled(sequence=1, signal_name="go", signal_wait_id="R-q1"), {"signal_name": "go"}),
    (UpdateAccepted(**UPDATE, arguments=BLOB), {"update_id": "R-u4", "arguments": BLOB_TEXT}),
    (
        UpdateRejected(**UPDATE, rejection_reason="unknown_update", validation_errors={"by": ["is missing"]}),
        {"rejection_reason": "unknown_update", "validation_errors": {"by": ["is missing"]}},
    ),
    (UpdateApplied(**UPDATE, arguments=BLOB, sequence=3), {"sequence": 3, "arguments": BLOB_TEXT}),
    (UpdateCompleted(**UPDATE, result=BLOB), {"result": BLOB_TEXT, "outcome": "update_completed"}),
    (
        CancelRequested(workflow_command_id="R-c5", command_type="cancel", reason="late", cleanup_deadline_at=LATER),
        {"command_type": "cancel", "reason": "late", "cleanup_deadline_at": LATER_TEXT},
    ),
    (TerminateRequested(workflow_command_id="R-c5", command_type="terminate"), {"command_type": "terminate"}),
    (WorkflowCancelled(**STOPPED, closed_reason="cancelled"), {"closed_reason": "cancelled"}),
    (WorkflowTerminated(**STOPPED, closed_reason="terminated"), {"closed_reason": "terminated"}),
    (
        WorkflowDefinitionAdopted(workflow_definition_fingerprint="sha256:1", declared_updates=["pay"]),
        {"workflow_definition_fingerprint": "sha256:1", "declared_updates": ["pay"], "declared_signals": []},
    ),
    (
        SignalRejected(
            **SIGNAL,
            rejection_reason="invalid_signal_arguments",
            validation_errors={"text": ["is missing"]},
        ),
        {"rejection_reason": "invalid_signal_arguments", "validation_errors": {"text": ["is missing"]}},
    ),
    (WorkflowPaused(workflow_command_id="R-c5", reason="incident"), {"reason": "incident"}),
    (WorkflowUnpaused(workflow_command_id="R-c6"), {"workflow_command_id": "R-c6"}),
    (
        ActivityRetryRequested(
            workflow_command_id="R-c5",
            activity_execution_id="R-1",
            activity_type="charge",
            step=1,
            retry_task_id="R-a1.2",
            retry_available_at=LATER,
        ),
        {"activity_execution_id": "R-1", "step": 1, "retry_available_at": LATER_TEXT},
    ),
    (
        HistoryInherited(
            workflow_command_id="R-c5",
            from_workflow_instance_id="w",
            from_workflow_run_id="Q",
            inherited_through=7,
            inherited_events=6,
        ),
        {"from_workflow_run_id": "Q", "inherited_through": 7, "inherited_events": 6, "rewound": False},
    ),
    (
        WorkflowRewound(
            workflow_command_id="R-c5", continued_to_run_id="S", continued_to_run_number=2, rewound_through=7
        ),
        {"continued_to_run_id": "S", "rewound_through": 7, "closed_reason": "rewound"},
    ),
    (
        WaitSkipped(workflow_command_id="R-c5", timer_id="R-t1", step=1, fire_at=LATER, reason="why"),
        {"timer_id": "R-t1", "step": 1, "fire_at": LATER_TEXT, "reason": "why"},
    ),
    (ScheduleCreated(schedule_id="s", **PLAN), {"schedule_id": "s", "spec": SPEC_TEXT, "overlap_policy": "skip"}),
    (ScheduleUpdated(**PLAN, changed=["note"]), {"changed": ["note"], "jitter_seconds": 0}),
    (SchedulePaused(note="n"), {"note": "n"}),
    (ScheduleResumed(note="n"), {"note": "n"}),
    (
        ScheduleTriggered(schedule_id="s", **FIRED, occurrence_time=AT, effective_overlap_policy="allow_all"),
        {"trigger_number": 1, "occurrence_time": TEXT, "effective_overlap_policy": "allow_all"},
    ),
    (ScheduleTriggerSkipped(reason="overlap_policy_skip", occurrence_time=AT), {"skipped": 1, "occurrence_time": TEXT}),
    (ScheduleActionBuffered(occurrence_time=AT), {"occurrence_time": TEXT, "cause": "schedule"}),
    (
        ScheduleActionClosed(**FIRED, status="completed", closed_reason="completed", closed_at=AT),
        {"status": "completed", "closed_at": TEXT},
    ),
    (ScheduleActionContinued(**FIRED, run_number=2), {"run_number": 2}),
    (ScheduleDeleted(reason="deleted"), {"reason": "deleted"}),
    (
        ScheduleStartConfirmed(trigger_number=1, workflow_instance_id="w"),
        {"trigger_number": 1, "workflow_instance_id": "w"},
    ),
    (ScheduleRolledOver(continued_to_run_id="S2"), {"continued_to_run_id": "S2"}),
    (MessageCursorAdvanced(stream_key="in", previous_position=0, new_position=2), {"new_position": 2}),
    (MessageCursorCarried(stream_name="in", through_position=2), {"signal_name": "__durable_workflow_message_stream"}),
    (
        MessageReceived(
            workflow_command_id="R-c1", signal_id="R-s1", stream_name="in", message_id="m", position=1, payload=BLOB
        ),
        {"signal_name": "__durable_workflow_message_stream", "signal_id": "R-s1", "payload_codec": "avro"},
    ),
    (
        StreamOpened(stream_name="out", workflow_instance_id="o", workflow_run_id="R", opened_at=AT),
        {"stream_name": "out", "opened_at": TEXT},
    ),
    (StreamItemAppended(payload=BLOB, item_type="row", origin="api"), {"item_type": "row", "payload_codec": "avro"}),
    (StreamRolledOver(continued_to_run_id="S2"), {"continued_to_run_id": "S2"}),
    (StreamClosed(status="errored", error_reason="broke"), {"status": "errored", "error_reason": "broke"}),
    (
        ScheduleCarriedOn(state=Schedule(schedule_id="s", plan=SchedulePlan(**PLAN), created_at=AT, updated_at=AT)),
        {},
    ),
    (ArchiveRequested(workflow_command_id="R-c7", outcome="archived"), {"command_type": "archive"}),
    (WorkflowArchived(archive_command_id="R-c7"), {"archive_command_id": "R-c7"}),
    (RepairRequested(workflow_command_id="R-c8", outcome="repair_not_needed"), {"command_type": "repair"}),
    (ChildWorkflowScheduled(**CHILD, arguments=BLOB), {"child_call_id": "R-h2", "parent_close_policy": "abandon"}),
    (ChildRunStarted(**CHILD), {"child_run_number": 1, "child_status": "pending"}),
    (ChildRunCompleted(**CLOSED, child_status="completed", output=BLOB), {"output": BLOB_TEXT}),
    (ChildRunFailed(**UNSUCCESSFUL, child_status="failed"), {"child_status": "failed", "message": "no"}),
    (ChildRunCancelled(**UNSUCCESSFUL, child_status="cancelled"), {"child_status": "cancelled"}),
    (ChildRunTerminated(**UNSUCCESSFUL, child_status="terminated"), {"child_status": "terminated"}),
    (ChildSignalSent(sequence=4, child_call_id="R-h2", signal_name="go"), {"signal_name": "go"}),
    (
        ChildSignalSentByUpdate(update_id="R-u4", number=0, child_call_id="R-h2", signal_name="go"),
        {"update_id": "R-u4", "number": 0},
    ),
    (ChildSignalsConfirmed(child_call_id="c", through=7), {"child_call_id": "c", "through": 7}),
    (
        CarriedChildClosed(
            child_call_id="Q-h2",
            child_workflow_instance_id="I",
            child_workflow_run_id="C",
            child_status="failed",
            closed_reason="failed",
        ),
        {"child_call_id": "Q-h2", "child_status": "failed"},
    ),
    (ParentClosePolicyApplied(**POLICY), {"policy": "terminate"}),
    (ParentClosePolicyFailed(**POLICY, error="no"), {"error": "no"}),
    (
        SelectionResolved(
            **MEMBER,
            selection_group_base_sequence=1,
            selection_group_size=2,
            outcome="completed",
            resolution_event_id="R-e8",
            resolution_event_type="ActivityCompleted",
        ),
        {**MEMBER, "outcome": "completed", "resolution_event_id": "R-e8"},
    ),
    (SelectionOperationCancelled(**MEMBER), MEMBER),
    (SideEffectRecorded(sequence=3, result=BLOB), {"sequence": 3, "result": BLOB_TEXT}),
    (
        VersionMarkerRecorded(sequence=4, change_id="fee", version=2, min_supported=-1, max_supported=3),
        {"sequence": 4, "change_id": "fee", "version": 2, "min_supported": -1, "max_supported": 3},
    ),
    (
        # A memo crosses as one envelope of a map, whatever it is kept as.
        MemoUpserted(sequence=5, entries={"a": dumps(1), "gone": None}, merged={"a": dumps(1)}),
        {
            "entries": {"codec": "avro", "blob": avro.to_text(dumps({"a": 1, "gone": None}))},
            "merged": {"codec": "avro", "blob": avro.to_text(dumps({"a": 1}))},
        },
    ),
    (
        SearchAttributesUpserted(sequence=6, attributes={"a": 1, "gone": None}, merged={"a": 1}),
        {"attributes": {"a": 1, "gone": None}, "merged": {"a": 1}},
    ),
    (
        FailureHandled(
            failure_id="R-f9",
            sequence=1,
            failure_category="activity",
            source_kind="activity_execution",
            source_id="R-1",
            propagation_kind="activity",
            message="no",
        ),
        {"failure_id": "R-f9"},
    ),
    (
        WorkflowContinuedAsNew(sequence=7, continued_to_run_id="S", continued_to_run_number=2, workflow_link_id="R-n2"),
        {"continued_to_run_id": "S"},
    ),
    (WorkflowCompleted(output=BLOB), {"output": BLOB_TEXT}),
    (
        WorkflowFailed(
            failure_id="R-f9", source_kind="workflow_run", source_id="R", failure_category="application", message="no"
        ),
        {"failure_category": "application", "message": "no"},
    ),
    (
        WorkflowTimedOut(failure_id="R-f9", timeout_kind="run_timeout", message="late", run_deadline_at=AT),
        {"timeout_kind": "run_timeout", "run_deadline_at": TEXT},
    ),
]


def recorded(event: Event, context: Context = NO_CONTEXT, sequence: int = 9) -> Recorded:
    return record(1, sequence, AT, event, context, encode_context(context), 0)


SHOWN_AS: dict[type[Event], str] = dict.fromkeys((MessageReceived, MessageCursorCarried), "SignalReceived")
"""What workers are told under another name."""


def test_every_event_of_the_kernel_has_a_case_here() -> None:
    assert {type(event).__name__ for event, _ in CASES} == set(Machine().kinds)


@pytest.mark.parametrize(("event", "expected"), CASES, ids=[type(event).__name__ for event, _ in CASES])
def test_an_event_on_the_wire(event: Event, expected: dict[str, Any]) -> None:
    wire = to_wire(recorded(event), "R")
    assert {key: wire[key] for key in ("id", "sequence", "event_type", "recorded_at")} == {
        "id": "R-e9",
        "sequence": 9,
        "event_type": SHOWN_AS.get(type(event), type(event).__name__),
        "recorded_at": TEXT,
    }
    payload = wire["payload"]
    assert {key: payload[key] for key in expected} == expected
    assert None not in payload.values(), "what does not apply is left out"
    assert json.loads(msgspec.json.encode(wire)) == wire, "plain JSON"
    assert "decided_after" not in wire
    assert "task" not in payload


@pytest.mark.parametrize(
    ("kind", "always"),
    [
        ("WorkflowStarted", {"payload_codec": "avro"}),
        ("ActivityCompleted", {"payload_codec": "avro"}),
        ("ActivityFailed", {"failure_category": "activity", "non_retryable": False}),
        ("ActivityTimedOut", {"failure_category": "timeout"}),
        ("FailureHandled", {"handled": True}),
        ("WorkflowContinuedAsNew", {"closed_reason": "continued"}),
        ("WorkflowCompleted", {"payload_codec": "avro"}),
    ],
)
def test_fields_with_constant_values_are_on_the_wire(kind: str, always: dict[str, Any]) -> None:
    (event,) = (event for event, _ in CASES if type(event).__name__ == kind)
    payload = to_wire(recorded(event), "R")["payload"]
    assert {key: payload.get(key) for key in always} == always


def test_every_field_of_an_event_that_holds_a_time_is_text() -> None:
    """Whatever ends in `_at` is a time; a new event that forgets the annotation shows up here."""
    for event, _ in CASES:
        for name, value in to_wire(recorded(event), "R")["payload"].items():
            if name.endswith("_at"):
                assert isinstance(value, str), (type(event).__name__, name)


def test_the_task_that_caused_an_event_is_told_as_a_snapshot() -> None:
    context = Context(
        decided_after=4, task_id="R-w2", attempt=3, owner="worker-1", leased_at=AT, lease_expires_at=LATER
    )
    wire = to_wire(recorded(SideEffectRecorded(sequence=3, result=b""), context), "R")
    assert wire["payload"]["task"] == {
        "id": "R-w2",
        "attempt_count": 3,
        "lease_owner": "worker-1",
        "leased_at": TEXT,
        "lease_expires_at": LATER_TEXT,
    }
    assert wire["workflow_task_id"] == "R-w2"
    assert wire["decided_after"] == 4


def test_unknown_fields_of_a_task_snapshot_are_left_out() -> None:
    wire = to_wire(recorded(WorkflowCompleted(), Context(task_id="R-w2", attempt=1)), "R")
    assert wire["payload"]["task"] == {"id": "R-w2", "attempt_count": 1}
    assert "decided_after" not in wire


def test_the_command_that_caused_an_event_is_named() -> None:
    wire = to_wire(recorded(StartAccepted(**RUN)), "R")
    assert wire["workflow_command_id"] == "R-c1"
    assert wire["workflow_task_id"] is None
    assert to_wire(recorded(WorkflowCompleted()), "R")["workflow_command_id"] is None


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (AT, TEXT),
        (4_102_444_800 * SECOND, "2100-01-01T00:00:00.000000Z"),
    ],
)
def test_times_are_utc_to_the_microsecond(at: int, text: str) -> None:
    assert iso(at) == text


values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=20)
    | st.lists(st.floats(0, 1), max_size=2)
)
histories = st.lists(st.dictionaries(st.text(max_size=8), values, max_size=3), max_size=5)


@pytest.mark.contract("HIST-07")
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@settings(max_examples=40, deadline=None)
@given(history=histories)
def test_compressing_and_decompressing_are_inverse(encoding: Any, history: list[dict[str, Any]]) -> None:
    assert decompress(compress(history, encoding), encoding) == history


@pytest.mark.contract("HIST-07")
def test_a_standard_library_can_read_a_compressed_history() -> None:
    history = [to_wire(recorded(event, sequence=number), "R") for number, (event, _) in enumerate(CASES, 1)]
    assert json.loads(gzip.decompress(base64.b64decode(compress(history, "gzip")))) == history
    assert json.loads(zlib.decompress(base64.b64decode(compress(history, "deflate")))) == history
    assert compress(history, "gzip") == compress(history, "gzip"), "the same history is the same text"


@pytest.mark.parametrize("wrong", ["", "no base64!", base64.b64encode(b"not packed").decode()])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_malformed_compressed_history_is_an_error(encoding: Any, wrong: str) -> None:
    with pytest.raises((ValueError, OSError, EOFError, zlib.error, msgspec.DecodeError)):
        decompress(wrong, encoding)
