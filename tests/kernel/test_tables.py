"""The tables of the machine: each event one fold, each command one rule, and every name literally that of the contract."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from backstay.kernel.command import Command, StepCommand, TerminalCommand
from backstay.kernel.event import Event, StepEvent
from backstay.kernel.feature import Compatibility, Deciding, Feature, History, Lifecycle, Sends
from backstay.kernel.feature_list import FEATURES
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message

MACHINE = Machine()

ACT = "activity_execution_id activity_class activity_type sequence"
LOCAL = "execution_mode local_activity workflow_task_id"
EXC = "exception_type exception_class message code exception"
GROUP = (
    "parallel_group_id parallel_group_kind parallel_group_base_sequence parallel_group_size parallel_group_index"
    " parallel_group_path"
)
LIMIT = "structural_limit_kind structural_limit_value structural_limit_configured"
ATTEMPT = f"{ACT} {LOCAL} {GROUP} activity activity_attempt activity_attempt_id attempt_number"
START = (
    "workflow_command_id workflow_instance_id workflow_run_id workflow_class workflow_type business_key"
    " visibility_labels memo search_attributes outcome rejection_reason"
)
DECLARED = (
    "declared_queries declared_query_contracts declared_signals declared_signal_contracts declared_updates"
    " declared_update_contracts declared_entry_method declared_entry_mode declared_entry_declaring_class"
)
TIMER = (
    "timer_id sequence delay_seconds fire_at timer_kind condition_wait_id condition_key"
    f" condition_definition_fingerprint signal_wait_id signal_name {GROUP}"
)

CONDITION = f"condition_wait_id condition_key condition_definition_fingerprint sequence timeout_seconds {GROUP}"
SELECTION = (
    "selection_group_id member_key member_index member_base_sequence member_size operation_kind operation_identity"
)
CHILD = (
    "sequence workflow_link_id child_call_id child_workflow_instance_id child_workflow_run_id child_workflow_class"
    f" child_workflow_type {GROUP}"
)
CHILD_CLOSED = "child_run_number child_status closed_reason closed_at"
POLICY = "child_instance_id child_run_id policy reason child_call_id"
UPDATE = "workflow_command_id update_id workflow_instance_id workflow_run_id update_name"
PLAN = "spec action overlap_policy jitter_seconds max_runs memo search_attributes visibility_labels note next_fire"
FIRED = "occurrence_time effective_overlap_policy cause next_fire"
STOP = "workflow_command_id workflow_instance_id workflow_run_id command_type reason"
STOPPED = f"{STOP} failure_id failure_category closed_reason exception_class message"

ALLOWED = {
    "StartAccepted": START,
    "StartRejected": START,
    "WorkflowStarted": f"{START} {DECLARED} execution_timeout_seconds run_timeout_seconds execution_deadline_at"
    " run_deadline_at workflow_definition_fingerprint parent_workflow_instance_id parent_workflow_run_id parent_sequence"
    " workflow_link_id child_call_id retry_policy timeout_policy continued_from_run_id retry_attempt"
    " retry_of_child_workflow_run_id"
    " arguments payload_codec declared_change_ids declared_cleanup_seconds declared_update_validators routing"
    " parent_namespace"
    " first_task_at open_children occurrence_time standalone traceparent seed",
    "WorkflowDefinitionAdopted": f"{DECLARED} workflow_class workflow_definition_fingerprint declared_change_ids"
    " declared_cleanup_seconds declared_update_validators",
    "WorkflowContinuedAsNew": "sequence continued_to_run_id continued_to_run_number workflow_link_id closed_reason",
    "WorkflowCompleted": "output payload_codec",
    "WorkflowFailed": "failure_id source_kind source_id failure_category non_retryable exception_type exception_class"
    f" message exception {LIMIT}",
    "WorkflowTimedOut": "failure_id timeout_kind failure_category message exception_class execution_deadline_at"
    " run_deadline_at",
    "ActivityScheduled": f"{ACT} {LOCAL} {GROUP} activity",
    "ActivityStarted": f"{ATTEMPT} lease_expires_at",
    "ActivityHeartbeatRecorded": f"{ATTEMPT} heartbeat_at lease_expires_at progress",
    "HistoryInherited": "workflow_command_id from_workflow_instance_id from_workflow_run_id inherited_through"
    " inherited_events rewound replaced_steps reason",
    "WorkflowRewound": "workflow_command_id continued_to_run_id continued_to_run_number rewound_through closed_reason reason",
    "WaitSkipped": "workflow_command_id timer_id step fire_at reason",
    "ActivityRetryScheduled": f"{ACT} {LOCAL} {EXC} {GROUP} activity activity_attempt_id retry_task_id retry_of_task_id"
    " retry_available_at retry_backoff_seconds retry_after_attempt_id retry_after_attempt retry_reason max_attempts"
    " retry_policy timeout_kind crashes",
    "ActivityCompleted": f"{ATTEMPT} result payload_codec",
    "ActivityFailed": f"{ATTEMPT} {EXC} {LIMIT} failure_id failure_category non_retryable",
    "ActivityTimedOut": f"{ATTEMPT} failure_id failure_category timeout_kind message exception_class"
    " schedule_deadline_at close_deadline_at schedule_to_close_deadline_at heartbeat_deadline_at",
    "ActivityCancelled": f"{ATTEMPT} workflow_command_id cancelled_at awaited",
    "TimerScheduled": TIMER,
    "TimerFired": f"{TIMER} fired_at",
    "TimerCancelled": f"{TIMER} cancelled_at",
    "ChildWorkflowScheduled": f"{CHILD} summary parent_close_policy retry_policy timeout_policy arguments routing definition",
    "ChildRunStarted": f"{CHILD} child_run_number child_status parent_close_policy retry_policy timeout_policy"
    " execution_timeout_seconds run_timeout_seconds execution_deadline_at run_deadline_at retry_attempt"
    " retry_of_child_workflow_run_id retry_backoff_seconds",
    "ChildRunCompleted": f"{CHILD} {CHILD_CLOSED} output result payload_codec",
    "ChildRunFailed": f"{CHILD} {CHILD_CLOSED} {EXC} failure_id failure_category",
    "ChildRunCancelled": f"{CHILD} {CHILD_CLOSED} {EXC} failure_id failure_category",
    "ChildRunTerminated": f"{CHILD} {CHILD_CLOSED} {EXC} failure_id failure_category",
    "ChildSignalSent": "sequence child_call_id signal_name arguments",
    "ChildSignalSentByUpdate": "update_id number child_call_id signal_name arguments",
    "ChildSignalsConfirmed": "child_call_id through",
    "CarriedChildClosed": "child_call_id child_workflow_instance_id child_workflow_run_id child_status closed_reason",
    "ParentClosePolicyApplied": POLICY,
    "ParentClosePolicyFailed": f"{POLICY} error",
    "SignalReceived": "workflow_command_id signal_id workflow_instance_id workflow_run_id signal_name signal_wait_id"
    " arguments payload_codec",
    "SignalWaitOpened": "signal_name signal_wait_id sequence timeout_seconds",
    "SignalApplied": "workflow_command_id signal_id signal_name signal_wait_id sequence value",
    "SignalRejected": "workflow_command_id signal_id signal_name signal_wait_id rejection_reason validation_errors",
    "ConditionWaitOpened": CONDITION,
    "ConditionWaitSatisfied": f"{CONDITION} timer_id workflow_signal_id signal_name signal_wait_id",
    "ConditionWaitTimedOut": f"{CONDITION} timer_id",
    "ConditionWaitCancelled": f"{CONDITION} timer_id",
    "SignalWaitCancelled": "signal_name signal_wait_id sequence",
    "UpdateAccepted": f"{UPDATE} arguments payload_codec target_scope",
    "UpdateRejected": f"{UPDATE} arguments payload_codec validation_errors outcome rejection_reason",
    "UpdateApplied": f"{UPDATE} arguments payload_codec sequence",
    "UpdateCompleted": f"{UPDATE} {EXC} sequence result failure_id failure_category non_retryable terminal_reason"
    " payload_codec outcome",
    "CancelRequested": f"{STOP} cleanup_deadline_at",
    "TerminateRequested": STOP,
    "WorkflowCancelled": STOPPED,
    "WorkflowTerminated": STOPPED,
    "WorkflowPaused": "workflow_command_id reason",
    "WorkflowUnpaused": "workflow_command_id reason",
    "ActivityRetryRequested": "workflow_command_id activity_execution_id activity_type step retry_task_id"
    " retry_available_at reason",
    "ArchiveRequested": "workflow_command_id workflow_instance_id workflow_run_id command_type outcome reason",
    "WorkflowArchived": "workflow_command_id workflow_instance_id workflow_run_id archive_command_id reason",
    "RepairRequested": "workflow_command_id workflow_instance_id workflow_run_id command_type outcome liveness_state"
    " wait_kind task_id task_type",
    "SelectionResolved": f"{SELECTION} selection_group_base_sequence selection_group_size outcome resolution_event_id"
    " resolution_event_type",
    "SelectionOperationCancelled": SELECTION,
    "SideEffectRecorded": "sequence result stream_name stream_items",
    "VersionMarkerRecorded": "sequence change_id version min_supported max_supported",
    "FailureHandled": "failure_id sequence failure_category source_kind source_id propagation_kind exception_class"
    " exception_type message handled resolved_class resolution_source",
    "SearchAttributesUpserted": "sequence attributes merged",
    "MemoUpserted": "sequence entries merged",
    "ScheduleCreated": f"{PLAN} schedule_id paused trigger_number sequence_base",
    "ScheduleUpdated": f"{PLAN} changed",
    "SchedulePaused": "note",
    "ScheduleResumed": "note next_fire",
    "ScheduleTriggered": f"{FIRED} schedule_id trigger_number workflow_instance_id workflow_run_id outcome drained",
    "ScheduleTriggerSkipped": f"{FIRED} reason skipped",
    "ScheduleDeleted": "reason confirms_starts",
    "ScheduleActionBuffered": FIRED,
    "ScheduleActionClosed": "trigger_number workflow_instance_id workflow_run_id status closed_reason closed_at started"
    " message",
    "ScheduleActionContinued": "trigger_number workflow_instance_id workflow_run_id run_number",
    "ScheduleStartConfirmed": "trigger_number workflow_instance_id",
    "ScheduleRolledOver": "continued_to_run_id",
    "MessageReceived": "workflow_command_id signal_id stream_name message_id position payload payload_codec",
    "MessageCursorAdvanced": "stream_key previous_position new_position",
    "MessageCursorCarried": "stream_name through_position",
    "StreamOpened": "stream_name workflow_instance_id workflow_run_id first_offset opened_at last_appended_at keys",
    "StreamItemAppended": "payload payload_codec payload_reference idempotency_key item_type content_type origin"
    " origin_reference",
    "StreamRolledOver": "continued_to_run_id",
    "StreamClosed": "status error_reason retention_seconds",
    "ScheduleCarriedOn": "state",
}
"""The payload keys of the catalogue, and ours behind them."""

COMMANDS = {
    "ScheduleActivity": "schedule_activity",
    "CancelActivity": "cancel_activity",
    "RecordLocalActivity": "record_local_activity",
    "StartTimer": "start_timer",
    "CancelTimer": "cancel_timer",
    "RecordSideEffect": "record_side_effect",
    "WriteStream": "write_stream",
    "AdvanceMessageCursor": "advance_message_cursor",
    "RecordVersionMarker": "record_version_marker",
    "StartChildWorkflow": "start_child_workflow",
    "CancelChild": "cancel_child",
    "CancelSelectionOperation": "cancel_selection_operation",
    "SignalChild": "signal_child",
    "SignalChildFromUpdate": "signal_child_from_update",
    "OpenConditionWait": "open_condition_wait",
    "SatisfyConditionWait": "satisfy_condition_wait",
    "TimeOutConditionWait": "time_out_condition_wait",
    "CancelConditionWait": "cancel_condition_wait",
    "CancelSignalWait": "cancel_signal_wait",
    "OpenSignalWait": "open_signal_wait",
    "ApplySignal": "apply_signal",
    "RejectSignal": "reject_signal",
    "AdoptDefinition": "adopt_definition",
    "CompleteUpdate": "complete_update",
    "FailUpdate": "fail_update",
    "CancelWorkflow": "cancel_workflow",
    "UpsertMemo": "upsert_memo",
    "UpsertSearchAttributes": "upsert_search_attributes",
    "CompleteWorkflow": "complete_workflow",
    "FailWorkflow": "fail_workflow",
    "ContinueAsNew": "continue_as_new",
}


def every(base: type[Any]) -> Iterator[type[Any]]:
    """All concrete types under a base: those with no subtypes of their own."""
    for kind in base.__subclasses__():
        if kind.__subclasses__():
            yield from every(kind)
        elif kind.__module__.startswith("backstay.kernel."):
            yield kind


def tag_of(kind: type[Command]) -> str:
    return msgspec.inspect.type_info(kind).tag  # type: ignore[union-attr,return-value]


EVENTS = sorted(set(every(Event)), key=lambda kind: kind.__name__)
COMMAND_KINDS = sorted(set(every(Command)), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_has_exactly_one_fold(kind: type[Event]) -> None:
    assert len([feature.name for feature in FEATURES if kind in feature.history.evolve]) == 1
    assert MACHINE.kinds[kind.__name__] is kind


@pytest.mark.parametrize("kind", COMMAND_KINDS, ids=lambda kind: kind.__name__)
def test_a_command_has_exactly_one_rule_and_it_checks_before_it_applies(kind: type[Command]) -> None:
    tables = [feature.deciding.commands for feature in FEATURES]
    (rule,) = [commands[kind] for commands in tables if kind in commands]
    assert callable(rule.check)
    assert callable(rule.apply)


def test_a_message_is_decided_by_exactly_one_feature() -> None:
    deciders = Counter(kind for feature in FEATURES for kind in feature.deciding.messages)
    assert {kind: deciders[kind] for kind in set(every(Message))} == dict.fromkeys(set(every(Message)), 1)


def test_wire_tags_are_unique() -> None:
    tags = Counter(tag_of(kind) for kind in MACHINE.commands)
    assert [tag for tag, count in tags.items() if count > 1] == []


def test_wire_tags_are_literally_those_of_the_contract() -> None:
    assert {kind.__name__: tag_of(kind) for kind in MACHINE.commands} == COMMANDS
    assert {msgspec.inspect.type_info(kind).tag_field for kind in MACHINE.commands} == {"type"}  # type: ignore[union-attr]


def test_event_names_are_literally_those_of_the_catalogue() -> None:
    assert set(MACHINE.kinds) == set(ALLOWED)


@pytest.mark.parametrize("name", ALLOWED)
def test_payload_keys_are_only_those_the_catalogue_allows(name: str) -> None:
    assert set(MACHINE.kinds[name].__struct_fields__) - set(ALLOWED[name].split()) == set()


@pytest.mark.parametrize("name", ALLOWED)
def test_a_payload_key_is_written_under_its_own_name(name: str) -> None:
    kind = MACHINE.kinds[name]
    assert kind.__struct_encode_fields__ == kind.__struct_fields__
    assert msgspec.inspect.type_info(kind).tag is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "kind", [kind for kind in EVENTS if issubclass(kind, StepEvent)], ids=lambda kind: kind.__name__
)
def test_a_step_event_has_a_shape(kind: type[Event]) -> None:
    assert len([feature.name for feature in FEATURES if kind in feature.history.shapes]) == 1


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_only_a_step_event_has_a_shape_or_an_outcome(kind: type[Event]) -> None:
    claims = [f.name for f in FEATURES if kind in f.history.shapes or kind in f.history.outcomes]
    assert issubclass(kind, StepEvent) or claims == []


@pytest.mark.parametrize("kind", COMMAND_KINDS, ids=lambda kind: kind.__name__)
def test_a_command_cannot_both_take_a_step_and_close_the_run(kind: type[Command]) -> None:
    assert not (issubclass(kind, StepCommand) and issubclass(kind, TerminalCommand))


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "deciding": Deciding,
    "history": History,
    "lifecycle": Lifecycle,
    "sends": Sends,
    "compatibility": Compatibility,
}
HOOKS = [(section, hook) for section, kind in SECTIONS.items() for hook in kind.__struct_fields__]
TABLES = [(section, hook) for section, hook in HOOKS if "Mapping" in SECTIONS[section].__annotations__[hook]]


def test_a_feature_is_made_of_sections() -> None:
    assert Feature.__struct_fields__ == ("name", *SECTIONS, "words", "operator")  # see test_words, test_operators


@pytest.mark.parametrize(("section", "hook"), HOOKS)
def test_some_feature_uses_each_hook(section: str, hook: str) -> None:
    unused = getattr(SECTIONS[section](), hook)
    assert any(getattr(getattr(feature, section), hook) != unused for feature in FEATURES)


@pytest.mark.parametrize(("section", "table"), TABLES)
def test_two_features_cannot_claim_the_same_key(section: str, table: str) -> None:
    owner = next(entries for feature in FEATURES if (entries := getattr(getattr(feature, section), table)))
    key, entry = next(iter(owner.items()))
    claiming: dict[str, Any] = {section: SECTIONS[section](**{table: {key: entry}})}
    rival = Feature(name="rival", **claiming)
    with pytest.raises(TypeError, match="rival"):
        Machine([*FEATURES, rival])


def test_a_payload_leaves_out_what_is_not_known() -> None:
    body = json.loads(msgspec.json.encode(MACHINE.kinds["WorkflowCompleted"]()))
    assert body == {}
