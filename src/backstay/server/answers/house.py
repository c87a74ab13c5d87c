"""Who is signed in, the namespaces, the workers and their sessions."""

from __future__ import annotations

from typing import Any, TypedDict


class EnvironmentAnswer(TypedDict):
    name: str | None
    colour: str | None


class SessionAnswer(TypedDict):
    authenticated: bool
    authentication: str
    method: str
    role: str
    roles: list[str]
    namespace: str | None
    default_namespace: str
    token_id: str | None
    session_id: str | None
    payloads: bool
    signed_in_at: str | None
    expires_at: str | None
    environment: EnvironmentAnswer
    server_id: str
    version: str


class NamespaceAnswer(TypedDict):
    name: str
    description: str | None
    retention_days: int
    status: str
    external_payload_storage: None
    created_at: str
    updated_at: str


class NamespacesAnswer(TypedDict):
    namespaces: list[NamespaceAnswer]


class WorkerRow(TypedDict):
    """A worker in the list. What it declares of its workflows is in the answer of the worker itself."""

    worker_id: str
    namespace: str
    status: str
    task_queue: str
    task_queues: list[str]
    runtime: str
    sdk_version: str | None
    build_id: str | None
    supported_workflow_types: list[str]
    supported_activity_types: list[str]
    capabilities: list[str]
    max_concurrent_workflow_tasks: int
    max_concurrent_activity_tasks: int
    max_concurrent_worker_sessions: int
    task_slots: dict[str, int]
    process_metrics: dict[str, Any]
    heartbeat_interval_seconds: int | None
    host: str | None
    process_id: int | None
    connection: str | None
    compatibility_namespace: str | None
    registered_at: str
    updated_at: str
    last_heartbeat_at: str


class WorkersAnswer(TypedDict):
    namespace: str
    workers: list[WorkerRow]
    stale_after_seconds: int


class SessionHolder(TypedDict):
    worker_id: str
    task_queue: str
    status: str
    last_heartbeat_at: str | None
    is_stale: bool


class WorkerSessionAnswer(TypedDict):
    session_id: str
    namespace: str
    queue: str
    connection: str | None
    requirements: list[str]
    status: str
    lease_owner: str
    holder: SessionHolder
    created_at: str
    lease_expires_at: str
    ttl_expires_at: str
    closed_at: str | None
    close_reason: str | None
    failure_reason: str | None
    lease_seconds: int
    ttl_seconds: int
    max_concurrent_activities: int
    create_if_missing: bool
    allow_reacquire_after_failure: bool
    active_activity_count: int
    waiting_activity_count: int


class WorkerSessionsAnswer(TypedDict):
    namespace: str
    worker_sessions: list[WorkerSessionAnswer]
    session_count: int
