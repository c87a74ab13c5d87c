"""Events and state of a start: the facts that are fixed when a run begins and carried over when it continues as new."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from backstay.kernel.event import Event
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.values import CODEC, Micros, Routing

STANDALONE = "backstay.activity"
"""The type of the runs that are an activity and nothing else."""

BACKGROUND = "durable-workflow.async"
"""The type of the children that run one function by its name; only a parent starts them."""


class RecordedDefinition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow's code as a run records it: its fingerprint, and its contracts with callers."""

    workflow_class: str | None = None
    fingerprint: str | None = None
    change_ids: list[str] | None = None  # literal version ids in the source
    queries: list[str] = []
    query_contracts: list[dict[str, Any]] = []
    signals: list[str] = []
    signal_contracts: list[dict[str, Any]] = []
    updates: list[str] = []
    update_contracts: list[dict[str, Any]] = []
    update_validators: list[str] | None = None  # the updates that have one; None: not known
    entry_method: str = "handle"
    entry_mode: str = "canonical"
    entry_declaring_class: str | None = None
    cleanup_seconds: float | None = None  # it handles cancellation, and may take this long


class Parent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run and call that a child belongs to."""

    namespace: str
    workflow_instance_id: str
    workflow_run_id: str
    sequence: int
    child_call_id: str
    retry_policy: RetryPolicy | None = None
    retry_attempt: int = 1
    occurrence_time: Micros | None = None  # of a schedule, which starts workflows like a parent


class OpenChild(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child that an earlier run of this chain left open, with its parent-close policy."""

    child_call_id: str
    namespace: str
    child_workflow_instance_id: str
    parent_close_policy: str


class StartAccepted(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    workflow_instance_id: str
    workflow_run_id: str
    workflow_type: str
    workflow_class: str | None = None
    business_key: str | None = None
    visibility_labels: dict[str, str] = {}
    outcome: str | None = None


class StartRejected(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    workflow_instance_id: str
    workflow_run_id: str
    workflow_type: str
    outcome: str
    rejection_reason: str


class WorkflowStarted(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_instance_id: str
    workflow_run_id: str
    workflow_type: str
    workflow_class: str | None = None
    workflow_command_id: str | None = None
    business_key: str | None = None
    visibility_labels: dict[str, str] = {}
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, Any] = {}
    arguments: bytes | None = None
    payload_codec: str = CODEC
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    execution_deadline_at: Micros | None = None
    run_deadline_at: Micros | None = None
    workflow_definition_fingerprint: str | None = None
    declared_change_ids: list[str] | None = None
    declared_queries: list[str] | None = None
    declared_query_contracts: list[dict[str, Any]] | None = None
    declared_signals: list[str] | None = None
    declared_signal_contracts: list[dict[str, Any]] | None = None
    declared_updates: list[str] | None = None
    declared_update_contracts: list[dict[str, Any]] | None = None
    declared_update_validators: list[str] | None = None
    declared_entry_method: str | None = None
    declared_entry_mode: str | None = None
    declared_entry_declaring_class: str | None = None
    declared_cleanup_seconds: float | None = None
    standalone: bool = False
    """The run is an activity and nothing else, and the kernel is its code."""
    continued_from_run_id: str | None = None
    parent_workflow_instance_id: str | None = None
    parent_workflow_run_id: str | None = None
    parent_namespace: str | None = None
    parent_sequence: int | None = None
    workflow_link_id: str | None = None
    child_call_id: str | None = None
    retry_policy: RetryPolicy | None = None
    retry_attempt: int | None = None
    retry_of_child_workflow_run_id: str | None = None
    occurrence_time: Micros | None = None
    first_task_at: Micros | None = None
    open_children: list[OpenChild] = []
    traceparent: str | None = None
    """The trace that the run belongs to, as W3C Trace Context writes it."""
    seed: str | None = None
    """The run whose random numbers the code gets, if that is another one: its history was taken over."""
    routing: Routing = Routing()


class Identity:
    """The fixed facts of a run: its ids, arguments and definition.

    `started`: the start as it counts, with the definition that was adopted later, if one was (`adopted`). `settled`: the
    definition cannot change any more, whatever the cursor says.
    """

    __slots__ = ("adopted", "business_key", "settled", "started", "visibility_labels")

    def __init__(self) -> None:
        self.business_key: str | None = None
        self.visibility_labels: dict[str, str] = {}
        self.started: WorkflowStarted | None = None
        self.adopted = False
        self.settled = False


_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def valid_traceparent(text: str | None) -> str | None:
    """The text, if it is a `traceparent`. Another one is ignored, as W3C Trace Context asks: a trace must not stop a start."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


def lineage(parent: Parent) -> dict[str, Any]:
    return {
        "parent_workflow_instance_id": parent.workflow_instance_id,
        "parent_workflow_run_id": parent.workflow_run_id,
        "parent_namespace": parent.namespace,
        "parent_sequence": parent.sequence,
        "workflow_link_id": parent.child_call_id,
        "child_call_id": parent.child_call_id,
        "retry_policy": parent.retry_policy,
        "retry_attempt": parent.retry_attempt if parent.retry_attempt > 1 else None,
        "occurrence_time": parent.occurrence_time,
    }


def parent_of(started: WorkflowStarted) -> Parent | None:
    """The call that a run belongs to, as its own history has it."""
    if started.child_call_id is None:
        return None
    return Parent(
        namespace=started.parent_namespace or "default",
        workflow_instance_id=started.parent_workflow_instance_id or "",
        workflow_run_id=started.parent_workflow_run_id or "",
        sequence=started.parent_sequence or 0,
        child_call_id=started.child_call_id,
        retry_policy=started.retry_policy,
        retry_attempt=started.retry_attempt or 1,
        occurrence_time=started.occurrence_time,
    )
