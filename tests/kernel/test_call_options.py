"""Options that are carried whole: flat in what has them, in stored bytes too, and told by views as they were given."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from backstay.kernel.call_options import (
    SUMMARY_LENGTH,
    ActivityCallOptions,
    CallOptions,
    ChildCallOptions,
    check_options,
    options_of,
    shown_options,
)
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.activity.records import ActivitySnapshot
from backstay.kernel.features.child import StartChildWorkflow
from backstay.kernel.features.child.records import ChildWorkflowScheduled
from backstay.kernel.features.local_activity import RecordLocalActivity
from backstay.kernel.message import Refused
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.session import WorkerSession
from backstay.kernel.values import Routing
from backstay.protocol.task_commands.children import WireStartChild
from backstay.protocol.task_commands.steps import WireLocalActivity, WireScheduleActivity


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ScheduleActivity, ActivityCallOptions),
        (ActivitySnapshot, ActivityCallOptions),
        (WireScheduleActivity, ActivityCallOptions),
        (StartChildWorkflow, ChildCallOptions),
        (ChildWorkflowScheduled, ChildCallOptions),
        (WireStartChild, ChildCallOptions),
        (RecordLocalActivity, CallOptions),
        (WireLocalActivity, CallOptions),
    ],
)
def test_command_event_and_published_decoder_have_every_option(
    kind: type[msgspec.Struct], options: type[CallOptions]
) -> None:
    assert set(options.__struct_fields__) <= set(kind.__struct_fields__)


def test_options_are_flat_in_stored_bytes_and_in_the_order_they_always_had() -> None:
    session = WorkerSession(session_id="gpu")
    command = ScheduleActivity(activity_type="charge", queue="q", worker_session=session, sequence=3)
    assert msgspec.json.encode(command) == (
        b'{"type":"schedule_activity","sequence":3,"activity_type":"charge","queue":"q",'
        b'"worker_session":{"session_id":"gpu"}}'
    )
    snapshot = ActivitySnapshot(
        retry_policy=RetryPolicy(max_attempts=1), routing=Routing(), arguments=b"x", worker_session=session
    )
    assert list(msgspec.json.decode(msgspec.json.encode(snapshot))) == [
        "retry_policy",
        "routing",
        "arguments",
        "worker_session",
    ]
    child = StartChildWorkflow(workflow_type="w", queue="q", parent_close_policy="terminate", run_timeout_seconds=5)
    assert msgspec.json.encode(child) == (
        b'{"type":"start_child_workflow","workflow_type":"w","queue":"q","parent_close_policy":"terminate",'
        b'"run_timeout_seconds":5}'
    )


def test_views_tell_the_options_that_were_given() -> None:
    command = ScheduleActivity(activity_type="charge", summary="order 17")
    assert options_of(ActivityCallOptions, command) == {"summary": "order 17", "worker_session": None}
    assert shown_options(ActivityCallOptions, command) == {"summary": "order 17"}
    assert shown_options(ActivityCallOptions, ScheduleActivity(activity_type="charge")) is UNSET
    child = StartChildWorkflow(workflow_type="w", parent_close_policy="terminate")
    assert shown_options(ChildCallOptions, child, "parent_close_policy") is UNSET


def test_a_summary_has_a_bound() -> None:
    check_options(CallOptions(summary="x" * SUMMARY_LENGTH))
    with pytest.raises(Refused, match="summary has 201 characters, at most 200 are accepted") as refused:
        check_options(CallOptions(summary="x" * (SUMMARY_LENGTH + 1)))
    assert refused.value.fields["field"] == "summary"
