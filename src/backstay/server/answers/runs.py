"""Runs: in lists, one by one, and why they are where they are."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Filters = dict[str, str | list[str]]


class RunAnswer(TypedDict):
    """What the index of runs holds of a run."""

    workflow_id: str
    run_id: str
    run_number: int
    workflow_type: str
    namespace: str
    business_key: str | None
    visibility_labels: dict[str, str]
    search_attributes: dict[str, Any]
    status: str
    status_bucket: str
    is_terminal: bool
    closed_reason: str | None
    task_queue: str
    connection: str | None
    compatibility: str | None
    payload_codec: str
    started_at: str
    closed_at: str | None
    history_length: int


class ListedRunAnswer(RunAnswer):
    """A run in the list for operators. With `fields` a row has these alone."""

    id: str
    instance_id: str
    queue: str
    archived: bool
    archived_at: str | None
    sort_timestamp: str
    sort_key: str
    history_event_count: int
    history_size_bytes: int
    continue_as_new_recommended: bool
    is_current_run: bool
    declared_entry_mode: str | None
    declared_contract_source: str
    state: str
    attention: str | None
    why: str
    since: str | None
    until: str | None
    liveness_state: str
    wait_kind: str | None
    wait_reason: str | None
    wait_started_at: str | None
    wait_deadline_at: str | None
    open_wait_id: str | None
    resume_source_kind: str | None
    resume_source_id: str | None
    next_task_id: str | None
    next_task_type: str | None
    next_task_status: str | None
    next_task_at: str | None
    attempt: int
    attempts: int | None
    last_error: str | None
    exception_count: int
    duration_ms: int
    repair_blocked_reason: str | None
    repair_attention: bool
    task_problem: bool


class SavedViewAnswer(TypedDict):
    id: str
    name: str
    bucket: str
    version: int
    filters: dict[str, Any]
    labels: Filters
    attributes: Filters
    owner: str | None
    position: int
    system: bool
    status: Literal["supported", "unsupported"]
    message: str | None


class SavedViewsAnswer(TypedDict):
    saved_views: list[SavedViewAnswer]
    namespace: str


class ListAnswer(TypedDict):
    """What every answer of a list or count says of how it was found. `definition`, if it was asked for, is among the filters."""

    looked_at: int
    complete: bool
    namespace: str
    visibility_filters: dict[str, Any]


class RunsAnswer(ListAnswer):
    flows: list[ListedRunAnswer]
    flow_count: int
    next_page_token: str | None


class GroupCount(TypedDict):
    value: str | None
    count: int


class RunCountAnswer(ListAnswer):
    count: int
    group_by: str | None
    groups: list[GroupCount]


class SuggestionsAnswer(TypedDict):
    field: str
    prefix: str
    suggestions: list[str]
    namespace: str


class FleetEntry(TypedDict):
    worker_id: str
    namespace: str
    host: str | None
    process_id: int | None
    connection: str | None
    queue: str
    supported: list[str]
    supports_required: bool
    recorded_at: str
    expires_at: str
    source: str


class FleetOfRun(TypedDict):
    """The live workers of the queue of a run, and why none of them takes its work."""

    compatibility_namespace: str
    compatibility_fleet_reason: str | None
    compatibility_fleet: list[FleetEntry]


class SummaryAnswer(RunAnswer, FleetOfRun):
    """What the stored summary of a run says, beside its row."""

    is_current_run: bool
    state: str
    attention: str | None
    liveness_state: str
    wait_kind: str | None
    wait_name: str | None
    open_wait_id: str | None
    resume_source_kind: str | None
    resume_source_id: str | None
    since: str
    until: str | None
    wait_since: str | None
    wait_until: str | None
    queue: str
    build: str | None
    next_task_id: str | None
    next_task_kind: str | None
    next_task_type: str | None
    next_task_state: str | None
    next_task_at: str | None
    next_task_owner: str | None
    next_task_lease_expires_at: str | None
    attempt: int
    attempts: int | None
    last_error: str | None
    blocked_reason: str | None
    pause_reason: str | None
    step: int | None
    steps: int
    task_problem: bool
    can_repair: bool
    exception_count: int
    events: int
    bytes: int
    declared_entry_mode: str | None
    declared_contract_source: str
    archived_at: str | None


class WhyAction(TypedDict):
    verb: str
    label: str
    allowed: bool
    reason: str | None
    target: str | None


class WhyResumeSource(TypedDict):
    kind: str | None
    id: str | None
    deadline: str | None


class WhyCause(TypedDict):
    sequence: int
    type: str
    recorded_at: str
    about: str
    because: int | None
    outside: str | None


class WhyAnswer(TypedDict):
    namespace: str
    workflow_id: str
    run_id: str
    state: str
    attention: str | None
    verb: str
    tone: Literal["info", "good", "warning", "danger", "paused"]
    sentence: str
    since: str
    until: str | None
    by_itself: str | None
    action: WhyAction | None
    resume_source: WhyResumeSource | None
    chain: list[WhyCause]
