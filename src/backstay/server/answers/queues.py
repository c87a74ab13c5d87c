"""Task queues, the workers that serve them, and their builds."""

from __future__ import annotations

from typing import TypedDict


class QueueTasks(TypedDict):
    """The tasks of one kind. Rates are the engine's own, and null elsewhere."""

    ready_count: int
    leased_count: int
    expired_lease_count: int
    oldest_ready_at: str | None
    oldest_ready_age_seconds: float | None
    added_last_minute: float | None
    dispatched_last_minute: float | None
    completed_last_minute: float | None


class QueuePollers(TypedDict):
    active_count: int
    stale_count: int
    stale_after_seconds: int


class QueueStats(TypedDict):
    approximate_backlog_count: int
    approximate_backlog_age: str | None
    approximate_backlog_age_seconds: float | None
    oldest_ready_at: str | None
    workflow_tasks: QueueTasks
    activity_tasks: QueueTasks
    pollers: QueuePollers


class QueueRatesAnswer(TypedDict):
    added_per_minute: float
    dispatched_per_minute: float
    completed_per_minute: float


class WaitPercentiles(TypedDict):
    count: int
    p50_ms: float | None
    p95_ms: float | None


class QueueWaits(TypedDict):
    workflow_tasks: WaitPercentiles
    activity_tasks: WaitPercentiles


class BudgetAnswer(TypedDict):
    """A limit. `used`: by all nodes together, with what the others hold to use it next. `share`: what this node holds of it, if
    several nodes could share it."""

    limit: str
    allowed: int | None
    used: int
    remaining: int | None
    share: int | None
    source: str


class AdmissionAnswer(TypedDict):
    """The limits of a queue for tasks of one kind, and whether it accepts."""

    status: str
    reason: str | None
    slots: int
    active_leases: int
    max_active_leases_per_queue: int | None
    remaining_active_leases: int | None
    dispatches_this_minute: int
    max_dispatches_per_minute: int | None
    remaining_dispatches: int | None
    budget_group: str | None
    budget_source: str
    budgets: list[BudgetAnswer]


class QueueAdmissionAnswer(TypedDict):
    workflow_tasks: AdmissionAnswer
    activity_tasks: AdmissionAnswer


class QueueWorkers(TypedDict):
    ids: list[str]
    active: int
    stale: int


class PollerAnswer(TypedDict):
    worker_id: str
    runtime: str
    sdk_version: str | None
    build_id: str | None
    status: str
    last_heartbeat_at: str


class LeaseAnswer(TypedDict):
    task_id: str
    task_type: str
    type: str
    lease_owner: str | None
    attempt: int
    leased_at: str | None
    lease_expires_at: str | None


class QueueAnswer(TypedDict):
    name: str
    namespace: str
    stats: QueueStats
    rates: QueueRatesAnswer | None
    schedule_to_start: QueueWaits | None
    throttled_because: str | None
    open_runs_by_build: dict[str, int]
    counted_by: str
    admission: QueueAdmissionAnswer
    workers: QueueWorkers
    pollers: list[PollerAnswer]
    current_leases: list[LeaseAnswer]


class QueuesAnswer(TypedDict):
    namespace: str
    task_queues: list[QueueAnswer]
    next_after: str | None


class WaitingTaskAnswer(TypedDict):
    task_id: str
    task_type: str
    type: str
    workflow_id: str | None
    run_id: str | None
    workflow_type: str | None
    build_id: str | None
    priority: int
    fairness_key: str | None
    attempt: int
    waiting_since: str
    waiting_seconds: float


class WaitingTasksAnswer(TypedDict):
    namespace: str
    task_queue: str
    tasks: list[WaitingTaskAnswer]
    next_page_token: str | None


class RolloutAnswer(TypedDict):
    namespace: str
    task_queue: str
    build_id: str | None
    drain_intent: str
    drained_at: str | None
    promoted_at: str | None
    rolled_back_at: str | None
    new_start_selected: bool


class BuildAnswer(RolloutAnswer):
    rollout_status: str
    active_worker_count: int
    draining_worker_count: int
    stale_worker_count: int
    total_worker_count: int
    runtimes: list[str]
    sdk_versions: list[str]
    last_heartbeat_at: str | None
    first_seen_at: str | None
    workflow_definition_fingerprint_count: int
    workflow_definition_fingerprint_conflicts: list[str]
    open_runs: int
    drained: bool
    workers: list[str]


class BuildOverlap(TypedDict):
    live: bool
    builds: list[str | None]
    unsafe_claims_blocked: bool
    blocked_reason: str


class BuildsAnswer(TypedDict):
    namespace: str
    task_queue: str
    stale_after_seconds: int
    overlap: BuildOverlap
    build_ids: list[BuildAnswer]
