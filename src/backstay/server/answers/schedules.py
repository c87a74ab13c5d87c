"""Schedules, and when they fire."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from backstay.server.answers.overview import ScheduleCountsAnswer


class ScheduleInterval(TypedDict):
    every: str
    offset: NotRequired[str]


class ScheduleSpecAnswer(TypedDict):
    cron_expressions: list[str]
    intervals: list[ScheduleInterval]
    timezone: str


class ScheduleActionAnswer(TypedDict):
    workflow_type: str
    task_queue: str
    connection: str | None
    build_id: str | None
    priority: int
    fairness_key: str | None
    fairness_weight: int
    input: Any
    input_envelope: Any
    payload_codec: str
    execution_timeout_seconds: float | None
    run_timeout_seconds: float | None


class StartedActionAnswer(TypedDict):
    trigger_number: int
    workflow_id: str
    run_id: str
    occurrence_time: str
    started_at: str
    status: str
    closed_at: str | None
    message: str | None


class ScheduleSkips(TypedDict):
    skipped_trigger_count: int
    last_skip_reason: str | None
    last_skipped_at: str | None


class ScheduleStateAnswer(TypedDict):
    status: str
    paused: bool
    note: str | None


class ScheduleInfo(ScheduleSkips):
    next_fire: str | None
    last_fire: str | None
    fires_count: int
    running_workflow_ids: list[str]
    buffered_actions: list[str]
    recent_actions: list[StartedActionAnswer]


class ScheduleAnswer(ScheduleSkips):
    schedule_id: str
    namespace: str
    status: str
    paused: bool
    workflow_type: str
    spec: ScheduleSpecAnswer
    action: ScheduleActionAnswer
    overlap_policy: str
    note: str | None
    memo: dict[str, Any]
    search_attributes: dict[str, Any]
    visibility_labels: dict[str, str]
    jitter_seconds: int
    max_runs: int | None
    remaining_actions: int | None
    fires_count: int
    failures_count: int
    next_fire_at: str | None
    last_fired_at: str | None
    latest_workflow_instance_id: str | None
    paused_at: str | None
    created_at: str
    updated_at: str
    next_fire: str | None
    last_fire: str | None
    state: ScheduleStateAnswer
    info: ScheduleInfo
    next_action_times: list[str]


class SchedulesAnswer(TypedDict):
    schedules: list[ScheduleAnswer]
    counts: ScheduleCountsAnswer
    schedule_count: int
    next_page_token: str | None
    namespace: str


class FireAnswer(TypedDict):
    occurrence_time: str
    fire_at: str
    local_time: str
    note: str | None


class PreviewAnswer(TypedDict):
    namespace: str
    timezone: str
    jitter_seconds: int
    next_action_times: list[str]
    fires: list[FireAnswer]
