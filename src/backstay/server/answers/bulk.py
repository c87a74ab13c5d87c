"""Bulk operations: how far they are, and what they did."""

from __future__ import annotations

from typing import Any, TypedDict


class BulkAnswer(TypedDict):
    bulk_id: str
    namespace: str
    action: str
    status: str
    filter: dict[str, Any] | None
    id_count: int
    reason: str | None
    signal_name: str | None
    request_id: str | None
    requested_by: dict[str, Any] | None
    total: int
    done: int
    remaining: int
    accepted: int
    rejected: int
    failed: int
    outcomes: dict[str, int]
    reasons: dict[str, int]
    created_at: str
    ended_at: str | None


class BulkResult(TypedDict):
    workflow_id: str
    run_id: str
    outcome: str
    reason: str | None
    command_id: str | None


class BulkResultsAnswer(BulkAnswer):
    results: list[BulkResult]
    next_page_token: str | None


class BulksAnswer(TypedDict):
    namespace: str
    bulk_operations: list[BulkAnswer]
    bulk_count: int
    next_page_token: str | None
