"""The `control_plane` object of responses about workflows: the operation, and the fields of its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.server.http.messages import HttpRequest

_LEGACY = {"query": "query_name", "signal": "signal_name", "update": "update_name", "wait_policy": "wait_for"}
_NAMED = {"signal": "signal_name", "query": "query_name", "update": "update_name"}

# operation -> (fields the object must have, fields a success must have)
_FIELDS: dict[str, tuple[list[str], list[str]]] = {
    "list": ([], []),
    "start": ([], ["workflow_id", "outcome"]),
    "describe": (["workflow_id"], []),
    "list_runs": (["workflow_id"], []),
    "describe_run": (["workflow_id"], ["run_id"]),
    "debug_workflow": (["workflow_id"], ["run_id", "diagnostic_status"]),
    "history": (["workflow_id", "run_id"], ["next_page_token"]),
    "signal": (["workflow_id", "operation_name", "operation_name_field"], ["outcome"]),
    "query": (["workflow_id", "operation_name", "operation_name_field"], ["result"]),
    "update": (["workflow_id", "operation_name", "operation_name_field"], ["outcome"]),
}
_COMMAND = (["workflow_id"], ["outcome"])

_PROJECTED = [
    "run_id",
    "workflow_type",
    "namespace",
    "business_key",
    "status",
    "status_bucket",
    "is_terminal",
    "task_queue",
    "run_number",
    "run_count",
    "workflow_count",
    "is_current_run",
    "compatibility",
    "started_at",
    "closed_at",
    "last_progress_at",
    "wait_kind",
    "wait_reason",
    "next_page_token",
    "command_id",
    "command_status",
    "command_source",
    "target_scope",
    "outcome",
    "reason",
    "rejection_reason",
    "validation_errors",
    "result",
    "result_envelope",
    "update_id",
    "update_status",
    "wait_for",
    "wait_timed_out",
    "wait_timeout_seconds",
    "blocked_reason",
    "message",
    "diagnostic_status",
]


def control_plane(operation: str, request: HttpRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    required, success = _FIELDS.get(operation, _COMMAND)
    answer: dict[str, Any] = {
        "schema": "durable-workflow.v2.control-plane-response",
        "version": 1,
        "operation": operation,
        "workflow_id": request.params.get("workflow_id") or body.get("workflow_id"),
        "contract": {
            "schema": "durable-workflow.v2.control-plane-response.contract",
            "version": 1,
            "legacy_field_policy": "reject_non_canonical",
            "legacy_fields": _LEGACY,
            "required_fields": required,
            "success_fields": success,
        },
    }
    name_field = _NAMED.get(operation)
    if name_field is not None:
        answer["operation_name"] = request.params.get("name")
        answer["operation_name_field"] = name_field
    for name in _PROJECTED:
        if name in body:
            answer[name] = body[name]
    if "run_id" in request.params:
        answer.setdefault("run_id", request.params["run_id"])
    return answer
